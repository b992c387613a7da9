//! Records what passes: each request as the sandbox's program sent it, each answer as the program gets it.

use std::pin::Pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll, ready};
use std::time::SystemTime;

use bytes::Bytes;
use http::header::{self, HeaderName};
use http::request::Parts;
use http::uri::PathAndQuery;
use http::{HeaderMap, Response};
use http_body::{Body, Frame, SizeHint};
use http_body_util::BodyExt as _;
use hyper::body::Incoming;
use vault::Redactor;

use super::origin::BodyError;
use super::speaking::Answer;
use crate::flow::Flow;
use crate::recording::{Asked, Dropped, Hash, Headers, Over, Taking, Tape};
use crate::sandbox::Sandbox;
use crate::secrets::State;
use crate::verdicts::What;

/// Headers of requests that are recorded: those that choose among answers, none that says who asks.
const KEPT_HEADERS: [HeaderName; 12] = [
    header::ACCEPT,
    header::ACCEPT_ENCODING,
    header::ACCEPT_LANGUAGE,
    header::CONTENT_ENCODING,
    header::CONTENT_TYPE,
    header::IF_MATCH,
    header::IF_MODIFIED_SINCE,
    header::IF_NONE_MATCH,
    header::IF_RANGE,
    header::IF_UNMODIFIED_SINCE,
    header::RANGE,
    header::USER_AGENT,
];

/// What records the traffic of one sandbox.
#[derive(Debug)]
pub struct Recorder {
    tape: Arc<Tape>,
    /// What takes every value of the vault out of answers, and of which revision.
    guard: Mutex<Option<(i64, Redactor)>>,
}

impl Recorder {
    /// Appends to this.
    pub fn new(tape: Tape) -> Self {
        Self { tape: Arc::new(tape), guard: Mutex::default() }
    }

    /// Records nothing any more.
    pub fn close(&self) {
        self.tape.close();
    }

    /// What takes the values of a vault out of what is recorded, whichever request brought them; `None` where there is none.
    pub fn guard(&self, state: &State) -> Option<Redactor> {
        let State::Holds { vault, .. } = state else { return None };
        let mut guard = self.guard.lock().unwrap_or_else(PoisonError::into_inner);
        let redactor = match guard.take() {
            Some((revision, redactor)) if revision == vault.revision() => redactor,
            _ => vault.redactor(),
        };
        *guard = Some((vault.revision(), redactor.clone()));
        Some(redactor).filter(|redactor| !redactor.is_empty())
    }

    /// Tells that something of a connection is not recorded.
    pub fn not_recorded(&self, sandbox: &Sandbox, flow: &Flow, why: &str) {
        let (host, port) = flow.place();
        self.tape.not_recorded(why, &host, port);
        tell(sandbox, flow, why);
    }

    /// Begins to record an exchange, unless that is not possible, which is told.
    pub fn take(
        &self,
        sandbox: &Arc<Sandbox>,
        flow: &Arc<Flow>,
        parts: &Parts,
        body: Incoming,
        place: (&str, &str, u16),
    ) -> (Heard, Option<Take>) {
        let taking = match self.tape.take() {
            Ok(taking) => taking,
            Err(dropped) => {
                let told = Told { recorder_tape: self.tape.clone(), sandbox: sandbox.clone(), flow: flow.clone() };
                told.dropped(dropped);
                return (Heard::deaf(body), None);
            }
        };
        let (scheme, host, port) = place;
        let since = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
        let request = Asked {
            method: parts.method.to_string(),
            scheme: scheme.to_owned(),
            host: host.to_owned(),
            port,
            target: parts.uri.path_and_query().map_or("/", PathAndQuery::as_str).to_owned(),
            headers: Headers::of(&parts.headers, |name| KEPT_HEADERS.contains(name)),
            bytes: 0,
            sha256: Hash::default().finish(),
        };
        let ear = Arc::new(Mutex::new(Ear { hash: Hash::default(), is_over: body.is_end_stream() }));
        let take = Take {
            told: Told { recorder_tape: self.tape.clone(), sandbox: sandbox.clone(), flow: flow.clone() },
            taking,
            ear: ear.clone(),
            request,
            at_ms: u64::try_from(since.as_millis()).unwrap_or(u64::MAX),
        };
        (Heard { inner: body, ear: Some(ear) }, Some(take))
    }
}

fn tell(sandbox: &Sandbox, flow: &Flow, why: &str) {
    let (host, port) = flow.place();
    sandbox.journal.record(What::NotRecorded { flow: flow.id, host, port, message: why.to_owned() });
}

/// Whom to tell that an exchange is not recorded.
struct Told {
    recorder_tape: Arc<Tape>,
    sandbox: Arc<Sandbox>,
    flow: Arc<Flow>,
}

