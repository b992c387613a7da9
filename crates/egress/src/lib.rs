//! The way out of sandboxes.
pub mod guard;
pub mod inspect;
pub mod limits;
pub mod name;
pub mod names;
pub mod policy;
