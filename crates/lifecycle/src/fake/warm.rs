//! Waiting sandboxes of the fake: names in a set.

use crate::fake::{Call, FakeRuntime};
use crate::runtime::{BoxFuture, Observed, RuntimeError};
use crate::spec::{Network, SandboxId, SandboxSpec};
use crate::warm::{Kind, Warm};

impl FakeRuntime {
    /// Has it keep sandboxes ready, which it does not by itself.
    pub fn keep_warm(&self) {
        self.lock().warm = true;
    }

    /// The sandboxes that wait.
    pub fn waiting(&self) -> Vec<SandboxId> {
        self.lock().waiting.iter().cloned().collect()
    }

    /// How many creates found one waiting.
    pub fn claims(&self) -> usize {
        self.lock().claims
    }

    /// Ends a waiting sandbox behind everybody's back.
    pub fn lose_waiting(&self, id: &SandboxId) {
        self.lock().waiting.remove(id);
    }
}

impl Warm for FakeRuntime {
    fn kind(&self, spec: &SandboxSpec) -> Option<Kind> {
        let can = !spec.leased && !spec.private_pull && !spec.needs_authority() && spec.volumes.is_empty();
        can.then(|| Kind::new(format!("{} {}", spec.image, spec.network != Network::None)))
    }

    fn prepare<'a>(&'a self, id: &'a SandboxId, _spec: &'a SandboxSpec) -> BoxFuture<'a, Result<(), RuntimeError>> {
        Box::pin(async move {
            let mut inner = self.lock();
            inner.fail(Call::Prepare)?;
            inner.waiting.insert(id.clone());
            inner.sandboxes.insert(id.clone(), Observed::Running);
            Ok(())
        })
    }

    fn is_waiting(&self, id: &SandboxId) -> bool {
        self.lock().waiting.contains(id)
    }

    fn layers(&self) -> Vec<String> {
        Vec::new()
    }

    fn discard<'a>(&'a self, id: &'a SandboxId) -> BoxFuture<'a, Result<(), RuntimeError>> {
        Box::pin(async move {
            let mut inner = self.lock();
            inner.waiting.remove(id);
            inner.sandboxes.remove(id);
            Ok(())
        })
    }
}
