use super::*;

fn canonical(text: &str) -> Result<String, BadName> {
    Name::parse(text).map(|name| name.to_string())
}

#[test]
fn case_and_one_trailing_dot_do_not_matter() {
    assert_eq!(canonical("API.Example.COM."), Ok("api.example.com".to_owned()));
    assert_eq!(canonical("example.com.."), Err(BadName::EmptyLabel));
}

#[test]
fn international_names_become_a_labels() {
    assert_eq!(canonical("bücher.example"), Ok("xn--bcher-kva.example".to_owned()));
}

#[test]
fn encoded_addresses_are_no_names() {
    for text in ["0x7f.1", "127.1", "2130706433", "0177.0.0.1", "10.0.0.1", "a.b.0x7f", "x.1.", "0x"] {
        assert_eq!(canonical(text), Err(BadName::LooksLikeAddress), "{text}");
    }
    assert_eq!(canonical("fe80::1"), Err(BadName::BadCharacter));
}

#[test]
fn full_width_digits_do_not_hide_an_address() {
    assert!(canonical("１２７.0.0.1").is_err());
    assert!(canonical("127。0。0。1").is_err());
}

#[test]
fn bytes_that_no_host_has_are_refused() {
    for text in ["a\0.example.com", "a b.example", "a/b.example", "*.example.com", "a..b", ".example", "", "."] {
        assert!(Name::parse(text).is_err(), "{text:?}");
    }
    assert_eq!(canonical(&format!("{}.com", "a".repeat(64))), Err(BadName::TooLong));
    assert_eq!(canonical(&vec!["a".repeat(63); 4].join(".")), Err(BadName::TooLong));
}

#[test]
fn below_means_any_depth_and_never_the_apex() {
    let suffix = Name::parse("example.com").expect("a name");
    let below = |text| Name::parse(text).expect("a name").is_below(&suffix);
    assert!(below("a.example.com") && below("a.b.example.com"));
    assert!(!below("example.com") && !below("badexample.com") && !below("example.com.evil.test"));
}

#[test]
fn service_labels_belong_to_their_host() {
    let name = |text| Name::parse(text).expect("a name");
    assert_eq!(name("_mongodb._tcp.c0.example.net").without_service_labels(), name("c0.example.net"));
    assert_eq!(name("c0.example.net").without_service_labels(), name("c0.example.net"));
}
