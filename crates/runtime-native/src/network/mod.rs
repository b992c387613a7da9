//! A sandbox's way out, as far as it lies in its network namespace: addresses, routes, rules and sockets.
//!
//! The namespace holds `lo` and nothing else, so nothing leaves whatever the rules say. *Every* address is local to it
//! (a `local` default route): what is sent to the world comes back in on `lo`. There the rules hand connections to our
//! sockets, which keep the asked address as their local one, so that no connection is ever tracked or translated. What
//! may not be asked for is refused before it is sent. See `docs/adr/0011-steering.md`.
//!
//! Owns these messages to the kernel. Refuses to know who serves the sockets and what he decides. Everything here acts on
//! the calling process's namespace and needs `CAP_NET_ADMIN` there: the sandbox's first process before it becomes execd,
//! or a worker of the jailer that has entered.

mod expression;
mod netlink;
mod ranges;
mod routes;
mod rules;
mod sockets;

use std::net::{Ipv4Addr, Ipv6Addr};
use std::os::fd::OwnedFd;

use protocol::network::Cidr;
use rustix::io::Errno;

use crate::error::{Failure, Kind, Result};

#[cfg(test)]
mod tests;

pub(crate) use rules::prepare;
pub(crate) use sockets::are_ours;
pub(crate) use sockets::open as listen;

/// The sandbox's own IPv4 address.
pub const ADDRESS4: Ipv4Addr = Ipv4Addr::new(10, 0, 0, 2);
/// The sandbox's own IPv6 address.
pub const ADDRESS6: Ipv6Addr = Ipv6Addr::new(0xfd00, 0, 0, 0, 0, 0, 0, 2);
/// Whom the sandbox asks for names. Not local as the rules count, so that programs may bind port 53.
pub const RESOLVER: Ipv4Addr = Ipv4Addr::new(10, 0, 0, 53);
/// Port of our sockets: below [`crate::init::FIRST_UNPRIVILEGED_PORT`], so that nobody inside can bind it.
pub(crate) const PORT: u16 = 1;

/// Makes the network of the calling process's namespace, which is new, and opens its sockets.
///
/// # Errors
/// [`Kind::Unsupported`] where the kernel lacks a part.
pub(crate) fn set_up(reachable: &[Cidr]) -> Result<[OwnedFd; 4]> {
    routes::set_up()?;
    rules::load(reachable)?;
    listen()
}

/// Replaces the ranges in which connections may be asked for, in one step. Closing what comes back waits, up to some
/// tens of milliseconds, until no core looks at the old ranges any more: better after the answer.
pub(crate) fn steer(reachable: &[Cidr]) -> Result<OwnedFd> {
    rules::replace_reachable(reachable)
}

/// Whether the kernel has our rules, as a fresh question to it tells.
pub(crate) fn is_steered() -> Result<bool> {
    rules::are_loaded()
}

/// A refusal of the kernel, told as what this machine lacks where it is that.
fn refused(op: &str, errno: Errno) -> Failure {
    let lacking = [Errno::OPNOTSUPP, Errno::PROTONOSUPPORT, Errno::AFNOSUPPORT, Errno::NOENT, Errno::NOPROTOOPT];
    let mut failure = Failure::errno(op, errno);
    if lacking.contains(&errno) {
        failure.kind = Kind::Unsupported;
        failure.message = format!(
            "this kernel cannot steer a sandbox's network, which needs nf_tables with tproxy and reject, and IPv6: {}",
            failure.message
        );
    }
    failure
}
