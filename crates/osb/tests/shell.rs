//! `osb shell` and `osb run -i` on pipes; with terminals they are tested as whole processes in `e2e`.

mod support;

use support::Server;

#[test]
fn a_shell_on_pipes_takes_input_to_its_end_and_keeps_errors_apart() {
    let server = Server::start();
    let id = server.sandbox();
    let ran =
        server.run_with_input(&["shell", &id], b"echo out; echo err >&2\nread line\nhello\necho \"$line\"; exit 7\n");
    assert_eq!((ran.code, ran.stdout.as_str(), ran.stderr.as_str()), (Some(7), "out\nhello\n", "err\n"));
}

#[test]
fn words_after_the_sandbox_are_shell_text_or_a_program() {
    let server = Server::start();
    let id = server.sandbox();
    let ran = server.run(&["shell", &id, "--", "echo $((6*7)); exit 3"]);
    assert_eq!((ran.code, ran.stdout.as_str()), (Some(3), "42\n"), "{ran:?}");
    let ran = server.run(&["shell", &id, "--cwd", "/usr", "--", "sh", "-c", "pwd; echo \"$1\"", "x", "it's $HOME"]);
    assert_eq!((ran.code, ran.stdout.as_str()), (Some(0), "/usr\nit's $HOME\n"), "{ran:?}");
    let ran = server.run(&["shell", &id, "--", "/nonexistent/program", "x"]);
    assert_eq!(ran.code, Some(127), "{ran:?}");
    let ran = server.run(&["shell", &id, "--", "kill -KILL $$"]);
    assert_eq!(ran.code, Some(137), "{ran:?}");
    assert!(ran.stderr.contains("SIGKILL"), "{ran:?}");
}

#[test]
fn large_input_and_output_pass_whole() {
    let server = Server::start();
    let id = server.sandbox();
    let input: Vec<u8> = (0..3_000_000u32).map(|number| (number % 251) as u8).collect();
    let ran = server.run_with_input(&["shell", &id, "--", "cat"], &input);
    assert_eq!(ran.code, Some(0), "{}", ran.stderr);
    assert!(ran.bytes == input, "{} of {} bytes came back", ran.bytes.len(), input.len());
}

#[test]
fn input_that_nobody_reads_ends_nothing() {
    let server = Server::start();
    let id = server.sandbox();
    let ran = server.run_with_input(&["shell", &id, "--", "exec <&-; sleep 2; echo done; exit 4"], &[b'x'; 400_000]);
    assert_eq!((ran.code, ran.stdout.as_str()), (Some(4), "done\n"), "{ran:?}");
}

#[test]
fn run_passes_input_on_when_asked() {
    let server = Server::start();
    let ran = server.run_with_input(&["run", "-i", "--", "sh", "-c", "cat; echo err >&2; exit 5"], b"a\nb");
    assert_eq!((ran.code, ran.stdout.as_str(), ran.stderr.as_str()), (Some(5), "a\nb", "err\n"));
    let ran = server.run_with_input(&["run", "--", "cat"], b"kept back");
    assert_eq!((ran.code, ran.stdout.as_str()), (Some(0), ""));
    let ran = server.run_with_input(&["run", "-i", "--timeout", "300ms", "--", "sleep", "1000"], b"");
    assert_eq!(ran.code, Some(137), "{ran:?}");
    assert_eq!(server.ids(), Vec::<String>::new());
}

#[test]
fn a_terminal_without_one_here_is_refused_before_anything_is_made() {
    let server = Server::start();
    for words in [&["run", "-it", "--", "bash"][..], &["run", "-t", "--", "bash"]] {
        let ran = server.run(words);
        assert_eq!(ran.code, Some(2), "{ran:?}");
        assert!(ran.stderr.contains("-t: standard input is not a terminal"), "{ran:?}");
    }
    let id = server.sandbox();
    let ran = server.run(&["shell", "-o", "json", &id]);
    assert_eq!((ran.code, &ran.error()["error"]["code"]), (Some(2), &"USAGE".into()));
    assert!(!server.calls().iter().any(|call| call == "POST /v1/sandboxes"));
}

#[test]
fn what_is_not_there_is_said() {
    let server = Server::start();
    let ran = server.run(&["shell", "nope"]);
    assert_eq!(ran.code, Some(125), "{ran:?}");
    assert!(ran.stderr.contains("nope does not exist"), "{ran:?}");
    let id = server.sandbox();
    let ran = server.run(&["shell", &id, "--attach", "gone"]);
    assert_eq!(ran.code, Some(125), "{ran:?}");
    assert!(ran.stderr.contains("no terminal has the id"), "{ran:?}");
}

#[test]
fn a_session_is_removed_with_its_shell() {
    let server = Server::start();
    let id = server.sandbox();
    assert_eq!(server.run(&["shell", &id, "--", "true"]).code, Some(0));
    let execd = server.memory.lock().expect("nobody panicked").execd.clone();
    let mut stream = std::net::TcpStream::connect(execd).expect("the daemon answers");
    let request = format!(
        "GET /v1/pty HTTP/1.1\r\nHost: x\r\nConnection: close\r\nX-EXECD-ACCESS-TOKEN: {}\r\n\r\n",
        support::TOKEN
    );
    std::io::Write::write_all(&mut stream, request.as_bytes()).expect("sent");
    let answer = std::io::read_to_string(stream).expect("an answer");
    assert!(answer.contains("\"count\":0"), "{answer}");
}
