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

#[test]
fn storage_is_written_as_kubernetes_does() {
    for (text, bytes) in [("1Gi", 1 << 30), ("1.5Mi", 3 << 19), ("1024", 1024), ("0.1Ki", 103), ("2Ei", 2 << 60)] {
        assert_eq!(super::storage(text), Some(bytes), "{text}");
    }
    for text in ["", "Gi", "1 Gi", "-1", "1G", "1.", ".5Gi", "1e3", "8Ei", "1.5.5Gi", "99999999999999999999999"] {
        assert_eq!(super::storage(text), None, "{text}");
    }
}
