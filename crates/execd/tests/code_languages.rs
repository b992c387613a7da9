//! Code contexts in the languages that execd drives besides Python.

mod support;

use std::time::Duration;

use serde_json::{Value, json};
use support::code::{Context, Ran, daemon, wait_until};

fn shown(ran: &Ran) -> (String, Vec<Value>) {
    (ran.stdout(), ran.results().into_iter().map(|forms| forms["text"].clone()).collect())
}

#[test]
fn javascript_names_last_and_the_last_expression_is_the_result() {
    let daemon = daemon();
    let node = Context::new(&daemon, "javascript");
    let ran = node.run("const x = 20; let y = {a: [1, 'b']}; console.log('hello'); console.error('err'); x + 1");
    assert_eq!(shown(&ran), ("hello\n".into(), vec!["21".into()]));
    assert_eq!(ran.text("stderr"), "err\n");
    assert_eq!(node.run("y").result(), "{ a: [ 1, 'b' ] }");
    assert_eq!(node.run("const x = 5; x").result(), "5", "names may be declared again");
    assert_eq!(node.run("await new Promise((done) => setTimeout(done, 1, 'waited'))").result(), "'waited'");
    assert_eq!(node.run("undefined").results(), Vec::<Value>::new());
    assert_eq!(node.run("10n ** 20n").result(), "100000000000000000000n");
    assert_eq!(node.run("const path = require('path'); path.basename('/a/b')").result(), "'b'");
    assert_eq!(node.run("import {basename as base} from 'node:path'\nimport * as os from 'os'; import fs from 'fs'\nbase('/a/b') + typeof os.cpus + typeof fs.readFileSync").result(), "'bfunctionfunction'");
    assert_eq!(node.run("(await import('node:path')).sep").result(), "'/'");
}

#[test]
fn javascript_shows_values_in_their_forms() {
    let daemon = daemon();
    let node = Context::new(&daemon, "javascript");
    let ran = node.run("console.log('a'); display.html('<b>'); console.log('b'); ({[Symbol.for('Jupyter.display')]: () => ({'text/plain': 'p', 'application/json': {a: 1}})})");
    assert_eq!(
        ran.results(),
        [json!({"text": "<b>", "text/html": "<b>"}), json!({"text": "p", "application/json": {"a": 1}})]
    );
    assert_eq!(ran.stdout(), "a\nb\n");
}

#[test]
fn javascript_halves_of_characters_and_large_answers_do_not_end_the_interpreter() {
    let daemon = daemon();
    let node = Context::new(&daemon, "javascript");
    let ran = node.run("const kept = 7; display.html('\u{1f600}'.slice(0, 1)); 1");
    assert_eq!(ran.results()[0]["text/html"], "\u{fffd}");
    let many = "({[Symbol.for('Jupyter.display')]: () => Object.fromEntries([1, 2, 3, 4].map((n) => ['text/x-' + n, 'x'.repeat(8e6)]))})";
    assert_eq!(node.run(many).error_name(), "RangeError");
    assert_eq!(node.run("kept").result(), "7");
}

#[test]
fn javascript_failures_have_name_words_and_lines() {
    let daemon = daemon();
    let node = Context::new(&daemon, "javascript");
    let ran = node.run("function f() { null.x }\nf()");
    let (name, words) = ran.error().expect("an error");
    assert!(name == "TypeError" && words.contains("null"), "{name} {words}");
    let error = ran.events.iter().find(|event| event["type"] == "error").expect("an error");
    let traceback = error["error"]["traceback"].to_string();
    assert!(traceback.contains("at f (") && !traceback.contains("inspector"), "{traceback}");
    assert_eq!(node.run("let = ;").error_name(), "SyntaxError");
    assert_eq!(node.run("throw 'words'").error(), Some(("Error".into(), "words".into())));
    assert_eq!(node.run("await Promise.reject(new RangeError('late'))").error_name(), "RangeError");
    assert_eq!(node.run("'goes on'").result(), "'goes on'");
}

