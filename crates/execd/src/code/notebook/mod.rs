//! Kernels of a Jupyter server: where the image runs one and `JUPYTER_HOST` names it, it runs the languages that
//! it has kernels for, as published.

mod origin;
mod socket;

pub use origin::Origin;

use std::rc::Rc;
use std::time::Duration;

use http::Method;
use serde_json::{Value, json};
use tokio::io::{BufReader, split};
use tokio::sync::mpsc;
use tokio::time::{Instant, interval, sleep};

use super::kernel::{Message, Session, Turn, execute};
use super::lines::Line;
use super::talk::Happening;
use crate::error::{ApiError, Result};
use crate::id;
use origin::Failure;

/// A server that is still starting is waited for so long.
const UNREACHABLE_WAIT: Duration = Duration::from_secs(30);
/// Between two attempts.
const TRY_EVERY: Duration = Duration::from_millis(200);
/// A session that cannot be deleted for so long is left to its server.
const END_LIMIT: Duration = Duration::from_secs(5);
/// Between two questions whether the kernel is ready.
const ASK_EVERY: Duration = Duration::from_secs(1);
/// Messages that wait on either side.
const DEPTH: usize = 64;
/// The kernel that the published daemon passes over; taken here where there is no other.
const LAST_CHOICE: &str = "python3";

/// A kernel that the server has.
#[derive(Clone)]
pub struct Offer {
    origin: Rc<Origin>,
    /// The language, as the client named it.
    pub language: String,
    kernel: String,
}

impl Offer {
    /// The server's kernel for a language; `None` when it has none.
    ///
    /// # Errors
    /// 500 when the server cannot be asked.
    pub async fn find(origin: &Rc<Origin>, language: &str) -> Result<Option<Self>> {
        let limit = Instant::now() + UNREACHABLE_WAIT;
        let specs = loop {
            match origin.ask(Method::GET, "/api/kernelspecs", None).await {
                Ok(specs) => break specs,
                Err(Failure::Unreachable(_)) if Instant::now() < limit => sleep(TRY_EVERY).await,
                Err(failure) => return Err(ApiError::runtime(failure.text())),
            }
        };
        let found = specs.get("kernelspecs").and_then(Value::as_object);
        let names = found.into_iter().flatten().filter(|(_, spec)| spec["spec"]["language"] == language);
        let kernel = names.map(|(name, _)| name.as_str()).min_by_key(|name| (*name == LAST_CHOICE, name.len()));
        Ok(kernel.map(|kernel| Self { origin: Rc::clone(origin), language: language.into(), kernel: kernel.into() }))
    }
}

/// A kernel's session of the server.
pub struct Notebook {
    origin: Rc<Origin>,
    session_id: String,
    kernel_id: String,
    session: Session,
    outgoing: mpsc::Sender<Vec<u8>>,
    incoming: mpsc::Receiver<Value>,
    turn: Turn,
    is_fresh: bool,
    /// Its session was deleted.
    is_over: bool,
}

impl Notebook {
    /// Makes a session in `cwd` and waits until its kernel answers.
    ///
    /// # Errors
    /// Why it cannot be used, to follow its name.
    pub async fn start(offer: &Offer, cwd: &str) -> std::result::Result<Self, String> {
        let failed = |failure: Failure| format!("cannot be started: {}", failure.text());
        let name = format!("{}.ipynb", id::hex());
        let path = format!("{}/{name}", cwd.trim_end_matches('/'));
        let body = json!({ "path": path, "name": name, "type": "notebook", "kernel": { "name": offer.kernel } });
        let made = offer.origin.ask(Method::POST, "/api/sessions", Some(&body)).await.map_err(failed)?;
        let id_of = |value: &Value| {
            let id = value["id"].as_str().filter(|id| !id.is_empty() && id.bytes().all(is_of_id));
            id.map(str::to_owned).ok_or_else(|| "cannot be started: the Jupyter server gave no id".to_owned())
        };
        let (session_id, kernel_id) = (id_of(&made)?, id_of(&made["kernel"])?);
        let session = Session::new(String::new());
        let (outgoing, unsent) = mpsc::channel(DEPTH);
        let (sender, incoming) = mpsc::channel(DEPTH);
        let mut notebook = Self {
            origin: Rc::clone(&offer.origin),
            session_id,
            kernel_id,
            session,
            outgoing,
            incoming,
            turn: Turn::default(),
            is_fresh: true,
            is_over: false,
        };
        let path = format!("/api/kernels/{}/channels?session_id={}", notebook.kernel_id, notebook.session.id());
        let opened = notebook.origin.open(&path).await.map_err(failed);
        let ready = match opened {
            Ok(stream) => {
                let (reader, writer) = split(stream);
                tokio::task::spawn_local(socket::write(writer, unsent));
                let pongs = notebook.outgoing.clone();
                tokio::task::spawn_local(async move {
                    let mut reader = BufReader::new(reader);
                    while let Ok(message) = socket::read(&mut reader, &pongs).await {
                        let Ok(message) = serde_json::from_slice(&message) else { continue };
                        if sender.send(message).await.is_err() {
                            return;
                        }
                    }
                });
                notebook.until_ready().await
            }
            Err(why) => Err(why),
        };
        match ready {
            Ok(()) => Ok(notebook),
            Err(why) => {
                notebook.end().await;
                Err(why)
            }
        }
    }

