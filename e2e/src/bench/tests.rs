use super::report::{Figure, Report, Row, Unit, number};

#[test]
fn percentiles_are_nearest_rank() {
    let figure = Figure::new("x", Unit::Millis, (1..=200).rev().map(f64::from).collect());
    assert_eq!(figure.p50(), 100.0);
    assert_eq!(figure.p99(), 198.0);
    assert_eq!(figure.percentile(0), 1.0);
    assert_eq!(figure.percentile(100), 200.0);
    let rates = Figure::new("x", Unit::Rate, (1..=200).map(f64::from).collect());
    assert_eq!((rates.p50(), rates.p99()), (100.0, 2.0));
    assert_eq!(Figure::single("x", Unit::Millis, 7.0).p99(), 7.0);
}

#[test]
fn a_bound_that_does_not_hold_is_shown_as_missed() {
    let row = Row::new("what", vec![Figure::single("osb", Unit::Millis, 5.1)], "")
        .at_most("p50", 5.1, 5.0, " ms")
        .at_least("rate", 5.1, 5.0, "/s");
    assert_eq!(row.targets.iter().map(|target| target.met).collect::<Vec<_>>(), [false, true]);
    let mut report = Report::new(Vec::new());
    report.rows.push(row);
    assert!(report.markdown().contains("| what | p50 <= 5 ms | 5.10 ms | **no** |"), "{}", report.markdown());
}

#[test]
fn numbers_have_three_digits() {
    assert_eq!([1.234, 12.34, 123.4, 12345.6].map(number), ["1.23", "12.3", "123", "12346"]);
}
