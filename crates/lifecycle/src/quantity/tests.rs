use super::{bytes, count, cpu_millis};

#[test]
fn memory_units_are_thousands_unless_marked_binary() {
    for (text, expected) in [
        ("0", Some(0)),
        ("512", Some(512)),
        ("512b", Some(512)),
        ("2k", Some(2_000)),
        ("2Ki", Some(2_048)),
        ("512Mi", Some(512 << 20)),
        ("2Gi", Some(2 << 30)),
        ("2gb", Some(2_000_000_000)),
        ("1Ti", Some(1 << 40)),
        ("1.5Gi", None),
        ("-1", None),
        ("Mi", None),
        ("12Xi", None),
        ("", None),
        ("99999999999Ti", None),
    ] {
        assert_eq!(bytes(text), expected, "{text}");
    }
}

#[test]
fn cpu_is_cores_or_millicores() {
    for (text, expected) in [
        ("1", Some(1000)),
        ("0.5", Some(500)),
        ("500m", Some(500)),
        ("0", None),
        ("0m", None),
        ("-1", None),
        ("abc", None),
        ("1e3", None),
        ("inf", None),
        ("", None),
    ] {
        assert_eq!(cpu_millis(text), expected, "{text}");
    }
}

#[test]
fn counts_are_positive_integers() {
    assert_eq!(count("4096"), Some(4096));
    assert_eq!(count("0"), None);
    assert_eq!(count("1.5"), None);
}
