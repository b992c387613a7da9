//! What a command is given: identity, environment, directory, descriptors; and errors when it cannot be.

mod support;

use serde_json::json;
use support::Daemon;

#[test]
fn ex_009_a_child_dies_of_memory_before_the_daemon() {
    let daemon = Daemon::start();
    assert_eq!(daemon.shell("cat /proc/self/oom_score_adj").stdout(), "500\n");
    let own = std::fs::read_to_string(format!("/proc/{}/oom_score_adj", daemon.pid())).expect("execd lives");
    assert_eq!(own.trim(), std::fs::read_to_string("/proc/self/oom_score_adj").expect("we live").trim());
}

#[test]
fn ex_036_a_missing_directory_is_named_and_others_still_work() {
    let gone = tempfile::tempdir().expect("a directory");
    let daemon = Daemon::with(|command| {
        command.current_dir(gone.path());
    });
    let missing = daemon.path("nope");
    daemon.post("/command", &json!({"command": "true", "cwd": missing})).refuses(400, "INVALID_REQUEST_BODY", &missing);
    let name = gone.path().to_str().expect("UTF-8").to_owned();
    drop(gone);
    daemon.post("/command", &json!({"command": "true"})).refuses(400, "INVALID_REQUEST_BODY", &name);
    assert_eq!(daemon.run(json!({"command": "pwd", "cwd": "/"})).stdout(), "/\n");
}

#[test]
fn os_048_an_error_always_has_its_three_keys_and_the_systems_words() {
    let daemon = Daemon::start();
    let too_long = daemon.run(json!({"argv": ["true", "x".repeat(200_000)]}));
    assert!(too_long.end().contains("argument list too long"), "{}", too_long.end());
    let missing = daemon.run(json!({"argv": ["no-such-program"]}));
    assert!(missing.end().contains("no such file or directory"), "{}", missing.end());
    let forbidden = daemon.run(json!({"argv": ["/etc/passwd"]}));
    assert!(forbidden.end().contains("permission denied"), "{}", forbidden.end());
    assert_eq!(
        forbidden.events.iter().map(|event| event["type"].as_str().expect("a type")).collect::<Vec<_>>(),
        ["init", "error"]
    );
}

#[test]
fn os_049_a_switch_takes_home_user_and_groups_along() {
    let daemon = Daemon::start();
    let run = daemon.run(json!({"command": "id -u; id -g; id -G; echo $HOME $USER", "uid": 65534}));
    assert_eq!(run.stdout(), "65534\n65534\n65534\n/nonexistent nobody\n");
    let unknown = daemon.run(json!({"command": "id -u; id -g; echo $HOME", "uid": 424242}));
    assert_eq!(unknown.stdout(), "424242\n424242\n/\n");
    let group = daemon.run(json!({"command": "id -u; id -g", "uid": 65534, "gid": 12}));
    assert_eq!(group.stdout(), "65534\n12\n");
    let reopened = daemon.run(json!({"command": "echo out > /dev/stdout; echo err > /dev/stderr", "uid": 65534}));
    assert_eq!((reopened.stdout().as_str(), reopened.stderr().as_str()), ("out\n", "err\n"));
    let own = daemon.run(json!({"command": "id -u; id -g", "uid": 0, "gid": 0}));
    assert_eq!(own.stdout(), "0\n0\n");
}

#[test]
fn os_049_without_capabilities_the_own_identity_works_and_another_names_what_is_missing() {
    let mut setpriv = std::process::Command::new("setpriv");
    setpriv.args(["--reuid", "0", "--bounding-set", "-all", "--inh-caps", "-all", env!("CARGO_BIN_EXE_execd")]);
    let daemon = Daemon::wrapped(setpriv, |_| {});
    assert_eq!(daemon.run(json!({"command": "id -u", "uid": 0, "gid": 0})).stdout(), "0\n");
    let refused = daemon.run(json!({"command": "id -u", "uid": 1000}));
    assert!(refused.end().contains("CAP_SETGID"), "{}", refused.end());
}

#[test]
fn os_051_request_over_file_over_create_and_empty_values_stay() {
    let daemon = Daemon::with(|command| {
        command.env("FROM_CREATE", "create").env("IN_FILE", "create").env("IN_ALL", "create");
    });
    let show = "echo \"$FROM_CREATE-$IN_FILE-$IN_ALL-${EMPTY-unset}\"";
    assert_eq!(daemon.shell(show).stdout(), "create-create-create-unset\n");
    assert!(daemon.env_file().exists(), "the file is made for those who append to it");
    std::fs::write(daemon.env_file(), "IN_FILE=file\nIN_ALL=file\nEMPTY=\n").expect("the env file");
    let run = daemon.run(json!({"command": show, "envs": {"IN_ALL": "request"}}));
    assert_eq!(run.stdout(), "create-file-request-\n");
    let append = daemon.shell("echo \"LATER='a b'\" >> $EXECD_ENVS; echo $LATER");
    assert_eq!(append.stdout(), "\n");
    assert_eq!(daemon.shell("echo $LATER").stdout(), "a b\n");
}

#[test]
fn os_051_an_env_file_that_cannot_be_made_is_ignored() {
    let daemon = Daemon::with(|command| {
        command.env("EXECD_ENVS", "/proc/nowhere/env");
    });
    assert_eq!(daemon.shell("echo $EXECD_ENVS").stdout(), "/proc/nowhere/env\n");
}

#[test]
fn attack_34_children_see_neither_token_nor_descriptors() {
    let daemon = Daemon::with_token("s3cret");
    let run = daemon.shell("env; cat /proc/self/environ; ls /proc/self/fd");
    assert!(!run.stdout().contains("s3cret"), "the token travels");
    assert!(run.stdout().ends_with("0\n1\n2\n3\n"), "ls sees its three and the one it opened: {}", run.stdout());
}
