//! A server inside this process, for `osb run` where none runs.

/// A server that lives as long as this value: when the process dies, its sandboxes end too.
pub struct Engine {
    /// Where it answers, for example `http://127.0.0.1:40123`.
    pub url: String,
    /// The API key it asks for.
    pub key: String,
    /// What keeps it alive.
    pub guard: Box<dyn Guard>,
}

/// Ends an engine in order.
pub trait Guard: Send {
    /// Ends every sandbox and the server; returns when nothing is left.
    fn stop(self: Box<Self>) -> std::pin::Pin<Box<dyn Future<Output = ()> + Send>>;
}

pub use crate::daemon::embedded::start;
