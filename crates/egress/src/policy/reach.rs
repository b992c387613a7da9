//! Which addresses a policy could ever allow: what the kernel lets through to us at all.

use ipnet::IpNet;

use super::{Action, Policy, Target};
use crate::guard;

/// What IPv6 hands out to anybody; the rest is not public.
const V6_PUBLIC: &str = "2000::/3";

impl Policy {
    /// The networks to which a connection can be worth deciding about, `synthetic` (where names live) among them.
    /// Everything else may be rejected by the kernel at once. Sorted, without overlap.
    pub fn reachable(&self, synthetic: IpNet) -> Vec<IpNet> {
        let mut networks = vec![synthetic];
        for (_, _, rule) in self.each() {
            if let (Action::Allow, Target::Network(network)) = (rule.action, &rule.target) {
                networks.push(*network);
            }
        }
        if self.default == Action::Allow {
            public("0.0.0.0/0", &mut networks);
            public(V6_PUBLIC, &mut networks);
        }
        IpNet::aggregate(&networks)
    }
}

fn public(network: &str, into: &mut Vec<IpNet>) {
    let blocks: Vec<IpNet> = guard::blocks().collect();
    without(network.parse().expect("a constant network"), &blocks, into);
}

/// Splits a network until each part is wholly in a block or wholly outside.
fn without(network: IpNet, blocks: &[IpNet], into: &mut Vec<IpNet>) {
    if blocks.iter().any(|block| block.contains(&network)) {
        return;
    }
    if !blocks.iter().any(|block| network.contains(block)) {
        into.push(network);
        return;
    }
    for half in network.subnets(network.prefix_len() + 1).into_iter().flatten() {
        without(half, blocks, into);
    }
}
