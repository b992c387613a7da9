use proptest::prelude::*;
use serde_json::json;

use super::*;

fn wire(policy: serde_json::Value) -> NetworkPolicy {
    serde_json::from_value(policy).expect("a policy on the wire")
}

fn policy(rules: serde_json::Value) -> Policy {
    Policy::parse_user(&wire(rules), "networkPolicy").expect("a policy")
}

fn name(text: &str) -> Name {
    Name::parse(text).expect("a name")
}

fn to(address: &str, port: u16) -> Dialled {
    Dialled::new(address.parse().expect("an address"), port)
}

#[track_caller]
fn refused(rules: serde_json::Value, field: &str) {
    let invalid = Policy::parse_user(&wire(rules), "networkPolicy").expect_err("it is wrong");
    assert_eq!(invalid.field, field, "{invalid}");
}

#[test]
fn an_empty_policy_denies() {
    for empty in [json!({}), json!({"egress": null}), json!({"defaultAction": null, "egress": []})] {
        let policy = policy(empty);
        assert!(!policy.question(&name("example.com")).is_allowed());
        assert!(!policy.decide(None, &to("1.1.1.1", 443)).is_allowed());
    }
}

#[test]
fn the_field_that_is_wrong_is_named() {
    let rule = |target: &str| json!({"action": "allow", "target": target});
    let fourth = |bad| json!({"egress": [rule("a.example"), rule("b.example"), rule("c.example"), bad]});
    refused(json!({"defaultAction": "block"}), "networkPolicy.defaultAction");
    refused(json!({"defaultAction": ""}), "networkPolicy.defaultAction");
    refused(fourth(json!({"action": "permit", "target": "d.example"})), "networkPolicy.egress[3].action");
    for target in
        ["", "  ", "*", "*.", "a..b", "1.2.3.4:80", "10.0.0.0/33", "0x7f.1", "a b", "*.1.2", "http://a.example"]
    {
        refused(fourth(rule(target)), "networkPolicy.egress[3].target");
    }
    refused(fourth(json!({"action": "allow"})), "networkPolicy.egress[3].target");
    for ports in [json!([0]), json!([65536]), json!([])] {
        let bad = json!({"action": "allow", "target": "d.example", "ports": ports});
        refused(fourth(bad), "networkPolicy.egress[3].ports");
    }
    refused(
        fourth(json!({"action": "allow", "target": "d.example", "protocol": "udp"})),
        "networkPolicy.egress[3].protocol",
    );
    refused(json!({"ingress": []}), "networkPolicy.ingress");
}

#[test]
fn one_rule_too_many_is_too_much() {
    let rules = |count: usize| json!({"egress": vec![json!({"action": "allow", "target": "a.example"}); count]});
    policy(rules(MAX_RULES));
    let invalid = Policy::parse_user(&wire(rules(MAX_RULES + 1)), "networkPolicy").expect_err("too many");
    assert!(invalid.is_too_much);
}

#[test]
fn an_action_is_read_in_any_case_and_missing_is_deny() {
    let policy = policy(
        json!({"defaultAction": "ALLOW", "egress": [{"target": "no.example"}, {"action": "Deny", "target": "never.example"}]}),
    );
    assert!(policy.question(&name("yes.example")).is_allowed());
    assert!(!policy.question(&name("no.example")).is_allowed());
    assert!(!policy.question(&name("never.example")).is_allowed());
}

#[test]
fn the_first_rule_that_matches_wins() {
    let policy = policy(json!({"egress": [
        {"action": "deny", "target": "secret.example.com"},
        {"action": "allow", "target": "*.example.com"},
        {"action": "deny", "target": "late.example.com"},
    ]}));
    assert_eq!(policy.question(&name("secret.example.com")).because, Because::Rule { list: List::User, index: 0 });
    assert!(policy.question(&name("late.example.com")).is_allowed());
    assert!(policy.question(&name("deep.er.example.com")).is_allowed());
    assert_eq!(policy.question(&name("example.com")).because, Because::Default);
}

