//! Layers on disk: unpacked by this confined child of the jailer, never by the server.

use std::os::fd::OwnedFd;

use super::Jail;
use crate::error::{Failure, Kind, Result};
use crate::policy::check_layer;
use crate::wire::Reply;

/// Unpacks a blob.
pub fn unpack(_jail: &Jail, layer: &str, _compression: &str, _blob: OwnedFd) -> Result<Reply> {
    check_layer(layer)?;
    Err(Failure::new(Kind::Unsupported, "waits for the image room"))
}

/// Whether a layer is there.
pub fn has(jail: &Jail, layer: &str) -> Result<bool> {
    check_layer(layer)?;
    Ok(jail.paths.layer(layer).is_dir())
}

/// Removes a layer.
pub fn remove(_jail: &Jail, layer: &str) -> Result<()> {
    check_layer(layer)
}

/// Makes the host image's layer.
pub fn host(_jail: &Jail) -> Result<String> {
    Err(Failure::new(Kind::Unsupported, "waits for the image room"))
}
