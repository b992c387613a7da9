//! Whether an address is one of this machine's own, as the kernel's routing says at this moment.
//!
//! A list of interface addresses would be stale after the next one is added, and would miss what a `local` route makes
//! ours. The route to an address says it exactly: its type is `local`, `broadcast`, `anycast` or `multicast`.

use std::io;
use std::net::IpAddr;
use std::os::fd::OwnedFd;
use std::sync::Mutex;

use rustix::net::netlink::SocketAddrNetlink;
use rustix::net::{AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType};

/// Room for one answer: a header and a handful of attributes.
const ANSWER_BYTES: usize = 1024;
const RTM_NEWROUTE: u16 = 24;
const RTM_GETROUTE: u16 = 26;
const NLMSG_ERROR: u16 = 2;
const NLM_F_REQUEST: u16 = 1;
const RTA_DST: u16 = 1;
/// Bytes of `struct nlmsghdr` and of `struct rtmsg`.
const HEADER_BYTES: usize = 16;
const ROUTE_BYTES: usize = 12;
/// Offset of `rtm_type` in an answer.
const TYPE_AT: usize = HEADER_BYTES + 7;
const RTN_UNICAST: u8 = 1;
/// Blackhole, unreachable, prohibit: nothing is reached at all, so nothing of ours is.
const RTN_BLACKHOLE: u8 = 6;
const RTN_PROHIBIT: u8 = 8;

/// A question and answer channel to the kernel's routing.
#[derive(Debug)]
pub struct Routes {
    /// One question at a time: an answer follows its question within the same call.
    socket: Mutex<OwnedFd>,
}

impl Routes {
    /// Opens the channel.
    ///
    /// # Errors
    /// When the kernel has no netlink for us.
    pub fn open() -> io::Result<Self> {
        // NETLINK_ROUTE is protocol 0, which rustix spells `None`.
        let socket = rustix::net::socket_with(AddressFamily::NETLINK, SocketType::RAW, SocketFlags::CLOEXEC, None)?;
        rustix::net::bind(&socket, &SocketAddrNetlink::new(0, 0))?;
        Ok(Self { socket: Mutex::new(socket) })
    }

    /// Whether packets to this address end on this machine (or on everybody of a link).
    ///
    /// # Errors
    /// When the kernel does not answer as expected; the address must be treated as ours then.
    pub fn is_own(&self, address: IpAddr) -> io::Result<bool> {
        let socket = self.socket.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        let question = question(address);
        rustix::net::sendto(&*socket, &question, SendFlags::empty(), &SocketAddrNetlink::new(0, 0))?;
        let mut buffer = [0u8; ANSWER_BYTES];
        // The kernel answers within `sendto`: there is nothing to wait for.
        let (_, bytes) = rustix::net::recv(&*socket, &mut buffer[..], RecvFlags::DONTWAIT)?;
        let answer = &buffer[..bytes.min(ANSWER_BYTES)];
        let kind = answer.get(4..6).map(|kind| u16::from_ne_bytes([kind[0], kind[1]]));
        match (kind, answer.get(TYPE_AT)) {
            (Some(RTM_NEWROUTE), Some(&route)) => {
                Ok(route != RTN_UNICAST && !(RTN_BLACKHOLE..=RTN_PROHIBIT).contains(&route))
            }
            // No route: nothing is reached, and the dial says so.
            (Some(NLMSG_ERROR), _) => Ok(false),
            _ => Err(io::Error::new(io::ErrorKind::InvalidData, "an answer about a route that is none")),
        }
    }
}

fn question(address: IpAddr) -> Vec<u8> {
    let (family, bytes) = match address {
        IpAddr::V4(v4) => (AddressFamily::INET, v4.octets().to_vec()),
        IpAddr::V6(v6) => (AddressFamily::INET6, v6.octets().to_vec()),
    };
    let attribute = 4 + bytes.len();
    let total = HEADER_BYTES + ROUTE_BYTES + attribute;
    let mut message = Vec::with_capacity(total);
    message.extend_from_slice(&u32::try_from(total).expect("a question is short").to_ne_bytes());
    message.extend_from_slice(&RTM_GETROUTE.to_ne_bytes());
    message.extend_from_slice(&NLM_F_REQUEST.to_ne_bytes());
    message.extend_from_slice(&[0; 8]);
    message.push(u8::try_from(family.as_raw()).expect("address families are small"));
    message.push(u8::try_from(bytes.len() * 8).expect("a prefix has at most 128 bits"));
    message.extend_from_slice(&[0; ROUTE_BYTES - 2]);
    message.extend_from_slice(&u16::try_from(attribute).expect("an attribute is short").to_ne_bytes());
    message.extend_from_slice(&RTA_DST.to_ne_bytes());
    message.extend_from_slice(&bytes);
    message
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn loopback_is_ours_and_documentation_is_not() {
        let routes = Routes::open().expect("netlink answers");
        let own = |text: &str| routes.is_own(text.parse().expect("an address")).expect("an answer");
        assert!(own("127.0.0.1") && own("127.9.9.9") && own("::1"));
        assert!(!own("203.0.113.9") && !own("2001:db8::9"));
    }
}
