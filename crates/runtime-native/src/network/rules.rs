//! The rules of a sandbox's network, as one transaction.

use std::net::Ipv6Addr;
use std::os::fd::OwnedFd;
use std::sync::LazyLock;

use protocol::network::Cidr;

use super::expression::{Expression, Family, Field, data};
use super::netlink::{self, APPEND, Attributes, Batch, CREATE, EXCLUSIVE, FILTER};
use super::ranges::intervals;
use super::{ADDRESS4, ADDRESS6, PORT, refused};
use crate::error::Result;
use Expression::*;
use Family::{V4, V6};
use Field::*;

// <linux/netfilter/nfnetlink.h>, <linux/netfilter/nf_tables.h>
const BATCH_BEGIN: u16 = 16;
const BATCH_END: u16 = 17;
const SUBSYSTEM: u16 = 10;
const NEW_TABLE: u16 = SUBSYSTEM << 8;
const GET_TABLE: u16 = NEW_TABLE | 1;
const NEW_CHAIN: u16 = NEW_TABLE | 3;
const NEW_RULE: u16 = NEW_TABLE | 6;
const NEW_SET: u16 = NEW_TABLE | 9;
const NEW_ELEMENTS: u16 = NEW_TABLE | 12;
const DELETE_ELEMENTS: u16 = NEW_TABLE | 14;
const UNSPECIFIED: u8 = 0;
const INET: u8 = 1;
const HOOK_ARRIVING: u32 = 0;
const HOOK_LEAVING: u32 = 3;
const DROP: u32 = 0;
const ACCEPT: u32 = 1;
const SET_OF_INTERVALS: u32 = 4;
const INTERVAL_END: u32 = 1;
/// Where our sockets are looked for: before the filter, as is usual.
const PRIORITY_MANGLE: i32 = -150;
const PRIORITY_FILTER: i32 = 0;
/// Bytes of the fixed part of a message.
const FIXED_BYTES: usize = 4;
/// Intervals in one message: an attribute holds 64 KiB.
const INTERVALS_PER_MESSAGE: usize = 500;

const TABLE: &str = "osb";
/// What a process of the sandbox sends.
const LEAVING: &str = "leaving";
/// What it sends to the sandbox itself.
const LOCAL: &str = "local";
/// What comes back in on `lo`.
const ARRIVING: &str = "arriving";
/// What a table with all chains and sets counts.
const OBJECTS: u32 = 5;

const TCP: u8 = libc::IPPROTO_TCP as u8;
const UDP: u8 = libc::IPPROTO_UDP as u8;
const DNS: u16 = 53;
const SYN: u8 = 0x02;
const ACK: u8 = 0x10;

fn reachable_set(family: Family) -> &'static str {
    match family {
        V4 => "reachable4",
        V6 => "reachable6",
    }
}

/// All but the ranges, which is the same for every sandbox: built once, by [`prepare`] before the jailer forks.
static FIXED: LazyLock<Batch> = LazyLock::new(fixed);

/// Builds what is the same for every sandbox, so that processes that are forked afterwards have it.
pub fn prepare() {
    LazyLock::force(&FIXED);
}

/// Puts all into the kernel, or nothing.
pub fn load(reachable: &[Cidr]) -> Result<()> {
    let mut batch = FIXED.clone();
    add_elements(&mut batch, reachable);
    send(batch).map(drop)
}

