//! The four sockets on which everything arrives that wants to leave the sandbox.
//!
//! They sit on port 1, which no process of the sandbox may bind, whether or not somebody holds them.

use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr};
use std::os::fd::OwnedFd;

use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketFlags, SocketType, bind, listen, socket_with, sockopt};

use super::{ADDRESS4, ADDRESS6, PORT, refused};
use crate::error::{Context, Failure, Kind, Result};
use crate::sys;

/// Connections that may wait to be accepted: a burst of a package manager or a browser several times over.
const BACKLOG: i32 = 1024;

/// Opens them, in the order in which they travel.
///
/// # Errors
/// [`Kind::Held`] while another copy of one is open.
pub fn open() -> Result<[OwnedFd; 4]> {
    Ok([
        connections((Ipv4Addr::LOCALHOST, PORT).into())?,
        connections((Ipv6Addr::LOCALHOST, PORT).into())?,
        datagrams((ADDRESS4, PORT).into())?,
        datagrams((ADDRESS6, PORT).into())?,
    ])
}

/// Whether these are what [`open`] opens, as the kernel tells.
pub fn are_ours(sockets: &[OwnedFd]) -> Result<bool> {
    let expected: [(SocketAddr, bool); 4] = [
        ((Ipv4Addr::LOCALHOST, PORT).into(), true),
        ((Ipv6Addr::LOCALHOST, PORT).into(), true),
        ((ADDRESS4, PORT).into(), false),
        ((ADDRESS6, PORT).into(), false),
    ];
    if sockets.len() != expected.len() {
        return Ok(false);
    }
    for (socket, (address, listens)) in sockets.iter().zip(expected) {
        let bound = rustix::net::getsockname(socket).op("look at a socket of the sandbox")?;
        let is_listening = sockopt::socket_acceptconn(socket).op("look at a socket of the sandbox")?;
        if SocketAddr::try_from(bound).ok() != Some(address) || is_listening != listens {
            return Ok(false);
        }
    }
    Ok(true)
}

fn connections(address: SocketAddr) -> Result<OwnedFd> {
    let socket = socket(&address, SocketType::STREAM)?;
    let op = || format!("prepare a socket for {address}");
    // An accepted connection occupies the port that was asked for, in the sandbox, with this setting as it is here: a
    // server inside can still bind that port if it has the setting too, as servers do.
    sockopt::set_socket_reuseaddr(&socket, true).op(op())?;
    sys::set_transparent(&socket, address.is_ipv6()).map_err(|errno| refused(&op(), errno))?;
    bound(&socket, &address)?;
    listen(&socket, BACKLOG).op(format!("listen on {address}"))?;
    Ok(socket)
}

fn datagrams(address: SocketAddr) -> Result<OwnedFd> {
    let socket = socket(&address, SocketType::DGRAM)?;
    bound(&socket, &address)?;
    Ok(socket)
}

fn socket(address: &SocketAddr, kind: SocketType) -> Result<OwnedFd> {
    let family = if address.is_ipv4() { AddressFamily::INET } else { AddressFamily::INET6 };
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    socket_with(family, kind, flags, None).map_err(|errno| refused(&format!("make a socket for {address}"), errno))
}

fn bound(socket: &OwnedFd, address: &SocketAddr) -> Result<()> {
    match bind(socket, address) {
        Err(Errno::ADDRINUSE) => {
            Err(Failure::new(Kind::Held, format!("somebody still holds the sandbox's socket at {address}")))
        }
        other => other.op(format!("bind {address}")),
    }
}
