//! What can go wrong, by whose fault, with what to do.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use crate::{LayerId, Platform, UnpackError};

/// Why an image cannot be had. The chain of sources has the details; no message repeats its source.
#[derive(Debug, Clone, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The name cannot be the name of an image.
    #[error("image reference {reference:?} is not valid: {reason}")]
    Reference {
        /// The name as given, cut to a bounded length.
        reference: String,
        /// What is wrong with it.
        reason: &'static str,
    },
    /// The store does not have it, and nothing says where it could come from.
    #[error("image {reference} is not in the local store; `osb image list` shows what is")]
    NotLocal {
        /// The name or id asked for.
        reference: String,
    },
    /// An id is a prefix of several images.
    #[error("{prefix} is the beginning of several image ids; give more digits")]
    AmbiguousId {
        /// The beginning as given.
        prefix: String,
    },
    /// The registry knows no such repository, tag or digest.
    #[error("image {reference} does not exist in its registry; check the name and the tag")]
    NotFound {
        /// The full name asked for.
        reference: String,
    },
    /// The registry refused the credentials, or wants some.
    #[error("registry {registry} refused access to {reference}: {}", match .authenticated {
        true => "the credentials were not accepted for this image",
        false => "it is private or does not exist; give credentials that may pull it",
    })]
    Unauthorized {
        /// The registry that refused.
        registry: String,
        /// The full name asked for.
        reference: String,
        /// Whether credentials were sent.
        authenticated: bool,
    },
    /// The registry asks for fewer requests.
    #[error("registry {registry} limits requests; try later, or give credentials for a higher limit")]
    RateLimited {
        /// The registry that refused.
        registry: String,
    },
    /// No conversation with the registry was possible.
    #[error("registry {registry} cannot be reached")]
    Unreachable {
        /// The registry or the host it sent us to.
        registry: String,
        /// What the connection met; without its URL, which may carry a signature.
        #[source]
        source: Arc<reqwest::Error>,
    },
    /// The machine trusts no certificate authority, so no encrypted registry can be spoken to.
    #[error(
        "registry {registry} cannot be verified: this machine has no certificate authorities; install the package ca-certificates"
    )]
    NoCertificates {
        /// The registry.
        registry: String,
        /// What the search for certificates met.
        #[source]
        source: Arc<reqwest::Error>,
    },
    /// The registry kept breaking off, or fell silent.
    #[error("registry {registry} broke off {what} {attempts} times in a row without progress")]
    Interrupted {
        /// The registry.
        registry: String,
        /// What was being fetched.
        what: String,
        /// How often it was tried.
        attempts: u32,
        /// What the last connection met, when it was more than an early end.
        #[source]
        source: Option<Arc<reqwest::Error>>,
    },
    /// The registry sends so slowly that it would never end.
    #[error("registry {registry} sends {what} too slowly to wait for")]
    TooSlow {
        /// The registry.
        registry: String,
        /// What was being fetched.
        what: String,
    },
    /// The registry answered something else than the protocol allows.
    #[error("registry {registry} answered {operation} with {detail}")]
    Registry {
        /// The registry.
        registry: String,
        /// What it was asked.
        operation: String,
        /// Status and message, cut to a bounded length.
        detail: String,
    },
    /// Content is not what its digest says: damage, or an attack.
    #[error("{what} hashes to {found}, not to {expected}; it is damaged or was replaced")]
    DigestMismatch {
        /// Which blob.
        what: String,
        /// The digest by which it was asked for.
        expected: String,
        /// The digest of what came.
        found: String,
    },
    /// A manifest or layer has a form that cannot be used.
    #[error("{what} has media type {found:?}, which is not supported; {advice}")]
    MediaType {
        /// The manifest or layer.
        what: String,
        /// The type it has.
        found: String,
        /// What to do.
        advice: &'static str,
    },
    /// The image exists, but not for the platform.
    #[error("image {reference} has no version for {wanted}; it has: {}", list(.available))]
    Platform {
        /// The full name asked for.
        reference: String,
        /// What was asked for.
        wanted: Platform,
        /// What there is.
        available: Vec<Platform>,
    },
    /// A manifest, index, configuration or archive is not well formed.
    #[error("{what} is not well formed: {reason}")]
    Malformed {
        /// The document or archive.
        what: String,
        /// What is wrong with it.
        reason: String,
    },
    /// Something is bigger than a named limit.
    #[error("{what} is larger than the limit of {limit_bytes} bytes")]
    TooLarge {
        /// What.
        what: String,
        /// The limit.
        limit_bytes: u64,
    },
    /// The file to import is none of the known kinds.
    #[error("{} is neither a root file system archive, an OCI layout nor a docker archive: {reason}", .path.display())]
    UnknownKind {
        /// The file or directory.
        path: PathBuf,
        /// What was seen, and what to do.
        reason: String,
    },
    /// An archive or layout holds several images.
    #[error("the archive holds several images; import one of them by its name: {}", .names.join(", "))]
    SeveralImages {
        /// The names in it.
        names: Vec<String>,
    },
    /// A layer was refused or could not be written.
    #[error("unpack layer {layer}")]
    Unpack {
        /// The layer's diff id.
        layer: LayerId,
        /// Why.
        #[source]
        source: UnpackError,
    },
    /// The disk of the store is full.
    #[error(
        "no space left on the disk of the image store while trying to {operation}; free some, for instance with `osb image prune`"
    )]
    NoSpace {
        /// What was being done.
        operation: String,
    },
    /// A file operation failed.
    #[error("{operation} {}", .path.display())]
    Io {
        /// What was being done.
        operation: &'static str,
        /// To which file.
        path: PathBuf,
        /// What the kernel said.
        #[source]
        source: Arc<io::Error>,
    },
    /// A task of the store ended without a result.
    #[error("{operation} was abandoned because its task ended")]
    Abandoned {
        /// What was being done.
        operation: &'static str,
    },
}

fn list(platforms: &[Platform]) -> String {
    match platforms {
        [] => "none".to_owned(),
        some => some.iter().map(Platform::to_string).collect::<Vec<_>>().join(", "),
    }
}

impl Error {
    pub(crate) fn io(operation: &'static str, path: &Path, source: io::Error) -> Self {
        match source.kind() {
            io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded => {
                Self::NoSpace { operation: format!("{operation} {}", path.display()) }
            }
            _ => Self::Io { operation, path: path.to_owned(), source: Arc::new(source) },
        }
    }

    pub(crate) fn unpack(layer: &LayerId, source: UnpackError) -> Self {
        match source {
            UnpackError::NoSpace => Self::NoSpace { operation: format!("unpack layer {layer}") },
            source => Self::Unpack { layer: layer.clone(), source },
        }
    }

    pub(crate) fn malformed(what: impl Into<String>, reason: impl Into<String>) -> Self {
        Self::Malformed { what: what.into(), reason: reason.into() }
    }
}
