//! What the operator sets for all sandboxes.

use std::net::{IpAddr, SocketAddr};

use egress::Settings;
use egress::policy::{Policy, Source};
use egress::upstream::UpstreamProxy;
use protocol::egress::{NetworkPolicy, NetworkRule};
use secrecy::ExposeSecret as _;

use crate::config::{DefaultPolicy, Egress as Config};

/// Where the machine's resolvers are named.
const RESOLV_CONF: &str = "/etc/resolv.conf";
/// Port of a resolver.
const DNS_PORT: u16 = 53;
/// Networks that are nobody's on the internet: what `all` allows beside it.
const PRIVATE: [&str; 4] = ["10.0.0.0/8", "172.16.0.0/12", "192.168.0.0/16", "fc00::/7"];

impl Config {
    /// The whole policy of a sandbox whose owner wrote this one.
    pub(super) fn source(&self, policy: Option<&NetworkPolicy>) -> Source {
        let rules = |targets: &[String], action: &str| targets.iter().map(|target| rule(action, target)).collect();
        let mut always_allow: Vec<NetworkRule> = rules(&self.always_allow, "allow");
        let user = policy.cloned().or_else(|| match self.default_policy {
            DefaultPolicy::Public => None,
            DefaultPolicy::Nothing => Some(NetworkPolicy::default()),
            DefaultPolicy::All => {
                always_allow.extend(PRIVATE.map(|network| rule("allow", network)));
                Some(NetworkPolicy { default_action: Some("allow".into()), ..NetworkPolicy::default() })
            }
        });
        Source { always_deny: rules(&self.always_deny, "deny"), always_allow, user }
    }

    /// What the egress process is told at its start.
    pub(super) fn settings(&self) -> Settings {
        let configured = self.resolvers.iter().filter_map(|text| resolver(text)).collect::<Vec<_>>();
        let resolvers = match configured.is_empty() {
            true => std::fs::read_to_string(RESOLV_CONF).map(|text| named(&text)).unwrap_or_default(),
            false => configured,
        };
        // It was checked when the configuration was read.
        let upstream_proxy = self
            .upstream_proxy
            .as_ref()
            .and_then(|url| UpstreamProxy::parse(url.expose_secret(), &self.upstream_direct).ok());
        Settings {
            resolvers,
            upstream_proxy,
            upstream_ca_pem: self.upstream_ca_pem.clone(),
            vault_plain_http: self.vault_plain_http,
            ..Settings::default()
        }
    }
}

fn rule(action: &str, target: &str) -> NetworkRule {
    NetworkRule { action: Some(action.into()), target: Some(target.into()), ..NetworkRule::default() }
}

/// `address` or `address:port`.
pub(crate) fn resolver(text: &str) -> Option<SocketAddr> {
    text.parse().ok().or_else(|| text.parse::<IpAddr>().ok().map(|address| SocketAddr::new(address, DNS_PORT)))
}

/// What is wrong with a target of a rule, if something is.
pub(crate) fn mistake_in(target: &str) -> Option<String> {
    let source = Source { always_allow: vec![rule("allow", target)], ..Source::default() };
    Policy::parse(&source, "").err().map(|invalid| invalid.reason)
}

/// The resolvers of a resolv.conf, in its order.
fn named(text: &str) -> Vec<SocketAddr> {
    text.lines()
        .filter_map(|line| line.trim().strip_prefix("nameserver"))
        .filter_map(|rest| rest.split_whitespace().next()?.parse::<IpAddr>().ok())
        .map(|address| SocketAddr::new(address, DNS_PORT))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::{named, resolver};

    #[test]
    fn resolvers_are_read_as_the_c_library_does() {
        let text = "# a comment\nsearch a.test\nnameserver 127.0.0.53\nnameserver ::1 # mine\n nameserver nonsense\n";
        let found: Vec<String> = named(text).iter().map(ToString::to_string).collect();
        assert_eq!(found, ["127.0.0.53:53", "[::1]:53"]);
        assert_eq!(resolver("10.0.0.1").expect("a resolver").to_string(), "10.0.0.1:53");
        assert_eq!(resolver("10.0.0.1:5353").expect("a resolver").to_string(), "10.0.0.1:5353");
        assert!(resolver("dns.test").is_none());
    }
}
