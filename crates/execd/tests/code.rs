//! Code contexts: names that last, results, interrupts, ends, limits; in Python, which has them all.

mod support;

use std::thread;

use serde_json::{Value, json};
use support::code::{Context, daemon, daemon_with, run_in, wait_until};
use support::is_running;

#[test]
fn names_last_and_the_last_expression_is_the_result() {
    let daemon = daemon();
    let python = Context::new(&daemon, "python");
    let ran = python.run("import math\nx = 20\nprint('hello')\nx + 1");
    assert_eq!((ran.stdout().as_str(), ran.result().as_str()), ("hello\n", "21"));
    let kinds: Vec<&Value> = ran.events.iter().map(|event| &event["type"]).collect();
    assert_eq!(kinds, ["init", "ping", "stdout", "execution_count", "result", "execution_complete"]);
    assert_eq!(ran.events[3]["execution_count"], 1);
    assert_eq!(python.run("f'{x} {math.floor(2.5)}'").result(), "'20 2'");
    assert_eq!(python.run("x + 1;").results(), Vec::<Value>::new(), "a semicolon holds the value back");
    assert_eq!(python.run("def f():\n    return x * 2\n\nf()").result(), "40");
    assert_eq!(python.run("import asyncio\nawait asyncio.sleep(0, 'waited')").result(), "'waited'");
}

#[test]
fn contexts_of_one_language_are_apart_and_runs_without_one_share_theirs() {
    let daemon = daemon();
    let (one, other) = (Context::new(&daemon, "python"), Context::new(&daemon, "python"));
    one.run("x = 1");
    assert_eq!(other.run("x").error_name(), "NameError");
    let language = json!({ "language": "python" });
    let first = run_in(&daemon.target(), language.clone(), "x = 3");
    let second = run_in(&daemon.target(), language, "x");
    assert_eq!((second.id(), second.result().as_str()), (first.id(), "3"));
    let listed = daemon.get("/code/contexts?language=python").ok().json();
    assert_eq!(listed.as_array().map(Vec::len), Some(3), "{listed}");
    assert_eq!(
        daemon.get(&format!("/code/contexts/{}", one.id)).ok().json(),
        json!({ "id": one.id, "language": "python" })
    );
}

#[test]
fn a_context_begins_in_its_directory_which_is_made() {
    let daemon = daemon();
    let cwd = daemon.path("new/place");
    let python = Context::with(&daemon, json!({ "language": "python", "cwd": cwd }));
    assert_eq!(python.run("import os; print(os.getcwd())").stdout(), format!("{cwd}\n"));
    assert_eq!(daemon.get("/code/contexts?language=").ok().json()[0]["cwd"], cwd.as_str());
}

#[test]
fn what_json_cannot_say_or_is_too_large_costs_the_run_and_not_the_interpreter() {
    let daemon = daemon();
    let python = Context::new(&daemon, "python");
    let shown = "class Shown:\n  def __repr__(self): return 'shown'\n  def _repr_json_(self): return {'a': float('nan')}\n\
                 kept = 7\nShown()";
    assert_eq!(python.run(shown).results(), [json!({"text": "shown", "application/json": {"a": null}})]);
    let half = "class Half:\n  def __repr__(self): return '\\ud83d|'\nHalf()";
    assert_eq!(python.run(half).result(), "?|");
    let wide = python
        .run("class Wide:\n  def __repr__(self): return 'w'\n  def _repr_html_(self): return 'é' * 5_000_000\nWide()");
    assert_eq!(wide.results()[0]["text/html"].as_str().map(|text| text.chars().count()), Some(5_000_000));
    let (name, words) = python.run("raise ValueError('x' * 13_000_000)").error().expect("an error");
    assert_eq!((name.as_str(), words.len()), ("ValueError", 1024 * 1024));
    let forms = "class Many:\n  def _repr_mimebundle_(self, **_): return {'text/x-%d' % n: 'x' * 8_000_000 for n in range(4)}\nMany()";
    assert_eq!(python.run(forms).error_name(), "ValueError");
    assert_eq!(python.run("kept").result(), "7", "the interpreter is the same");
}

