//! Sandboxes that are made as far as they can be before anybody asks for them.
//!
//! A waiting sandbox has its namespaces, root, disk and network, and its execd waits for the first word. Nothing of any
//! user has run in it, and no token, certificate or variable of any has been in it. A create under its id claims it: it
//! brings everything else. Who claims decides by [`Warm::kind`] which waiting sandboxes would do.

use crate::runtime::{BoxFuture, RuntimeError};
use crate::spec::{SandboxId, SandboxSpec};

/// What cannot be changed in a waiting sandbox any more, as an opaque word: it can be claimed by creates of the same kind.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Kind(String);

impl Kind {
    /// The kind that this word names.
    pub fn new(word: impl Into<String>) -> Self {
        Self(word.into())
    }

    /// The word.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

/// Waiting sandboxes, if a runtime can.
pub trait Warm: Send + Sync {
    /// The kind of waiting sandbox that a create of this specification could claim; `None` where it must be made anew.
    fn kind(&self, spec: &SandboxSpec) -> Option<Kind>;

    /// Makes a sandbox that waits. Of the specification only that counts which [`Warm::kind`] looks at. A failure leaves
    /// nothing behind. A [`create`](crate::runtime::Runtime::create) of the same id claims it; one that fits no more is
    /// removed by that and made anew.
    fn prepare<'a>(&'a self, id: &'a SandboxId, spec: &'a SandboxSpec) -> BoxFuture<'a, Result<(), RuntimeError>>;

    /// Whether it waits still. Cheap.
    fn is_waiting(&self, id: &SandboxId) -> bool;

    /// Layers on which those that wait stand, each as often as it likes; they must stay. Cheap.
    fn layers(&self) -> Vec<String>;

    /// Removes one that waits, to the end; one that does not exist is no error.
    fn discard<'a>(&'a self, id: &'a SandboxId) -> BoxFuture<'a, Result<(), RuntimeError>>;
}
