//! Messages to the kernel's routing and filter: built in memory, sent at once, answered at once.
//!
//! Numbers are those of <linux/netlink.h>. The kernel works on a message before the call that sends it returns, so no
//! answer has to be waited for.

use std::os::fd::OwnedFd;

use rustix::buffer::spare_capacity;
use rustix::io::Errno;
use rustix::net::netlink::NETFILTER;
use rustix::net::{AddressFamily, Protocol, RecvFlags, SendFlags, SocketFlags, SocketType};

/// The kernel's routing, whose number is zero.
pub const ROUTING: Option<Protocol> = None;
/// The kernel's filter.
pub const FILTER: Option<Protocol> = Some(NETFILTER);

/// An existing object is an error.
pub const EXCLUSIVE: u16 = 0x200;
/// A missing object is made.
pub const CREATE: u16 = 0x400;
/// A rule goes behind the others.
pub const APPEND: u16 = 0x800;

const REQUEST: u16 = 0x1;
const ACKNOWLEDGE: u16 = 0x4;
const ERROR: u16 = 0x2;
const NESTED: u16 = 0x8000;
const HEADER_BYTES: usize = 16;
/// Longest answer to one message: what it says, or the message itself beside an error.
const ANSWER_BYTES: usize = 64 << 10;

/// Messages that go to the kernel in one piece.
#[derive(Clone, Default)]
pub struct Batch {
    bytes: Vec<u8>,
    /// Where each begins, and what it is for.
    messages: Vec<(usize, &'static str)>,
}

/// What the kernel did not do.
#[derive(Debug)]
pub struct Refused {
    /// For what the message was.
    pub what: &'static str,
    /// The kernel's answer.
    pub errno: Errno,
}

impl Batch {
    /// Adds a message: its type, its flags, the fixed part and the attributes.
    pub fn add(&mut self, what: &'static str, kind: u16, flags: u16, fixed: &[u8], fill: impl FnOnce(&mut Attributes)) {
        let start = self.bytes.len();
        let sequence = self.messages.len() as u32;
        self.messages.push((start, what));
        self.bytes.extend([0; 4]);
        self.bytes.extend(kind.to_ne_bytes());
        self.bytes.extend((REQUEST | flags).to_ne_bytes());
        self.bytes.extend(sequence.to_ne_bytes());
        self.bytes.extend([0; 4]);
        self.bytes.extend(fixed);
        let mut attributes = Attributes { bytes: std::mem::take(&mut self.bytes) };
        fill(&mut attributes);
        self.bytes = attributes.bytes;
        let length = (self.bytes.len() - start) as u32;
        self.bytes[start..start + 4].copy_from_slice(&length.to_ne_bytes());
    }

    /// Asks for an answer to the message that was added last.
    pub fn acknowledge(&mut self) {
        let Some((start, _)) = self.messages.last() else { return };
        let flags = &mut self.bytes[start + 6..start + 8];
        let more = u16::from_ne_bytes([flags[0], flags[1]]) | ACKNOWLEDGE;
        flags.copy_from_slice(&more.to_ne_bytes());
    }

    /// Sends all and reads the answers; at least one must come, and none may be a refusal. Gives back the socket.
    pub fn send(&self, protocol: Option<Protocol>) -> Result<OwnedFd, Refused> {
        self.exchange(protocol).map(|(socket, _)| socket)
    }

    /// The same, but gives the first answer that is more than an acknowledgement: what follows its header.
    pub fn ask(&self, protocol: Option<Protocol>) -> Result<Option<Vec<u8>>, Refused> {
        self.exchange(protocol).map(|(_, told)| told)
    }

