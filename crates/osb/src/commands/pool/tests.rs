use protocol::lifecycle::PoolCapacitySpec;

use super::{Numbers, parse_range};

fn spec(buffer_min: i64, buffer_max: i64, pool_min: i64, pool_max: i64) -> PoolCapacitySpec {
    PoolCapacitySpec { buffer_max, buffer_min, pool_max, pool_min }
}

#[test]
fn a_range_is_one_number_or_two() {
    assert_eq!(parse_range("4"), Ok((4, 4)));
    assert_eq!(parse_range("2..6"), Ok((2, 6)));
    for bad in ["", "x", "-1", "1..", "..2", "1..-2"] {
        assert!(parse_range(bad).is_err(), "{bad}");
    }
}

#[test]
fn what_is_not_named_stays_or_has_a_default() {
    assert_eq!(Numbers::default().over(None), spec(4, 4, 0, 32));
    let before = spec(1, 2, 3, 40);
    assert_eq!(Numbers::default().over(Some(&before)), before);
    let numbers = Numbers { ready: Some((5, 6)), max: Some(50), ..Numbers::default() };
    assert_eq!(numbers.over(Some(&before)), spec(5, 6, 3, 50));
}
