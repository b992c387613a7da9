//! Targets of rules as people write them: what, and at which ports.

use protocol::egress::{NetworkPolicy, NetworkRule};

/// Reads `pkg.test`, `*.pkg.test:443`, `10.0.0.0/8:80,443`, `2001:db8::1` or `[2001:db8::1]:443` as a rule that allows it.
/// Whether the target means something is for the server to say.
///
/// # Errors
/// A sentence with the accepted forms.
pub fn parse(text: &str) -> Result<NetworkRule, String> {
    let wrong = || {
        format!(
            "`{text}` is no target; write a name, *.name, an address or a network, then :PORT or :PORT,PORT if not all are meant"
        )
    };
    let text = text.trim();
    let (target, ports) = match text.strip_prefix('[') {
        Some(rest) => {
            let (target, rest) = rest.split_once(']').ok_or_else(wrong)?;
            match rest.strip_prefix(':') {
                Some(ports) => (target, Some(ports)),
                None if rest.is_empty() => (target, None),
                None => return Err(wrong()),
            }
        }
        // An address of IPv6 needs brackets to have ports.
        None if text.matches(':').count() > 1 => (text, None),
        None => text.split_once(':').map_or((text, None), |(target, ports)| (target, Some(ports))),
    };
    if target.is_empty() || target.contains("://") {
        return Err(wrong());
    }
    let port = |text: &str| text.parse::<u16>().ok().filter(|port| *port != 0).map(u32::from).ok_or_else(wrong);
    let ports = ports.map(|ports| ports.split(',').map(port).collect::<Result<Vec<_>, _>>()).transpose()?;
    Ok(NetworkRule { action: Some("allow".into()), target: Some(target.to_owned()), ports, ..NetworkRule::default() })
}

/// A rule's target and ports as [`parse`] reads them.
pub fn written(rule: &NetworkRule) -> String {
    let target = rule.target.as_deref().unwrap_or_default();
    match &rule.ports {
        None => target.to_owned(),
        Some(ports) => {
            let ports = ports.iter().map(u32::to_string).collect::<Vec<_>>().join(",");
            let target = if target.contains(':') { format!("[{target}]") } else { target.to_owned() };
            format!("{target}:{ports}")
        }
    }
}

/// A policy that allows these and nothing else.
pub fn permitting(rules: &[NetworkRule]) -> NetworkPolicy {
    NetworkPolicy { default_action: Some("deny".into()), egress: rules.to_vec(), ..NetworkPolicy::default() }
}

/// The rules to send so that new ones add to those that are there: the server replaces all rules of a target.
pub fn merged(policy: &NetworkPolicy, new: impl Iterator<Item = NetworkRule>) -> Vec<NetworkRule> {
    let mut rules: Vec<NetworkRule> = Vec::new();
    for mut rule in new {
        let twin = rules.iter().position(|other| is_same(other, &rule)).map(|at| rules.remove(at));
        let old = policy.egress.iter().filter(|old| is_same(old, &rule)).cloned();
        for other in twin.into_iter().chain(old).collect::<Vec<_>>() {
            rule.ports = rule.ports.zip(other.ports).map(|(mut ports, more)| {
                ports.extend(more);
                ports.sort_unstable();
                ports.dedup();
                ports
            });
        }
        rules.push(rule);
    }
    // Those with the other action still decide about other ports.
    let others = policy.egress.iter().filter(|old| {
        let same_target = |rule: &&NetworkRule| key(rule) == key(old);
        let of_target: Vec<_> = rules.iter().filter(same_target).collect();
        !of_target.is_empty() && of_target.iter().all(|rule| !is_same(rule, old) && rule.ports.is_some())
    });
    let others: Vec<NetworkRule> = others.cloned().collect();
    rules.into_iter().chain(others).collect()
}

fn is_same(one: &NetworkRule, other: &NetworkRule) -> bool {
    let action = |rule: &NetworkRule| rule.action.as_deref().unwrap_or("deny").to_ascii_lowercase();
    key(one) == key(other) && action(one) == action(other)
}

fn key(rule: &NetworkRule) -> String {
    rule.target.as_deref().unwrap_or_default().trim().to_lowercase()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rule(action: &str, text: &str) -> NetworkRule {
        NetworkRule { action: Some(action.into()), ..parse(text).expect("a target") }
    }

    #[test]
    fn targets_are_read_as_they_are_written() {
        for (text, target, ports) in [
            ("pkg.test", "pkg.test", None),
            ("*.pkg.test:443", "*.pkg.test", Some(vec![443])),
            ("10.0.0.0/8:80,443", "10.0.0.0/8", Some(vec![80, 443])),
            ("2001:db8::1", "2001:db8::1", None),
            ("[2001:db8::/32]:22", "2001:db8::/32", Some(vec![22])),
        ] {
            let read = parse(text).expect("a target");
            assert_eq!((read.target.as_deref(), &read.ports), (Some(target), &ports), "{text}");
            assert_eq!(written(&read), text);
        }
        for text in ["", ":443", "a:", "a:0", "a:65536", "a:x", "[::1", "[::1]443", "https://pkg.test"] {
            assert!(parse(text).is_err(), "{text}");
        }
    }

    #[test]
    fn ports_are_added_and_other_rules_of_the_target_stay() {
        let before = NetworkPolicy {
            egress: vec![rule("allow", "a.test:443"), rule("deny", "a.test:25"), rule("allow", "b.test")],
            ..NetworkPolicy::default()
        };
        let merge = |rules: &[NetworkRule]| merged(&before, rules.iter().cloned());
        assert_eq!(merge(&[rule("allow", "A.test:80")]), [rule("allow", "A.test:80,443"), rule("deny", "a.test:25")]);
        assert_eq!(merge(&[rule("deny", "a.test")]), [rule("deny", "a.test")]);
        assert_eq!(merge(&[rule("allow", "b.test:80")]), [rule("allow", "b.test")]);
        assert_eq!(merge(&[rule("allow", "c.test:1"), rule("allow", "c.test:2")]), [rule("allow", "c.test:1,2")]);
    }
}
