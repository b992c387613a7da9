//! Snapshots, by way of the jailer, and what a sandbox stands on that is made from one.

use std::io::Read;
use std::time::Duration;

use lifecycle::runtime::{BoxFuture, ErrorKind, RuntimeError};
use lifecycle::snapshot::{Found, Origin, SnapshotId, Snapshots, Taken};
use lifecycle::spec::SandboxId;

use super::{NativeRuntime, QUICK_DEADLINE, Stand, done, unexpected};
use crate::error::Failure;
use crate::wire::{Reply, Request};

/// Longest wait for a snapshot: the jailer has deadlines of its own for each part of it, which are shorter together.
const TAKE_DEADLINE: Duration = Duration::from_secs(4000);
/// Longest wait for a removal: a layer of two million files.
const REMOVE_DEADLINE: Duration = Duration::from_secs(600);

impl Snapshots for NativeRuntime {
    fn take<'a>(
        &'a self,
        id: &'a SnapshotId,
        sandbox: &'a SandboxId,
        found: Found,
    ) -> BoxFuture<'a, Result<Taken, RuntimeError>> {
        Box::pin(async move {
            let request = Request::TakeSnapshot { id: id.clone(), sandbox: sandbox.clone(), found };
            match self.ask(&request, TAKE_DEADLINE).await?.0 {
                Reply::Snapshot { taken } => Ok(*taken),
                other => Err(unexpected(&other).into()),
            }
        })
    }

    fn list(&self) -> BoxFuture<'_, Result<Vec<(SnapshotId, Taken)>, RuntimeError>> {
        Box::pin(async move {
            let (reply, fds) = self.ask(&Request::ListSnapshots, QUICK_DEADLINE).await?;
            let (Reply::Snapshots, Some(memory)) = (&reply, fds.into_iter().next()) else {
                return Err(unexpected(&reply).into());
            };
            let mut text = Vec::new();
            let read = std::fs::File::from(memory).read_to_end(&mut text);
            read.map_err(|error| Failure::internal(format!("read the list of snapshots: {error}")))?;
            let list = serde_json::from_slice(&text);
            Ok(list.map_err(|error| Failure::internal(format!("read the list of snapshots: {error}")))?)
        })
    }

    fn remove<'a>(&'a self, id: &'a SnapshotId) -> BoxFuture<'a, Result<(), RuntimeError>> {
        Box::pin(async move { done(self.ask(&Request::RemoveSnapshot { id: id.clone() }, REMOVE_DEADLINE).await?.0) })
    }
}

impl NativeRuntime {
    /// What a sandbox stands on that is made from a snapshot.
    ///
    /// # Errors
    /// [`ErrorKind::Restore`] where the machine's own programs are not those that the snapshot was taken over.
    pub(super) async fn restored(&self, origin: &Origin) -> Result<Stand, RuntimeError> {
        let standing = origin.standing.clone();
        if standing.host_programs {
            // Asked anew: an upgrade may have come within the time for which the last answer is taken for granted.
            *self.host.lock().await = None;
            let now = self.host_image().await?;
            if now.layers.first() != standing.layers.first() {
                let message = "the snapshot stands on this machine's own programs, and they are not those of then: packages \
                               were installed, removed or upgraded, or it is another machine; make a sandbox of the image \
                               \"host\" and take a new snapshot";
                return Err(RuntimeError::new(ErrorKind::Restore, message));
            }
        }
        Ok(Stand {
            layers: standing.layers,
            host_programs: standing.host_programs,
            env: standing.env,
            working_dir: standing.working_dir,
            user: standing.user,
        })
    }
}