#[test]
fn values_are_shown_in_the_forms_that_they_have() {
    let daemon = daemon();
    let python = Context::new(&daemon, "python");
    let ran = python.run(
        "class Shown:\n  def __repr__(self): return 'shown'\n  def _repr_html_(self): return '<b>'\n  \
         def _repr_png_(self): return b'\\x89PNG'\n  def _repr_json_(self): return {'a': [1]}\n  \
         def _repr_latex_(self): return '$x$'\n  def _repr_svg_(self): raise ValueError('no')\n\
         print('before'); display(Shown()); print('after')\nShown()",
    );
    let forms = json!({
        "text": "shown", "text/html": "<b>", "image/png": "iVBORw==", "application/json": {"a": [1]}, "text/latex": "$x$"
    });
    assert_eq!(ran.results(), [forms.clone(), forms]);
    let kinds: Vec<&str> = ran.events.iter().filter_map(|event| event["type"].as_str()).collect();
    let outputs: Vec<&str> = kinds.into_iter().filter(|kind| *kind == "stdout" || *kind == "result").collect();
    assert_eq!(outputs, ["stdout", "result", "stdout", "result"], "{:?}", ran.events);
    assert!(ran.text("stderr").contains("_repr_svg_ failed: ValueError: no"), "{:?}", ran.events);
    let ran = python
        .run("class Bundle:\n  def _repr_mimebundle_(self, include, exclude):\n    return {'a/b': 'c'}, {}\nBundle()");
    assert_eq!(ran.results()[0]["a/b"], "c");
}

#[test]
fn figures_come_as_images_where_they_are_shown() {
    let daemon = daemon();
    let python = Context::new(&daemon, "python");
    let ran =
        python.run("import matplotlib.pyplot as plt\nplt.plot([1, 2])\nplt.show()\nprint('shown')\nplt.plot([2, 1]);");
    assert_eq!((ran.stdout().as_str(), ran.text("stderr").as_str()), ("shown\n", ""));
    let results = ran.results();
    assert_eq!(results.len(), 2, "one when it is shown, one at the end: {results:?}");
    for forms in results {
        assert!(forms["image/png"].as_str().is_some_and(|png| png.starts_with("iVBORw0KGgo")), "{forms}");
    }
    assert_eq!(python.run("1").results().len(), 1, "figures are shown once");
}

#[test]
fn a_failure_has_its_name_words_and_lines() {
    let daemon = daemon();
    let python = Context::new(&daemon, "python");
    python.run("def f():\n    return 1 / 0");
    let ran = python.run("print('first')\nf()");
    assert_eq!(ran.error(), Some(("ZeroDivisionError".into(), "division by zero".into())));
    assert_eq!(ran.text("stdout"), "first\n");
    let error = ran.events.iter().find(|event| event["type"] == "error").expect("an error");
    let traceback = error["error"]["traceback"].as_array().expect("lines");
    let lines: Vec<&str> = traceback.iter().filter_map(Value::as_str).collect();
    assert_eq!(
        lines[..3],
        ["Traceback (most recent call last):", "  File \"<cell 2>\", line 2, in <module>", "    f()"]
    );
    assert!(lines.contains(&"    return 1 / 0"), "{lines:?}");
    assert_eq!(python.run("def broken(:").error_name(), "SyntaxError");
    assert_eq!(python.run("exit(3)").error(), Some(("SystemExit".into(), "3".into())));
    assert_eq!(python.run("f.__name__").result(), "'f'", "an exit is an error of the cell only");
}

#[test]
fn output_of_children_and_threads_arrives_whole_and_before_the_end() {
    let daemon = daemon();
    let python = Context::new(&daemon, "python");
    let ran = python.run(
        "import subprocess, os, sys\nsubprocess.run('echo child; echo child-err >&2', shell=True)\nos.system('echo system')\n\
         os.write(1, b'raw\\xff\\n'); sys.stderr.write('err'); print('no newline', end='')",
    );
    assert_eq!(ran.stdout(), "child\nsystem\nraw\u{fffd}\nno newline");
    assert_eq!(ran.text("stderr"), "child-err\nerr");
    let ran = python.run("print('x' * 3_000_000); sys.stderr.write('y' * 2_000_000); None");
    assert_eq!((ran.stdout().len(), ran.text("stderr").len()), (3_000_001, 2_000_000));
    let ran = python.run("print('é' * 100_000)");
    assert_eq!(ran.stdout(), "é".repeat(100_000) + "\n");
}

