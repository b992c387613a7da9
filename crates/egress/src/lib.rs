//! The way out of sandboxes: one process for the machine, without privileges, that decides about every connection and
//! question of every sandbox.
//!
//! Owns the policy's meaning, DNS, the relay, and the record of what became of each connection. It never enters a
//! namespace and never opens a listening socket: the sockets on which it hears a sandbox were made in that sandbox's
//! namespace and are passed to it. What a sandbox sends, what a resolver answers and what an origin sends is hostile.
//!
//! The server links this crate for [`Control`], [`policy`] and the types of events; the program calls [`run`].

mod control;
mod dial;
mod dns;
mod flow;
pub mod guard;
pub mod inspect;
pub mod limits;
pub mod name;
pub mod names;
pub mod policy;
mod process;
mod relay;
mod resolve;
mod sandbox;
pub mod verdicts;

pub use control::{
    Boot, Control, ControlError, EVENTS_PER_PACKET, Failure, SandboxStats, Settings, Stats, Watch, boot, pair,
};
pub use process::run;
pub use sandbox::Listeners;
