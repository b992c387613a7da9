use proptest::prelude::*;

use super::*;

fn text(bytes: &Bytes) -> &str {
    std::str::from_utf8(bytes).expect("what is written of a text is a text")
}

#[test]
fn everything_but_unreserved_is_percent_encoded() {
    let written = percent("a-._~ /+é".as_bytes(), is_unreserved, Case::Upper);
    assert_eq!(text(&written), "a-._~%20%2F%2B%C3%A9");
    assert_eq!(text(&percent(b"/", is_unreserved, Case::Lower)), "%2f");
    assert_eq!(text(&form(b"a b*~&", is_kept_in_forms, Case::Upper)), "a+b*%7E%26");
}

#[test]
fn json_is_written_as_its_writers_do() {
    let value = "a\"\\/\n\u{1}<é😀";
    assert_eq!(text(&json(value, PLAIN_JSON)), "a\\\"\\\\/\\n\\u0001<é😀");
    let php = Dialect { escapes_slash: true, by_number: |letter| !letter.is_ascii(), case: Case::Lower };
    assert_eq!(text(&json(value, php)), "a\\\"\\\\\\/\\n\\u0001<\\u00e9\\ud83d\\ude00");
    let go = Dialect { by_number: |letter| letter == '<', ..PLAIN_JSON };
    assert_eq!(text(&json("<", go)), "\\u003c");
}

proptest! {
    #[test]
    fn json_is_read_back(value in "\\PC*|[\\x00-\\x7f]*", slashes: bool, upper: bool) {
        let case = if upper { Case::Upper } else { Case::Lower };
        for by_number in [(|_| false) as fn(char) -> bool, |letter| !letter.is_ascii(), |_| true] {
            let written = json(&value, Dialect { escapes_slash: slashes, by_number, case });
            let read: String = serde_json::from_str(&format!("\"{}\"", text(&written))).expect("it is JSON");
            prop_assert_eq!(&read, &value);
        }
        prop_assert_eq!(format!("\"{}\"", text(&json(&value, PLAIN_JSON))), serde_json::to_string(&value).expect("a text"));
    }
}
