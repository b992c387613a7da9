//! Every key that is known: type, default, purpose. The one list that loading, help and printing share.

use super::values::Kind;

/// A known key.
pub(super) struct Key {
    pub(super) name: &'static str,
    pub(super) kind: Kind,
    /// As TOML writes it; `None` is unset.
    pub(super) default: Option<&'static str>,
    pub(super) purpose: &'static str,
}

const fn key(name: &'static str, kind: Kind, default: Option<&'static str>, purpose: &'static str) -> Key {
    Key { name, kind, default, purpose }
}

/// Every key, grouped by section.
pub(super) const KEYS: &[Key] = &[
    key("server.host", Kind::Text, Some("\"127.0.0.1\""), "address to listen on"),
    key("server.port", Kind::Integer { min: 0, max: 65_535 }, Some("8080"), "port to listen on; 0 takes a free one"),
    key("server.api_key", Kind::Secret, None, "API key; unset means the one made in the data directory"),
    key("server.eip", Kind::Text, None, "host[:port] by which clients reach this server"),
    key(
        "server.max_sandbox_timeout_seconds",
        Kind::Integer { min: 60, max: MAX_SECONDS },
        None,
        "longest lifetime of a sandbox",
    ),
    key(
        "server.limit_concurrency",
        Kind::Integer { min: 0, max: 1_000_000 },
        Some("1024"),
        "requests worked on at the same time; 0 means no limit; over it 503",
    ),
    key("server.timeout_keep_alive", SECONDS, Some("30"), "seconds an idle connection is kept"),
    key("server.timeout_graceful_shutdown", SECONDS, Some("5"), "seconds open requests may go on after a stop"),
    key(
        "server.backlog",
        Kind::Integer { min: 1, max: 65_535 },
        Some("2048"),
        "connections that the kernel holds before they are accepted",
    ),
    key(
        "proxy.trust_forwarded",
        Kind::Switch,
        Some("false"),
        "keep X-Forwarded-* of callers instead of replacing them",
    ),
    key("ingress.mode", Kind::OneOf(&["direct"]), Some("\"direct\""), "how ports are reached: through this server"),
    key("ingress.secure_access.active_key", Kind::Text, None, "key_id of the key that signs links"),
    key(
        "ingress.secure_access.keys",
        Kind::Keys,
        None,
        "keys of links, [{ key_id, key }]; unset means one made from the server's secret",
    ),
    key("renew_intent.enabled", Kind::Switch, Some("true"), "whether sandboxes may ask to be renewed by access"),
    key(
        "renew_intent.min_interval_seconds",
        Kind::Integer { min: 1, max: 86_400 },
        Some("60"),
        "least seconds between two renewals of one sandbox by access",
    ),
    key(
        "log.level",
        Kind::OneOf(&["ERROR", "WARN", "INFO", "DEBUG", "TRACE"]),
        Some("\"INFO\""),
        "least level of log lines",
    ),
    key("runtime.type", Kind::OneOf(&["native"]), Some("\"native\""), "what sandboxes are made with"),
    key("store.type", Kind::OneOf(&["sqlite"]), Some("\"sqlite\""), "database of the records"),
    key("store.path", Kind::Text, None, "database file; unset means the one in the data directory"),
    key(
        "native.grace_seconds",
        Kind::Fraction { min: 0.0, max: 300.0 },
        Some("2.0"),
        "seconds between TERM and KILL when a sandbox is ended",
    ),
    key(
        "images.plain_http_hosts",
        Kind::List,
        Some("[]"),
        "registries host[:port] that speak plain HTTP, beside loopback",
    ),
    key(
        "images.max_size",
        Kind::Text,
        None,
        "bytes, for example 50Gi, of all unpacked images, beyond which pulled ones go that are unused for longest; unset keeps all",
    ),
    key(
        "images.unused_days",
        Kind::Integer { min: 1, max: 3650 },
        None,
        "days after which a pulled image goes that nobody asked for; unset keeps all",
    ),
    key(
        "egress.default_policy",
        Kind::OneOf(&["public", "nothing", "all"]),
        Some("\"public\""),
        "what a sandbox without a networkPolicy may reach: the public internet, nothing, or private networks, too",
    ),
    key("egress.always_allow", Kind::List, Some("[]"), "names, addresses and networks that every sandbox may reach"),
    key(
        "egress.always_deny",
        Kind::List,
        Some("[\"127.0.0.0/8\", \"::1\", \"169.254.169.254\", \"fd00:ec2::254\"]"),
        "those that none may reach, whatever its policy says",
    ),
    key(
        "egress.deny_webhook",
        Kind::Secret,
        None,
        "URL that is posted every refusal; the server calls it, not a sandbox",
    ),
    key(
        "egress.upstream_proxy",
        Kind::Secret,
        None,
        "http://[USER:PASSWORD@]HOST[:PORT] by which the internet is reached; it resolves names then",
    ),
    key(
        "egress.upstream_direct",
        Kind::List,
        Some("[]"),
        "names, addresses and networks that are reached without the upstream proxy",
    ),
    key("egress.resolvers", Kind::List, Some("[]"), "resolvers address[:port]; empty means those of the machine"),
    key(
        "egress.upstream_ca",
        Kind::List,
        Some("[]"),
        "PEM files of authorities by which origins of bound hosts may be verified, beside those of the machine",
    ),
    key(
        "egress.vault_plain_http",
        Kind::Switch,
        Some("false"),
        "whether credentials may be bound to http, where everybody on the way reads them",
    ),
    key(
        "egress.recording_max_bytes",
        Kind::Integer { min: 1 << 20, max: 16 << 30 },
        Some("1073741824"),
        "how long the recording of one sandbox may get, and one that is uploaded",
    ),
    key(
        "storage.allowed_host_paths",
        Kind::List,
        Some("[]"),
        "paths of this machine that sandboxes may mount, with all beneath; empty allows none",
    ),
    key(
        "storage.volume_default_size",
        Kind::Text,
        None,
        "size limit of a named volume that is made without one, 1Gi for example; unset means no limit",
    ),
    key(
        "secure_runtime.type",
        Kind::OneOf(&["", "gvisor"]),
        Some("\"\""),
        "what every sandbox runs on: empty is the machine's own kernel, gvisor is runsc, which must be installed",
    ),
    key(
        "secure_runtime.docker_runtime",
        Kind::OneOf(&["", "runsc"]),
        Some("\"\""),
        "published name of the runtime of that type; may be left out",
    ),
    key(
        "warm.max_memory_bytes",
        Kind::Integer { min: 0, max: 1 << 40 },
        Some("67108864"),
        "memory for sandboxes kept ready because such were asked for lately, 4 MiB each; 0 keeps none",
    ),
    key(
        "warm.pool_wait_seconds",
        Kind::Integer { min: 0, max: 300 },
        Some("5"),
        "seconds that a create waits for a place in a pool that is full",
    ),
];