#[test]
fn javascript_output_arrives_whole() {
    let daemon = daemon();
    let node = Context::new(&daemon, "javascript");
    let ran = node.run("console.log('x'.repeat(3e6)); require('child_process').execSync('echo child >&2', {stdio: 'inherit'}); console.log('end')");
    assert_eq!((ran.stdout().len(), ran.text("stderr").as_str()), (3_000_005, "child\n"));
}

#[test]
fn ex_012_javascript_is_interrupted_and_keeps_its_variables() {
    let daemon = daemon();
    let node = Context::new(&daemon, "javascript");
    for code in [
        "var kept = 7; console.log('on'); for (;;) {}",
        "console.log('on'); await new Promise(() => setTimeout(() => {}, 1e9))",
        "await new Promise((done) => setTimeout(done, 1)); console.log('on'); for (;;) {}",
        "console.log('on'); for (;;) await null",
        "console.log('on'); setTimeout(() => { for (;;); }); await new Promise(() => {})",
        "console.log('on'); require('child_process').execSync('sleep 600')",
        "console.log('on'); await new Promise((done, fail) => require('child_process').exec('sleep 600', fail))",
        "for (;;) console.log('on')",
        "console.log('on'); try { for (;;); } finally { console.log('off') }",
    ] {
        let mut running = node.begin(code);
        running.until_stdout("on\n");
        node.interrupt();
        assert_eq!(running.end().error_name(), "KeyboardInterrupt", "{code}");
        assert_eq!(node.run("kept").result(), "7");
    }
    // Memory is collected though nothing can end what was interrupted.
    let collect = "require('v8').setFlagsFromString('--expose-gc'); require('vm').runInNewContext('gc')(); kept";
    assert_eq!(node.run(collect).result(), "7");
    assert_eq!(node.run("process.exit(3)").error_name(), "DeadKernelError");
    assert_eq!(node.run("typeof kept").result(), "'undefined'");
}

#[test]
fn ex_012_javascript_that_goes_on_after_its_interrupt_does_not_keep_the_next_cell() {
    let daemon = daemon();
    let node = Context::new(&daemon, "javascript");
    let mut running =
        node.begin("var go, kept = 7; console.log('on'); await new Promise((done) => go = done); for (;;);");
    running.until_stdout("on\n");
    node.interrupt();
    assert_eq!(running.end().error_name(), "KeyboardInterrupt");
    assert_eq!(node.run("setTimeout(go); 1").result(), "1");
    assert_eq!(node.run("kept").result(), "7");
}

/// Each does one thing after the other until a later cell takes the turn, or goes on for ever.
const INTERRUPTED_CELLS: [&str; 5] = [
    "for (const mine = ++turn; mine === turn;) {
        for (const end = Date.now() + 3; Date.now() < end;);
        await new Promise((done) => setTimeout(done, 2));
        for (const end = Date.now() + 3; Date.now() < end;);
        try { require('child_process').execSync('sleep 0.003'); } catch {}
    }",
    "for (;;) {}",
    "await new Promise(() => {})",
    "await new Promise((done) => setTimeout(done, 10)); for (;;) {}",
    "require('child_process').execSync('sleep 600')",
];
const INTERRUPTS: u64 = 50;
/// Milliseconds until the interrupt, at most.
const LATEST_INTERRUPT: u64 = 40;

#[test]
fn ex_012_javascript_is_interrupted_at_any_moment() {
    let daemon = daemon();
    let node = Context::new(&daemon, "javascript");
    node.run("var kept = 7, turn = 0");
    let mut random = u64::from(std::process::id());
    for round in 0..INTERRUPTS {
        let code = INTERRUPTED_CELLS[(round % 5) as usize];
        let running = node.begin(code);
        random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        let moment = Duration::from_micros((random >> 33) % (LATEST_INTERRUPT * 1000));
        std::thread::sleep(moment);
        node.interrupt();
        assert_eq!(running.end().error_name(), "KeyboardInterrupt", "round {round}, after {moment:?}: {code}");
        let next = node.run(&format!("turn += 1; [{round}, kept].join()"));
        assert_eq!(next.result(), format!("'{round},7'"), "after {moment:?}: {code}");
    }
}