#[test]
fn the_operator_beats_the_user_and_denial_beats_permission() {
    let source = Source {
        always_deny: vec![NetworkRule { target: Some("evil.example".into()), ..Default::default() }],
        always_allow: ["mirror.example", "evil.example"]
            .map(|target| NetworkRule { target: Some(target.into()), ..Default::default() })
            .into(),
        user: Some(wire(json!({"egress": [
            {"action": "allow", "target": "evil.example"}, {"action": "deny", "target": "mirror.example"}]}))),
    };
    let policy = Policy::parse(&source, "networkPolicy").expect("a policy");
    assert_eq!(policy.question(&name("evil.example")).because, Because::Rule { list: List::AlwaysDeny, index: 0 });
    assert!(policy.question(&name("mirror.example")).is_allowed());
}

#[test]
fn an_action_that_contradicts_its_list_is_refused() {
    let rule = NetworkRule { action: Some("allow".into()), target: Some("a.example".into()), ..Default::default() };
    let source = Source { always_deny: vec![rule], ..Default::default() };
    assert_eq!(Policy::parse(&source, "networkPolicy").expect_err("it contradicts").field, "alwaysDeny[0].action");
}

#[test]
fn without_a_policy_the_public_internet_is_reached_and_nothing_else() {
    let policy = Policy::parse(&Source::default(), "networkPolicy").expect("a policy");
    assert_eq!(policy, Policy::public_internet());
    assert!(policy.decide(None, &to("1.1.1.1", 443)).is_allowed());
    assert!(policy.decide(Some(&name("example.com")), &to("1.1.1.1", 443)).is_allowed());
    for address in ["10.0.0.1", "127.0.0.1", "169.254.169.254", "::1", "64:ff9b::a00:1", "168.63.129.16", "fd00::1"] {
        assert!(!policy.decide(None, &to(address, 80)).is_allowed(), "{address}");
        assert!(!policy.decide(Some(&name("rebind.example")), &to(address, 80)).is_allowed(), "{address}");
    }
}

#[test]
fn a_name_rule_does_not_open_a_private_address_but_a_network_rule_beside_it_does() {
    let by_name = json!({"action": "allow", "target": "db.example"});
    let network = json!({"action": "allow", "target": "10.1.0.0/16"});
    let db = name("db.example");
    assert!(!policy(json!({"egress": [by_name]})).decide(Some(&db), &to("10.1.2.3", 5432)).is_allowed());
    assert!(policy(json!({"egress": [by_name, network]})).decide(Some(&db), &to("10.1.2.3", 5432)).is_allowed());
    assert!(!policy(json!({"egress": [network]})).decide(Some(&db), &to("10.1.2.3", 5432)).is_allowed());
}

#[test]
fn everything_does_not_mean_the_metadata_service() {
    let wide = policy(json!({"egress": [
        {"action": "allow", "target": "0.0.0.0/0"}, {"action": "allow", "target": "::/0"},
        {"action": "allow", "target": "169.254.0.0/16"}]}));
    assert!(wide.decide(None, &to("1.1.1.1", 80)).is_allowed());
    assert!(wide.decide(None, &to("169.254.3.4", 80)).is_allowed());
    for address in ["169.254.169.254", "10.0.0.1", "::1", "127.0.0.1", "::ffff:10.0.0.1"] {
        assert!(!wide.decide(None, &to(address, 80)).is_allowed(), "{address}");
    }
    let exact = policy(json!({"egress": [{"action": "allow", "target": "169.254.169.254"}]}));
    assert!(exact.decide(None, &to("169.254.169.254", 80)).is_allowed());
}

#[test]
fn an_own_address_of_the_machine_needs_its_own_rule() {
    let wide = policy(json!({"defaultAction": "allow", "egress": [{"action": "allow", "target": "93.184.0.0/16"}]}));
    assert!(wide.decide(None, &to("93.184.216.34", 22)).is_allowed());
    assert_eq!(wide.decide(None, &to("93.184.216.34", 22).of_host()).because, Because::NotPublic { kind: Kind::Host });
    let exact = policy(json!({"egress": [{"action": "allow", "target": "93.184.216.34"}]}));
    assert!(exact.decide(None, &to("93.184.216.34", 22).of_host()).is_allowed());
    let private = policy(json!({"egress": [{"action": "allow", "target": "10.0.0.0/8"}]}));
    assert!(private.decide(None, &to("10.1.2.3", 22)).is_allowed());
    assert!(!private.decide(None, &to("10.1.2.3", 22).of_host()).is_allowed());
}

