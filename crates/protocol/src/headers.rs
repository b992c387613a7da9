//! Names of the HTTP headers of the protocol, lower-case as `http` wants them.

/// The API key of the lifecycle API.
pub const API_KEY: &str = "open-sandbox-api-key";
/// The sandbox's token, sent with every call to its execd.
pub const EXECD_ACCESS_TOKEN: &str = "x-execd-access-token";
/// The sandbox's token, sent with calls to any other port of it.
pub const SECURE_ACCESS: &str = "opensandbox-secure-access";
/// Token of a sandbox for its network policy (port 18080).
pub const EGRESS_AUTH: &str = "opensandbox-egress-auth";
/// Opts one proxied request out of renew-on-access (`skip`).
pub const ACCESS_RENEW: &str = "opensandbox-access-renew";
/// Tells errors of the platform (`platform`) from answers of what runs in a sandbox, which never carry it.
pub const ERROR_SOURCE: &str = "opensandbox-error-source";
/// Identifies a request in answers, logs and errors; echoed when the client sends one.
pub const REQUEST_ID: &str = "x-request-id";
/// Byte offset to read a background command's log from next.
pub const COMMANDS_TAIL_CURSOR: &str = "execd-commands-tail-cursor";
/// Marks deprecated answers (`true`).
pub const DEPRECATION: &str = "deprecation";
/// Where a sandbox came from; exposed by CORS.
pub const ORIGIN_KIND: &str = "open-sandbox-origin";
/// A caller's own name for a create: sent again within a day, the create does not happen again.
pub const IDEMPOTENCY_KEY: &str = "idempotency-key";
