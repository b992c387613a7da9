//! Which addresses are not the public internet, whatever name or notation led to them.
//!
//! The last thing that stands between a sandbox and the machine's own network: asked about the address that is really
//! dialled, after every look-up. Pure; whether an address is this machine's own is a question to the kernel ([`own`]).

use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use ipnet::{IpNet, Ipv4Net, Ipv6Net};
use serde::{Deserialize, Serialize};

pub mod own;

/// What an address is, if it is not simply public.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Kind {
    /// This machine's loopback.
    Loopback,
    /// "This network", unspecified.
    Unspecified,
    /// A private network (RFC 1918, unique local).
    Private,
    /// Link-local.
    LinkLocal,
    /// Shared between a provider and its customers (100.64.0.0/10).
    CarrierNat,
    /// Where a cloud hands out the machine's credentials.
    Metadata,
    /// Multicast or broadcast.
    Multicast,
    /// Carries an IPv4 address in an IPv6 one (NAT64, 6to4, Teredo): it may lead anywhere.
    Embedded,
    /// Set aside for something else: documentation, benchmarks, protocols, the future.
    Reserved,
    /// An address of this machine.
    Host,
}

impl fmt::Display for Kind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Kind::Loopback => "a loopback address",
            Kind::Unspecified => "an unspecified address",
            Kind::Private => "a private address",
            Kind::LinkLocal => "a link-local address",
            Kind::CarrierNat => "an address shared by a provider (100.64.0.0/10)",
            Kind::Metadata => "a cloud metadata address",
            Kind::Multicast => "a multicast or broadcast address",
            Kind::Embedded => "an IPv6 address that carries an IPv4 one",
            Kind::Reserved => "a reserved address",
            Kind::Host => "an address of this machine",
        })
    }
}

const fn v4(a: u8, b: u8, c: u8, d: u8, prefix: u8) -> IpNet {
    IpNet::V4(Ipv4Net::new_assert(Ipv4Addr::new(a, b, c, d), prefix))
}

const fn v6(a: u16, b: u16, c: u16, h: u16, prefix: u8) -> IpNet {
    IpNet::V6(Ipv6Net::new_assert(Ipv6Addr::new(a, b, c, 0, 0, 0, 0, h), prefix))
}

/// Networks that are not public, the narrower before the wider that holds it.
const BLOCKS: [(IpNet, Kind); 38] = [
    // AWS, Azure, Google and most others; AWS tasks; Alibaba; Azure's wire server, a public address; Oracle.
    (v4(169, 254, 169, 254, 32), Kind::Metadata),
    (v4(169, 254, 170, 2, 32), Kind::Metadata),
    (v4(100, 100, 100, 200, 32), Kind::Metadata),
    (v4(168, 63, 129, 16, 32), Kind::Metadata),
    (v4(192, 0, 0, 192, 32), Kind::Metadata),
    (v6(0xfd00, 0xec2, 0, 0x254, 128), Kind::Metadata),
    (v6(0xfd20, 0xce, 0, 0x254, 128), Kind::Metadata),
    (v4(0, 0, 0, 0, 8), Kind::Unspecified),
    (v4(10, 0, 0, 0, 8), Kind::Private),
    (v4(100, 64, 0, 0, 10), Kind::CarrierNat),
    (v4(127, 0, 0, 0, 8), Kind::Loopback),
    (v4(169, 254, 0, 0, 16), Kind::LinkLocal),
    (v4(172, 16, 0, 0, 12), Kind::Private),
    (v4(192, 0, 0, 0, 24), Kind::Reserved),
    (v4(192, 0, 2, 0, 24), Kind::Reserved),
    (v4(192, 31, 196, 0, 24), Kind::Reserved),
    (v4(192, 52, 193, 0, 24), Kind::Reserved),
    (v4(192, 88, 99, 0, 24), Kind::Embedded),
    (v4(192, 168, 0, 0, 16), Kind::Private),
    (v4(192, 175, 48, 0, 24), Kind::Reserved),
    (v4(198, 18, 0, 0, 15), Kind::Reserved),
    (v4(198, 51, 100, 0, 24), Kind::Reserved),
    (v4(203, 0, 113, 0, 24), Kind::Reserved),
    (v4(224, 0, 0, 0, 4), Kind::Multicast),
    (v4(255, 255, 255, 255, 32), Kind::Multicast),
    (v4(240, 0, 0, 0, 4), Kind::Reserved),
    (v6(0, 0, 0, 1, 128), Kind::Loopback),
    (v6(0, 0, 0, 0, 128), Kind::Unspecified),
    // IPv4-mapped is read as IPv4 before this list is asked; the old "compatible" form is left.
    (v6(0, 0, 0, 0, 8), Kind::Embedded),
    (v6(0x64, 0xff9b, 0, 0, 96), Kind::Embedded),
    (v6(0x64, 0xff9b, 1, 0, 48), Kind::Embedded),
    (v6(0x2001, 0, 0, 0, 32), Kind::Embedded),
    (v6(0x2002, 0, 0, 0, 16), Kind::Embedded),
    (v6(0xfc00, 0, 0, 0, 7), Kind::Private),
    (v6(0xfe80, 0, 0, 0, 10), Kind::LinkLocal),
    (v6(0xfec0, 0, 0, 0, 10), Kind::Private),
    (v6(0xff00, 0, 0, 0, 8), Kind::Multicast),
    (v6(0x2001, 0xdb8, 0, 0, 32), Kind::Reserved),
];

/// Of IPv6 only this is handed out to anybody; the rest is reserved, and some of it within is listed above.
const GLOBAL_UNICAST: IpNet = v6(0x2000, 0, 0, 0, 3);

/// A network that is not public, and what it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Block {
    /// The whole of it.
    pub network: IpNet,
    /// What it is.
    pub kind: Kind,
}

impl Block {
    /// A single address of this machine.
    pub fn of_host(address: IpAddr) -> Self {
        Self { network: IpNet::from(canonical(address)), kind: Kind::Host }
    }
}

/// The address that a socket would really be connected to: IPv4-mapped IPv6 is IPv4.
pub fn canonical(address: IpAddr) -> IpAddr {
    address.to_canonical()
}

/// Every network that is not public, except what IPv6 has not handed out.
pub fn blocks() -> impl Iterator<Item = IpNet> {
    BLOCKS.iter().map(|(network, _)| *network)
}

/// The block of an address; `None` when it is public.
pub fn block(address: IpAddr) -> Option<Block> {
    let address = canonical(address);
    let found = BLOCKS.iter().find(|(network, _)| network.contains(&address));
    match (found, address) {
        (Some((network, kind)), _) => Some(Block { network: *network, kind: *kind }),
        (None, IpAddr::V6(_)) if !GLOBAL_UNICAST.contains(&address) => {
            Some(Block { network: IpNet::from(address), kind: Kind::Reserved })
        }
        (None, _) => None,
    }
}

#[cfg(test)]
mod tests;
