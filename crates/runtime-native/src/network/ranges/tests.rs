use super::*;

fn check(ranges: &[&str], family: Family, expected: &[(&[u8], Option<&[u8]>)]) {
    let ranges: Vec<Cidr> = ranges.iter().map(|range| range.parse().expect("a range")).collect();
    let found = intervals(&ranges, family);
    let found: Vec<_> = found.iter().map(|one| (&one.first[..], one.end.as_deref())).collect();
    assert_eq!(found, expected);
}

#[test]
fn ranges_that_touch_or_overlap_become_one() {
    let ranges = ["10.0.1.0/24", "10.0.0.0/24", "10.0.1.128/25", "192.0.2.1", "10.0.3.0/24"];
    let expected: [(&[u8], Option<&[u8]>); 3] = [
        (&[10, 0, 0, 0], Some(&[10, 0, 2, 0])),
        (&[10, 0, 3, 0], Some(&[10, 0, 4, 0])),
        (&[192, 0, 2, 1], Some(&[192, 0, 2, 2])),
    ];
    check(&ranges, Family::V4, &expected);
    check(&ranges, Family::V6, &[]);
}

#[test]
fn the_last_of_all_addresses_has_nothing_behind_it() {
    check(&["0.0.0.0/0", "1.2.3.4"], Family::V4, &[(&[0; 4], None)]);
    check(&["::/0", "1.2.3.4"], Family::V6, &[(&[0; 16], None)]);
    check(&["255.255.255.255"], Family::V4, &[(&[255; 4], None)]);
}
