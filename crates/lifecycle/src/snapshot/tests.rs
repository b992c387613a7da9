use super::{SnapshotId, State};

#[test]
fn an_id_is_a_file_name() {
    assert!(SnapshotId::parse("2f1c8c5e-0d0b-4a39-9a3e-0d3a5f1f7a00").is_some());
    for bad in ["", "..", "a/b", "A", ".hidden", "-x", &"a".repeat(64)] {
        assert!(SnapshotId::parse(bad).is_none(), "{bad}");
    }
}

#[test]
fn a_state_is_one_word_in_one_case() {
    for state in State::ALL {
        assert_eq!(State::parse(state.as_str()), Some(state));
        assert_eq!(State::parse(&state.as_str().to_lowercase()), None);
    }
}
