//! What rules are made of: loads into one register, comparisons, stores, verdicts.
//!
//! Numbers are those of <linux/netfilter/nf_tables.h>.

use super::PORT;
use super::netlink::Attributes;

/// IPv4 or IPv6.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Family {
    /// IPv4.
    V4,
    /// IPv6.
    V6,
}

/// A field of a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Field {
    /// Where it comes from.
    Source(Family),
    /// Where it goes.
    Destination(Family),
    /// The port it comes from.
    SourcePort,
    /// The port it goes to.
    DestinationPort,
    /// The first byte of an IPv4 destination.
    FirstOfDestination,
    /// SYN, ACK and others.
    TcpFlags,
}

/// One step of a rule. Steps that compare end the rule where they do not hold.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Expression {
    /// Loads the family.
    LoadFamily,
    /// Loads the number of the transport protocol.
    LoadProtocol,
    /// Loads a field.
    Load(Field),
    /// Loads a constant.
    Constant(Vec<u8>),
    /// Clears all bits of the loaded byte but these.
    Mask(u8),
    /// What was loaded is this.
    Is(Vec<u8>),
    /// What was loaded is not this.
    IsNot(Vec<u8>),
    /// What was loaded lies in the set of this name.
    IsIn(&'static str),
    /// Writes what was loaded into a field, checksums included.
    Store(Field),
    /// The packet goes on its way.
    Accept,
    /// The rules of another chain decide.
    GoTo(&'static str),
    /// The packet is answered with a TCP reset.
    Reset,
    /// The packet is answered with "port unreachable".
    PortUnreachable,
    /// The packet is answered with "administratively prohibited".
    Prohibited,
    /// The packet goes to the connection it belongs to if that is one of ours, else to our listener at this address;
    /// without either the rule ends.
    HandOver(Family, Vec<u8>),
}

const VERDICT_REGISTER: u32 = 0;
const REGISTER: u32 = 1;
const SECOND_REGISTER: u32 = 2;
const ACCEPT: u32 = 1;
const GOTO: u32 = -4i32 as u32;
const REJECT_WITH_RESET: u32 = 1;
const REJECT_WITH_ICMPX: u32 = 2;
const ICMPX_PORT_UNREACHABLE: u8 = 1;
const ICMPX_PROHIBITED: u8 = 3;
const NETWORK_HEADER: u32 = 1;
const TRANSPORT_HEADER: u32 = 2;
const META_FAMILY: u32 = 15;
const META_PROTOCOL: u32 = 16;
const EQUAL: u32 = 0;
const NOT_EQUAL: u32 = 1;

impl Family {
    /// Its number in the filter.
    pub fn number(self) -> u8 {
        match self {
            Self::V4 => libc::NFPROTO_IPV4 as u8,
            Self::V6 => libc::NFPROTO_IPV6 as u8,
        }
    }
}

impl Field {
    /// Header, offset and length.
    fn place(self) -> (u32, u32, u32) {
        match self {
            Self::Source(Family::V4) => (NETWORK_HEADER, 12, 4),
            Self::Destination(Family::V4) => (NETWORK_HEADER, 16, 4),
            Self::Source(Family::V6) => (NETWORK_HEADER, 8, 16),
            Self::Destination(Family::V6) => (NETWORK_HEADER, 24, 16),
            Self::SourcePort => (TRANSPORT_HEADER, 0, 2),
            Self::DestinationPort => (TRANSPORT_HEADER, 2, 2),
            Self::FirstOfDestination => (NETWORK_HEADER, 16, 1),
            Self::TcpFlags => (TRANSPORT_HEADER, 13, 1),
        }
    }

    /// Kind and offset of the checksum that changes with the field, and whether the transport's changes too. Only
    /// addresses and UDP's ports are ever written.
    fn checksum(self) -> (u32, u32, u32) {
        match self {
            Self::Source(Family::V4) | Self::Destination(Family::V4) => (1, 10, 1),
            Self::Source(Family::V6) | Self::Destination(Family::V6) => (0, 0, 1),
            Self::SourcePort | Self::DestinationPort => (1, 6, 0),
            Self::FirstOfDestination | Self::TcpFlags => (0, 0, 0),
        }
    }
}

impl Expression {
    /// Adds the step to the list of a rule.
    pub fn write(&self, list: &mut Attributes) {
        const ELEMENT: u16 = 1;
        let mut step = |name: &str, fill: &dyn Fn(&mut Attributes)| {
            list.nest(ELEMENT, |element| {
                element.text(1, name);
                element.nest(2, |data| fill(data));
            });
        };
        match self {
            Self::LoadFamily => step("meta", &|to| numbers(to, &[(1, REGISTER), (2, META_FAMILY)])),
            Self::LoadProtocol => step("meta", &|to| numbers(to, &[(1, REGISTER), (2, META_PROTOCOL)])),
            Self::Load(field) => step("payload", &|to| {
                let (header, offset, length) = field.place();
                numbers(to, &[(1, REGISTER), (2, header), (3, offset), (4, length)]);
            }),
            Self::Store(field) => step("payload", &|to| {
                let (header, offset, length) = field.place();
                let (kind, at, transport) = field.checksum();
                numbers(
                    to,
                    &[(5, REGISTER), (2, header), (3, offset), (4, length), (6, kind), (7, at), (8, transport)],
                );
            }),
            Self::Constant(value) => step("immediate", &|to| constant(to, REGISTER, value)),
            Self::Mask(bits) => step("bitwise", &|to| {
                numbers(to, &[(1, REGISTER), (2, REGISTER), (3, 1)]);
                data(to, 4, &[*bits]);
                data(to, 5, &[0]);
            }),
            Self::Is(value) => step("cmp", &|to| compare(to, EQUAL, value)),
            Self::IsNot(value) => step("cmp", &|to| compare(to, NOT_EQUAL, value)),
            Self::IsIn(set) => step("lookup", &|to| {
                to.text(1, set);
                to.number(2, REGISTER);
            }),
            Self::Accept => step("immediate", &|to| verdict(to, ACCEPT, None)),
            Self::GoTo(chain) => step("immediate", &|to| verdict(to, GOTO, Some(chain))),
            Self::Reset => step("reject", &|to| reject(to, REJECT_WITH_RESET, 0)),
            Self::PortUnreachable => step("reject", &|to| reject(to, REJECT_WITH_ICMPX, ICMPX_PORT_UNREACHABLE)),
            Self::Prohibited => step("reject", &|to| reject(to, REJECT_WITH_ICMPX, ICMPX_PROHIBITED)),
            Self::HandOver(family, address) => {
                step("immediate", &|to| constant(to, REGISTER, address));
                step("immediate", &|to| constant(to, SECOND_REGISTER, &PORT.to_be_bytes()));
                let family = family.number().into();
                step("tproxy", &|to| numbers(to, &[(1, family), (2, REGISTER), (3, SECOND_REGISTER)]));
            }
        }
    }
}

fn numbers(to: &mut Attributes, values: &[(u16, u32)]) {
    values.iter().for_each(|(kind, value)| to.number(*kind, *value));
}

/// A value within an attribute.
pub fn data(to: &mut Attributes, kind: u16, value: &[u8]) {
    to.nest(kind, |to| to.bytes(1, value));
}

fn constant(to: &mut Attributes, register: u32, value: &[u8]) {
    to.number(1, register);
    data(to, 2, value);
}

fn compare(to: &mut Attributes, how: u32, value: &[u8]) {
    numbers(to, &[(1, REGISTER), (2, how)]);
    data(to, 3, value);
}

fn verdict(to: &mut Attributes, code: u32, chain: Option<&str>) {
    to.number(1, VERDICT_REGISTER);
    to.nest(2, |to| {
        to.nest(2, |to| {
            to.number(1, code);
            if let Some(chain) = chain {
                to.text(2, chain);
            }
        });
    });
}

fn reject(to: &mut Attributes, kind: u32, code: u8) {
    to.number(1, kind);
    to.bytes(2, &[code]);
}