#[test]
fn typescript_is_javascript_with_types() {
    let daemon = daemon();
    let node = Context::new(&daemon, "typescript");
    let ran = node.run("interface P { name: string }\nimport { basename } from 'node:path'\nconst p: P = { name: 'n' }; console.log(p.name as string); basename('/a/b')");
    assert_eq!(shown(&ran), ("n\n".into(), vec!["'b'".into()]));
    assert_eq!(
        node.run("enum Color { Red = 3 }; const twice = (n: number): number => n * 2; twice(Color.Red)").result(),
        "6"
    );
    assert_eq!(node.run("await Promise.resolve<number>(p.name.length)").result(), "1");
    assert_eq!(node.run("const broken: = 1").error_name(), "SyntaxError");
}

#[test]
fn bash_keeps_variables_functions_and_directory() {
    let daemon = daemon();
    let bash = Context::new(&daemon, "bash");
    let ran = bash
        .run("x='two words'; declare -A map=([a]=1); f() { echo \"f $1\"; }; cd /usr/share; echo out; echo err >&2");
    assert_eq!((ran.stdout().as_str(), ran.text("stderr").as_str()), ("out\n", "err\n"));
    assert_eq!(bash.run("f \"$x ${map[a]}\"; pwd").stdout(), "f two words 1\n/usr/share\n");
    assert_eq!(
        bash.run("cat <<EOF\n'quo\\ted' $x\nEOF\necho \"a\\\\b\" # comment").stdout(),
        "'quo\\ted' two words\na\\b\n"
    );
    assert_eq!(bash.run("cat; read -r line || echo nothing to read").stdout(), "nothing to read\n");
    assert_eq!(bash.run("echo é; printf 'no newline'").stdout(), "é\nno newline");
}

#[test]
fn bash_failures_are_exit_codes_and_the_shell_goes_on() {
    let daemon = daemon();
    let bash = Context::new(&daemon, "bash");
    let ran = bash.run("echo before; x=1; (exit 3)");
    assert_eq!((ran.error(), ran.text("stdout").as_str()), (Some(("CommandExecError".into(), "3".into())), "before\n"));
    let ran = bash.run("if (");
    assert!(ran.error_name() == "CommandExecError" && ran.text("stderr").contains("syntax error"), "{:?}", ran.events);
    assert_eq!(bash.run("echo $x").stdout(), "1\n");
    assert_eq!(bash.run("exit 4").error_name(), "DeadKernelError");
    assert_eq!(bash.run("echo ${x-unset}").stdout(), "unset\n");
    let flood = bash.run("for i in {1..20000}; do echo line $i; done; head -c 1000000 /dev/zero | tr '\\0' x");
    assert_eq!(flood.stdout().len(), 1_000_000 + (1..=20_000).map(|i: u32| 6 + i.to_string().len()).sum::<usize>());
}

#[test]
fn ex_012_bash_is_interrupted_and_keeps_its_variables() {
    let daemon = daemon();
    let bash = Context::new(&daemon, "bash");
    for code in [
        "kept=7; echo on; while :; do :; done; echo not",
        "echo on; sleep 600; echo not",
        "f() { sleep 600; }; echo on; f; echo not",
    ] {
        let mut running = bash.begin(code);
        running.until_stdout("on\n");
        bash.interrupt();
        let ran = running.end();
        assert_eq!((ran.error_name().as_str(), ran.text("stdout").as_str()), ("KeyboardInterrupt", "on\n"), "{code}");
        assert_eq!(bash.run("echo $kept").stdout(), "7\n");
    }
    let mut running = bash.begin("echo on; sleep 600");
    running.until_stdout("on\n");
    drop(running);
    wait_until("the end of the cell", || bash.run("echo $kept").error().is_none());
}
