//! The loopback interface: up, with the sandbox's addresses, and with every other address on it as well.

use super::netlink::{Batch, CREATE, EXCLUSIVE, ROUTING};
use super::{ADDRESS4, ADDRESS6, refused};
use crate::error::Result;

// <linux/rtnetlink.h>, <linux/if_addr.h>
const NEW_LINK: u16 = 16;
const NEW_ADDRESS: u16 = 20;
const NEW_ROUTE: u16 = 24;
const IFA_ADDRESS: u16 = 1;
const IFA_LOCAL: u16 = 2;
const RTA_OUT_INTERFACE: u16 = 4;
const RTA_PREFERRED_SOURCE: u16 = 7;
/// Without looking for a second owner of the address, which would hold it back for a second.
const NO_DUPLICATE_DETECTION: u8 = 0x02;
const SCOPE_UNIVERSE: u8 = 0;
const SCOPE_HOST: u8 = 254;
const TABLE_LOCAL: u8 = 255;
const PROTOCOL_STATIC: u8 = 4;
const TYPE_LOCAL: u8 = 2;
/// `lo` is the first interface of every namespace.
const LOOPBACK: u32 = 1;

const INET: u8 = libc::AF_INET as u8;
const INET6: u8 = libc::AF_INET6 as u8;

/// Sets all up in a new namespace.
pub fn set_up() -> Result<()> {
    let mut batch = Batch::default();
    let up = (libc::IFF_UP as u32).to_ne_bytes();
    let link = [&[0; 4][..], &LOOPBACK.to_ne_bytes(), &up, &up].concat();
    batch.add("bring the loopback interface up", NEW_LINK, 0, &link, |_| {});

    let make = CREATE | EXCLUSIVE;
    let address = |family: u8, bits: u8, flags: u8| {
        [&[family, bits, flags, SCOPE_UNIVERSE][..], &LOOPBACK.to_ne_bytes()].concat()
    };
    batch.add("give the sandbox an IPv4 address", NEW_ADDRESS, make, &address(INET, 32, 0), |to| {
        to.bytes(IFA_LOCAL, &ADDRESS4.octets());
        to.bytes(IFA_ADDRESS, &ADDRESS4.octets());
    });
    let fixed = address(INET6, 128, NO_DUPLICATE_DETECTION);
    batch.add("give the sandbox an IPv6 address", NEW_ADDRESS, make, &fixed, |to| {
        to.bytes(IFA_ADDRESS, &ADDRESS6.octets());
    });

    let everything = |family: u8| [family, 0, 0, 0, TABLE_LOCAL, PROTOCOL_STATIC, SCOPE_HOST, TYPE_LOCAL, 0, 0, 0, 0];
    for (what, family, source) in [
        ("route IPv4 to the loopback interface", INET, &ADDRESS4.octets()[..]),
        ("route IPv6 to the loopback interface", INET6, &ADDRESS6.octets()[..]),
    ] {
        batch.add(what, NEW_ROUTE, make, &everything(family), |to| {
            to.bytes(RTA_OUT_INTERFACE, &LOOPBACK.to_ne_bytes());
            to.bytes(RTA_PREFERRED_SOURCE, source);
        });
    }
    batch.acknowledge();
    batch.send(ROUTING).map(drop).map_err(|no| refused(no.what, no.errno))
}