    fn exchange(&self, protocol: Option<Protocol>) -> Result<(OwnedFd, Option<Vec<u8>>), Refused> {
        let failed = |errno| Refused { what: "talk to the kernel", errno };
        let socket = rustix::net::socket_with(AddressFamily::NETLINK, SocketType::RAW, SocketFlags::CLOEXEC, protocol)
            .map_err(failed)?;
        rustix::net::send(&socket, &self.bytes, SendFlags::empty()).map_err(failed)?;
        let mut buffer = Vec::with_capacity(ANSWER_BYTES);
        let (mut answered, mut told) = (false, None);
        loop {
            buffer.clear();
            match rustix::net::recv(&socket, spare_capacity(&mut buffer), RecvFlags::DONTWAIT) {
                Ok(_) => {}
                Err(Errno::INTR) => continue,
                Err(Errno::AGAIN) if answered => return Ok((socket, told)),
                Err(errno) => return Err(failed(errno)),
            };
            let mut rest = &buffer[..];
            while let Some((kind, sequence, body)) = take(&mut rest) {
                answered = true;
                if kind != ERROR {
                    told.get_or_insert_with(|| body.to_vec());
                    continue;
                }
                let code = body.first_chunk().map_or(0, |bytes| i32::from_ne_bytes(*bytes));
                if code != 0 {
                    let what = self.messages.get(sequence as usize).map_or("talk to the kernel", |(_, what)| what);
                    return Err(Refused { what, errno: Errno::from_raw_os_error(-code) });
                }
            }
        }
    }
}

/// Takes the next message: type, sequence number and what follows the header.
fn take<'a>(rest: &mut &'a [u8]) -> Option<(u16, u32, &'a [u8])> {
    let length = u32::from_ne_bytes(*rest.first_chunk()?) as usize;
    let message = rest.get(..length).filter(|message| message.len() >= HEADER_BYTES)?;
    let kind = u16::from_ne_bytes([message[4], message[5]]);
    let sequence = u32::from_ne_bytes([message[8], message[9], message[10], message[11]]);
    *rest = rest.get(length.next_multiple_of(4)..).unwrap_or_default();
    Some((kind, sequence, &message[HEADER_BYTES..]))
}

/// The value of an attribute behind the fixed part of an answer.
pub fn attribute(body: &[u8], fixed_bytes: usize, kind: u16) -> Option<&[u8]> {
    let mut rest = body.get(fixed_bytes..)?;
    loop {
        let length = u16::from_ne_bytes(*rest.first_chunk()?) as usize;
        let attribute = rest.get(..length).filter(|attribute| attribute.len() >= 4)?;
        if u16::from_ne_bytes([attribute[2], attribute[3]]) & !NESTED == kind {
            return Some(&attribute[4..]);
        }
        rest = rest.get(length.next_multiple_of(4)..)?;
    }
}

/// Attributes of a message, one after the other.
pub struct Attributes {
    bytes: Vec<u8>,
}

impl Attributes {
    /// Adds bytes.
    pub fn bytes(&mut self, kind: u16, value: &[u8]) {
        self.nest_as(kind, |attributes| attributes.bytes.extend(value));
    }

    /// Adds a number in the order of the network.
    pub fn number(&mut self, kind: u16, value: u32) {
        self.bytes(kind, &value.to_be_bytes());
    }

    /// Adds a text, which ends with a zero.
    pub fn text(&mut self, kind: u16, value: &str) {
        self.nest_as(kind, |attributes| {
            attributes.bytes.extend(value.as_bytes());
            attributes.bytes.push(0);
        });
    }

    /// Adds attributes within an attribute.
    pub fn nest(&mut self, kind: u16, fill: impl FnOnce(&mut Self)) {
        self.nest_as(kind | NESTED, fill);
    }

    fn nest_as(&mut self, kind: u16, fill: impl FnOnce(&mut Self)) {
        let start = self.bytes.len();
        self.bytes.extend([0; 2]);
        self.bytes.extend(kind.to_ne_bytes());
        fill(self);
        let length = u16::try_from(self.bytes.len() - start).expect("lists are split before they fill an attribute");
        self.bytes[start..start + 2].copy_from_slice(&length.to_ne_bytes());
        self.bytes.resize(self.bytes.len().next_multiple_of(4), 0);
    }
}