    async fn until_ready(&mut self) -> std::result::Result<(), String> {
        let (mut has_answered, mut has_published) = (false, false);
        let mut questions = interval(ASK_EVERY); // the first at once
        while !(has_answered && has_published) {
            tokio::select! {
                _ = questions.tick() => drop(self.request("kernel_info_request", &json!({})).await),
                message = self.incoming.recv() => match message {
                    None => return Err("cannot be used: the Jupyter server closed its channels".into()),
                    Some(message) if message["channel"] == "shell" => has_answered = true,
                    Some(message) => has_published |= message["channel"] == "iopub",
                },
            }
        }
        Ok(())
    }

    async fn request(&self, kind: &str, content: &Value) -> String {
        let (header, number) = self.session.header(kind);
        let message = json!({
            "header": header, "parent_header": {}, "metadata": {}, "content": content, "channel": "shell", "buffers": [],
        });
        let _ = self.outgoing.send(socket::frame(socket::TEXT, message.to_string().as_bytes())).await; // the end tells
        number
    }

    /// Sends a cell; it must have answered all before.
    pub async fn say(&mut self, code: &str) {
        let number = self.request("execute_request", &execute(code)).await;
        self.turn = Turn::new(number);
    }

    /// Interrupts what it runs.
    pub fn interrupt(&self) {
        self.tell(Method::POST, format!("/api/kernels/{}/interrupt", self.kernel_id));
    }

    /// Ends it at once; [`Happening::Died`] follows.
    pub fn kill(&self) {
        self.tell(Method::DELETE, format!("/api/sessions/{}", self.session_id));
    }

    /// Asks in the background: who interrupts and kills looks at what comes of it.
    fn tell(&self, method: Method, path: String) {
        let origin = Rc::clone(&self.origin);
        tokio::task::spawn_local(async move {
            if let Err(failure) = origin.ask(method, &path, None).await {
                eprintln!("execd: {}", failure.text());
            }
        });
    }

    /// Ends the session with its kernel, and waits for that.
    pub async fn end(mut self) {
        let path = format!("/api/sessions/{}", self.session_id);
        let limit = Instant::now() + END_LIMIT;
        loop {
            match self.origin.ask(Method::DELETE, &path, None).await {
                Ok(_) | Err(Failure::Missing(_) | Failure::Unreachable(_)) => break,
                // A server that is restarting the session's kernel fails to delete it.
                Err(Failure::Refused(_)) if Instant::now() < limit => sleep(TRY_EVERY).await,
                Err(failure) => {
                    eprintln!("execd: {}", failure.text());
                    break;
                }
            }
        }
        self.is_over = true;
    }

    /// The next thing that happens. It may be given up at any time: nothing is lost then.
    pub async fn next(&mut self) -> Happening {
        if std::mem::take(&mut self.is_fresh) {
            return Happening::Line(Line::Ready);
        }
        loop {
            if let Some(end) = self.turn.ended() {
                return end;
            }
            let Some(message) = self.incoming.recv().await else {
                return Happening::Died("was ended, or its Jupyter server was".into());
            };
            let is_status = message["channel"] == "iopub" && message["header"]["msg_type"] == "status";
            if is_status && matches!(message["content"]["execution_state"].as_str(), Some("restarting" | "dead")) {
                return Happening::Died("died, as its Jupyter server tells".into());
            }
            let message = serde_json::from_value::<Message>(message).unwrap_or_default();
            if let Some(happening) = self.turn.take(message) {
                return happening;
            }
        }
    }
}

impl Drop for Notebook {
    /// Where its start was given up, its session goes all the same.
    fn drop(&mut self) {
        if !self.is_over {
            self.kill();
        }
    }
}

/// What an id may hold that becomes a part of a path.
fn is_of_id(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || byte == b'-' || byte == b'_'
}
