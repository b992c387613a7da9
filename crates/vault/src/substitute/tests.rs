use super::*;
use crate::samples::owned;

fn replaced(of: &[(&str, &str)], writing: Writing, text: &str) -> String {
    let replacer = Replacer::new(owned(of), writing).expect("there is something to replace");
    String::from_utf8(replacer.replace(text.as_bytes(), Room::OF_A_LINE).expect("it is found").to_vec())
        .expect("a text")
}

#[test]
fn the_longest_is_replaced_once_and_nothing_that_was_put_in() {
    let of = [("T", "x-TT-x"), ("TT", "y")];
    assert_eq!(replaced(&of, Writing::Raw, "T TT TTT t"), "x-TT-x y yx-TT-x t");
}

#[test]
fn a_value_is_written_as_its_surroundings_are() {
    let of = [("PLACE", "a b/c\"é&")];
    assert_eq!(replaced(&of, Writing::Path, "/x/PLACE"), "/x/a%20b%2Fc%22%C3%A9%26");
    assert_eq!(replaced(&of, Writing::Query, "q=PLACE"), "q=a%20b%2Fc%22%C3%A9%26");
    assert_eq!(replaced(&of, Writing::Form, "q=PLACE"), "q=a+b%2Fc%22%C3%A9%26");
    assert_eq!(replaced(&of, Writing::Json, "\"PLACE\""), "\"a b/c\\\"é&\"");
    assert_eq!(replaced(&of, Writing::Raw, "PLACE"), "a b/c\"é&");
}

#[test]
fn a_placeholder_is_known_as_clients_write_it() {
    let of = [("{{a/b}}", "v")];
    assert_eq!(replaced(&of, Writing::Path, &path::escaped("/x/{{a/b}}")), "/x/v");
    assert_eq!(replaced(&of, Writing::Path, &path::escaped("/x/%7b%7ba%2fb%7d%7d")), "/x/v");
    for text in ["{{a/b}}", "%7B%7Ba%2Fb%7D%7D", "%7b%7ba%2fb%7d%7d"] {
        assert_eq!(replaced(&of, Writing::Query, text), "v");
        assert_eq!(replaced(&of, Writing::Form, text), "v");
    }
    assert_eq!(replaced(&of, Writing::Json, "{{a/b}} {{a\\/b}}"), "v v");
    let raw = Replacer::new(owned(&of), Writing::Raw).expect("there is something to replace");
    assert!(raw.replace(b"%7B%7Ba%2Fb%7D%7D", Room::OF_A_LINE).is_none());
    assert_eq!(replaced(&[("a b", "v")], Writing::Form, "a+b a%20b"), "v v");
}

#[test]
fn a_placeholder_as_it_is_beats_another_one_written_otherwise() {
    let of = [("a b", "one"), ("a+b", "two")];
    assert_eq!(replaced(&of, Writing::Form, "a+b a%20b"), "two one");
}

#[test]
fn where_nothing_is_replaced_nothing_is_made() {
    assert!(Replacer::new(Vec::new(), Writing::Raw).is_none());
    assert!(
        Replacer::new(owned(&[("p", "v")]), Writing::Raw).expect("one").replace(b"text", Room::OF_A_LINE).is_none()
    );
}

#[test]
fn what_there_is_no_room_for_is_put_in_as_nothing() {
    let value = "v".repeat(16 * 1024);
    let replacer = Replacer::new(owned(&[("P", &value)]), Writing::Raw).expect("there is something to replace");
    let replaced = replacer.replace("P,".repeat(1000).as_bytes(), Room::OF_A_LINE).expect("it is found");
    assert_eq!(replaced.len(), 64 * 1024 + 1000);
    assert!(!replaced.contains(&b'P'));
}
