use super::{Network, SandboxId, SandboxSpec, words};

#[test]
fn a_line_is_split_as_a_shell_does() {
    for (line, expected) in [
        ("tail -f /dev/null", Some(vec!["tail", "-f", "/dev/null"])),
        ("sh -c 'echo \"a b\"'", Some(vec!["sh", "-c", "echo \"a b\""])),
        (r#"a "b \"c\" \d" e\ f """#, Some(vec!["a", r#"b "c" \d"#, "e f", ""])),
        ("a 'b", None),
        ("a \"b", None),
        ("a \\", None),
        ("   ", Some(vec![])),
    ] {
        let expected = expected.map(|words: Vec<&str>| words.into_iter().map(str::to_owned).collect());
        assert_eq!(words(line), expected, "{line}");
    }
}

#[test]
fn ids_are_safe_as_file_names() {
    for bad in ["", "a/b", "..", "-a", "a-", "A", "a b", &"a".repeat(64)] {
        assert!(SandboxId::parse(bad).is_none(), "{bad}");
    }
    assert!(SandboxId::parse("0195-ab").is_some());
}

#[test]
fn a_specification_from_before_there_were_networks_has_none() {
    let text = r#"{"image":"host","private_pull":false,"platform":null,"entrypoint":["true"],"env":{},"limits":{},
        "metadata":{},"extensions":{},"timeout_seconds":null}"#;
    let spec: SandboxSpec = serde_json::from_str(text).expect("a specification");
    assert_eq!(spec.network, Network::None);
    let steered = Network::Steered { reachable: vec!["198.18.0.0/15".parse().expect("a range")] };
    let text = serde_json::to_string(&SandboxSpec { network: steered.clone(), ..spec }).expect("text");
    assert_eq!(serde_json::from_str::<SandboxSpec>(&text).expect("a specification").network, steered);
}
