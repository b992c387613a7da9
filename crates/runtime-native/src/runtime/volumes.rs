//! Named volumes, by way of the jailer.

use lifecycle::runtime::{BoxFuture, RuntimeError, StoredVolume, Volumes};

use super::{NativeRuntime, QUICK_DEADLINE, done, unexpected};
use crate::wire::{Reply, Request};

/// Longest wait for a volume to be made or removed: it may hold millions of files.
const DEADLINE: std::time::Duration = std::time::Duration::from_secs(600);

impl Volumes for NativeRuntime {
    fn ensure<'a>(&'a self, name: &'a str, bytes: Option<u64>) -> BoxFuture<'a, Result<(), RuntimeError>> {
        Box::pin(
            async move { done(self.ask(&Request::MakeVolume { name: name.to_owned(), bytes }, DEADLINE).await?.0) },
        )
    }

    fn remove<'a>(&'a self, name: &'a str) -> BoxFuture<'a, Result<(), RuntimeError>> {
        Box::pin(async move { done(self.ask(&Request::RemoveVolume { name: name.to_owned() }, DEADLINE).await?.0) })
    }

    fn list(&self) -> BoxFuture<'_, Result<Vec<StoredVolume>, RuntimeError>> {
        Box::pin(async move {
            match self.ask(&Request::ListVolumes, QUICK_DEADLINE).await?.0 {
                Reply::Volumes { volumes } => Ok(volumes),
                other => Err(unexpected(&other).into()),
            }
        })
    }
}
