use super::*;

fn failed(evalue: &str, traceback: Option<&str>) -> StreamError {
    StreamError {
        ename: "CommandExecError".into(),
        evalue: evalue.into(),
        traceback: traceback.map(|line| vec![line.to_owned()]),
    }
}

#[test]
fn exit_codes_are_the_commands_own_and_signals_are_128_more() {
    for (evalue, traceback, exit, signal) in [
        ("3", Some("exit status 3"), 3, None),
        ("255", None, 255, None),
        ("-1", Some("signal: killed"), 137, Some(9)),
        ("-1", Some("signal: segmentation fault (core dumped)"), 139, Some(11)),
        ("-1", Some("signal: 34"), 162, Some(34)),
        ("-1", Some("signal: 0"), 255, None),
        ("-1", None, 255, None),
        ("256", None, 255, None),
        ("fork/exec /nope: no such file or directory", None, 127, None),
        ("exec: \"nope\": executable file not found in $PATH", None, 127, None),
        ("fork/exec /etc/passwd: permission denied", None, 126, None),
    ] {
        let end = end_of(&failed(evalue, traceback));
        assert_eq!((end.exit, end.signal), (exit, signal), "{evalue} {traceback:?}");
    }
}

#[test]
fn what_was_not_a_plain_exit_is_told() {
    assert!(end_of(&failed("3", None)).message.is_none());
    assert!(end_of(&failed("-1", Some("signal: killed"))).message.expect("told").contains("signal 9"));
    assert!(end_of(&failed("no such file", None)).message.expect("told").contains("no such file"));
}
