use std::time::{Duration, Instant};

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use http::Method;

use super::{Claim, Failures, KeyError, Keys, Link, Refused, Scope, ScopeError, Version, check, sign};

const SECRET: &[u8] = b"test-secret-bytes";
const NOW: u64 = 1_900_000_000;

fn keys() -> Keys {
    Keys::new("a", [("a", STANDARD.encode(SECRET).as_str())]).expect("keys")
}

fn claim<'a>(id: &'a str, port: u16, link: &'a str, method: &'a Method, rest: &'a str) -> Claim<'a> {
    let (expires, signature) = link.split_once('/').expect("two parts");
    Claim { id, port, expires, signature, method, rest }
}

fn opens(keys: &Keys, id: &str, port: u16, link: &str, now: u64) -> Result<(), Refused> {
    check(keys, &claim(id, port, link, &Method::GET, "/any/path"), now)
}

#[test]
fn the_published_vectors_of_version_1() {
    let zeros_to_31: Vec<u8> = (0..32).collect();
    let other = Keys::new("k", [("k", STANDARD.encode(zeros_to_31).as_str())]).expect("keys");
    for (keys, id, port, expires, expected) in [
        (&keys(), "my-sandbox", 8080, 2_000_000_000, "x2qxvk/087b80a7a"),
        (&keys(), "3f2c-a-b", 44772, 1_893_456_000, "vbbc00/60a59f10a"),
        (&other, "my-sandbox", 8080, 2_000_000_000, "x2qxvk/01086ceck"),
        (&other, "3f2c-a-b", 44772, 1_893_456_000, "vbbc00/619dc98bk"),
    ] {
        let link = sign(keys, Link { id, port, expires }, &Version::V1);
        assert_eq!(link, expected);
        assert_eq!(opens(keys, id, port, &link, expires), Ok(()));
        assert_eq!(opens(keys, id, port, &link, expires + 1), Err(Refused::Expired));
    }
}

#[test]
fn the_vectors_of_version_2() {
    let link = Link { id: "my-sandbox", port: 8080, expires: 2_000_000_000 };
    for (method, prefix, expected) in [
        (None, None, "x2qxvk/v2.a.-.-.V7JiU5zE_tRmrb16qVF4MnBS2YZtpDx2nPAKMzJ9f78"),
        (Some("GET"), Some("/docs"), "x2qxvk/v2.a.GET.L2RvY3M.k3og72DDx8jE19uqcCT1AoPQRpxiYO5NcrbStt-FiMs"),
    ] {
        let scope = Scope::new(method, prefix).expect("a scope");
        assert_eq!(sign(&keys(), link, &Version::V2(scope)), expected);
    }
}

#[test]
fn os_033_only_the_canonical_form_of_the_same_port_and_sandbox_opens() {
    let keys = keys();
    let v1 = sign(&keys, Link { id: "s", port: 80, expires: 2_000_000_000 }, &Version::V1);
    let v2 = sign(&keys, Link { id: "s", port: 80, expires: 2_000_000_000 }, &Version::V2(Scope::default()));
    for link in [&v1, &v2] {
        assert_eq!(opens(&keys, "s", 80, link, NOW), Ok(()));
        assert_eq!(opens(&keys, "s", 81, link, NOW), Err(Refused::Invalid));
        assert_eq!(opens(&keys, "t", 80, link, NOW), Err(Refused::Invalid));
        let (expires, signature) = link.split_once('/').expect("two parts");
        for wrong in [
            format!("{}/{signature}", expires.to_ascii_uppercase()),
            format!("0{expires}/{signature}"),
            format!("{expires}/{}", signature.to_ascii_uppercase()),
            format!("{expires}/{signature}="),
            format!("{expires}/{signature}."),
            format!("{expires}/"),
            format!("/{signature}"),
            format!("+{expires}/{signature}"),
            format!("zzzzzzzzzzzzz/{signature}"),
            format!("{expires}/{}é", &signature[..signature.len() - 1]),
        ] {
            assert_eq!(opens(&keys, "s", 80, &wrong, NOW), Err(Refused::Invalid), "{wrong}");
        }
        // Every nibble of the signature, and its key.
        for at in expires.len() + 1..link.len() {
            let mut bytes = link.clone().into_bytes();
            bytes[at] = if bytes[at] == b'1' { b'2' } else { b'1' };
            let wrong = String::from_utf8(bytes).expect("text");
            assert_eq!(opens(&keys, "s", 80, &wrong, NOW), Err(Refused::Invalid), "{wrong}");
        }
    }
}

