//! The client commands: forms of output, failures, exit codes, and what reaches the server.

mod support;

use std::fs;

use serde_json::{Value, json};
use support::{KEY, Ran, Server, plain};

/// Both forms for programs give the same document.
fn both_forms(server: &Server, words: &[&str]) -> Value {
    let with = |form| {
        let words: Vec<_> = ["-o", form].into_iter().chain(words.iter().copied()).collect();
        server.run(&words)
    };
    let json = with("json");
    assert_eq!(json.code, Some(0), "{words:?}: {json:?}");
    let yaml = with("yaml");
    assert_eq!(yaml.code, Some(0), "{words:?}: {yaml:?}");
    assert!(!yaml.stdout.trim_start().starts_with('{'), "{words:?}: {yaml:?}");
    json.json()
}

#[test]
fn os_120_every_command_has_json() {
    let server = Server::start();
    let id = server.sandbox();
    let id = id.as_str();
    fs::write(server.home.path().join("a.txt"), "one two\n").expect("a file");
    let home = server.home.path().display().to_string();
    let file = format!("{home}/a.txt");
    for (words, pointer) in [
        (&["sandbox", "list"][..], "/items/0/id"),
        (&["sandbox", "get", id], "/status/state"),
        (&["sandbox", "pause", id], "/status"),
        (&["sandbox", "resume", id], "/status"),
        (&["sandbox", "renew", id, "-t", "10m"], "/expiresAt"),
        (&["sandbox", "label", id, "a=b"], "/id"),
        (&["sandbox", "endpoint", id, "-p", "8000"], "/url"),
        (&["sandbox", "health", id], "/healthy"),
        (&["sandbox", "metrics", id], "/cpu_count"),
        (&["sandbox", "logs", id], "/content"),
        (&["sandbox", "events", id], "/content"),
        (&["command", "run", id, "--", "true"], "/exit_code"),
        (&["file", "cat", id, &file], "/content"),
        (&["file", "write", id, &format!("{home}/b"), "-c", "x"], "/status"),
        (&["file", "ls", id, &home], "/items/0/path"),
        (&["file", "mkdir", id, &format!("{home}/d")], "/0/status"),
        (&["file", "info", id, &file], &format!("/{}/size", file.replace('/', "~1"))),
        (&["file", "search", id, &home, "-p", "*.txt"], "/items/0/path"),
        (&["file", "replace", id, &file, "--old", "one", "--new", "one"], &format!("/{}", file.replace('/', "~1"))),
        (&["file", "chmod", id, &file, "--mode", "600"], "/0/status"),
        (&["config", "show"], "/values/connection.domain/source"),
        (&["version"], "/version"),
        (&["doctor"], "/checks/0/name"),
    ] {
        let value = both_forms(&server, words);
        assert!(value.pointer(pointer).is_some(), "{words:?}: {pointer} of {value}");
    }
}

#[test]
fn os_120_every_command_has_something_for_people() {
    let server = Server::start();
    let id = server.sandbox();
    for (words, part) in [
        (&["sandbox", "list"][..], "ID"),
        (&["sandbox", "get", &id], "Running"),
        (&["sandbox", "logs", &id], "line one\nline two\n"),
        (&["sandbox", "metrics", &id], "cores"),
        (&["config", "show"], "OPEN_SANDBOX_DOMAIN"),
    ] {
        let ran = server.run(words);
        assert!(ran.code == Some(0) && ran.stdout.contains(part), "{words:?}: {ran:?}");
    }
}

#[test]
fn os_120_none_is_no_timeout_and_the_file_sets_the_default() {
    let server = Server::start();
    let body = |words: &[&str]| -> Value {
        let ran = server.run(words);
        assert_eq!(ran.code, Some(0), "{ran:?}");
        serde_json::from_str(server.bodies("POST", "/v1/sandboxes").last().expect("was sent")).expect("JSON")
    };
    assert_eq!(body(&["sandbox", "create"])["timeout"], 600);
    assert_eq!(body(&["sandbox", "create", "-t", "none"]).get("timeout"), None);
    assert_eq!(body(&["sandbox", "create", "-t", "1h30m"])["timeout"], 5400);
    let config = server.home.path().join(".opensandbox");
    fs::create_dir(&config).expect("a directory");
    fs::write(config.join("config.toml"), "[defaults]\nimage = 'debian'\ntimeout = 'none'\n").expect("a file");
    let sent = body(&["sandbox", "create"]);
    assert_eq!((&sent["image"]["uri"], sent.get("timeout")), (&json!("debian"), None));
    assert_eq!(body(&["sandbox", "create", "-i", "alpine"])["image"]["uri"], "alpine");
}

