//! The long-running roles of this program: the supervisor, the API process, the jailer, the egress process, and the engine that
//! `osb run` starts in its own process when no server runs.
//!
//! Owns processes, identities and the data directory. The roles and why they are apart:
//! `docs/adr/0004-processes.md`.

pub mod api;
pub mod data_dir;
pub mod egress;
pub mod embedded;
pub mod jailer;
pub mod supervisor;