fn fixed() -> Batch {
    let mut batch = begin();
    batch.add("make the table", NEW_TABLE, CREATE | EXCLUSIVE, &header(INET), |to| to.text(1, TABLE));
    for (family, key_type, key_bytes) in [(V4, 7, 4), (V6, 8, 16)] {
        batch.add("make a set of addresses", NEW_SET, CREATE | EXCLUSIVE, &header(INET), |to| {
            to.text(1, TABLE);
            to.text(2, reachable_set(family));
            to.number(3, SET_OF_INTERVALS);
            to.number(4, key_type);
            to.number(5, key_bytes);
            to.number(10, key_type);
        });
    }
    for (name, hook) in [
        (LOCAL, None),
        (LEAVING, Some((HOOK_LEAVING, PRIORITY_FILTER, DROP))),
        (ARRIVING, Some((HOOK_ARRIVING, PRIORITY_MANGLE, ACCEPT))),
    ] {
        add_chain(&mut batch, name, hook);
    }
    for (chain, steps) in rules() {
        batch.add("add a rule", NEW_RULE, CREATE | APPEND, &header(INET), |to| {
            to.text(1, TABLE);
            to.text(2, chain);
            to.nest(4, |list| steps.iter().for_each(|step| step.write(list)));
        });
    }
    batch
}

/// Empties both sets and fills them again, for everybody at the same moment.
pub fn replace_reachable(reachable: &[Cidr]) -> Result<OwnedFd> {
    let mut batch = begin();
    for family in [V4, V6] {
        batch.add("empty a set of addresses", DELETE_ELEMENTS, 0, &header(INET), |to| elements_of(to, family));
    }
    add_elements(&mut batch, reachable);
    send(batch)
}

/// Whether the table is there with all its parts.
pub fn are_loaded() -> Result<bool> {
    let mut question = Batch::default();
    question.add("look for the table", GET_TABLE, 0, &header(INET), |to| to.text(1, TABLE));
    match question.ask(FILTER) {
        Ok(Some(table)) => {
            let objects = netlink::attribute(&table, FIXED_BYTES, 3).and_then(|value| value.first_chunk());
            Ok(objects.map(|bytes| u32::from_be_bytes(*bytes)) == Some(OBJECTS))
        }
        Ok(None) => Ok(false),
        Err(no) if no.errno == rustix::io::Errno::NOENT => Ok(false),
        Err(no) => Err(refused(no.what, no.errno)),
    }
}

/// The rules in their order.
///
/// Only the first packet of a connection is judged by the sets: connections that exist go on when the sets change.
/// A DNS question and its answer change places: the question arrives at our socket with the asked address as its
/// sender, so whoever serves the socket answers to the sender like any DNS server, and what he sends becomes an answer
/// of the asked address. That takes no state, and works since every sender inside has the sandbox's address.
fn rules() -> Vec<(&'static str, Vec<Expression>)> {
    let mut rules = Vec::new();
    let mut add = |chain: &'static str, parts: &[&[Expression]]| rules.push((chain, parts.concat()));
    let tcp = [LoadProtocol, Is(vec![TCP])];
    let udp = [LoadProtocol, Is(vec![UDP])];
    let to_port = |port: u16| [Load(DestinationPort), Is(port.to_be_bytes().to_vec())];

    add(LOCAL, &[&tcp, &to_port(PORT), &[Reset]]);
    add(LOCAL, &[&udp, &to_port(PORT), &[PortUnreachable]]);
    add(LOCAL, &[&[Accept]]);

    for family in [V4, V6] {
        for (field, value) in local(family) {
            add(LEAVING, &[&is(family), &[Load(field), Is(value), GoTo(LOCAL)]]);
        }
    }
    for family in [V4, V6] {
        let from_our_socket = [Load(SourcePort), Is(PORT.to_be_bytes().to_vec())];
        add(LEAVING, &[&is(family), &udp, &from_our_socket, &change_places(family, SourcePort, DNS), &[Accept]]);
    }
    let goes_on = [Load(TcpFlags), Mask(SYN | ACK), IsNot(vec![SYN])];
    add(LEAVING, &[&tcp, &goes_on, &[Accept]]);
    add(LEAVING, &[&tcp, &to_port(DNS), &[Accept]]);
    for family in [V4, V6] {
        add(LEAVING, &[&tcp, &is(family), &[Load(Destination(family)), IsIn(reachable_set(family)), Accept]]);
    }
    add(LEAVING, &[&tcp, &[Reset]]);
    for family in [V4, V6] {
        let from_the_sandbox = [Load(Source(family)), Is(own(family))];
        let parts: &[&[Expression]] = &[
            &udp,
            &to_port(DNS),
            &is(family),
            &from_the_sandbox,
            &change_places(family, DestinationPort, PORT),
            &[Accept],
        ];
        add(LEAVING, parts);
    }
    add(LEAVING, &[&[Prohibited]]);

    for (family, listener) in [(V4, vec![127, 0, 0, 1]), (V6, Ipv6Addr::LOCALHOST.octets().to_vec())] {
        let not_local = local(family).map(|(field, value)| [Load(field), IsNot(value)]).concat();
        let leaves = [&is(family)[..], &tcp, &not_local].concat();
        add(ARRIVING, &[&leaves, &[HandOver(family, listener), Accept]]);
        // Nobody holds our socket: nothing else inside may have the connection.
        add(ARRIVING, &[&leaves, &[Reset]]);
    }
    rules
}

