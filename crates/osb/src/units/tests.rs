use super::*;

#[test]
fn durations_are_seconds_or_units() {
    for (text, expected) in [
        ("90", 90_000),
        ("90s", 90_000),
        ("10m", 600_000),
        ("1h30m", 5_400_000),
        ("1.5h", 5_400_000),
        ("2d", 172_800_000),
        ("500ms", 500),
        ("0", 0),
    ] {
        assert_eq!(parse_duration(text), Ok(Duration::from_millis(expected)), "{text}");
    }
}

#[test]
fn what_is_no_duration_is_refused() {
    for text in ["", "m", "10x", "1h30", "-5", "1..5m", "99999999999999999999d", "none"] {
        assert!(parse_duration(text).is_err(), "{text}");
    }
}

#[test]
fn no_limit_is_a_word() {
    assert_eq!(parse_limit("none"), Ok(Limit::None));
    assert_eq!(parse_limit("1m").map(Limit::seconds), Ok(Some(60)));
    assert_eq!(parse_limit("1500ms").map(Limit::seconds), Ok(Some(2)));
    assert!(parse_limit("nil").is_err());
}

#[test]
fn sizes_are_those_of_the_protocol() {
    for text in ["1", "512Mi", "2g", "1073741824", "10GB", "1ti"] {
        assert_eq!(parse_size(text).as_deref(), Ok(text));
    }
    for text in ["", "1.5Gi", "Mi", "-1", "10x", "1 Gi"] {
        assert!(parse_size(text).is_err(), "{text}");
    }
}

#[test]
fn cores_may_be_fractions() {
    for text in ["2", "0.5", "500m"] {
        assert_eq!(parse_cpu(text).as_deref(), Ok(text));
    }
    for text in ["0", "-1", "m", "", "inf", "two"] {
        assert!(parse_cpu(text).is_err(), "{text}");
    }
}

#[test]
fn modes_are_octal_digits() {
    assert_eq!(parse_mode("644"), Ok(644));
    assert_eq!(parse_mode("0755"), Ok(755));
    for text in ["", "0", "888", "1777", "rwx", "-1"] {
        assert!(parse_mode(text).is_err(), "{text}");
    }
}

#[test]
fn people_read_two_units() {
    for (seconds, text) in [(0, "0s"), (45, "45s"), (60, "1m"), (5400, "1h30m"), (183_600, "2d3h"), (86_401, "1d")] {
        assert_eq!(duration(seconds), text);
    }
    assert_eq!(size(1023), "1023 B");
    assert_eq!(size(1536), "1.5 KiB");
    assert_eq!(size(5 << 30), "5.0 GiB");
}

#[test]
fn times_are_told_from_now() {
    let now = "2026-01-01T00:00:00Z".parse().expect("a time");
    assert_eq!(relative("2026-01-01T00:05:00Z", now), "in 5m");
    assert_eq!(relative("2025-12-31T23:59:30Z", now), "30s ago");
    assert_eq!(relative("soon", now), "soon");
}
