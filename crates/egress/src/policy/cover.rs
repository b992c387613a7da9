//! Whether a policy lets a sandbox reach the hosts that its credentials are for.

use super::{Policy, Verdict};
use crate::name::Name;

/// Stands for every name below another (published word).
const PROBE: &str = "probe";

impl Policy {
    /// What it says of a host, or of one below a name where the host is written `*.name`. `None` for what is no host.
    pub fn covers(&self, host: &str, port: u16) -> Option<Verdict> {
        let name = match host.strip_prefix("*.") {
            Some(suffix) => Name::parse(&format!("{PROBE}.{suffix}")),
            None => Name::parse(host),
        };
        Some(self.name(&name.ok()?, port))
    }
}

#[cfg(test)]
mod tests {
    use protocol::egress::NetworkPolicy;
    use serde_json::json;

    use super::*;

    #[test]
    fn a_host_is_covered_by_its_own_rule_or_one_for_all_beside_it_at_the_port_that_is_meant() {
        let user: NetworkPolicy = serde_json::from_value(json!({ "egress": [
            { "action": "deny", "target": "no.example.com" },
            { "action": "allow", "target": "*.example.com" },
            { "action": "allow", "target": "one.test", "ports": [443] },
        ] }))
        .expect("a policy");
        let policy = Policy::parse_user(&user, "networkPolicy").expect("a policy");
        let says = |host: &str, port| policy.covers(host, port).map(|verdict| verdict.is_allowed());
        assert_eq!(says("api.example.com", 443), Some(true));
        assert_eq!(says("*.example.com", 443), Some(true));
        assert_eq!(says("*.deep.example.com", 443), Some(true));
        assert_eq!(says("no.example.com", 443), Some(false));
        assert_eq!(says("example.com", 443), Some(false));
        assert_eq!(
            (says("one.test", 443), says("one.test", 80), says("*.one.test", 443)),
            (Some(true), Some(false), Some(false))
        );
        assert_eq!(says("10.0.0.1", 443), None);
    }
}
