//! Code contexts by an installed Jupyter kernel, spoken to directly.

mod support;

use std::fs;

use serde_json::{Value, json};
use support::code::{Context, daemon_with, wait_until};
use support::{Daemon, is_running, jupyter};

/// A daemon that sees a real kernel, once for each way to be interrupted.
fn daemon() -> (Daemon, tempfile::TempDir) {
    let environment = jupyter::environment();
    let directory = tempfile::tempdir().expect("a temporary directory");
    jupyter::install(&environment, directory.path(), "snake", "signal");
    jupyter::install(&environment, directory.path(), "adder", "message");
    let broken = directory.path().join("kernels/broken");
    fs::create_dir_all(&broken).expect("the kernel's directory");
    let spec = json!({ "argv": ["sh", "-c", "echo no luck >&2; exit 3"], "language": "broken", "display_name": "" });
    fs::write(broken.join("kernel.json"), spec.to_string()).expect("the spec");
    let path = directory.path().to_str().expect("UTF-8");
    let daemon = daemon_with(&[("JUPYTER_PATH", path), ("TMPDIR", path), ("HOME", "/nowhere")]);
    (daemon, directory)
}

#[test]
fn a_kernel_runs_cells_and_keeps_names() {
    let (daemon, directory) = daemon();
    let kernel = Context::new(&daemon, "snake");
    let ran = kernel.run("x = 20\nimport sys\nprint('hello'); print('err', file=sys.stderr)\nx + 1");
    assert_eq!((ran.stdout().as_str(), ran.text("stderr").as_str(), ran.result().as_str()), ("hello\n", "err\n", "21"));
    let count = ran.events.iter().find(|event| event["type"] == "execution_count").expect("a count");
    assert_eq!(count["execution_count"], 1);
    assert_eq!(kernel.run("import os; (x, os.environ['FROM_SPEC'])").result(), "(20, '/nowhere/spec')");
    let ran = kernel.run("from IPython.display import display, HTML\ndisplay(HTML('<b>'))\nprint('after')");
    assert_eq!(ran.results()[0]["text/html"], "<b>");
    let ran = kernel.run("1 / 0");
    assert_eq!(ran.error(), Some(("ZeroDivisionError".into(), "division by zero".into())));
    assert_eq!(kernel.run("input()").error_name(), "StdinNotImplementedError");
    let ran = kernel.run("for i in range(3000): print(i, 'x' * 100)");
    assert_eq!(ran.stdout().lines().count(), 3000);
    assert_eq!(
        daemon.get("/code/contexts?language=snake").ok().json(),
        json!([{ "id": kernel.id, "language": "snake" }])
    );
    let pid = support::commands::pid_in(&kernel.run("print(os.getpid())").stdout());
    daemon.delete("/code/contexts?language=snake").ok();
    assert!(!is_running(pid), "the kernel is gone when the answer comes");
    let left = fs::read_dir(directory.path()).expect("a directory").flatten();
    let files: Vec<_> =
        left.map(|entry| entry.file_name()).filter(|name| name.to_string_lossy().ends_with(".json")).collect();
    assert!(files.is_empty(), "its connection file is gone, too: {files:?}");
}

#[test]
fn ex_012_a_kernel_is_interrupted_in_its_way_and_keeps_its_variables() {
    let (daemon, _directory) = daemon();
    for language in ["snake", "adder"] {
        let kernel = Context::new(&daemon, language);
        let mut running = kernel.begin("x = 7\nprint('on', flush=True)\nimport time\nwhile True: time.sleep(0.1)");
        running.until_stdout("on\n");
        kernel.interrupt();
        assert_eq!(running.end().error_name(), "KeyboardInterrupt", "{language}");
        assert_eq!(kernel.run("x").result(), "7", "{language}");
        let mut running = kernel.begin("print('on', flush=True)\nimport time\nwhile True: time.sleep(0.1)");
        running.until_stdout("on\n");
        drop(running);
        wait_until("the end of the cell", || kernel.run("x").error().is_none());
    }
}

#[test]
fn ex_012_a_dead_kernel_is_an_error_now_and_a_fresh_one_next() {
    let (daemon, _directory) = daemon();
    let kernel = Context::new(&daemon, "snake");
    kernel.run("x = 1");
    let ran = kernel.run("import os; os.kill(os.getpid(), 9)");
    let (name, words) = ran.error().expect("an error");
    assert!(name == "DeadKernelError" && words.contains("snake") && words.contains("signal 9"), "{name} {words}");
    assert_eq!(kernel.run("x").error_name(), "NameError");
    let mut running = kernel.begin("import signal, time\nsignal.signal(signal.SIGINT, signal.SIG_IGN)\nprint('on', flush=True)\nwhile True: time.sleep(1)");
    running.until_stdout("on\n");
    kernel.interrupt();
    assert_eq!(running.end().error_name(), "DeadKernelError", "one that swallows interrupts is killed");
    assert_eq!(kernel.run("1 + 1").result(), "2");
}

#[test]
fn os_071_a_kernel_that_does_not_start_fails_alone_and_tells_why() {
    let (daemon, _directory) = daemon();
    let refusal = daemon.post("/code/context", &json!({ "language": "broken" }));
    refusal.refuses(500, "RUNTIME_ERROR", "broken");
    let message = refusal.json()["message"].as_str().expect("words").to_owned();
    assert!(message.contains("no luck") && message.contains("exit code 3"), "{message}");
    let bounded = json!({ "language": "snake", "memory_bytes": 1 << 30 });
    daemon.post("/code/context", &bounded).refuses(400, "INVALID_REQUEST_BODY", "memory_bytes");
    daemon.post("/code/context", &json!({ "language": "java" })).refuses(400, "NOT_SUPPORTED", "snake");
    assert_eq!(daemon.get("/code/contexts?language=").ok().json(), Value::Array(Vec::new()));
    assert_eq!(Context::new(&daemon, "python").run("1").result(), "1");
}