#[test]
fn a_denied_network_is_denied_also_behind_an_allowed_name() {
    let policy = policy(json!({"egress": [
        {"action": "allow", "target": "cdn.example"}, {"action": "deny", "target": "93.184.0.0/16"}]}));
    assert!(!policy.decide(Some(&name("cdn.example")), &to("93.184.216.34", 443)).is_allowed());
    assert!(policy.decide(Some(&name("cdn.example")), &to("93.185.0.1", 443)).is_allowed());
}

#[test]
fn ports_narrow_a_rule() {
    let policy = policy(json!({"egress": [
        {"action": "allow", "target": "git.example", "ports": [22, 443]},
        {"action": "allow", "target": "1.2.3.0/24", "ports": [8080]}]}));
    assert!(policy.question(&name("git.example")).is_allowed());
    assert!(policy.name(&name("git.example"), 22).is_allowed());
    assert!(!policy.name(&name("git.example"), 80).is_allowed());
    assert!(policy.decide(None, &to("1.2.3.4", 8080)).is_allowed());
    assert!(!policy.decide(None, &to("1.2.3.4", 80)).is_allowed());
}

#[test]
fn a_denied_port_leaves_the_name_known() {
    let policy = policy(json!({"defaultAction": "allow", "egress": [
        {"action": "deny", "target": "mail.example", "ports": [25]}]}));
    assert!(policy.question(&name("mail.example")).is_allowed());
    assert!(!policy.name(&name("mail.example"), 25).is_allowed());
    assert!(policy.name(&name("mail.example"), 443).is_allowed());
}

#[test]
fn dns_over_tls_needs_a_rule_that_names_its_port() {
    let silent = policy(json!({"defaultAction": "allow", "egress": [
        {"action": "allow", "target": "dns.example"}, {"action": "allow", "target": "9.9.9.9"}]}));
    for verdict in [
        silent.decide(None, &to("8.8.8.8", 853)),
        silent.decide(None, &to("9.9.9.9", 853)),
        silent.decide(Some(&name("dns.example")), &to("8.8.8.8", 853)),
        silent.decide(Some(&name("other.example")), &to("8.8.8.8", 853)),
    ] {
        assert_eq!(verdict, Verdict::deny(Because::EncryptedDns));
    }
    let said = policy(json!({"egress": [
        {"action": "allow", "target": "dns.example", "ports": [853]},
        {"action": "allow", "target": "9.9.9.9", "ports": [853]}]}));
    assert!(said.decide(None, &to("9.9.9.9", 853)).is_allowed());
    assert!(said.decide(Some(&name("dns.example")), &to("8.8.8.8", 853)).is_allowed());
}

#[test]
fn what_a_connection_by_address_presents_is_held_against_denied_names() {
    let policy = policy(json!({"defaultAction": "allow", "egress": [
        {"action": "allow", "target": "1.2.3.4"}, {"action": "deny", "target": "*.ads.example"}]}));
    let by_default = policy.decide(None, &to("5.6.7.8", 443)).because;
    let by_rule = policy.decide(None, &to("1.2.3.4", 443)).because;
    assert!(policy.cares_what_is_presented(&by_default) && !policy.cares_what_is_presented(&by_rule));
    assert!(policy.presented(&by_default, &name("x.ads.example"), 443).is_some());
    assert!(policy.presented(&by_default, &name("fine.example"), 443).is_none());
    assert!(policy.presented(&by_rule, &name("x.ads.example"), 443).is_none());
}

