use super::{Environment, apply_env_file, expand_path};

fn env(pairs: &[(&str, &str)]) -> Environment {
    pairs.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect()
}

#[track_caller]
fn check_file(text: &str, expected: &[(&str, &str)]) {
    let mut got = env(&[("BASE", "b")]);
    apply_env_file(text, &mut got);
    got.remove("BASE");
    assert_eq!(got, env(expected));
}

#[test]
fn os_051_plain_values_are_trimmed_and_expanded_and_empty_ones_kept() {
    check_file("A= x \n# no\n\nB=$BASE-${A}\nC=\nD=$NOPE.\n", &[("A", "x"), ("B", "b-x"), ("C", ""), ("D", ".")]);
}

#[test]
fn single_quotes_are_literal_and_span_lines() {
    check_file("A='x $BASE\ny\\n'\nB=1", &[("A", "x $BASE\ny\\n"), ("B", "1")]);
}

#[test]
fn double_quotes_decode_escapes_then_expand() {
    check_file(r#"A="a\tb\"c\q $BASE""#, &[("A", "a\tb\"c\\q b")]);
}

#[test]
fn malformed_entries_skip_their_line_only() {
    check_file("A='x' y\nB='open\nC=2\nnoequals\n=v\nE=\0\nF='\0'\nG=\"\0\"\nD=3", &[("C", "2"), ("D", "3")]);
}

#[test]
fn the_last_entry_wins() {
    check_file("A=1\nA=2", &[("A", "2")]);
}

#[track_caller]
fn check_path(path: &str, expected: Option<&str>) {
    let env = env(&[("HOME", "/h"), ("X", "x y")]);
    assert_eq!(expand_path(path, &env, "/w").ok().as_deref(), expected);
}

#[test]
fn os_065_paths_expand_the_same_everywhere() {
    check_path("~/t", Some("/h/t"));
    check_path("~", Some("/h"));
    check_path("~user/t", Some("/w/~user/t"));
    check_path("$HOME/t", Some("/h/t"));
    check_path("${HOME}/t", Some("/h/t"));
    check_path("/a/${X}.c", Some("/a/x y.c"));
    check_path("rel/./a/../b//c", Some("/w/rel/b/c"));
    check_path("/../..", Some("/"));
}

#[test]
fn os_065_a_literal_dollar_is_written_twice_and_unset_names_are_refused() {
    check_path("/a/$$HOME", Some("/a/$HOME"));
    check_path("/a/5$", Some("/a/5$"));
    check_path("$NOPE/etc", None);
    check_path("", None);
}