#[test]
fn expiries_of_64_bits_are_read_and_larger_ones_are_not() {
    let keys = keys();
    let link = sign(&keys, Link { id: "s", port: 80, expires: u64::MAX }, &Version::V1);
    assert!(link.starts_with("3w5e11264sgsf/"), "{link}");
    assert_eq!(opens(&keys, "s", 80, &link, u64::MAX), Ok(()));
    let (_, signature) = link.split_once('/').expect("two parts");
    assert_eq!(opens(&keys, "s", 80, &format!("3w5e11264sgsg/{signature}"), NOW), Err(Refused::Invalid));
    let zero = sign(&keys, Link { id: "s", port: 80, expires: 0 }, &Version::V1);
    assert_eq!(opens(&keys, "s", 80, &zero, 0), Ok(()));
}

#[test]
fn os_033_old_keys_open_until_they_are_removed() {
    let (old, new) = (STANDARD.encode("old"), STANDARD.encode("new"));
    let before = Keys::new("a", [("a", old.as_str())]).expect("keys");
    let rotated = Keys::new("b", [("a", old.as_str()), ("b", new.as_str())]).expect("keys");
    let after = Keys::new("b", [("b", new.as_str())]).expect("keys");
    for version in [Version::V1, Version::V2(Scope::default())] {
        let link = Link { id: "s", port: 80, expires: NOW };
        let (first, second) = (sign(&before, link, &version), sign(&rotated, link, &version));
        assert_eq!(opens(&rotated, "s", 80, &first, NOW), Ok(()));
        assert_eq!(opens(&after, "s", 80, &second, NOW), Ok(()));
        assert_eq!(opens(&after, "s", 80, &first, NOW), Err(Refused::Invalid));
    }
}

#[test]
fn keys_that_cannot_be_used_are_refused() {
    let key = STANDARD.encode("k");
    let new = |active: &str, keys: &[(&str, &str)]| Keys::new(active, keys.iter().copied()).err();
    assert_eq!(new("A", &[("A", &key)]), Some(KeyError::Id));
    assert_eq!(new("ab", &[("ab", &key)]), Some(KeyError::Id));
    assert_eq!(new("a", &[("a", &key), ("a", &key)]), Some(KeyError::Twice('a')));
    assert_eq!(new("a", &[("a", "???")]), Some(KeyError::Secret('a')));
    assert_eq!(new("a", &[("a", "")]), Some(KeyError::Secret('a')));
    assert_eq!(new("b", &[("a", &key)]), Some(KeyError::Active("b".to_owned())));
    assert_eq!(new("a", &[("a", key.trim_end_matches('='))]), None, "padding is no must");
}

