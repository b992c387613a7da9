//! Headers of ours that go beyond the published execd API.

/// What a foreground command's end of connection does: [`ON_DISCONNECT_CANCEL`] or
/// [`ON_DISCONNECT_CONTINUE`].
pub const ON_DISCONNECT: &str = "opensandbox-on-disconnect";
/// The command's process group is ended when the client goes away.
pub const ON_DISCONNECT_CANCEL: &str = "cancel";
/// The command goes on when the client goes away: what commands do anyway, and session runs do not.
pub const ON_DISCONNECT_CONTINUE: &str = "continue";
/// Answers of `POST /command` and of session runs: the id under which the output can be read again.
pub const COMMAND_ID: &str = "opensandbox-command-id";
/// Answers of `GET /command/{id}/logs`: the range of bytes, `from-to`, that the cursor asked for and that is not
/// kept any more.
pub const OUTPUT_LOST: &str = "opensandbox-output-lost";
/// How a file call walks its paths: [`RESOLVE_NO_SYMLINKS`], or following links by default.
pub const RESOLVE: &str = "opensandbox-resolve";
/// Any symbolic link on the way to a path is refused.
pub const RESOLVE_NO_SYMLINKS: &str = "no-symlinks";
