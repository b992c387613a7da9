use base64::engine::general_purpose::URL_SAFE;
use proptest::prelude::*;

use super::*;

fn has(value: &str, form: &str) -> bool {
    of_value(value).iter().any(|own| own.as_slice() == form.as_bytes())
}

#[test]
fn a_value_is_known_in_every_form() {
    let value = "p@ss/w&rd+ \"é\"='x";
    for form in [
        value,
        "p%40ss%2Fw%26rd%2B%20%22%C3%A9%22%3D%27x",
        "p%40ss%2fw%26rd%2b%20%22%c3%a9%22%3d%27x",
        "p%40ss/w%26rd%2B%20%22%C3%A9%22%3D%27x",
        "p%40ss%2Fw%26rd%2B%20%22%C3%A9%22%3D'x",
        "p%40ss%2Fw%26rd%2B+%22%C3%A9%22%3D%27x",
        "p@ss/w&rd+ \\\"é\\\"='x",
        "p@ss\\/w&rd+ \\\"é\\\"='x",
        "p@ss/w&rd+ \\\"\\u00e9\\\"='x",
        "p@ss/w\\u0026rd+ \\\"é\\\"='x",
        "p@ss/w\\u0026rd+ \\\"é\\\"\\u003d\\u0027x",
        "p@ss/w\\u0026rd\\u002B \\u0022\\u00E9\\u0022=\\u0027x",
    ] {
        assert!(has(value, form), "{form}");
    }
    assert!(has("AZ~k", "415a7e6b") && has("AZ~k", "415A7E6B"));
}

#[test]
fn a_short_part_in_base64_is_not_looked_for() {
    let forms = |value: &str| of_value(value).iter().filter(|form| form.starts_with(b"YWJj")).count();
    assert_eq!(forms("abcde"), 0);
    assert_ne!(forms("abcdef"), 0);
}

#[test]
fn the_password_of_a_login_is_known_by_itself() {
    let login = |text: &str| of_login(&STANDARD.encode(text));
    let has = |forms: &[Bytes], text: &str| forms.iter().any(|form| form.as_slice() == text.as_bytes());
    let forms = login("user:pass:word");
    assert!(has(&forms, "pass:word") && has(&forms, "user:pass:word") && !has(&forms, "user"));
    assert!(!has(&login("user:short"), "short"));
    assert!(login("no colon here").is_empty());
    assert!(of_login("not base64!").is_empty());
}

proptest! {
    #[test]
    fn base64_of_anything_around_a_value_holds_a_form_of_it(
        before in proptest::collection::vec(any::<u8>(), 0..8),
        value in "[ -~]{8,40}",
        after in proptest::collection::vec(any::<u8>(), 0..8),
    ) {
        let whole = [&before[..], value.as_bytes(), &after].concat();
        let forms = of_value(&value);
        for written in [STANDARD.encode(&whole), URL_SAFE.encode(&whole)] {
            let found = forms.iter().any(|form| form.len() >= MIN_BASE64_CHARS
                && form.as_slice() != value.as_bytes()
                && written.as_bytes().windows(form.len()).any(|window| window == form.as_slice()));
            prop_assert!(found, "{}", written);
        }
    }
}
