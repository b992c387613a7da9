//! What stands around the programs of a sandbox: `hardening` of `GET /v1/isolated/capabilities`, and
//! `GET /v1/hardening`, an addition of ours.

use serde::{Deserialize, Serialize};

/// Layers around user code.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Hardening {
    /// `pid1`, `subreaper` or `none`: how execd looks after the processes of others.
    pub init_mode: String,
    /// Whether the kernel keeps the signals of other processes from execd, KILL and STOP included.
    pub signal_shield: bool,
    /// Capabilities.
    pub cap_drop: Layer,
    /// System calls.
    pub seccomp: Layer,
    /// Files.
    pub landlock: Layer,
    /// Observation.
    pub ebpf: Layer,
}

/// One layer.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Layer {
    /// `active`, `disabled`, `degraded` or `unsupported`.
    pub state: String,
    /// What it does, or why it is not active.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub message: Option<String>,
}

/// The layers, and what the kernel says of execd itself: every process of the sandbox descends from it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct HardeningReport {
    /// The layers.
    #[serde(flatten)]
    pub layers: Hardening,
    /// `NoNewPrivs`.
    pub no_new_privs: bool,
    /// `Seccomp`: 0 none, 1 strict, 2 filter.
    pub seccomp_mode: u32,
    /// `Seccomp_filters`.
    pub seccomp_filters: u32,
    /// `CapEff`, as the kernel writes it.
    pub capabilities_effective: String,
    /// `CapBnd`, as the kernel writes it: what no process of the sandbox can have more than.
    pub capabilities_bounding: String,
    /// Lines of `uid_map`: inside, outside, count.
    pub uid_map: Vec<[u32; 3]>,
}
