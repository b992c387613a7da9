//! The pure domain: what a sandbox is, what may be asked of it, and how its life goes on.
//!
//! Owns [`admit`] (the only place that says "unsupported"), [`state`] (the state machine), [`spec`] (what
//! was admitted), [`volume`] (what it shares), [`snapshot`] (what is kept of it), [`pool`] (how many wait, and what for),
//! [`warm`] (waiting sandboxes) and the [`runtime::Runtime`] trait. Refuses to know HTTP, databases and kernels: nothing here
//! does I/O. Wire types come in through [`admit`] and end there.

pub mod admit;
pub mod clock;
pub mod fake;
pub mod isolated;
pub mod pool;
pub mod quantity;
pub mod runtime;
pub mod snapshot;
pub mod spec;
pub mod state;
pub mod volume;
pub mod warm;
