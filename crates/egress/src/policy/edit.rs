//! Changes of a user's policy as the published API makes them: rules by their targets, in the form of the wire.

use std::collections::HashSet;

use protocol::egress::{NetworkPolicy, NetworkRule};

/// Puts rules before those that are there. New rules for a target take the place of all old ones for it; of several new
/// ones for one target and the same ports the first counts.
pub fn prepend(policy: &NetworkPolicy, rules: &[NetworkRule]) -> NetworkPolicy {
    let targets: HashSet<String> = rules.iter().map(key).collect();
    let mut seen = HashSet::new();
    let new = rules.iter().filter(|rule| seen.insert((key(rule), rule.ports.clone())));
    let old = policy.egress.iter().filter(|rule| !targets.contains(&key(rule)));
    NetworkPolicy { egress: new.chain(old).cloned().collect(), ..policy.clone() }
}

/// Takes out every rule for these targets. Says whether there was any.
pub fn remove(policy: &NetworkPolicy, targets: &[String]) -> (NetworkPolicy, bool) {
    let gone: HashSet<String> = targets.iter().map(|target| target.trim().to_lowercase()).collect();
    let egress: Vec<_> = policy.egress.iter().filter(|rule| !gone.contains(&key(rule))).cloned().collect();
    let any = egress.len() < policy.egress.len();
    (NetworkPolicy { egress, ..policy.clone() }, any)
}

fn key(rule: &NetworkRule) -> String {
    rule.target.as_deref().unwrap_or_default().trim().to_lowercase()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rule(action: &str, target: &str) -> NetworkRule {
        NetworkRule { action: Some(action.into()), target: Some(target.into()), ..NetworkRule::default() }
    }

    fn policy(egress: Vec<NetworkRule>) -> NetworkPolicy {
        NetworkPolicy { default_action: Some("deny".into()), egress, ..NetworkPolicy::default() }
    }

    #[test]
    fn new_rules_come_first_and_replace_those_of_their_target() {
        let before = policy(vec![rule("allow", "a.example"), rule("allow", "B.example")]);
        let new = [rule("deny", "b.EXAMPLE"), rule("allow", "c.example"), rule("deny", "c.example")];
        let after = prepend(&before, &new);
        assert_eq!(
            after,
            policy(vec![rule("deny", "b.EXAMPLE"), rule("allow", "c.example"), rule("allow", "a.example")])
        );
    }

    #[test]
    fn new_rules_for_other_ports_of_one_target_all_count() {
        let on = |port| NetworkRule { ports: Some(vec![port]), ..rule("allow", "a.example") };
        let after = prepend(&policy(vec![rule("deny", "a.example")]), &[on(80), on(443), on(80)]);
        assert_eq!(after, policy(vec![on(80), on(443)]));
    }

    #[test]
    fn targets_are_taken_out_in_any_case() {
        let before = policy(vec![rule("allow", "a.example"), rule("allow", "B.example")]);
        assert_eq!(remove(&before, &["b.EXAMPLE".into()]), (policy(vec![rule("allow", "a.example")]), true));
        assert_eq!(remove(&before, &["c.example".into()]), (before.clone(), false));
    }
}
