//! Isolated sessions, as the server sees them.

use std::os::fd::AsFd;
use std::path::PathBuf;
use std::time::Duration;

use lifecycle::isolated::{Isolated, Means, Seen, SessionId, Start};
use lifecycle::runtime::{BoxFuture, RuntimeError};
use lifecycle::spec::SandboxId;

use super::{NativeRuntime, QUICK_DEADLINE, done, unexpected};
use crate::user::memory_file;
use crate::wire::{Reply, Request};

/// Longest wait for a session to start or to end: what the jailer allows for it, and a margin.
const SESSION_DEADLINE: Duration = Duration::from_secs(90);

impl Isolated for NativeRuntime {
    fn means(&self) -> Means {
        self.sessions.clone()
    }

    fn start<'a>(&'a self, start: Start<'a>) -> BoxFuture<'a, Result<(), RuntimeError>> {
        Box::pin(async move {
            let boot = memory_file("session", &start.boot)?;
            let request = Request::StartSession {
                sandbox: start.sandbox.clone(),
                record: Box::new(start.record),
                spec: Box::new(start.spec),
            };
            done(self.client.ask(&request, &[boot.as_fd()], SESSION_DEADLINE).await?.0)
        })
    }

    fn end<'a>(&'a self, sandbox: &'a SandboxId, id: &'a SessionId) -> BoxFuture<'a, Result<(), RuntimeError>> {
        Box::pin(async move {
            let request = Request::EndSession { sandbox: sandbox.clone(), session: id.clone() };
            done(self.ask(&request, SESSION_DEADLINE).await?.0)
        })
    }

    fn list<'a>(&'a self, sandbox: &'a SandboxId) -> BoxFuture<'a, Result<Vec<Seen>, RuntimeError>> {
        Box::pin(async move {
            match self.ask(&Request::ListSessions { sandbox: sandbox.clone() }, QUICK_DEADLINE).await?.0 {
                Reply::Sessions { sessions } => Ok(sessions),
                other => Err(unexpected(&other).into()),
            }
        })
    }

    fn address(&self, sandbox: &SandboxId, id: &SessionId) -> PathBuf {
        self.paths.session_socket(sandbox, id)
    }
}