#[test]
fn mapped_targets_are_the_networks_they_map() {
    let policy = policy(json!({"egress": [
        {"action": "allow", "target": "::ffff:1.2.3.4"}, {"action": "allow", "target": "::ffff:5.6.0.0/112"}]}));
    assert!(policy.decide(None, &to("1.2.3.4", 80)).is_allowed());
    assert!(policy.decide(None, &to("5.6.7.8", 80)).is_allowed());
}

#[test]
fn the_kernel_lets_through_what_could_be_allowed_and_no_more() {
    let synthetic: IpNet = "28.0.0.0/16".parse().expect("a network");
    let closed = policy(
        json!({"egress": [{"action": "allow", "target": "a.example"}, {"action": "deny", "target": "1.1.1.1"}]}),
    );
    assert_eq!(closed.reachable(synthetic), [synthetic]);
    let open = Policy::public_internet().reachable(synthetic);
    let holds = |text: &str| {
        let address: IpAddr = text.parse().expect("an address");
        open.iter().any(|network| network.contains(&address))
    };
    assert!(holds("1.1.1.1") && holds("28.0.1.1") && holds("2606:4700::1111"));
    for address in ["10.0.0.1", "169.254.169.254", "168.63.129.16", "127.0.0.1", "::1", "64:ff9b::1", "2002::1"] {
        assert!(!holds(address), "{address}");
    }
}

