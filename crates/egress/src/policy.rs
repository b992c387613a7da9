//! What a sandbox may reach: typed rules and the decision, without any I/O.
//!
//! Two questions are asked of a policy and both must say yes: may this *name* be reached at this port, and may this
//! *address* be dialled. A rule for names never opens an address that is not public, and a rule for addresses never
//! opens a name.
//!
//! ```text
//!            by name ──▶ name rules ──allow──▶ resolve ──▶ address rules ──none──▶ public? ──▶ dial
//!  connection                │ deny                           │ deny                  │ no
//!            by address ─────┼──────────────▶ address rules ──┼──none──▶ default ─────┤
//!                            ▼                                ▼                       ▼
//!                                                    reset, and a verdict that names the rule
//! ```
//!
//! Order: always-deny, always-allow, the user's rules; within each the first that matches. Not public (private,
//! loopback, metadata, this machine, ...) is opened only by a rule that means it: one whose network lies within the
//! block, so that `0.0.0.0/0` opens the internet and nothing else.

use std::fmt;
use std::net::IpAddr;

use ipnet::IpNet;
use protocol::egress::{NetworkPolicy, NetworkRule};
use serde::{Deserialize, Serialize};

use crate::guard::{self, Block, Kind};
use crate::name::Name;

mod cover;
pub mod edit;
mod parse;
mod reach;

pub use parse::Invalid;

/// Most rules of a user's policy; the published default.
pub const MAX_RULES: usize = 4096;
/// Most ports of one rule; the published limit.
pub const MAX_PORTS: usize = 256;
/// DNS over TLS. A rule must name the port: a resolver of the sandbox's choice is a tunnel.
const ENCRYPTED_DNS_PORT: u16 = 853;

/// Let it through or not.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Action {
    /// Let it through.
    Allow,
    /// Refuse it.
    Deny,
}

/// What a rule speaks of.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Target {
    /// This name.
    Name(Name),
    /// Every name below this one, at any depth, never the name itself.
    Below(Name),
    /// An address (all bits of the network) or a network.
    Network(IpNet),
}

/// One rule.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Rule {
    /// What to do.
    pub action: Action,
    /// With what.
    pub target: Target,
    /// At which ports, sorted; empty means all.
    pub ports: Vec<u16>,
}

/// Where a policy comes from, as it crosses to the egress process.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Source {
    /// The operator's denials; nothing beats them.
    #[serde(default)]
    pub always_deny: Vec<NetworkRule>,
    /// The operator's permissions; they beat the user's rules.
    #[serde(default)]
    pub always_allow: Vec<NetworkRule>,
    /// The user's policy; `None` is the public internet, and nothing else.
    #[serde(default)]
    pub user: Option<NetworkPolicy>,
}

/// A policy in force.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Policy {
    always_deny: Vec<Rule>,
    always_allow: Vec<Rule>,
    rules: Vec<Rule>,
    default: Action,
}

/// A list of rules.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum List {
    /// The operator's denials.
    AlwaysDeny,
    /// The operator's permissions.
    AlwaysAllow,
    /// The user's rules.
    User,
}

/// What decided.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "by", rename_all = "snake_case")]
pub enum Because {
    /// A rule.
    Rule {
        /// Of which list.
        list: List,
        /// Its place, from 0.
        index: usize,
    },
    /// No rule matched.
    Default,
    /// The address is not public, and no rule means it.
    NotPublic {
        /// What it is.
        kind: Kind,
    },
    /// DNS over TLS, and no rule names its port.
    EncryptedDns,
}

/// An answer of the policy.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Verdict {
    /// The answer.
    pub action: Action,
    /// What decided.
    pub because: Because,
}

impl Verdict {
    /// Whether it is let through.
    pub fn is_allowed(&self) -> bool {
        self.action == Action::Allow
    }

    fn deny(because: Because) -> Self {
        Self { action: Action::Deny, because }
    }
}

impl fmt::Display for Because {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Because::Rule { list: List::AlwaysDeny, index } => write!(f, "always-deny rule {index}"),
            Because::Rule { list: List::AlwaysAllow, index } => write!(f, "always-allow rule {index}"),
            Because::Rule { list: List::User, index } => write!(f, "rule {index}"),
            Because::Default => f.write_str("the default action"),
            Because::NotPublic { kind } => write!(f, "{kind}, which no rule names"),
            Because::EncryptedDns => f.write_str("DNS over TLS, whose port no rule names"),
        }
    }
}

/// A destination together with what the kernel and the lists know of its address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Dialled {
    /// The address, canonical.
    pub address: IpAddr,
    /// The port.
    pub port: u16,
    /// The block that it is in, if it is not public.
    pub block: Option<Block>,
}

impl Dialled {
    /// A destination whose block is known from its address alone: not asked is whether it is this machine's own.
    pub fn new(address: IpAddr, port: u16) -> Self {
        let address = guard::canonical(address);
        Self { address, port, block: guard::block(address) }
    }

    /// The same destination, known to be an address of this machine. Whoever allows the private network that it is in
    /// does not mean the machine: that takes a rule for this very address.
    #[must_use]
    pub fn of_host(self) -> Self {
        let loopback = self.block.filter(|block| block.kind == Kind::Loopback);
        Self { block: loopback.or_else(|| Some(Block::of_host(self.address))), ..self }
    }
}

