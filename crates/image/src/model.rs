//! What the store knows about an image.

use serde::{Deserialize, Serialize};

use crate::{LayerId, Platform};

/// An image that is wholly in the store: every layer unpacked.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Image {
    /// `sha256:` and the hash of the image's configuration.
    pub id: String,
    /// Full names that point here, such as `docker.io/library/alpine:3`, sorted; may be empty.
    pub references: Vec<String>,
    /// Layers, lowest first.
    pub layers: Vec<LayerId>,
    /// How a process of this image starts.
    pub config: ImageConfig,
    /// Bytes of file content in all its layers, unpacked; shared layers count for each image.
    pub size_bytes: u64,
    /// When the image was built, as its author wrote it (RFC 3339).
    pub created_at: Option<String>,
    /// When it came into this store.
    pub pulled_at: jiff::Timestamp,
}

/// The part of an image's configuration that matters to a process in it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ImageConfig {
    /// What the image was built for.
    pub platform: Platform,
    /// Environment, in the image's order; a later name wins.
    pub env: Vec<(String, String)>,
    /// Working directory; empty text in the image is `None`.
    pub working_dir: Option<String>,
    /// User as the image names it: `user`, `uid`, `user:group` or `uid:gid`.
    pub user: Option<String>,
    /// Program and leading arguments.
    pub entrypoint: Vec<String>,
    /// Default arguments, or the program where there is no entrypoint.
    pub cmd: Vec<String>,
    /// Labels, sorted by name.
    pub labels: Vec<(String, String)>,
    /// Ports that the image says it serves, such as `8080/tcp`.
    pub exposed_ports: Vec<String>,
    /// Signal that asks the program to end, as the image writes it.
    pub stop_signal: Option<String>,
}

/// What a removal took away.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Removed {
    /// Names that no longer exist.
    pub references: Vec<String>,
    /// Id of the image, when its last name went. Its layers go with the next prune.
    pub image: Option<String>,
}

/// Until when images stay that nobody uses. The default bounds nothing.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Bounds {
    /// Most bytes of file content of all layers together; images unused for longest go first. Layers of sandboxes count,
    /// and stay.
    pub max_bytes: Option<u64>,
    /// How long an image stays after it was last asked for.
    pub unused_for: Option<std::time::Duration>,
}

/// What a prune took away.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Pruned {
    /// Ids of images that had lost their last name, or were unused for too long.
    pub images: Vec<String>,
    /// Layers that no image and no sandbox needed.
    pub layers: Vec<LayerId>,
    /// Layers nobody needed that stay because they were asked for within the last minute.
    pub layers_kept: u32,
    /// Bytes of file content and downloads that were freed.
    pub bytes: u64,
}
