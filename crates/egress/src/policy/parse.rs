//! From what a client wrote to rules that mean something, naming the field that does not.

use std::net::IpAddr;

use ipnet::{IpNet, Ipv4Net};
use protocol::egress::{NetworkPolicy, NetworkRule};

use super::{Action, MAX_PORTS, MAX_RULES, Policy, Rule, Source, Target};
use crate::guard;
use crate::name::Name;

/// The field that is wrong, and why.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{field}: {reason}")]
pub struct Invalid {
    /// The path of the field, such as `networkPolicy.egress[3].target`.
    pub field: String,
    /// What is wrong with it, and what to do.
    pub reason: String,
    /// Whether there is simply too much of it: an answer of its own in the API (413).
    pub is_too_much: bool,
}

impl Invalid {
    fn new(field: impl Into<String>, reason: impl Into<String>) -> Self {
        Self { field: field.into(), reason: reason.into(), is_too_much: false }
    }
}

impl Policy {
    /// Reads a policy with the operator's lists. `field` is how errors call the user's part.
    ///
    /// # Errors
    /// The first field that is wrong.
    pub fn parse(source: &Source, field: &str) -> Result<Self, Invalid> {
        let always_deny = list(&source.always_deny, "alwaysDeny", Action::Deny)?;
        let always_allow = list(&source.always_allow, "alwaysAllow", Action::Allow)?;
        let user = source.user.as_ref().map(|user| parse_user(user, field)).transpose()?;
        let (default, rules) = user.unwrap_or((Action::Allow, Vec::new()));
        Ok(Self { always_deny, always_allow, rules, default })
    }

    /// Reads a user's policy alone.
    ///
    /// # Errors
    /// As [`Policy::parse`].
    pub fn parse_user(user: &NetworkPolicy, field: &str) -> Result<Self, Invalid> {
        let (default, rules) = parse_user(user, field)?;
        Ok(Self { always_deny: Vec::new(), always_allow: Vec::new(), rules, default })
    }
}

fn parse_user(user: &NetworkPolicy, field: &str) -> Result<(Action, Vec<Rule>), Invalid> {
    if let Some(unknown) = user.unknown.keys().next() {
        return Err(Invalid::new(format!("{field}.{unknown}"), "is unknown here"));
    }
    let default = action(user.default_action.as_deref(), &format!("{field}.defaultAction"))?;
    if user.egress.len() > MAX_RULES {
        let reason = format!("{} rules are more than {MAX_RULES}", user.egress.len());
        return Err(Invalid { is_too_much: true, ..Invalid::new(format!("{field}.egress"), reason) });
    }
    let rules = user.egress.iter().enumerate();
    let rules = rules.map(|(at, wire)| rule(wire, &format!("{field}.egress[{at}]")));
    Ok((default, rules.collect::<Result<_, _>>()?))
}

/// The operator's lists hold targets; an action may be there if it says the same.
fn list(wire: &[NetworkRule], field: &str, meant: Action) -> Result<Vec<Rule>, Invalid> {
    let read = |(at, wire): (usize, &NetworkRule)| {
        let field = format!("{field}[{at}]");
        if wire.action.is_some() && action(wire.action.as_deref(), &format!("{field}.action"))? != meant {
            return Err(Invalid::new(format!("{field}.action"), "contradicts the list that it is in"));
        }
        Ok(Rule { action: meant, ..rule(wire, &field)? })
    };
    wire.iter().enumerate().map(read).collect()
}

fn rule(wire: &NetworkRule, field: &str) -> Result<Rule, Invalid> {
    if let Some(unknown) = wire.unknown.keys().next() {
        return Err(Invalid::new(format!("{field}.{unknown}"), "is unknown here"));
    }
    let action = action(wire.action.as_deref(), &format!("{field}.action"))?;
    let text = wire.target.as_deref().unwrap_or_default();
    let target = target(text).map_err(|reason| Invalid::new(format!("{field}.target"), reason))?;
    let ports = ports(wire.ports.as_deref()).map_err(|reason| Invalid::new(format!("{field}.ports"), reason))?;
    Ok(Rule { action, target, ports })
}

/// A missing action is a denial, as published.
fn action(text: Option<&str>, field: &str) -> Result<Action, Invalid> {
    match text {
        None => Ok(Action::Deny),
        Some(text) if text.eq_ignore_ascii_case("allow") => Ok(Action::Allow),
        Some(text) if text.eq_ignore_ascii_case("deny") => Ok(Action::Deny),
        Some(other) => Err(Invalid::new(field, format!("{other:?} is unknown; use allow or deny"))),
    }
}

pub(super) fn target(text: &str) -> Result<Target, String> {
    let text = text.trim();
    if text.is_empty() {
        return Err("is blank; write a name, *.name, an address or a network".to_owned());
    }
    if let Ok(address) = text.parse::<IpAddr>() {
        return Ok(Target::Network(IpNet::from(guard::canonical(address))));
    }
    if text.contains('/') {
        let network = text.parse::<IpNet>();
        return Ok(Target::Network(canonical(
            network.map_err(|_| format!("{text:?} is no network such as 10.0.0.0/8"))?,
        )));
    }
    let name = |text: &str| Name::parse(text).map_err(|error| format!("{text:?} {error}"));
    match text.strip_prefix("*.") {
        Some(suffix) => Ok(Target::Below(name(suffix)?)),
        None if text == "*" => Err("\"*\" alone matches nothing; use defaultAction for everything".to_owned()),
        None => Ok(Target::Name(name(text)?)),
    }
}

/// Host bits are dropped; a network of IPv4-mapped addresses is the IPv4 network.
fn canonical(network: IpNet) -> IpNet {
    const MAPPED_BITS: u8 = 96;
    let network = network.trunc();
    match (network.addr().to_canonical(), network.prefix_len()) {
        (IpAddr::V4(address), prefix) if matches!(network, IpNet::V6(_)) && prefix >= MAPPED_BITS => {
            IpNet::V4(Ipv4Net::new_assert(address, prefix - MAPPED_BITS))
        }
        _ => network,
    }
}

fn ports(wire: Option<&[u32]>) -> Result<Vec<u16>, String> {
    let Some(wire) = wire else { return Ok(Vec::new()) };
    if wire.is_empty() {
        return Err("is empty; leave it out for every port".to_owned());
    }
    if wire.len() > MAX_PORTS {
        return Err(format!("{} ports are more than {MAX_PORTS}", wire.len()));
    }
    let port = |port: &u32| match u16::try_from(*port) {
        Ok(port) if port != 0 => Ok(port),
        _ => Err(format!("{port} is no port; use 1 to 65535")),
    };
    let mut ports: Vec<u16> = wire.iter().map(port).collect::<Result<_, _>>()?;
    ports.sort_unstable();
    ports.dedup();
    Ok(ports)
}
