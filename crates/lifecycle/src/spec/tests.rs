use super::{SandboxId, words};

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
