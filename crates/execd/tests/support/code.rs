//! Helpers for tests of code contexts.

use std::time::{Duration, Instant};

use serde_json::{Value, json};

use super::{Connection, Daemon, Target};

/// Where the system's own programs lie; a version manager's shims in the caller's PATH are slow to start.
pub const SYSTEM_PATH: &str = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";
/// A wait that is over at once, even on a loaded machine.
pub const LONG: Duration = Duration::from_secs(30);

/// A daemon whose interpreters are the system's.
pub fn daemon() -> Daemon {
    daemon_with(&[])
}

/// The same with more variables.
pub fn daemon_with(variables: &[(&str, &str)]) -> Daemon {
    Daemon::with(|command| {
        command.env_remove("PYTHONUNBUFFERED").env("PATH", SYSTEM_PATH).envs(variables.iter().copied());
    })
}

/// The events of one run.
pub struct Ran {
    pub events: Vec<Value>,
}

impl Ran {
    /// Texts of one kind put together.
    pub fn text(&self, kind: &str) -> String {
        self.events.iter().filter(|event| event["type"] == kind).filter_map(|event| event["text"].as_str()).collect()
    }

    /// Standard output of a run that must not fail.
    #[track_caller]
    pub fn stdout(&self) -> String {
        assert_eq!(self.error(), None, "{:?}", self.events);
        self.text("stdout")
    }

    /// The forms that were shown or resulted.
    pub fn results(&self) -> Vec<Value> {
        self.events.iter().filter(|event| event["type"] == "result").map(|event| event["results"].clone()).collect()
    }

    /// The text of the one result of a run that must not fail.
    #[track_caller]
    pub fn result(&self) -> String {
        assert_eq!(self.error(), None, "{:?}", self.events);
        let results = self.results();
        assert_eq!(results.len(), 1, "{:?}", self.events);
        results[0]["text"].as_str().expect("text").to_owned()
    }

    /// Name and words of the error, if there was one.
    pub fn error(&self) -> Option<(String, String)> {
        let event = self.events.iter().find(|event| event["type"] == "error")?;
        let text = |name: &str| event["error"][name].as_str().expect("a string").to_owned();
        assert!(event["error"]["traceback"].is_array(), "{event}");
        Some((text("ename"), text("evalue")))
    }

    /// The name of the error that there must be.
    #[track_caller]
    pub fn error_name(&self) -> String {
        self.error().unwrap_or_else(|| panic!("an error in {:?}", self.events)).0
    }

    /// The id of the context.
    pub fn id(&self) -> String {
        self.events[0]["text"].as_str().expect("an id").to_owned()
    }
}

/// Checks the order of a whole stream.
#[track_caller]
pub fn whole(events: Vec<Value>) -> Ran {
    let kinds: Vec<&str> = events.iter().filter_map(|event| event["type"].as_str()).collect();
    assert_eq!(kinds.first(), Some(&"init"), "{events:?}");
    assert_eq!(kinds.last(), Some(&"execution_complete"), "{events:?}");
    assert_eq!(kinds.iter().filter(|kind| **kind == "execution_complete").count(), 1, "{events:?}");
    Ran { events }
}

/// Runs code in the context `context`, to the end.
#[track_caller]
pub fn run_in(target: &Target, context: Value, code: &str) -> Ran {
    let response = target.post("/code", &json!({ "context": context, "code": code }));
    assert_eq!(response.status, 200, "{}", response.text());
    assert_eq!(response.header("content-type"), Some("text/event-stream"));
    whole(super::Run::parse(&response.body).events)
}

/// One context.
pub struct Context {
    target: Target,
    pub id: String,
    pub language: String,
}

impl Context {
    /// Makes one.
    #[track_caller]
    pub fn new(daemon: &Daemon, language: &str) -> Self {
        Self::with(daemon, json!({ "language": language }))
    }

    /// Makes one by a whole body.
    #[track_caller]
    pub fn with(daemon: &Daemon, body: Value) -> Self {
        let made = daemon.post("/code/context", &body).ok().json();
        let language = body["language"].as_str().expect("a language").to_owned();
        assert_eq!(made["language"], language.as_str());
        Self { target: daemon.target(), id: made["id"].as_str().expect("an id").to_owned(), language }
    }

    /// Runs code to the end.
    #[track_caller]
    pub fn run(&self, code: &str) -> Ran {
        let ran = run_in(&self.target, json!({ "id": self.id, "language": self.language }), code);
        assert_eq!(ran.id(), self.id);
        ran
    }

    /// Starts a run, whose stream is read by the test.
    pub fn begin(&self, code: &str) -> Running {
        let mut connection = Connection::open(&self.target);
        let body = json!({ "context": { "id": self.id }, "code": code }).to_string();
        connection.send("POST", "/code", &[], body.as_bytes());
        assert_eq!(connection.head().status, 200);
        Running { connection, events: Vec::new() }
    }

    /// Interrupts it.
    #[track_caller]
    pub fn interrupt(&self) {
        self.target.delete(&format!("/code?id={}", self.id)).ok();
    }

    /// Deletes it.
    #[track_caller]
    pub fn delete(self) {
        self.target.delete(&format!("/code/contexts/{}", self.id)).ok();
    }
}

/// A run whose stream is open.
pub struct Running {
    connection: Connection,
    events: Vec<Value>,
}

impl Running {
    /// Reads until standard output holds `text`.
    pub fn until_stdout(&mut self, text: &str) {
        let begun = Instant::now();
        loop {
            let seen: String = self.texts("stdout");
            if seen.contains(text) {
                return;
            }
            assert!(begun.elapsed() < LONG, "{text:?} in {:?}", self.events);
            assert!(self.more(), "{text:?} in {:?}", self.events);
        }
    }

    fn texts(&self, kind: &str) -> String {
        self.events.iter().filter(|event| event["type"] == kind).filter_map(|event| event["text"].as_str()).collect()
    }

    fn more(&mut self) -> bool {
        let Some(piece) = self.connection.chunk() else { return false };
        self.events.extend(super::Run::parse(&piece).events);
        true
    }

    /// Reads to the end.
    #[track_caller]
    pub fn end(mut self) -> Ran {
        let begun = Instant::now();
        while self.more() {
            assert!(begun.elapsed() < LONG, "no end: {:?}", self.events);
        }
        whole(self.events)
    }
}

/// Waits for something that the daemon tells nobody.
#[track_caller]
pub fn wait_until(what: &str, mut is_so: impl FnMut() -> bool) {
    let begun = Instant::now();
    while !is_so() {
        assert!(begun.elapsed() < LONG, "{what} takes too long");
        std::thread::sleep(Duration::from_millis(10));
    }
}
