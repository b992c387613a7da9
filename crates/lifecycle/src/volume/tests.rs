use super::*;

#[test]
fn names_are_dns_labels() {
    for good in ["a", "a-b", "0", "data-2"] {
        assert!(is_name(good, MAX_NAME_BYTES), "{good}");
    }
    for bad in ["", "-a", "a-", "A", "a_b", "a.b", "a/b", "..", "ä", &"a".repeat(64)] {
        assert!(!is_name(bad, MAX_NAME_BYTES), "{bad}");
    }
}

#[test]
fn paths_are_canonical_or_refused() {
    for good in ["/", "/a", "/a/b.c", "/..a"] {
        assert_eq!(mistake_in_path(good), None, "{good}");
    }
    let long = format!("/{}", "a".repeat(MAX_PATH_BYTES + 1));
    for bad in ["", "a", "//", "/a/", "/a//b", "/a/../b", "/..", "/./a", "/a\0", "/a\nb", long.as_str()] {
        assert!(mistake_in_path(bad).is_some(), "{bad:?}");
    }
}

#[test]
fn the_platforms_own_places_are_no_mount_paths() {
    for bad in ["/", "/proc", "/proc/1", "/sys", "/dev", "/dev/shm"] {
        assert!(mistake_in_mount_path(bad).is_some(), "{bad}");
    }
    for good in ["/process", "/devel", "/data/proc", "/mnt"] {
        assert_eq!(mistake_in_mount_path(good), None, "{good}");
    }
}

#[test]
fn beneath_counts_whole_names() {
    assert!(is_beneath("/srv/a", "/srv") && is_beneath("/srv", "/srv") && is_beneath("/srv", "/"));
    assert!(!is_beneath("/srvx", "/srv") && !is_beneath("/", "/srv"));
}