#[test]
fn a_scope_binds_method_and_what_lies_below_a_path() {
    let keys = keys();
    let link = Link { id: "s", port: 80, expires: NOW };
    let scoped = |method, prefix| sign(&keys, link, &Version::V2(Scope::new(method, prefix).expect("a scope")));
    let ask = |link: &str, method: Method, rest: &str| check(&keys, &claim("s", 80, link, &method, rest), NOW);
    let get = scoped(Some("GET"), None);
    assert_eq!(ask(&get, Method::GET, ""), Ok(()));
    assert_eq!(ask(&get, Method::HEAD, "/x"), Ok(()));
    assert_eq!(ask(&get, Method::POST, "/x"), Err(Refused::Scope));
    let docs = scoped(None, Some("/docs"));
    for inside in ["/docs", "/docs/", "/docs/a/b", "/docs/a.b/..c/%41", "/docs/...", "/docs//x"] {
        assert_eq!(ask(&docs, Method::PUT, inside), Ok(()), "{inside}");
    }
    for outside in [
        "",
        "/",
        "/doc",
        "/docsx",
        "/DOCS/a",
        "/docs/../a",
        "/docs/..",
        "/docs/%2e%2E/a",
        "/docs/.%2e/a",
        "/docs/..;x=1/a",
        "/docs/..%3bx/a",
        "/docs/./a",
        "/docs/..%2fa",
        "/docs/a%5c..%5cb",
        "/docs/a\\b",
        "//docs/a",
    ] {
        assert_eq!(ask(&docs, Method::GET, outside), Err(Refused::Scope), "{outside}");
    }
    let slash = scoped(Some("POST"), Some("/api/"));
    assert_eq!(ask(&slash, Method::POST, "/api/x"), Ok(()));
    assert_eq!(ask(&slash, Method::POST, "/api"), Err(Refused::Scope));
    assert_eq!(scoped(None, Some("/")), scoped(None, None), "one scope has one form");
    for method in ["get", "TRACE", "", "-"] {
        assert_eq!(Scope::new(Some(method), None), Err(ScopeError::Method), "{method}");
    }
    for path in ["", "docs", "/a?b", "/a#b", "/a b", "/a\n", "/ä", "/a/../b", "/a%2fb"] {
        assert_eq!(Scope::new(None, Some(path)), Err(ScopeError::Path), "{path}");
    }
    assert_eq!(Scope::new(None, Some(&format!("/{}", "x".repeat(512)))), Err(ScopeError::Path));
}

#[test]
fn wrong_links_are_counted_and_forgotten_with_time() {
    let failures = Failures::default();
    let start = Instant::now();
    for _ in 0..20 {
        assert_eq!(failures.try_take_at(start), Ok(()));
    }
    let wait = failures.try_take_at(start).expect_err("is spent");
    assert!(wait > Duration::ZERO && wait <= Duration::from_secs(3), "{wait:?}");
    assert!(failures.try_take_at(start + Duration::from_millis(2900)).is_err());
    assert_eq!(failures.try_take_at(start + Duration::from_secs(4)), Ok(()));
    assert!(failures.try_take_at(start + Duration::from_secs(4)).is_err());
    failures.give_back();
    assert_eq!(failures.try_take_at(start + Duration::from_secs(4)), Ok(()));
}

#[test]
fn fuzz_links() {
    let keys = keys();
    let link = Link { id: "s", port: 80, expires: u64::MAX };
    let scope = Scope::new(Some("GET"), Some("/docs")).expect("a scope");
    let [v1, v2, scoped] = [Version::V1, Version::V2(Scope::default()), Version::V2(scope)]
        .map(|version| format!("/v1/links/s/80/{}/docs/x", sign(&keys, link, &version)));
    let examples = [v1.as_bytes(), v2.as_bytes(), scoped.as_bytes(), b"/links/s/80/x2qxvk/087b80a7a"];
    fuzz::run("links", &examples, |input| {
        let Ok(text) = std::str::from_utf8(input) else { return };
        let Some(target) = crate::target::Target::parse(text) else { return };
        assert_eq!(format!("{}{}", target.prefix, target.rest), text, "nothing is lost");
        let (Some(signed), Ok(port)) = (target.link, target.port()) else { return };
        let method = Method::GET;
        let claim = Claim {
            id: target.id,
            port,
            expires: signed.expires,
            signature: signed.signature,
            method: &method,
            rest: target.rest,
        };
        if check(&keys, &claim, NOW).is_ok() {
            // What opens is what was signed, in every bit that was signed.
            let ours = [&v1, &v2, &scoped].into_iter().any(|ours| {
                let ours = crate::target::Target::parse(ours).expect("ours").link.expect("a link");
                ours == signed && (target.id, port) == ("s", 80)
            });
            assert!(ours, "{text}");
        }
    });
}
