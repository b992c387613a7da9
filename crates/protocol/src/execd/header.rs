//! Headers of ours that go beyond the published execd API.

/// What a foreground command's end of connection does: [`ON_DISCONNECT_CANCEL`], or nothing by default.
pub const ON_DISCONNECT: &str = "opensandbox-on-disconnect";
/// The command's process group is ended when the client goes away.
pub const ON_DISCONNECT_CANCEL: &str = "cancel";
/// How a file call walks its paths: [`RESOLVE_NO_SYMLINKS`], or following links by default.
pub const RESOLVE: &str = "opensandbox-resolve";
/// Any symbolic link on the way to a path is refused.
pub const RESOLVE_NO_SYMLINKS: &str = "no-symlinks";