#[test]
fn os_120_a_wrong_key_of_the_file_is_reported() {
    let server = Server::start();
    let path = server.home.path().join("c.toml");
    fs::write(&path, "[connection]\ndomian = 'x:1'\n").expect("a file");
    let ran = server.run(&["--config", path.to_str().expect("is text"), "config", "show"]);
    assert!(ran.stderr.contains("connection.domian") && ran.stderr.contains("connection.domain"), "{ran:?}");
}

#[test]
fn a_request_file_is_the_base_that_flags_change() {
    let server = Server::start();
    let file = r#"{"image":{"uri":"a"},"timeout":99,"env":{"A":"1"},"resourceLimits":{"cpu":"1"}}"#;
    let ran = server.run_with_input(&["sandbox", "create", "-f", "-", "-e", "B=2", "--memory", "1Gi"], file.as_bytes());
    assert_eq!(ran.code, Some(0), "{ran:?}");
    let sent: Value = serde_json::from_str(&server.bodies("POST", "/v1/sandboxes")[0]).expect("JSON");
    assert_eq!(sent["timeout"], 99);
    assert_eq!(sent["env"], json!({ "A": "1", "B": "2" }));
    assert_eq!(sent["resourceLimits"], json!({ "cpu": "1", "memory": "1Gi" }));
    let ran = server.run_with_input(&["sandbox", "create", "-f", "-"], br#"{"imagee":{}}"#);
    assert!(ran.code == Some(2) && ran.stderr.contains("imagee"), "{ran:?}");
}

#[test]
fn several_targets_give_rows_and_fail_if_one_does() {
    let server = Server::start();
    let id = server.sandbox();
    let ran = server.run(&["sandbox", "kill", &id, "unknown", "-o", "json"]);
    assert_eq!(ran.code, Some(1));
    let rows = ran.json();
    assert_eq!(rows[0], json!({ "id": id, "status": "ok", "message": "removed" }));
    assert_eq!(rows[1]["error"]["code"], "SANDBOX::SANDBOX_NOT_FOUND");
    assert_eq!(rows[1]["error"]["request_id"], "request-1");
}

#[test]
fn failures_are_in_the_chosen_form() {
    let server = Server::start();
    let ran = server.run(&["sandbox", "get", "unknown", "-o", "json"]);
    assert_eq!((ran.code, ran.stdout.as_str()), (Some(1), ""));
    let error = &ran.error()["error"];
    assert_eq!(error["code"], "SANDBOX::SANDBOX_NOT_FOUND");
    assert_eq!(error["message"], "sandbox unknown does not exist");
    assert_eq!((&error["request_id"], &error["status"]), (&json!("request-1"), &json!(404)));
    let ran = server.run(&["sandbox", "get", "unknown", "-o", "yaml"]);
    assert!(ran.stderr.starts_with("error:\n"), "{ran:?}");
    let ran = server.run(&["sandbox", "get", "unknown"]);
    assert!(ran.stderr.starts_with("error: sandbox unknown does not exist\n"), "{ran:?}");
}

#[test]
fn a_wrong_command_line_is_2_in_the_chosen_form() {
    let server = Server::start();
    let ran = server.run(&["sandbox", "get", "-o", "json"]);
    assert_eq!((ran.code, ran.error()["error"]["code"].as_str()), (Some(2), Some("USAGE")));
    for words in [
        &["sandbox", "create", "-t", "soon"][..],
        &["sandbox", "create", "--memory", "lots"],
        &["sandbox", "create", "-e", "novalue"],
        &["file", "chmod", "x", "/a", "--mode", "999"],
        &["run"],
        &["nope"],
    ] {
        let ran = server.run(words);
        assert_eq!((ran.code, ran.stdout.as_str()), (Some(2), ""), "{words:?}: {ran:?}");
    }
}

#[test]
fn a_server_that_is_not_there_is_named_with_what_to_do() {
    let home = tempfile::tempdir().expect("a directory");
    // Port 1 of loopback: nothing listens there.
    let output = plain(home.path()).args(["sandbox", "list", "--domain", "127.0.0.1:1"]).output().expect("starts");
    let ran = Ran::of(output);
    assert_eq!(ran.code, Some(1));
    assert!(ran.stderr.contains("Connection refused") && ran.stderr.contains("osb server"), "{ran:?}");
}

#[test]
fn a_missing_and_a_wrong_key_are_told_apart() {
    let server = Server::start();
    let output =
        server.osb(&["sandbox", "list", "-o", "json"]).env_remove("OPEN_SANDBOX_API_KEY").output().expect("starts");
    let ran = Ran::of(output);
    assert_eq!(ran.error()["error"]["code"], "MISSING_API_KEY");
    assert!(ran.error()["error"]["hint"].as_str().expect("is there").contains("--api-key"), "{ran:?}");
    let ran = server.run(&["sandbox", "list", "-o", "json", "--api-key", "wrong"]);
    assert_eq!(ran.error()["error"]["code"], "INVALID_API_KEY");
}

#[test]
fn the_key_is_never_shown() {
    let server = Server::start();
    let id = server.sandbox();
    for words in [
        &["config", "show"][..],
        &["config", "show", "-o", "json"],
        &["sandbox", "list", "-v"],
        &["command", "run", "-v", &id, "--", "true"],
        &["sandbox", "get", "unknown", "-v"],
    ] {
        let ran = server.run(words);
        assert!(!ran.stdout.contains(KEY) && !ran.stderr.contains(KEY), "{words:?}: {ran:?}");
    }
}

#[test]
fn a_local_server_is_found_with_its_key() {
    let server = Server::start();
    let data = server.home.path().join("data");
    fs::create_dir(&data).expect("a directory");
    let json = json!({ "url": format!("http://{}", server.address), "pid": std::process::id() });
    fs::write(data.join("server.json"), json.to_string()).expect("a file");
    fs::write(data.join("api-key"), KEY).expect("a file");
    let output = plain(server.home.path()).args(["run", "--", "echo", "found"]).output().expect("starts");
    let ran = Ran::of(output);
    assert_eq!((ran.code, ran.stdout.as_str()), (Some(0), "found\n"), "{ran:?}");
}

#[test]
fn one_word_is_shell_text_and_several_are_a_program() {
    let server = Server::start();
    let id = server.sandbox();
    let ran = server.run(&["command", "run", &id, "--", "echo a | tr a b"]);
    assert_eq!((ran.code, ran.stdout.as_str()), (Some(0), "b\n"), "{ran:?}");
    let ran = server.run(&["command", "run", &id, "--", "echo", "a | b", "$HOME"]);
    assert_eq!(ran.stdout, "a | b $HOME\n", "{ran:?}");
    let ran = server.run(&["command", "run", "-w", "/tmp", "-e", "X=1 2", &id, "--", "pwd; echo $X; exit 4"]);
    assert_eq!((ran.code, ran.stdout.as_str()), (Some(4), "/tmp\n1 2\n"), "{ran:?}");
}

#[test]
fn a_background_command_can_be_followed_waited_for_and_interrupted() {
    let server = Server::start();
    let id = server.sandbox();
    let start = |text: &str| {
        let ran = server.run(&["command", "run", "-d", &id, "-o", "json", "--", text]);
        ran.json()["command_id"].as_str().unwrap_or_else(|| panic!("{ran:?}")).to_owned()
    };
    let command = start("echo one; sleep 0.3; echo two; exit 6");
    let ran = server.run(&["command", "logs", &id, &command, "--follow"]);
    assert_eq!((ran.code, ran.stdout.as_str()), (Some(0), "one\ntwo\n"), "{ran:?}");
    assert_eq!(server.run(&["command", "wait", &id, &command]).code, Some(6));
    let ran = server.run(&["command", "logs", &id, &command, "--cursor", "4", "-o", "json"]);
    assert_eq!(ran.json(), json!({ "content": "two\n", "cursor": 8 }));
    let command = start("sleep 1000");
    assert_eq!(server.run(&["command", "status", &id, &command, "-o", "json"]).json()["running"], true);
    assert_eq!(server.run(&["command", "interrupt", &id, &command]).code, Some(0));
    assert_eq!(server.run(&["command", "status", &id, &command, "-o", "json"]).json()["running"], false);
}

#[test]
fn completion_is_written_for_shells() {
    let home = tempfile::tempdir().expect("a directory");
    for shell in ["bash", "zsh", "fish"] {
        let ran = Ran::of(plain(home.path()).args(["completion", shell]).output().expect("starts"));
        assert!(ran.code == Some(0) && ran.stdout.contains("sandbox"), "{shell}");
    }
}
