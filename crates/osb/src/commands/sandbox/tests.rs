use super::*;

#[test]
fn labels_are_set_and_removed() {
    let words = ["a=1".to_owned(), "b=".to_owned(), "c-".to_owned(), "d=x-".to_owned()];
    let patch = patch(&words).expect("labels");
    let expected = [("a", Some("1")), ("b", Some("")), ("c", None), ("d", Some("x-"))];
    assert_eq!(patch, expected.map(|(key, value)| (key.to_owned(), value.map(str::to_owned))).into());
    for word in ["", "-", "=x", "plain"] {
        assert!(super::patch(&[word.to_owned()]).is_err(), "{word}");
    }
}
