use super::Level;

#[test]
fn levels_read_in_any_case_and_unknown_ones_say_what_is_known() {
    assert_eq!("warning".parse(), Ok(Level::Warning));
    assert_eq!("INFO".parse(), Ok(Level::Info));
    let why = "loud".parse::<Level>().expect_err("unknown").to_string();
    assert!(why.contains("loud") && why.contains("INFO"), "{why}");
}