fn is(family: Family) -> [Expression; 2] {
    [LoadFamily, Is(vec![family.number()])]
}

fn own(family: Family) -> Vec<u8> {
    match family {
        V4 => ADDRESS4.octets().to_vec(),
        V6 => ADDRESS6.octets().to_vec(),
    }
}

/// What makes a destination local, by field and value: one alternative each.
fn local(family: Family) -> [(Field, Vec<u8>); 2] {
    let loopback = match family {
        V4 => (FirstOfDestination, vec![127]),
        V6 => (Destination(V6), Ipv6Addr::LOCALHOST.octets().to_vec()),
    };
    [loopback, (Destination(family), own(family))]
}

/// The destination becomes the source, the sandbox's own address the destination, and one port another.
fn change_places(family: Family, port: Field, number: u16) -> Vec<Expression> {
    vec![
        Load(Destination(family)),
        Store(Source(family)),
        Constant(own(family)),
        Store(Destination(family)),
        Constant(number.to_be_bytes().to_vec()),
        Store(port),
    ]
}

fn header(family: u8) -> [u8; FIXED_BYTES] {
    [family, 0, 0, 0]
}

fn mark(batch: &mut Batch, kind: u16) {
    let [high, low] = SUBSYSTEM.to_be_bytes();
    batch.add("change the rules", kind, 0, &[UNSPECIFIED, 0, high, low], |_| {});
}

fn begin() -> Batch {
    let mut batch = Batch::default();
    mark(&mut batch, BATCH_BEGIN);
    batch
}

fn send(mut batch: Batch) -> Result<OwnedFd> {
    batch.acknowledge();
    mark(&mut batch, BATCH_END);
    batch.send(FILTER).map_err(|no| refused(no.what, no.errno))
}

fn add_chain(batch: &mut Batch, name: &str, hook: Option<(u32, i32, u32)>) {
    batch.add("make a chain", NEW_CHAIN, CREATE | EXCLUSIVE, &header(INET), |to| {
        to.text(1, TABLE);
        to.text(3, name);
        if let Some((hook, priority, policy)) = hook {
            to.nest(4, |to| {
                to.number(1, hook);
                to.number(2, priority as u32);
            });
            to.number(5, policy);
            to.text(7, "filter");
        }
    });
}

fn elements_of(to: &mut Attributes, family: Family) {
    to.text(1, TABLE);
    to.text(2, reachable_set(family));
}

fn add_elements(batch: &mut Batch, reachable: &[Cidr]) {
    const ELEMENT: u16 = 1;
    for family in [V4, V6] {
        for part in intervals(reachable, family).chunks(INTERVALS_PER_MESSAGE) {
            batch.add("fill a set of addresses", NEW_ELEMENTS, CREATE, &header(INET), |to| {
                elements_of(to, family);
                to.nest(3, |list| {
                    for interval in part {
                        list.nest(ELEMENT, |to| data(to, 1, &interval.first));
                        let Some(end) = &interval.end else { continue };
                        list.nest(ELEMENT, |to| {
                            data(to, 1, end);
                            to.number(3, INTERVAL_END);
                        });
                    }
                });
            });
        }
    }
}
