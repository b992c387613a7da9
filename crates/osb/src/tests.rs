use super::*;

#[test]
fn the_command_line_is_consistent() {
    Cli::command().debug_assert();
}

#[test]
fn the_form_of_a_usage_failure_is_the_one_that_was_asked_for() {
    let format = |words: &[&str]| requested_format(words.iter().map(|word| (*word).to_owned()));
    assert_eq!(format(&["run", "-o", "json", "--nope"]), Format::Json);
    assert_eq!(format(&["run", "-oyaml"]), Format::Yaml);
    assert_eq!(format(&["run", "--output=json", "--", "-o", "yaml"]), Format::Json);
    assert_eq!(format(&["run"]), Format::Table);
}
