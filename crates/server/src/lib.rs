//! The control plane: the lifecycle API over HTTP, the record of every sandbox, the drivers that carry their
//! lives on, and the proxy to their ports.
//!
//! Owns HTTP, the database and time; refuses to know kernels: whatever a sandbox is made of lies behind
//! [`lifecycle::runtime::Runtime`]. Invariants: state is stored before its effect; one task owns each
//! sandbox's state; no secret reaches a log, an error or the database; every wait and buffer has a bound.

mod accept;
mod app;
mod auth;
pub mod config;
mod driver;
mod errors;
mod images;
mod middleware;
mod network;
mod pools;
mod proxy;
mod routes;
mod serve;
mod snapshots;
mod store;
mod templates;
mod volumes;
mod warm;
mod wire;

pub use config::{Config, Effective};
pub use network::Egress;
pub use serve::{Database, Error, Options, serve};
