//! What a vault asks of the policy of its sandbox, and what the operator allows.

use serde::{Deserialize, Serialize};

/// The policy of a sandbox, as a vault sees it.
pub trait Coverage {
    /// Whether this name may be reached at this port. A wildcard is asked for by a name below it.
    fn allows(&self, host: &str, port: u16) -> bool;

    /// Whether TLS to this name is opened; what passes untouched cannot be given credentials.
    fn opens(&self, _host: &str) -> bool {
        true
    }
}

/// What the operator allows and demands.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Options {
    /// Whether bindings may be about `http`, where credentials are sent in the clear.
    pub allow_http: bool,
    /// Whether bindings must name their methods and paths, and not all paths.
    pub require_scoped_match: bool,
    /// Ports, beside 80 and 443, that bindings may name.
    pub extra_ports: Vec<u16>,
}
