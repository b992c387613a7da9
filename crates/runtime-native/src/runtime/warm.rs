//! Sandboxes that wait to be claimed, as the server holds them: each by the socket of its monitor.
//!
//! The socket is all that keeps one alive. A server that is killed leaves none behind, and a claim that finds its monitor gone
//! is a create like any other.

use std::collections::HashMap;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use lifecycle::runtime::{BoxFuture, Create, RuntimeError};
use lifecycle::spec::{HOST_IMAGE, Limits, Network, SandboxId, SandboxSpec};
use lifecycle::warm::{Kind, Warm};
use rustix::net::Shutdown;
use serde_json::json;
use tokio::io::unix::AsyncFd;

use super::{CREATE_MARGIN, NativeRuntime, START_DEADLINE, done, unexpected};
use crate::client::{self, Lost, Steered};
use crate::error::{Failure, Kind as FailureKind};
use crate::wire::{Claim, Plan, Reply, Request};

/// Longest wait for a monitor that removes its sandbox before that is killed.
const LEAVE_DEADLINE: Duration = Duration::from_secs(10);

/// Sandboxes that nobody has yet.
#[derive(Default)]
pub(super) struct Waiting(Mutex<HashMap<SandboxId, Held>>);

/// One of them.
struct Held {
    plan: Plan,
    socket: AsyncFd<OwnedFd>,
}

impl Waiting {
    fn lock(&self) -> MutexGuard<'_, HashMap<SandboxId, Held>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl NativeRuntime {
    /// Turns the sandbox that waits under the plan's id into what the plan says. `None` where none waits, or none that would
    /// do: then nothing of it is left, or what is left is undone by the create that follows.
    pub(super) async fn claim(
        &self,
        plan: &Plan,
        boot: BorrowedFd<'_>,
        deadline: Duration,
        steered: Steered<'_>,
    ) -> Result<Option<(Reply, Vec<OwnedFd>)>, RuntimeError> {
        let Some(held) = self.waiting.lock().remove(&plan.id) else { return Ok(None) };
        if !held.plan.can_become(plan) {
            self.leave(&plan.id, held).await?;
            return Ok(None);
        }
        let claimed = async {
            client::say(&held.socket, &Claim { plan: plan.clone() }, &[boot]).await?;
            client::hear(&held.socket, steered).await
        };
        let late = || Failure::internal(format!("the sandbox did not answer within {} s", deadline.as_secs()));
        match tokio::time::timeout(deadline, claimed).await.map_err(|_| late())? {
            // The jailer looks closer than we do.
            Ok((Reply::Failed(failure), _)) if failure.kind == FailureKind::Refused => {
                tracing::warn!(sandbox_id = %plan.id, error = %failure, "a waiting sandbox did not do; another is made");
                Ok(None)
            }
            Ok((Reply::Failed(failure), _)) => Err(failure.into()),
            Ok(answer) => Ok(Some(answer)),
            Err(Lost::Failed(failure)) => Err(failure.into()),
            Err(Lost::Jailer) => {
                tracing::warn!(sandbox_id = %plan.id, "a waiting sandbox is gone; another is made");
                // Whoever clears up after its monitor must be done before something new has that id.
                let request = Request::Destroy { id: plan.id.clone(), grace_ms: 0 };
                done(self.ask(&request, super::DESTROY_MARGIN).await?.0)?;
                Ok(None)
            }
        }
    }

    /// Holds a waiting sandbox no more, which somebody else removes.
    pub(super) fn forget_waiting(&self, id: &SandboxId) {
        self.waiting.lock().remove(id);
    }

    /// Has a monitor remove its sandbox, and waits until it has.
    async fn leave(&self, id: &SandboxId, held: Held) -> Result<(), RuntimeError> {
        // Who is gone has nothing left to be told.
        let _ = rustix::net::shutdown(held.socket.get_ref(), Shutdown::Write);
        match tokio::time::timeout(LEAVE_DEADLINE, client::hear(&held.socket, &drop)).await {
            // It says so when nothing of the sandbox is left.
            Ok(Ok((Reply::Failed(_), _))) => return Ok(()),
            Ok(_) => {}
            Err(_) => tracing::warn!(sandbox_id = %id, "the monitor of a waiting sandbox does not leave; it is killed"),
        }
        drop(held);
        let request = Request::Destroy { id: id.clone(), grace_ms: 0 };
        done(self.ask(&request, super::DESTROY_MARGIN).await?.0)
    }

    async fn make_waiting(&self, id: &SandboxId, spec: &SandboxSpec) -> Result<(), RuntimeError> {
        let spec = self.base(spec);
        let (progress, listening) = (&|_| {}, &|_| {});
        let request = Create { id, spec: &spec, token: "", authority: None, pull_auth: None, progress, listening };
        let (plan, _) = self.plan(&request).await?;
        let deadline = START_DEADLINE + CREATE_MARGIN;
        match self.client.open(&Request::Prepare(Box::new(plan.clone())), &[], deadline, &drop).await? {
            (Reply::Prepared, _, socket) => {
                self.waiting.lock().insert(id.clone(), Held { plan, socket });
                Ok(())
            }
            (other, ..) => Err(unexpected(&other).into()),
        }
    }

    /// What a waiting sandbox has of a specification: what cannot be changed later.
    fn base(&self, spec: &SandboxSpec) -> SandboxSpec {
        let limits = match self.limits_wait() {
            true => spec.limits.clone(),
            false => {
                Limits { disk_bytes: spec.limits.disk_bytes, disk_inodes: spec.limits.disk_inodes, ..Limits::default() }
            }
        };
        SandboxSpec { limits, hooks: Default::default(), env: Default::default(), ..spec.clone() }
    }

    /// Whether limits must be known before a sandbox waits: an ordinary user's processes get theirs when they start.
    fn limits_wait(&self) -> bool {
        self.capabilities.mode != "root"
    }
}

impl Warm for NativeRuntime {
    fn kind(&self, spec: &SandboxSpec) -> Option<Kind> {
        if spec.leased
            || spec.private_pull
            || spec.needs_authority()
            || !spec.volumes.is_empty()
            || spec.origin.is_some()
        {
            return None;
        }
        let limits = self.base(spec).limits;
        let word = json!({
            "image": spec.image,
            "platform": spec.platform.as_ref().filter(|_| spec.image != HOST_IMAGE),
            "network": spec.network != Network::None,
            "limits": limits,
        });
        Some(Kind::new(word.to_string()))
    }

    fn prepare<'a>(&'a self, id: &'a SandboxId, spec: &'a SandboxSpec) -> BoxFuture<'a, Result<(), RuntimeError>> {
        Box::pin(self.make_waiting(id, spec))
    }

    fn is_waiting(&self, id: &SandboxId) -> bool {
        self.waiting.lock().get(id).is_some_and(|held| !client::is_gone(&held.socket))
    }

    fn layers(&self) -> Vec<String> {
        self.waiting.lock().values().flat_map(|held| held.plan.layers.clone()).collect()
    }

    fn discard<'a>(&'a self, id: &'a SandboxId) -> BoxFuture<'a, Result<(), RuntimeError>> {
        Box::pin(async move {
            let held = self.waiting.lock().remove(id);
            match held {
                Some(held) => self.leave(id, held).await,
                None => Ok(()),
            }
        })
    }
}