impl Told {
    fn dropped(&self, dropped: Dropped) {
        let (host, port) = self.flow.place();
        match dropped {
            Dropped::Filled { why } => {
                tracing::warn!(sandbox_id = self.sandbox.id, why, "a recording is full");
                tell(&self.sandbox, &self.flow, &format!("the recording is full: {why}"));
            }
            // It was told that nothing more is recorded.
            Dropped::Full | Dropped::Closed => {}
            Dropped::TooMuch => {
                let why = "too many requests at a time, or too long an answer, to be recorded";
                self.recorder_tape.not_recorded(why, &host, port);
                tell(&self.sandbox, &self.flow, why);
            }
        }
    }
}

/// What was heard of a request's body.
struct Ear {
    hash: Hash,
    is_over: bool,
}

/// The body of a request on its way to the host; where it is recorded it is listened to.
pub struct Heard {
    inner: Incoming,
    ear: Option<Arc<Mutex<Ear>>>,
}

impl Heard {
    /// Not listened to.
    pub fn deaf(inner: Incoming) -> Self {
        Self { inner, ear: None }
    }
}

impl Body for Heard {
    type Data = Bytes;
    type Error = hyper::Error;

    fn poll_frame(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, hyper::Error>>> {
        let this = self.get_mut();
        let polled = ready!(Pin::new(&mut this.inner).poll_frame(cx));
        if let Some(ear) = &this.ear {
            let mut ear = ear.lock().unwrap_or_else(PoisonError::into_inner);
            match &polled {
                None => ear.is_over = true,
                Some(Ok(frame)) => {
                    if let Some(data) = frame.data_ref() {
                        ear.hash.push(data);
                    }
                    ear.is_over |= frame.is_trailers() || this.inner.is_end_stream();
                }
                Some(Err(_)) => {}
            }
        }
        Poll::Ready(polled)
    }

    fn is_end_stream(&self) -> bool {
        self.inner.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.inner.size_hint()
    }
}

/// An exchange whose answer did not begin yet. One that is dropped is not recorded.
pub struct Take {
    told: Told,
    taking: Taking,
    ear: Arc<Mutex<Ear>>,
    request: Asked,
    at_ms: u64,
}

impl Take {
    /// Tells that it is not recorded.
    pub fn give_up(self, why: &str) {
        let (host, port) = self.told.flow.place();
        self.told.recorder_tape.not_recorded(why, &host, port);
        tell(&self.told.sandbox, &self.told.flow, why);
    }

    /// Records an answer as it passes.
    pub fn answer(self, response: Response<Answer>) -> Response<Answer> {
        let (parts, body) = response.into_parts();
        let headers = Headers::of(&parts.headers, |_| true);
        let open = Open { take: self, status: parts.status.as_u16(), headers, trailers: Headers::default() };
        let mut taped = Taped { inner: body, open: Some(open) };
        taped.look_for_end();
        Response::from_parts(parts, taped.boxed_unsync())
    }
}

/// An exchange whose answer has begun.
struct Open {
    take: Take,
    status: u16,
    headers: Headers,
    trailers: Headers,
}

impl Open {
    fn close(self, broken: Option<String>) {
        let Self { take, status, headers, trailers } = self;
        let Take { told, taking, ear, mut request, at_ms } = take;
        let is_whole = {
            let ear = ear.lock().unwrap_or_else(PoisonError::into_inner);
            (request.bytes, request.sha256) = (ear.hash.bytes(), ear.hash.finish());
            ear.is_over
        };
        let unread = || "the request's body was not read to its end".to_owned();
        let broken = broken.or_else(|| (!is_whole).then(unread));
        if let Err(dropped) = taking.finish(Over { at_ms, request, status, headers, trailers, broken }) {
            told.dropped(dropped);
        }
    }
}

/// The body of an answer that is recorded as it passes.
struct Taped {
    inner: Answer,
    open: Option<Open>,
}

impl Taped {
    /// Nobody may ask for a body once it says that it is over.
    fn look_for_end(&mut self) {
        if self.inner.is_end_stream()
            && let Some(open) = self.open.take()
        {
            open.close(None);
        }
    }

    fn trailers(&mut self, trailers: &HeaderMap) {
        if let Some(mut open) = self.open.take() {
            open.trailers = Headers::of(trailers, |_| true);
            open.close(None);
        }
    }
}

impl Body for Taped {
    type Data = Bytes;
    type Error = BodyError;

    fn poll_frame(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, BodyError>>> {
        let this = self.get_mut();
        let polled = ready!(Pin::new(&mut this.inner).poll_frame(cx));
        match &polled {
            Some(Ok(frame)) => {
                if let (Some(data), Some(open)) = (frame.data_ref(), &mut this.open) {
                    open.take.taking.push(data);
                }
                if let Some(trailers) = frame.trailers_ref() {
                    this.trailers(trailers);
                }
                this.look_for_end();
            }
            ended => {
                let broken = ended.as_ref().map(|_| "the host broke off".to_owned());
                if let Some(open) = this.open.take() {
                    open.close(broken);
                }
            }
        }
        Poll::Ready(polled)
    }

    fn is_end_stream(&self) -> bool {
        self.inner.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.inner.size_hint()
    }
}

impl Drop for Taped {
    fn drop(&mut self) {
        if let Some(open) = self.open.take() {
            open.close(Some("the sandbox did not take the rest, or its connection was cut".to_owned()));
        }
    }
}
