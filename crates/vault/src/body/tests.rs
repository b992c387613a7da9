use proptest::prelude::*;

use super::*;
use crate::samples::owned;
use crate::substitute::Writing;

fn substitution(of: &[(&str, &str)]) -> BodySubstitution {
    BodySubstitution::new(Replacer::new(owned(of), Writing::Raw).expect("there is something to replace"))
}

#[test]
fn a_placeholder_in_parts_is_replaced() {
    let mut body = substitution(&[("__TOKEN__", "value")]);
    let out = [body.push("a __TO".into()), body.push("KEN".into()), body.push("__ b _".into()), body.finish()];
    assert_eq!(out, ["a ", "", "value b ", "_"]);
}

#[test]
fn a_longer_placeholder_that_may_follow_is_waited_for() {
    let mut body = substitution(&[("ab", "1"), ("abcd", "2")]);
    assert_eq!(body.push("xab".into()), "x");
    assert_eq!(body.push("c".into()), "");
    assert_eq!(body.push("dab".into()), "2");
    assert_eq!(body.finish(), "1");
}

#[test]
fn what_holds_no_placeholder_is_not_copied() {
    let mut body = substitution(&[("__TOKEN__", "value")]);
    let chunk = Bytes::from(vec![b'x'; 100]);
    assert_eq!(body.push(chunk.clone()).as_ptr(), chunk.as_ptr());
    let body = vec![b'x'; 100];
    let place = body.as_ptr();
    let body = substitution(&[("p", "v")]).whole(body);
    assert_eq!(body.as_ptr(), place);
}

#[test]
fn compressed_bodies_are_not_looked_into() {
    for readable in [None, Some(""), Some("identity"), Some("Identity, identity")] {
        assert!(is_readable(readable), "{readable:?}");
    }
    for opaque in ["gzip", "br", "identity, gzip", "x"] {
        assert!(!is_readable(Some(opaque)), "{opaque}");
    }
}

#[test]
fn a_body_of_placeholders_does_not_fill_the_memory() {
    let value = "v".repeat(16 * 1024);
    let mut body = substitution(&[("P", &value)]);
    let text = "P".repeat(16 * 1024);
    let length: usize = (0..64).map(|_| body.push(text.clone().into()).len()).sum();
    assert_eq!(length, 4 * 1024 * 1024);
    assert_eq!(substitution(&[("P", &value)]).whole(text.into()).len(), 4 * 1024 * 1024);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(1000))]
    #[test]
    fn in_parts_is_as_whole(
        placeholders in proptest::collection::btree_set("[ab]{1,5}", 1..4),
        parts in proptest::collection::vec("[abc]{0,8}", 0..8),
    ) {
        let of: Vec<_> = placeholders.iter().map(|placeholder| (placeholder.as_str(), "<a>")).collect();
        let expected = substitution(&of).whole(parts.concat().into_bytes());
        let mut body = substitution(&of);
        let mut out = Vec::new();
        for part in parts {
            out.extend(body.push(part.into()));
            prop_assert!(body.held.len() < 5);
        }
        out.extend(body.finish());
        prop_assert_eq!(out, expected);
    }
}