#[test]
fn output_comes_while_a_run_goes_on() {
    let daemon = daemon();
    let python = Context::new(&daemon, "python");
    let gate = support::commands::Fifo::new(&daemon, "gate");
    let mut running = python.begin(&format!("print('now')\nopen({:?}, 'w').write('x')\nprint('later')", gate.0));
    running.until_stdout("now\n");
    assert_eq!(gate.read(), "x");
    assert_eq!(running.end().stdout(), "now\nlater\n");
}

#[test]
fn what_comes_between_runs_comes_with_the_next_one() {
    let daemon = daemon();
    let python = Context::new(&daemon, "python");
    let gate = support::commands::Fifo::new(&daemon, "gate");
    python.run(&format!(
        "import threading\ndef late():\n    open({0:?}).read()\n    print('late')\n    display('shown')\n    open({0:?}, 'w').write('done')\n\
         thread = threading.Thread(target=late); thread.start()",
        gate.0
    ));
    std::fs::write(&gate.0, "go").expect("the thread reads");
    assert_eq!(gate.read(), "done");
    let ran = python.run("thread.join(); print('cell')");
    assert_eq!(ran.stdout(), "late\ncell\n");
    assert_eq!(ran.results(), [json!({ "text": "'shown'" })]);
    let ran = python.run(
        "import os, time\nif os.fork() == 0:\n    time.sleep(0.1); print('child of a fork')\nelse:\n    os.wait()",
    );
    assert_eq!(ran.stdout(), "child of a fork\n");
    assert_eq!(python.run("1").result(), "1");
}

#[test]
fn ex_012_input_is_refused_at_once_and_the_next_cell_runs() {
    let daemon = daemon();
    let python = Context::new(&daemon, "python");
    let ran = python.run("x = 5\ninput('name? ')");
    assert_eq!(ran.error_name(), "StdinNotImplementedError");
    assert_eq!(python.run("import sys; sys.stdin.read()").result(), "''");
    assert_eq!(python.run("x").result(), "5");
}

#[test]
fn ex_012_an_interrupt_ends_the_cell_and_keeps_the_variables() {
    let daemon = daemon();
    let python = Context::new(&daemon, "python");
    for code in [
        "x = 7\nprint('on')\nwhile True: pass",
        "print('on')\nimport time; time.sleep(600)",
        "print('on')\nimport subprocess; subprocess.run(['sleep', '600'])",
        "print('on')\nimport asyncio; await asyncio.sleep(600)",
        "print('on')\nwhile True: print('flood')",
    ] {
        let mut running = python.begin(code);
        running.until_stdout("on\n");
        let reading = thread::spawn(move || running.end());
        python.interrupt();
        assert_eq!(reading.join().expect("the stream").error_name(), "KeyboardInterrupt", "{code}");
        assert_eq!(python.run("x").result(), "7", "{code}");
    }
    python.interrupt();
    assert_eq!(python.run("x").result(), "7", "an interrupt of nothing changes nothing");
}

#[test]
fn ex_012_a_cell_that_swallows_interrupts_is_killed_with_its_interpreter() {
    let daemon = daemon();
    let python = Context::new(&daemon, "python");
    let mut running = python.begin(
        "import signal, time\nsignal.signal(signal.SIGINT, signal.SIG_IGN)\nx = 1\nprint('on')\nwhile True: time.sleep(1)",
    );
    running.until_stdout("on\n");
    python.interrupt();
    let (name, words) = running.end().error().expect("an error");
    assert_eq!(name, "DeadKernelError");
    assert!(words.contains("did not stop when it was interrupted"), "{words}");
    assert_eq!(python.run("x").error_name(), "NameError");
}

#[test]
fn ex_012_a_dropped_client_stops_the_cell_and_keeps_the_variables() {
    let daemon = daemon();
    let python = Context::new(&daemon, "python");
    let mut running = python.begin("x = 8\nimport os; print(os.getpid())\nwhile True: pass");
    running.until_stdout("\n");
    drop(running);
    wait_until("the end of the cell", || python.run("x").error().is_none());
    assert_eq!(python.run("x").result(), "8");
}

