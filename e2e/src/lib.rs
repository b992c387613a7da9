//! Whole-process tests: the built `osb`, the published clients, the kernel.
//!
//! Owns the harness that starts a server of its own, the recorder that checks
//! every exchange against the published contract, and the census that proves
//! that nothing was left behind. Knows the public protocol and the command
//! line only: no crate of the product is linked.

pub mod bench;
pub mod census;
pub mod client;
pub mod contract;
pub mod guest;
pub mod promise;
pub mod recorder;
pub mod server;
pub mod trace;
