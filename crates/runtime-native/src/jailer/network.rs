//! Changes the network of a sandbox that runs, or takes sockets out of it, in a worker that enters it.

use std::fs::File;
use std::os::fd::OwnedFd;

use lifecycle::spec::{Network, SandboxId};
use protocol::network::Cidr;
use rustix::fs::{FlockOperation, flock};
use rustix::net::{AddressFamily, SocketFlags, SocketType, socket_with};

use super::Jail;
use super::session::Home;
use crate::error::{Context, Failure, Kind, Result};
use crate::{network, policy, state};

/// Sockets of one answer: a client's usual parallelism twice over, for the price of one worker.
const SOCKETS: usize = 16;

/// Makes sockets that are connected to nothing. Any sandbox has a network for them: at least its loopback.
pub fn sockets(jail: &Jail, id: &SandboxId) -> Result<Vec<OwnedFd>> {
    let home = Home::open(jail, id)?;
    enter(jail, &home)?;
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let make = |_| socket_with(AddressFamily::INET, SocketType::STREAM, flags, None);
    (0..SOCKETS).map(make).collect::<rustix::io::Result<_>>().op("make sockets in the sandbox's network")
}

/// Makes the four sockets anew. The lock is to be kept until they are sent and closed here, so that the next who wants
/// them does not meet our copies.
pub fn listen(jail: &Jail, id: &SandboxId) -> Result<([OwnedFd; 4], File)> {
    let (home, lock) = open(jail, id)?;
    enter(jail, &home)?;
    Ok((network::listen()?, lock))
}

/// Replaces the ranges in which connections may be asked for. The plan on disk says so before the kernel does it. What
/// comes back is to be closed after the answer, see [`network::steer`].
pub fn steer(jail: &Jail, id: &SandboxId, reachable: Vec<Cidr>) -> Result<OwnedFd> {
    policy::check_reachable(&reachable)?;
    let (mut home, _lock) = open(jail, id)?;
    home.plan.network = Network::Steered { reachable: reachable.clone() };
    state::store(&jail.paths.sandbox(id), state::PLAN, &home.plan)?;
    enter(jail, &home)?;
    network::steer(&reachable)
}

/// The sandbox, with its network to ourselves.
fn open(jail: &Jail, id: &SandboxId) -> Result<(Home, File)> {
    let directory = jail.paths.sandbox(id);
    let gone = |_| Failure::new(Kind::NotFound, format!("sandbox {id} does not run"));
    // A create that is still at work holds this until it has handed the sockets over.
    let made = File::open(directory.join(state::LOCK)).map_err(gone)?;
    flock(&made, FlockOperation::LockShared).op("lock the sandbox")?;
    drop(made);
    let lock = File::create(directory.join(state::NETWORK)).map_err(gone)?;
    flock(&lock, FlockOperation::LockExclusive).op("lock the sandbox's network")?;
    let home = Home::open(jail, id)?;
    match home.plan.network {
        Network::Steered { .. } => Ok((home, lock)),
        Network::None => Err(Failure::new(Kind::Invalid, format!("sandbox {id} has no network"))),
    }
}

fn enter(jail: &Jail, home: &Home) -> Result<()> {
    home.join_network()?;
    // What is made there belongs to the same user as what the sandbox's first process made.
    crate::init::take_identity(jail.ids())
}
