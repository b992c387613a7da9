//! Code contexts: `POST /code` and `/code/context(s)`.

use serde::{Deserialize, Serialize};

/// Body of `POST /code/context`.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct CreateContext {
    /// `python`, `javascript`, `typescript`, `bash`, `sql`, or the language of an installed kernel.
    #[serde(default)]
    pub language: Option<String>,
    /// Directory in which the interpreter starts; made where it is missing.
    #[serde(default)]
    pub cwd: Option<String>,
    /// Bytes of memory that the interpreter may take; ours. Absent: the daemon's setting.
    #[serde(default)]
    pub memory_bytes: Option<u64>,
    /// Seconds without a run after which the context is deleted; ours. Absent: the daemon's setting.
    #[serde(default)]
    pub idle_seconds: Option<u64>,
}

/// A context as it is shown.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct CodeContext {
    /// The context's id, also the text of the `init` event of its runs.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub id: Option<String>,
    /// Its language.
    #[serde(default)]
    pub language: Option<String>,
    /// Where its interpreter started, if that was asked for.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cwd: Option<String>,
}

/// Body of `POST /code`.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct RunCode {
    /// What is run.
    #[serde(default)]
    pub code: Option<String>,
    /// Where: a context by its id, or the default context of a language.
    #[serde(default)]
    pub context: Option<CodeContext>,
}

/// `ename` when an interpreter ended in the middle of a run; as Jupyter's clients call it.
pub const DEAD_ERROR_NAME: &str = "DeadKernelError";
/// `ename` when a context runs something else.
pub const BUSY_ERROR_NAME: &str = "SessionBusy";
