use super::*;

#[test]
fn names_have_one_full_form() {
    let digest = format!("sha256:{}", "a".repeat(64));
    for (typed, full) in [
        ("alpine", "docker.io/library/alpine:latest"),
        ("alpine:3.20", "docker.io/library/alpine:3.20"),
        ("docker.io/alpine", "docker.io/library/alpine:latest"),
        ("index.docker.io/library/alpine", "docker.io/library/alpine:latest"),
        ("user/app", "docker.io/user/app:latest"),
        ("ghcr.io/a/b/c:v1.2_x", "ghcr.io/a/b/c:v1.2_x"),
        ("localhost/app", "localhost/app:latest"),
        ("localhost:5000/app:1", "localhost:5000/app:1"),
        ("127.0.0.1:5000/a-b__c.d", "127.0.0.1:5000/a-b__c.d:latest"),
        ("[::1]:5000/app", "[::1]:5000/app:latest"),
        ("example.org/a---b", "example.org/a---b:latest"),
        (&format!("app@{digest}"), &format!("docker.io/library/app@{digest}")),
        (&format!("app:1@{digest}"), &format!("docker.io/library/app:1@{digest}")),
    ] {
        let reference: Reference = typed.parse().unwrap();
        assert_eq!(reference.to_string(), full, "{typed}");
        assert_eq!(full.parse::<Reference>().unwrap(), reference, "the full form of {typed}");
    }
}

#[test]
fn a_digest_is_asked_for_before_a_tag() {
    let digest = format!("sha256:{}", "a".repeat(64));
    let version = |text: &str| text.parse::<Reference>().unwrap().version();
    assert_eq!(version("app"), "latest");
    assert_eq!(version("app:2"), "2");
    assert_eq!(version(&format!("app:2@{digest}")), digest);
}

#[test]
fn what_is_no_name_is_refused() {
    let long = "a".repeat(256);
    let tag = format!("a:{}", "t".repeat(129));
    for text in [
        "",
        "host",
        "Alpine",
        "a b",
        "a//b",
        "/a",
        "a/",
        "a_",
        "_a",
        "a..b",
        "a___b",
        "a:",
        "a:.b",
        "a:b:c",
        "a@",
        "a@sha256:00",
        "a@sha512:00",
        "http://x/y",
        "x:99999/a",
        "x:0/a",
        "-x.y/a",
        "x..y/a",
        "[::1/a",
        "[zz]:1/a",
        "../a",
        "a/../b",
        "ä",
        "a\0",
        &long,
        &tag,
    ] {
        assert!(matches!(text.parse::<Reference>(), Err(Error::Reference { .. })), "{text:?}");
    }
}