#[test]
fn a_client_that_asks_for_it_may_leave_its_cell_running() {
    let daemon = daemon();
    let python = Context::new(&daemon, "python");
    let gate = support::commands::Fifo::new(&daemon, "gate");
    let body = json!({ "context": { "id": python.id }, "code": format!("open({:?}).read(); x = 9", gate.0) });
    let mut connection = daemon.connect();
    connection.send("POST", "/code", &[("OpenSandbox-On-Disconnect", "continue")], body.to_string().as_bytes());
    assert_eq!(connection.head().status, 200);
    connection.chunk().expect("init");
    drop(connection);
    std::fs::write(&gate.0, "go").expect("the cell reads");
    wait_until("the end of the cell", || python.run("x").error().is_none());
    assert_eq!(python.run("x").result(), "9");
}

#[test]
fn ex_012_a_dead_interpreter_is_an_error_now_and_a_fresh_one_next() {
    let daemon = daemon();
    let python = Context::new(&daemon, "python");
    python.run("x = 1");
    let ran = python.run("print('last words')\nimport os, signal; os.kill(os.getpid(), signal.SIGKILL)");
    let (name, words) = ran.error().expect("an error");
    assert_eq!((name.as_str(), ran.text("stdout").as_str()), ("DeadKernelError", "last words\n"));
    assert!(words.contains("signal 9") && words.contains("python"), "{words}");
    assert_eq!(python.run("x").error_name(), "NameError");
    let ran = python.run("import subprocess\nchild = subprocess.Popen(['sleep', '600'], start_new_session=True)\nprint(child.pid)\nx = 2");
    let child = support::commands::pid_in(&ran.stdout());
    assert_eq!(python.run("os = __import__('os'); os._exit(3)").error_name(), "DeadKernelError");
    wait_until("the end of what the dead interpreter started", || !is_running(child));
    // One that dies between two cells is replaced, too.
    let pid =
        python.run("import os, threading\nprint(os.getpid())\nthreading.Timer(0.05, os._exit, [0]).start()").stdout();
    wait_until("the end of the interpreter", || !is_running(support::commands::pid_in(&pid)));
    assert_eq!(python.run("1 + 1").result(), "2");
}

#[test]
fn one_run_at_a_time_and_the_second_is_told_so() {
    let daemon = daemon();
    let python = Context::new(&daemon, "python");
    let mut running = python.begin("print('on')\nimport time; time.sleep(600)");
    running.until_stdout("on\n");
    let (name, words) = python.run("1").error().expect("an error");
    assert!(name == "SessionBusy" && words.contains("session is busy"), "{name} {words}");
    python.interrupt();
    assert_eq!(running.end().error_name(), "KeyboardInterrupt");
}

#[test]
fn a_client_that_does_not_read_cannot_keep_its_context() {
    let daemon = daemon();
    let python = Context::new(&daemon, "python");
    let mut running = python.begin("print('on')\nwhile True: print('x' * 1000)");
    running.until_stdout("on\n");
    python.interrupt();
    assert_eq!(python.run("'free'").result(), "'free'");
    let flood = python.begin("while True: print('x' * 1000)");
    python.delete();
    drop((running, flood));
    assert_eq!(daemon.get("/code/contexts?language=").ok().json(), json!([]));
}

#[test]
fn os_070_contexts_are_many_bounded_and_deleted_by_language() {
    let daemon = daemon_with(&[("EXECD_CODE_MAX_CONTEXTS", "40")]);
    let contexts: Vec<Context> = thread::scope(|scope| {
        let makers: Vec<_> = (0..40).map(|_| scope.spawn(|| Context::new(&daemon, "python"))).collect();
        makers.into_iter().map(|maker| maker.join().expect("a context")).collect()
    });
    let pids: Vec<i32> = thread::scope(|scope| {
        let runs: Vec<_> =
            contexts.iter().map(|context| scope.spawn(|| context.run("import os; print(os.getpid())"))).collect();
        runs.into_iter().map(|run| support::commands::pid_in(&run.join().expect("a run").stdout())).collect()
    });
    daemon.post("/code/context", &json!({ "language": "python" })).refuses(400, "RUNTIME_ERROR", "40 contexts");
    daemon.delete("/code/contexts").refuses(400, "MISSING_QUERY", "language");
    daemon.delete("/code/contexts?language=bash").ok();
    assert_eq!(contexts[7].run("'goes on'").result(), "'goes on'");
    daemon.delete("/code/contexts?language=python").ok();
    assert!(pids.into_iter().all(|pid| !is_running(pid)), "all interpreters are gone when the answer comes");
    assert_eq!(daemon.get("/code/contexts?language=python").ok().json(), json!([]));
    assert_eq!(Context::new(&daemon, "python").run("2").result(), "2");
}

