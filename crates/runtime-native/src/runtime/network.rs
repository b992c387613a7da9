//! The networks of sandboxes, as the server sees them.

use std::os::fd::OwnedFd;

use lifecycle::runtime::{BoxFuture, ErrorKind, Listeners, Network, RuntimeError, Sockets};
use lifecycle::spec::SandboxId;
use protocol::network::Cidr;

use super::{NativeRuntime, QUICK_DEADLINE, done, unexpected};
use crate::wire::{Reply, Request};

impl NativeRuntime {
    /// The sockets of a sandbox that an earlier request made, unless somebody holds them.
    pub(super) async fn listen_again(&self, id: &SandboxId) -> Result<Option<Listeners>, RuntimeError> {
        match self.listen(id).await {
            Ok(listeners) => Ok(Some(listeners)),
            Err(error) if error.kind == ErrorKind::Held => Ok(None),
            Err(error) => Err(error),
        }
    }
}

impl Sockets for NativeRuntime {
    fn sockets<'a>(&'a self, id: &'a SandboxId) -> BoxFuture<'a, Result<Vec<OwnedFd>, RuntimeError>> {
        Box::pin(async move {
            match self.ask(&Request::Sockets { id: id.clone() }, QUICK_DEADLINE).await? {
                (Reply::Sockets, sockets) => Ok(sockets),
                (other, _) => Err(unexpected(&other).into()),
            }
        })
    }
}

impl Network for NativeRuntime {
    fn listen<'a>(&'a self, id: &'a SandboxId) -> BoxFuture<'a, Result<Listeners, RuntimeError>> {
        Box::pin(async move {
            let (reply, sockets) = self.ask(&Request::Listen { id: id.clone() }, QUICK_DEADLINE).await?;
            match (&reply, <[OwnedFd; 4]>::try_from(sockets)) {
                (Reply::Listening, Ok(sockets)) => Ok(sockets.into()),
                _ => Err(unexpected(&reply).into()),
            }
        })
    }

    fn steer<'a>(&'a self, id: &'a SandboxId, reachable: &'a [Cidr]) -> BoxFuture<'a, Result<(), RuntimeError>> {
        Box::pin(async move {
            let request = Request::Steer { id: id.clone(), reachable: reachable.to_vec() };
            done(self.ask(&request, QUICK_DEADLINE).await?.0)
        })
    }
}
