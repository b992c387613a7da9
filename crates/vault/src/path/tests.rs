use proptest::prelude::*;

use super::*;

fn one_form(raw: &str) -> String {
    Path::parse(raw).text
}

fn pattern(text: &str) -> PathPattern {
    PathPattern::parse(text).expect("a pattern")
}

#[test]
fn a_path_has_one_form() {
    for (raw, expected) in [
        ("/", "/"),
        ("/a/b", "/a/b"),
        ("/a/b/", "/a/b/"),
        ("/%61/%2d%7e", "/a/-~"),
        ("/a%2fb%5c", "/a%2Fb%5C"),
        ("/a b{c}\"é", "/a%20b%7Bc%7D%22%C3%A9"),
        ("/a/./b/../c", "/a/c"),
        ("/a/%2e%2E/c", "/c"),
        ("/a/..", "/"),
        ("/a/b/..", "/a/"),
        ("/../../a", "/a"),
        ("/..", "/"),
        ("/a//b", "/a//b"),
        ("/a/...", "/a/..."),
        ("/a:b@c;d=e,f!$&'()*+", "/a:b@c;d=e,f!$&'()*+"),
        ("/%zz%", "/%25zz%25"),
        ("/%%34%31", "/%2541"),
    ] {
        assert_eq!(one_form(raw), expected, "{raw}");
    }
}

#[test]
fn escapes_that_nobody_reads_alike_are_odd() {
    for raw in ["/%", "/%2", "/%zz", "/%u002e", "/a%00b", "/%c0%ae", "/%C1%9c", "/%+1"] {
        assert!(Path::parse(raw).is_odd, "{raw}");
    }
    assert!(!Path::parse("/%c3%a9%20").is_odd);
}

#[test]
fn a_pattern_matches_itself_and_with_an_asterisk_what_begins_so() {
    let matches = |text: &str, path: &str| pattern(text).matches(&Path::parse(path));
    assert!(matches("/*", "/") && matches("/*", "/a/b"));
    assert!(
        matches("/v1/*", "/v1/")
            && matches("/v1/*", "/v1/a/b")
            && !matches("/v1/*", "/v1")
            && !matches("/v1/*", "/V1/a")
    );
    assert!(matches("/v1*", "/v1") && matches("/v1*", "/v10"));
    assert!(matches("/v1/x", "/v1/x") && !matches("/v1/x", "/v1/x/") && !matches("/v1/x", "/v1/xy"));
    assert!(matches("/a*b/*", "/a*b/c") && !matches("/a*b/*", "/axb/c"));
    assert!(matches("/caf%c3%a9/*", "/café/x") && matches("/café/*", "/caf%C3%a9/x"));
    assert!(matches("/.*", "/.git") && matches("/.well-known/*", "/.well-known/x"));
}

#[test]
fn a_pattern_that_could_match_nothing_is_refused() {
    for text in [
        "",
        "*",
        "v1",
        "v1/*",
        "/a?b",
        "/a#b",
        "/a\\b",
        "/a\nb",
        "/a/../b",
        "/a/./*",
        "/..",
        "/a%2fb",
        "/a%5Cb",
        "/%2e%2e/b/*",
        "/a//b",
        "/a;b/*",
        "/%",
        "/%zz",
        "/%00",
        "/%2e/x",
    ] {
        assert!(PathPattern::parse(text).is_err(), "{text}");
    }
    assert!(PathPattern::parse(&format!("/{}", "a".repeat(MAX_PATTERN_BYTES))).is_err());
}

#[test]
fn readings_are_what_servers_make_of_a_path() {
    let reads = |raw: &str, as_path: &str| {
        let readings = readings(&Path::parse(raw)).expect("it is not escaped too often");
        readings.iter().any(|reading| reading.path == as_path.as_bytes())
    };
    for raw in [
        "/v1/..%2fadmin",
        "/v1/..%5cadmin",
        "/v1/..\\admin",
        "/v1/..;/admin",
        "/v1/%252e%252e/admin",
        "/v1/%252e%252e%252fadmin",
        "/v1/..;x=1%2fadmin",
        "//admin",
        "/v1/a%2f..%2f../admin",
        "/v1/%2e%2e;a/admin",
    ] {
        assert!(reads(raw, "/admin"), "{raw}");
    }
    assert!(readings(&Path::parse("/%25252525252e")).is_none());
    assert!(readings(&Path::parse(&format!("/{}", "a".repeat(MAX_READ_BYTES)))).is_none());
    assert_eq!(readings(&Path::parse("/v1/a")).map(|of| of.len()), Some(1));
}

proptest! {
    #[test]
    fn the_one_form_is_its_own(raw in "/[a-c./%\\\\;25eEfF ]{0,24}") {
        let once = Path::parse(&raw);
        let twice = Path::parse(&once.text);
        prop_assert_eq!(&once.text, &twice.text);
        prop_assert!(once.text.split('/').all(|segment| segment != "." && segment != ".."));
        prop_assert!(once.text.starts_with('/'));
    }

    #[test]
    fn patterns_overlap_where_both_match(one in "/[ab/]{0,3}\\*?", other in "/[ab/]{0,3}\\*?") {
        let (Ok(one), Ok(other)) = (PathPattern::parse(&one), PathPattern::parse(&other)) else { return Ok(()) };
        prop_assert_eq!(one.overlaps(&other), other.overlaps(&one));
        // Every path of three letters and fewer decides: longer ones differ in nothing that a pattern sees.
        let mut paths = vec!["/".to_owned()];
        for length in 0..4 {
            let longest = paths.iter().filter(|path| path.len() == length + 1).cloned().collect::<Vec<_>>();
            paths.extend(longest.iter().flat_map(|path| ["a", "b", "/"].map(|letter| format!("{path}{letter}"))));
        }
        let both = paths.iter().map(|path| Path::parse(path)).any(|path| one.matches(&path) && other.matches(&path));
        prop_assert_eq!(both, one.overlaps(&other));
    }
}

#[test]
fn any_path_has_a_form_that_is_a_path() {
    let examples: [&[u8]; 4] =
        [b"/v1/../a%2f%2e?x", b"/a;b//c\\d%5C%252e", b"/caf\xc3\xa9/%c3%A9{x}", b"/%u002e%00%c0%ae"];
    let own = [pattern("/v1/*"), pattern("/a/b")];
    fuzz::run("paths", &examples, |input| {
        let Ok(raw) = std::str::from_utf8(input) else { return };
        let path = Path::parse(&format!("/{raw}"));
        assert_eq!(Path::parse(&path.text).text, path.text);
        http::uri::PathAndQuery::try_from(&*path.text).expect("it can be sent");
        if let (true, Some(readings)) = (path.is_plain(), readings(&path)) {
            assert!(readings.iter().all(|reading| reading.path == path.text.as_bytes()), "{readings:?}");
        }
        if own.iter().any(|own| own.matches(&path)) {
            assert!(!path.text.contains("/../"), "{path:?}");
        }
    });
}