impl Policy {
    /// The public internet and nothing else: what a sandbox without a policy has.
    pub fn public_internet() -> Self {
        Self { always_deny: Vec::new(), always_allow: Vec::new(), rules: Vec::new(), default: Action::Allow }
    }

    /// The decision: may this be dialled, having come by this name or by the address itself.
    pub fn decide(&self, name: Option<&Name>, to: &Dialled) -> Verdict {
        let Some(name) = name else { return self.address(to, Fallback::Default) };
        let by_name = self.name(name, to.port);
        if !by_name.is_allowed() {
            return by_name;
        }
        let by_address = self.address(to, Fallback::Public);
        if by_address.is_allowed() { by_name } else { by_address }
    }

    /// Whether a question for this name is answered: whether it may be reached at any port at all.
    pub fn question(&self, name: &Name) -> Verdict {
        let deciding = self.each().find(|(_, _, rule)| {
            rule.target.matches_name(name) && (rule.action == Action::Allow || rule.ports.is_empty())
        });
        self.verdict(deciding)
    }

    /// Whether this name may be reached at this port.
    pub fn name(&self, name: &Name, port: u16) -> Verdict {
        let deciding = self.each().find(|(_, _, rule)| rule.target.matches_name(name) && rule.applies_at(port));
        let verdict = self.verdict(deciding);
        if verdict.is_allowed() && verdict.because == Because::Default && port == ENCRYPTED_DNS_PORT {
            return Verdict::deny(Because::EncryptedDns);
        }
        verdict
    }

    /// Whether a name that showed up within an allowed connection by address (SNI, Host) ends it.
    ///
    /// A rule that names the address means whatever is there, except against the operator; the default does not.
    pub fn presented(&self, allowed_by: &Because, name: &Name, port: u16) -> Option<Verdict> {
        if *allowed_by == Because::Default {
            return Some(self.name(name, port)).filter(|verdict| !verdict.is_allowed());
        }
        let matches = |rule: &Rule| rule.target.matches_name(name) && rule.applies_at(port);
        let index = self.always_deny.iter().position(matches)?;
        Some(Verdict::deny(Because::Rule { list: List::AlwaysDeny, index }))
    }

    /// Whether [`Policy::presented`] could end any connection that was allowed for this reason.
    pub fn cares_what_is_presented(&self, allowed_by: &Because) -> bool {
        let denies_a_name = |rule: &Rule| rule.action == Action::Deny && !matches!(rule.target, Target::Network(_));
        self.always_deny.iter().any(denies_a_name)
            || (*allowed_by == Because::Default && self.rules.iter().any(denies_a_name))
    }

    fn address(&self, to: &Dialled, fallback: Fallback) -> Verdict {
        let deciding = self.each().find(|(_, _, rule)| match &rule.target {
            Target::Network(network) if network.contains(&to.address) && rule.applies_at(to.port) => {
                rule.action == Action::Deny || to.block.is_none_or(|block| block.network.contains(network))
            }
            _ => false,
        });
        match (deciding, to.block, fallback) {
            (Some(_), _, _) => self.verdict(deciding),
            (None, Some(block), _) => Verdict::deny(Because::NotPublic { kind: block.kind }),
            (None, None, Fallback::Public) => Verdict { action: Action::Allow, because: Because::Default },
            (None, None, Fallback::Default) if self.default == Action::Allow && to.port == ENCRYPTED_DNS_PORT => {
                Verdict::deny(Because::EncryptedDns)
            }
            (None, None, Fallback::Default) => self.verdict(None),
        }
    }

    fn verdict(&self, deciding: Option<(List, usize, &Rule)>) -> Verdict {
        match deciding {
            Some((list, index, rule)) => Verdict { action: rule.action, because: Because::Rule { list, index } },
            None => Verdict { action: self.default, because: Because::Default },
        }
    }

    /// Every rule in the order in which it counts.
    fn each(&self) -> impl Iterator<Item = (List, usize, &Rule)> {
        let lists =
            [(List::AlwaysDeny, &self.always_deny), (List::AlwaysAllow, &self.always_allow), (List::User, &self.rules)];
        lists.into_iter().flat_map(|(list, rules)| rules.iter().enumerate().map(move |(at, rule)| (list, at, rule)))
    }
}

/// What holds for a public address of which no rule speaks.
#[derive(Clone, Copy)]
enum Fallback {
    /// Its name was allowed: so is the address.
    Public,
    /// The default action.
    Default,
}

impl Target {
    /// Reads a target as rules have it.
    ///
    /// # Errors
    /// What is wrong with it.
    pub fn parse(text: &str) -> Result<Self, String> {
        parse::target(text)
    }

    /// Whether an address is in it.
    pub fn matches_address(&self, address: IpAddr) -> bool {
        matches!(self, Target::Network(network) if network.contains(&guard::canonical(address)))
    }

    /// Whether it is this name, or above it.
    pub fn matches_name(&self, name: &Name) -> bool {
        match self {
            Target::Name(own) => own == name,
            Target::Below(suffix) => name.is_below(suffix),
            Target::Network(_) => false,
        }
    }
}

impl Rule {
    /// An allow rule without ports means every port but that of DNS over TLS.
    fn applies_at(&self, port: u16) -> bool {
        if self.ports.is_empty() {
            return self.action == Action::Deny || port != ENCRYPTED_DNS_PORT;
        }
        self.ports.binary_search(&port).is_ok()
    }
}

#[cfg(test)]
mod tests;
