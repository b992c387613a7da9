use super::*;

fn pattern(text: &str) -> HostPattern {
    HostPattern::parse(text).expect("a pattern")
}

#[test]
fn names_and_wildcards_are_read_in_small_letters() {
    assert_eq!(pattern("API.Example.com").to_string(), "api.example.com");
    assert_eq!(pattern("*.Example.com").to_string(), "*.example.com");
}

#[test]
fn what_is_no_full_name_is_refused() {
    let bad = [
        "",
        "localhost",
        "*",
        "*.",
        "*.com",
        "com",
        "a..b",
        ".a.b",
        "a.b.",
        "1.2.3.4",
        "a.1",
        "0x7f.0x1",
        "[::1]",
        "a.b:443",
        "a_b.example",
        "-a.example",
        "a-.example",
        "a b.example",
        "http://a.example",
        "a.*.example",
        "**.example.com",
        "bücher.example",
        "a.example/",
        "a.example\n",
    ];
    for text in bad {
        assert!(HostPattern::parse(text).is_err(), "{text:?}");
    }
    let label = "a".repeat(63);
    assert!(HostPattern::parse(&format!("{label}.example")).is_ok());
    assert!(HostPattern::parse(&format!("a{label}.example")).is_err());
    assert!(HostPattern::parse(&[&*label; 5].join(".")).is_err());
}

#[test]
fn a_wildcard_is_about_every_depth_and_not_about_the_name_itself() {
    let wildcard = pattern("*.example.com");
    for host in ["a.example.com", "b.a.example.com", "A.EXAMPLE.COM", "a.example.com."] {
        assert!(wildcard.matches(host), "{host}");
    }
    for host in ["example.com", "aexample.com", "a.example.com.evil.test", ""] {
        assert!(!wildcard.matches(host), "{host}");
    }
}

#[test]
fn a_name_beats_a_wildcard_and_wildcards_within_each_other_conflict() {
    let all = ["a.b.c.test", "b.c.test", "*.b.c.test", "*.c.test", "*.d.test"].map(pattern);
    for (at, one) in all.iter().enumerate() {
        for (other_at, other) in all.iter().enumerate() {
            let expected = at == other_at || matches!((at, other_at), (2, 3) | (3, 2));
            assert_eq!(one.conflicts_with(other), expected, "{one} {other}");
        }
    }
}

#[test]
fn patterns_as_text_say_whether_a_host_is_meant() {
    assert!(is_any(["x.test", "*.example.com"], "a.example.com"));
    assert!(!is_any(["x.y", "nonsense"], "nonsense"));
}
