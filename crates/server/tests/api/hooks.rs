//! Hooks around a pause and before the end: asked for at their moment, bounded, and told as events.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use crate::common::execd::Socket;
use crate::common::{Server, id, token};
use bytes::Bytes;
use http::{Method, Request, Response};
use http_body_util::Full;
use hyper::body::Incoming;
use hyper_util::rt::TokioIo;
use lifecycle::fake::FakeRuntime;
use lifecycle::runtime::{Observed, Runtime as _};
use serde_json::{Value, json};

/// What the stand-in for execd does with a request.
enum Does {
    Answers(Vec<u8>),
    Hangs,
}

fn succeeds() -> Does {
    Does::Answers(br#"{"name":"x","succeeded":true,"elapsed_ms":12}"#.to_vec())
}

fn fails(problem: &str) -> Does {
    Does::Answers(json!({"name": "x", "succeeded": false, "problem": problem}).to_string().into_bytes())
}

/// What it was asked: method and path, token, and what the runtime said of the sandbox then.
type Asked = (String, String, Observed);

struct Execd {
    asked: Arc<Mutex<Vec<Asked>>>,
    _socket: Socket,
}

impl Execd {
    /// Answers the sandbox's hooks one after the other; when nothing is left to do, it succeeds.
    fn serve(server: &Server, sandbox: &str, does: impl IntoIterator<Item = Does>) -> Self {
        let path = server.dir.path().join(format!("{sandbox}.sock"));
        let asked = Arc::new(Mutex::new(Vec::new()));
        let does = Arc::new(Mutex::new(does.into_iter().collect::<VecDeque<_>>()));
        let (log, runtime, sandbox) = (asked.clone(), server.runtime.clone(), sandbox.to_owned());
        let socket = Socket::serve(path, move |stream| {
            let (log, runtime, does, sandbox) = (log.clone(), runtime.clone(), does.clone(), sandbox.clone());
            let service = hyper::service::service_fn(move |request| {
                answer(request, log.clone(), runtime.clone(), does.clone(), sandbox.clone())
            });
            tokio::spawn(hyper::server::conn::http1::Builder::new().serve_connection(TokioIo::new(stream), service));
        });
        Self { asked, _socket: socket }
    }

    fn asked(&self) -> Vec<Asked> {
        self.asked.lock().expect("no panic").clone()
    }

    async fn is_asked(&self, times: usize) {
        let asked = tokio::time::timeout(crate::common::PATIENCE, async {
            while self.asked().len() < times {
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
        });
        asked.await.expect("is asked");
    }
}

async fn answer(
    request: Request<Incoming>,
    log: Arc<Mutex<Vec<Asked>>>,
    runtime: FakeRuntime,
    does: Arc<Mutex<VecDeque<Does>>>,
    sandbox: String,
) -> Result<Response<Full<Bytes>>, std::io::Error> {
    let observed = runtime.observe(&id(&sandbox)).await.expect("answers");
    let presented = request.headers().get("x-execd-access-token").map(|value| value.to_str().expect("text").to_owned());
    let what = format!("{} {}", request.method(), request.uri());
    log.lock().expect("no panic").push((what, presented.unwrap_or_default(), observed));
    let next = does.lock().expect("no panic").pop_front().unwrap_or_else(succeeds);
    match next {
        Does::Answers(body) => Ok(Response::new(Full::new(body.into()))),
        Does::Hangs => std::future::pending().await,
    }
}

fn hooks(changes: Value) -> Value {
    json!({ "lifecycle": changes })
}

async fn events(server: &Server, sandbox: &str) -> String {
    let answer = server.get(&format!("/v1/sandboxes/{sandbox}/diagnostics/events")).await;
    assert_eq!(answer.status, 200);
    String::from_utf8(answer.body.to_vec()).expect("text")
}

async fn verb(server: &Server, sandbox: &str, verb: &str) -> crate::common::Answer {
    server.call(Method::POST, &format!("/v1/sandboxes/{sandbox}/{verb}"), None).await
}

const COMMAND: [&str; 1] = ["true"];

#[tokio::test]
async fn each_hook_is_asked_for_at_its_moment_and_is_an_event() {
    let server = Server::start().await;
    let command = json!({ "command": COMMAND });
    let all = json!({ "beforePause": command, "afterResume": command, "beforeEnd": command });
    let sandbox = server.create(hooks(all)).await;
    let execd = Execd::serve(&server, &sandbox, []);
    for word in ["pause", "resume", "pause"] {
        assert_eq!(verb(&server, &sandbox, word).await.status, 202, "{word}");
    }
    assert_eq!(server.state(&sandbox).await, "Paused");
    let told = events(&server, &sandbox).await;
    assert_eq!(told.matches("HOOK_SUCCEEDED").count(), 3, "{told}");
    assert!(told.contains("Resuming  HOOK_SUCCEEDED  The afterResume hook ended with 0 after 12 ms."), "{told}");
    // A frozen sandbox is thawed for the hook before its end.
    assert_eq!(server.delete(&format!("/v1/sandboxes/{sandbox}")).await.status, 204);
    let expected = ["beforePause", "afterResume", "beforePause", "beforeEnd"];
    let expected = expected.map(|name| (format!("POST /v1/hooks/{name}"), token(&sandbox), Observed::Running));
    assert_eq!(execd.asked(), expected);
}

#[tokio::test]
async fn a_failing_hook_before_a_pause_is_passed_over_or_refuses_as_was_chosen() {
    let server = Server::start().await;
    for (choice, state) in [(None, "Paused"), (Some("continue"), "Paused"), (Some("refuse"), "Running")] {
        let mut hook = json!({ "command": COMMAND });
        if let Some(choice) = choice {
            hook["onFailure"] = choice.into();
        }
        let sandbox = server.create(hooks(json!({ "beforePause": hook }))).await;
        let _execd = Execd::serve(&server, &sandbox, [fails("ended with exit code 3")]);
        let answer = verb(&server, &sandbox, "pause").await;
        assert_eq!(server.state(&sandbox).await, state, "{choice:?}");
        let told = events(&server, &sandbox).await;
        assert!(told.contains("HOOK_FAILED  The beforePause hook ended with exit code 3."), "{told}");
        if state == "Running" {
            answer.is(409, "SANDBOX::SANDBOX_PAUSE_FAILED");
            assert!(answer.message().contains("exit code 3"), "{}", answer.message());
            assert_eq!(verb(&server, &sandbox, "pause").await.status, 202, "a later pause may succeed");
        } else {
            assert_eq!(answer.status, 202);
        }
    }
}

#[tokio::test]
async fn a_hook_that_does_not_end_delays_nothing_beyond_its_bound() {
    let server = Server::start().await;
    let hook = json!({ "command": COMMAND, "timeoutSeconds": 1 });
    let all = json!({ "beforePause": hook, "afterResume": hook, "beforeEnd": hook });
    let sandbox = server.create(hooks(all)).await;
    let execd = Execd::serve(&server, &sandbox, [Does::Hangs, Does::Hangs, Does::Hangs]);
    assert_eq!(verb(&server, &sandbox, "pause").await.status, 202);
    assert_eq!(verb(&server, &sandbox, "resume").await.status, 202);
    let told = events(&server, &sandbox).await;
    for name in ["beforePause", "afterResume"] {
        assert!(told.contains(&format!("HOOK_FAILED  The {name} hook did not end within 1 s.")), "{told}");
    }
    let at = jiff::Timestamp::now() + Duration::from_millis(100);
    let renew = format!("/v1/sandboxes/{sandbox}/renew-expiration");
    assert_eq!(server.post(&renew, json!({ "expiresAt": at.to_string() })).await.status, 200);
    server.reaches(&sandbox, "gone").await;
    assert_eq!(execd.asked().last().expect("asked at the deadline too").0, "POST /v1/hooks/beforeEnd");
}

#[tokio::test]
async fn an_end_without_grace_and_an_end_of_its_own_run_no_hook() {
    let server = Server::start().await;
    let end = json!({ "beforeEnd": { "command": COMMAND } });
    let sandbox = server.create(hooks(end.clone())).await;
    let execd = Execd::serve(&server, &sandbox, []);
    assert_eq!(server.delete(&format!("/v1/sandboxes/{sandbox}?grace=0")).await.status, 204);
    assert_eq!(execd.asked(), []);
    let ended = server.create(hooks(end)).await;
    let execd = Execd::serve(&server, &ended, []);
    server.runtime.end(&id(&ended), lifecycle::runtime::Exit::Exited { code: 0 });
    server.reaches(&ended, "Terminated").await;
    assert_eq!(server.delete(&format!("/v1/sandboxes/{ended}")).await.status, 204);
    assert_eq!(execd.asked(), []);
}

#[tokio::test]
async fn hooks_outlive_a_restart_and_one_under_way_is_asked_for_again() {
    let server = Server::start().await;
    let hook = json!({ "command": COMMAND, "timeoutSeconds": 15 });
    let sandbox = server.create(hooks(json!({ "beforePause": hook, "beforeEnd": hook }))).await;
    let execd = Execd::serve(&server, &sandbox, [Does::Hangs]);
    tokio::select! {
        _ = verb(&server, &sandbox, "pause") => panic!("the hook hangs"),
        () = execd.is_asked(1) => {}
    }
    assert_eq!(server.state(&sandbox).await, "Pausing");
    let server = server.restart().await;
    server.reaches(&sandbox, "Paused").await;
    assert_eq!(execd.asked().len(), 2);
    let server = server.restart().await;
    assert_eq!(server.delete(&format!("/v1/sandboxes/{sandbox}")).await.status, 204);
    assert_eq!(execd.asked().last().expect("asked").0, "POST /v1/hooks/beforeEnd");
}

#[tokio::test]
async fn a_deletion_does_not_wait_for_the_hook_before_a_pause() {
    let server = Server::start().await;
    let slow = json!({ "command": COMMAND, "timeoutSeconds": 60 });
    let sandbox = server.create(hooks(json!({ "beforePause": slow }))).await;
    let execd = Execd::serve(&server, &sandbox, [Does::Hangs]);
    let pausing = async {
        let answer = verb(&server, &sandbox, "pause").await;
        assert!(matches!(answer.status.as_u16(), 202 | 404 | 409), "{answer:?}");
    };
    let deleting = async {
        execd.is_asked(1).await;
        assert_eq!(server.delete(&format!("/v1/sandboxes/{sandbox}")).await.status, 204);
    };
    tokio::join!(pausing, deleting);
}

#[tokio::test]
async fn what_execd_says_of_a_hook_is_bounded_and_harmless() {
    let server = Server::start().await;
    let long = "x".repeat(40_000);
    for (does, word) in [
        (Some(Does::Answers(b"nonsense".to_vec())), "no report of a hook"),
        (Some(Does::Answers(vec![b' '; 1024 * 1024])), "could not be read"),
        (Some(fails("first\nsecond\u{1b}[31m")), "The beforePause hook first second [31m."),
        (Some(fails(&long)), "xxxx."),
        (None, "was not run: the sandbox's execd cannot be reached"),
    ] {
        let sandbox = server.create(hooks(json!({ "beforePause": { "command": COMMAND } }))).await;
        let _execd = does.map(|does| Execd::serve(&server, &sandbox, [does]));
        assert_eq!(verb(&server, &sandbox, "pause").await.status, 202, "{word}");
        let told = events(&server, &sandbox).await;
        assert!(told.contains(word) && told.len() < 4000, "{word}: {told}");
    }
}
