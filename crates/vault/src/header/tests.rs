use http::HeaderName;

use super::*;

#[test]
fn names_are_kept_in_canonical_case() {
    for (name, expected) in
        [("PRIVATE-TOKEN", "Private-Token"), ("x-api-key", "X-Api-Key"), ("cookie", "Cookie"), ("x--a", "X--A")]
    {
        assert_eq!(canonical(name).as_deref(), Ok(expected));
    }
}

#[test]
fn what_frames_a_message_cannot_be_set() {
    for name in REFUSED.iter().chain(&OF_A_CONNECTION) {
        assert!(canonical(name).is_err(), "{name}");
        assert!(canonical(&name.to_ascii_uppercase()).is_err(), "{name}");
        let is_substituted = is_substituted(&HeaderName::from_static(name));
        assert_eq!(is_substituted, *name == "content-type", "{name}");
    }
    for name in ["", " ", "a b", "a:", "a\n", "é", ":path", "a\"b"] {
        assert!(canonical(name).is_err(), "{name:?}");
    }
    assert!(canonical(&"a".repeat(MAX_NAME_BYTES + 1)).is_err());
}

#[test]
fn control_characters_are_no_value() {
    for text in ["a\r", "a\nb", "a\0", "\x7f", "\x1b[0m"] {
        assert!(!is_value(text), "{text:?}");
    }
    assert!(is_value("a b\té~"));
}