/// A hundred years: anything above is a mistake.
const MAX_SECONDS: i64 = 3_155_760_000;
const SECONDS: Kind = Kind::Integer { min: 1, max: 86_400 };

/// Published keys and sections whose subject does not exist here; a trailing dot covers the whole section.
pub(super) const UNSUPPORTED: &[(&str, &str)] = &[
    ("server.thread_pool_size", "there is no thread pool to size"),
    ("server.loop", "it selects a part of the published server's machinery"),
    ("server.http", "it selects a part of the published server's machinery"),
    ("proxy.resolve_internal", "ports are always reached by the sandbox's own socket"),
    ("log.file_enabled", "logs go to standard error; redirect them"),
    ("log.file_path", "logs go to standard error; redirect them"),
    ("log.access_file_path", "logs go to standard error; redirect them"),
    ("log.file_max_bytes", "logs go to standard error; redirect them"),
    ("log.file_backup_count", "logs go to standard error; redirect them"),
    ("runtime.execd_image", "execd is carried inside this program"),
    ("runtime.execd_run_as_init", "execd is always the first process of a sandbox"),
    ("store.postgresql.", "only SQLite exists here yet"),
    ("storage.ossfs_mount_root", "bucket volumes do not exist here"),
    ("tenants.", "there is one tenant"),
    ("renew_intent.redis.", "one server sees every access itself and needs no queue"),
    ("otel.", "metrics export does not exist here yet"),
    ("egress.image", "the egress process is part of this program"),
    ("egress.mode", "names, addresses and connections are always checked together"),
    ("egress.disable_ipv6", "IPv6 is under the same policy"),
    ("egress.readiness_timeout_seconds", "a sandbox is ready when its network is"),
    ("ingress.gateway.", "the gateway does not exist here yet"),
    ("docker.", "the Docker runtime does not exist here yet"),
    ("kubernetes.pool_acquisition_timeout_seconds", "pools are this server's own: use warm.pool_wait_seconds"),
    ("kubernetes.", "the Kubernetes runtime does not exist here yet"),
    ("agent_sandbox.", "the Kubernetes runtime does not exist here yet"),
    ("secure_runtime.k8s_runtime_class", "the Kubernetes runtime does not exist here yet"),
];

/// Published variable names beside `OSB_<SECTION>_<KEY>`.
pub(super) const PUBLISHED_ENV: &[(&str, &str)] = &[
    ("server.api_key", "OPENSANDBOX_SERVER_API_KEY"),
    ("ingress.secure_access.keys", "OPENSANDBOX_SECURE_ACCESS_KEYS"),
    ("ingress.secure_access.active_key", "OPENSANDBOX_SECURE_ACCESS_ACTIVE_KEY"),
];