#[test]
fn os_070_an_idle_context_expires_and_a_busy_one_does_not() {
    let daemon = daemon();
    let idle = Context::with(&daemon, json!({ "language": "python", "idle_seconds": 1 }));
    let gate = support::commands::Fifo::new(&daemon, "gate");
    let running = idle.begin(&format!("open({:?}).read(); print('ended')", gate.0));
    let other = Context::with(&daemon, json!({ "language": "python", "idle_seconds": 1 }));
    let path = format!("/code/contexts/{}", other.id);
    wait_until("the end of an idle context", || daemon.get(&path).status == 404);
    std::fs::write(&gate.0, "go").expect("the cell reads");
    assert_eq!(running.end().stdout(), "ended\n");
    let path = format!("/code/contexts/{}", idle.id);
    wait_until("the end of an idle context", || daemon.get(&path).status == 404);
}

#[test]
fn os_070_memory_is_bounded_for_each_context() {
    let daemon = daemon();
    let bound = 256 * 1024 * 1024;
    let python = Context::with(&daemon, json!({ "language": "python", "memory_bytes": bound }));
    python.run("x = 1");
    assert_eq!(python.run("y = bytearray(1 << 30)").error_name(), "MemoryError");
    assert_eq!(python.run("x").result(), "1");
}

#[test]
fn mistakes_are_refused_by_name() {
    let daemon = daemon();
    let post = |path: &str, body: Value| daemon.post(path, &body);
    post("/code/context", json!({})).refuses(400, "INVALID_REQUEST_BODY", "language");
    post("/code/context", json!({ "language": "cobol" })).refuses(400, "NOT_SUPPORTED", "cobol");
    post("/code", json!({ "code": " \n", "context": { "language": "python" } })).refuses(
        400,
        "INVALID_REQUEST_BODY",
        "code",
    );
    post("/code", json!({ "code": "1", "context": { "id": "none" } })).refuses(400, "CONTEXT_NOT_FOUND", "none");
    post("/code", json!({ "code": "1", "context": { "language": "cobol" } })).refuses(400, "NOT_SUPPORTED", "cobol");
    let python = Context::new(&daemon, "python");
    let other = json!({ "id": python.id, "language": "bash" });
    post("/code", json!({ "code": "1", "context": other })).refuses(400, "INVALID_REQUEST_BODY", "language");
    daemon.get("/code/contexts/none").refuses(404, "CONTEXT_NOT_FOUND", "none");
    daemon.delete("/code/contexts/none").refuses(404, "CONTEXT_NOT_FOUND", "none");
    daemon.delete("/code?id=none").refuses(400, "CONTEXT_NOT_FOUND", "none");
    daemon.delete("/code").refuses(400, "MISSING_QUERY", "id");
}

#[test]
fn os_071_a_language_that_is_not_there_fails_alone_and_by_name() {
    let daemon = daemon_with(&[("PATH", "/nowhere")]);
    let response = daemon.post("/code/context", &json!({ "language": "python" }));
    response.refuses(400, "NOT_SUPPORTED", "python needs python3");
    assert_eq!(daemon.shell("echo fine").end(), "0");
}

#[test]
fn code_without_a_language_is_a_command() {
    let daemon = daemon();
    let response = daemon.post("/code", &json!({ "code": "echo $((1 + 2)); exit 4" })).ok();
    let run = support::Run::parse(&response.body);
    assert_eq!((run.stdout().as_str(), run.end().as_str()), ("3\n", "4"));
    let response =
        daemon.post("/code", &json!({ "code": "echo late", "context": { "language": "background-command" } })).ok();
    let id = support::Run::parse(&response.body).id();
    support::commands::wait_until_finished(&daemon, &id);
    assert_eq!(support::commands::logs(&daemon, &id, "").0, "late\n");
}

#[test]
fn secrets_of_the_daemon_are_not_seen_by_interpreters() {
    let daemon = support::Daemon::with_token("planted-secret");
    let python = Context::new(&daemon, "python");
    let shown = python.run("import os; print(dict(os.environ), open('/proc/self/cmdline').read())").stdout();
    assert!(!shown.contains("planted-secret") && !shown.contains("EXECD_ENVS"), "{shown}");
}
