//! Images: names, registries, the content store, and the unpacking of layers.
//!
//! Owns everything between a name that a person types (`alpine`) and a stack of unpacked layer
//! directories. It is the room for hostile input: what arrives here was written by strangers.
//!
//! It refuses to know sandboxes, mounts and the HTTP API. Who unpacks is behind [`Unpack`]: in
//! production a short-lived confined child of the jailer, which calls [`unpack::unpack_layer`];
//! [`InProcess`] does the same in the calling process, for tests and tools.
//!
//! Invariants:
//! - A layer is visible under its diff id only after its whole content hashed to that id.
//! - A blob is parsed only after its digest was verified.
//! - A failure leaves the store as it was, apart from partial downloads kept for a resume.
//! - A private image is served only to those whose credentials its registry accepted.
//! - No password reaches a file, a log, an error or `Debug`.

mod credentials;
mod digest;
mod error;
pub mod host;
mod import;
mod in_process;
mod layer_id;
pub mod layers;
mod manifest;
mod model;
mod platform;
mod progress;
mod reference;
mod registry;
mod store;
pub mod unpack;

pub use credentials::Credentials;
pub use error::Error;
pub use in_process::InProcess;
pub use layer_id::{InvalidLayerId, LayerId};
pub use model::{Bounds, Image, ImageConfig, Pruned, Removed};
pub use platform::{InvalidPlatform, Platform};
pub use progress::{Progress, Stage};
pub use reference::Reference;
pub use store::{EnsureOptions, Store};
pub use unpack::{BoxFuture, Compression, LayerStats, Unpack, UnpackError};