#[test]
fn fuzz_policies() {
    let example = json!({"user": {"defaultAction": "allow", "egress": [{"action": "allow", "target": "10.0.0.0/8", "ports": [80]},
        {"action": "deny", "target": "*.a.example"}]}, "always_deny": [{"target": "127.0.0.0/8"}], "always_allow": []});
    let example = example.to_string();
    let closed = ["127.0.0.1", "::ffff:127.0.0.1", "169.254.169.254", "64:ff9b::7f00:1"].map(|text| to(text, 80));
    fuzz::run(
        "policies",
        &[example.as_bytes(), b"{}", br#"{"user":{"egress":[{"target":"0.0.0.0/0","action":"allow"}]}}"#],
        |input| {
            let Ok(source) = serde_json::from_slice::<Source>(input) else { return };
            let Ok(policy) = Policy::parse(&source, "p") else { return };
            let text = String::from_utf8_lossy(input);
            for destination in &closed {
                let allowed = policy.decide(None, destination).is_allowed();
                assert!(!allowed || text.contains("allow"), "{destination:?} by a policy that allows nothing");
                let reachable = policy.reachable("28.64.0.0/16".parse().expect("a network"));
                assert!(!allowed || reachable.iter().any(|network| network.contains(&destination.address)));
            }
        },
    );
}

prop_compose! {
    fn any_target()(kind in 0..5, octets: [u8; 4], prefix in 0u8..=32, segments: [u16; 8], prefix6 in 0u8..=128, label in "[a-c]") -> String {
        let v4 = std::net::Ipv4Addr::from(octets);
        let v6 = std::net::Ipv6Addr::from(segments);
        match kind {
            0 => format!("{v4}/{prefix}"),
            1 => v4.to_string(),
            2 => format!("{v6}/{prefix6}"),
            3 => format!("{label}.example"),
            _ => format!("*.{label}.example"),
        }
    }
}

prop_compose! {
    fn any_rule()(allow: bool, target in any_target(), ports in proptest::option::of(proptest::collection::vec(1u32..1000, 1..4))) -> NetworkRule {
        NetworkRule { action: Some(if allow { "allow" } else { "deny" }.into()), target: Some(target), ports, ..Default::default() }
    }
}

prop_compose! {
    fn any_source()(always_deny in proptest::collection::vec(any_rule(), 0..3), always_allow in proptest::collection::vec(any_rule(), 0..3),
        rules in proptest::collection::vec(any_rule(), 0..6), default in proptest::option::of(any::<bool>())) -> Source {
        let strip = |mut rule: NetworkRule| { rule.action = None; rule };
        let user = default.map(|allow| NetworkPolicy {
            default_action: Some(if allow { "allow" } else { "deny" }.into()), egress: rules, ..Default::default() });
        Source { always_deny: always_deny.into_iter().map(strip).collect(), always_allow: always_allow.into_iter().map(strip).collect(), user }
    }
}

prop_compose! {
    fn any_address()(kind in 0..4, octets: [u8; 4], segments: [u16; 8], known in proptest::sample::select(vec![
        "169.254.169.254", "10.0.0.1", "127.0.0.1", "::1", "fd00:ec2::254", "64:ff9b::7f00:1", "::ffff:127.0.0.1", "168.63.129.16"])) -> IpAddr {
        match kind {
            0 => IpAddr::from(octets),
            1 => IpAddr::from(segments),
            _ => known.parse().expect("an address"),
        }
    }
}

fn any_name() -> impl Strategy<Value = Option<Name>> {
    proptest::option::of(proptest::sample::select(vec![
        "a.example",
        "b.example",
        "x.a.example",
        "x.y.b.example",
        "other.test",
    ]))
    .prop_map(|text| text.map(name))
}

proptest! {
    #[test]
    fn not_public_is_allowed_only_by_a_rule_that_lies_within_its_block(
        source in any_source(), name in any_name(), address in any_address(), port in 1u16..1000, own: bool,
    ) {
        let policy = Policy::parse(&source, "p").expect("generated rules are valid");
        let to = if own { Dialled::new(address, port).of_host() } else { Dialled::new(address, port) };
        if let (true, Some(block)) = (policy.decide(name.as_ref(), &to).is_allowed(), to.block) {
            let means_it = policy.each().any(|(_, _, rule)| matches!(&rule.target, Target::Network(network)
                if rule.action == Action::Allow && block.network.contains(network) && network.contains(&to.address)));
            prop_assert!(means_it, "{to:?} was allowed");
        }
    }

    #[test]
    fn nothing_beats_an_always_deny_rule(
        source in any_source(), name in any_name(), address in any_address(), port in 1u16..1000,
    ) {
        let policy = Policy::parse(&source, "p").expect("generated rules are valid");
        let to = Dialled::new(address, port);
        let denied = policy.always_deny.iter().any(|rule| {
            (rule.ports.is_empty() || rule.ports.contains(&port)) && match &rule.target {
                Target::Network(network) => network.contains(&to.address),
                other => name.as_ref().is_some_and(|name| other.matches_name(name)),
            }
        });
        prop_assert!(!denied || !policy.decide(name.as_ref(), &to).is_allowed());
    }

    #[test]
    fn what_is_allowed_is_let_through_by_the_kernel_and_answered(
        source in any_source(), name in any_name(), address in any_address(), port in 1u16..1000,
    ) {
        let policy = Policy::parse(&source, "p").expect("generated rules are valid");
        let to = Dialled::new(address, port);
        if policy.decide(name.as_ref(), &to).is_allowed() {
            match &name {
                Some(name) => prop_assert!(policy.question(name).is_allowed()),
                None => {
                    let reachable = policy.reachable("28.0.0.0/16".parse().expect("a network"));
                    prop_assert!(reachable.iter().any(|network| network.contains(&to.address)));
                }
            }
        }
    }

    #[test]
    fn mapped_and_plain_addresses_have_one_verdict(source in any_source(), octets: [u8; 4], port in 1u16..1000) {
        let policy = Policy::parse(&source, "p").expect("generated rules are valid");
        let plain = std::net::Ipv4Addr::from(octets);
        let mapped = IpAddr::V6(plain.to_ipv6_mapped());
        prop_assert_eq!(
            policy.decide(None, &Dialled::new(IpAddr::V4(plain), port)),
            policy.decide(None, &Dialled::new(mapped, port))
        );
    }

    #[test]
    fn any_text_is_parsed_or_refused_by_name(action in ".{0,8}", target in ".{0,40}") {
        let user = NetworkPolicy { egress: vec![NetworkRule { action: Some(action), target: Some(target), ..Default::default() }], ..Default::default() };
        if let Err(invalid) = Policy::parse_user(&user, "p") {
            prop_assert!(invalid.field.starts_with("p.egress[0]."));
        }
    }
}
