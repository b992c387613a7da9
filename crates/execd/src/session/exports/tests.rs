use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::process::{Command, Stdio};

use super::{is_name, parse};

#[test]
fn the_forms_of_all_shells_are_read() {
    let text = b"declare -x A=\"a\\\"b\\\\c\\$d\\`e\"\ndeclare -ix N=\"5\"\ndeclare -x NOT_SET\n\
        declare -ax LIST=([0]=\"a b\" [1]=\"c\nd\")\nexport B='it'\"'\"'s\n two'\nexport C='a'\\''b'\n\
        declare -x D=$'x\\ny\\001\\E\\x41\\u00e4\\''\ndeclare -x E=\"\"\n";
    let found = parse(text).expect("statements");
    let expected: [(&str, &[u8]); 6] = [
        ("A", b"a\"b\\c$d`e"),
        ("N", b"5"),
        ("B", b"it's\n two"),
        ("C", b"a'b"),
        ("D", "x\ny\u{1}\u{1b}A\u{e4}'".as_bytes()),
        ("E", b""),
    ];
    assert_eq!(found.len(), expected.len());
    for ((name, value), wanted) in found.iter().zip(expected) {
        assert_eq!((name.as_str(), value.as_slice()), wanted);
    }
}

#[test]
fn what_is_no_dump_is_refused() {
    for text in ["hello\n", "declare A=1\n", "export A='open\n", "declare -x A=\"1\" B=2\n", "export 1A=x\n"] {
        let error = parse(text.as_bytes()).expect_err(text);
        assert!(error.contains("export -p"), "{error}");
    }
}

#[test]
fn every_byte_comes_back_from_real_shells() {
    let value: Vec<u8> = (1..=255).chain(*b"'\"\\$`\n\t !\r\r\n \x1b[0m").collect();
    for shell in [&["bash", "--noprofile", "--norc", "-c"][..], &["sh", "-c"]] {
        let mut command = Command::new(shell[0]);
        command.args(&shell[1..]).arg("export -p").env_clear().env("PATH", "/usr/bin:/bin").stdin(Stdio::null());
        command.env("VALUE", OsStr::from_bytes(&value));
        let output = command.output().expect("a shell");
        let found = parse(&output.stdout).expect("statements");
        let read = found.iter().find(|variable| variable.0 == "VALUE").expect("the variable");
        assert_eq!(read.1, value, "{shell:?}");
    }
}

#[test]
fn names_are_a_shells() {
    assert!(is_name("_a1") && !is_name("1a") && !is_name("a.b") && !is_name("") && !is_name("ä"));
}
