//! Which extended attributes of a sandbox's files are in its snapshots.

/// What becomes of an extended attribute.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Attribute {
    /// It is copied.
    Kept,
    /// It is overlayfs's own and means nothing in a layer.
    Private,
    /// It belongs to the host.
    LeftOut,
}

/// Names that overlayfs gives to what it remembers; what a sandbox calls so is escaped once more on its disk.
const OVERLAY: &[u8] = b"user.overlay.";

/// What becomes of the one with this name.
pub(super) fn attribute(name: &[u8]) -> Attribute {
    match name.strip_prefix(OVERLAY) {
        // That a directory hides the ones below it.
        Some(b"opaque") => Attribute::Kept,
        Some(rest) if rest.starts_with(b"overlay.") => Attribute::Kept,
        Some(_) => Attribute::Private,
        None if name.starts_with(b"user.") => Attribute::Kept,
        // Without effect, since every mount of a layer is `nosuid`, but part of what was written.
        None if matches!(name, b"security.capability" | b"system.posix_acl_access" | b"system.posix_acl_default") => {
            Attribute::Kept
        }
        None => Attribute::LeftOut,
    }
}
