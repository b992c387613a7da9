//! The native runtime: sandboxes made of namespaces, an overlay, cgroups and a system-call filter.
//!
//! Two halves that share only the words of [`wire`]: the [`jailer`], a single-threaded process with privilege, and
//! [`NativeRuntime`], which lives in the server without any and asks the jailer.

pub mod cgroup;
mod client;
pub mod disk;
pub mod error;
mod exits;
pub mod gvisor;
pub mod idrange;
pub mod init;
pub mod jailer;
pub mod network;
pub mod paths;
pub mod policy;
pub mod probe;
pub mod rootfs;
mod runtime;
pub mod seccomp;
mod session_init;
mod session_root;
mod snapshot;
pub mod state;
pub mod sys;
pub mod trust;
mod unpacker;
pub mod user;
pub mod volumes;
pub mod wire;

pub use client::Client;
pub use runtime::{NativeRuntime, Settings};
