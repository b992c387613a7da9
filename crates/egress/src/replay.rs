//! Answers a sandbox from a recording. Nothing here resolves a name or dials: a sandbox that is replayed has no
//! [`WayOut`](crate::sandbox::WayOut), and its connections never come to who would ask for one.
//!
//! ```text
//! accept ─▶ name of that address ─▶ policy ─▶ first bytes ─▶ TLS ─▶ request ─▶ in the recording?
//!                                                                                 │ no: 502, and an event
//!                                                                                 ▼
//!                                                      the next recorded answer to that very request
//! ```

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use tokio::net::TcpStream;
use tokio::time::timeout;
use tokio_rustls::LazyConfigAcceptor;

use crate::authority::Authority;
use crate::flow::{self, FirstBytes, Flow, Told};
use crate::inspect::Head;
use crate::intercept::streams::{Closing, Inside};
use crate::intercept::tls::{self, Offer, Version};
use crate::intercept::{HANDSHAKE_DEADLINE, speaking};
use crate::name::Name;
use crate::policy::Action;
use crate::recording::Book;
use crate::sandbox::Sandbox;
use crate::secrets::State;
use crate::verdicts::{End, Reason, What};

mod played;
mod requests;

use requests::Requests;

/// How long a program may be silent at first where something was recorded.
const SILENCE: Duration = Duration::from_secs(300);
/// And where nothing was: it may wait for a host that speaks first, which none does here.
const SILENCE_OF_STRANGERS: Duration = Duration::from_secs(5);

/// Serves one connection to its end.
pub async fn connection(sandbox: &Arc<Sandbox>, book: &Arc<Book>, client: TcpStream, to: SocketAddr) {
    let mut told = Told { sandbox, id: sandbox.shared.next_flow(), name: None, to };
    let name = match flow::whom(sandbox, to) {
        Ok(Some(name)) => name,
        // Nothing that went to an address was recorded.
        Ok(None) => return told.denied(None, Reason::NotInRecording),
        Err(reason) => return told.denied(None, reason),
    };
    told.name = Some(name.clone());
    let verdict = sandbox.policy().name(&name, to.port());
    if !verdict.is_allowed() {
        return told.denied(None, Reason::Policy { because: verdict.because });
    }
    let cut = sandbox.stop.child_token();
    let flow = Arc::new(Flow::replayed(told.id, name.clone(), to, verdict.because.clone(), cut.clone()));
    let _registered = sandbox.flows.register(flow.clone());
    // Only now would a change of the policy find it: one that came before is asked here.
    let verdict = sandbox.policy().name(&name, to.port());
    if !verdict.is_allowed() {
        return told.denied(None, Reason::Policy { because: verdict.because });
    }
    told.decided(Action::Allow, None, Reason::Policy { because: verdict.because });
    let served =
        Connection { sandbox: sandbox.clone(), book: book.clone(), flow: flow.clone(), name: name.clone(), to };
    let end = tokio::select! {
        biased;
        () = cut.cancelled() => flow.why_cut(),
        end = served.serve(client) => end,
    };
    let (sent_bytes, received_bytes) = flow.bytes();
    let (name, presented) = (Some(name.to_string()), flow.presented());
    sandbox.journal.record(What::Closed { flow: flow.id, name, to, presented, sent_bytes, received_bytes, end });
}

/// A connection that is answered from a recording.
struct Connection {
    sandbox: Arc<Sandbox>,
    book: Arc<Book>,
    flow: Arc<Flow>,
    name: Name,
    to: SocketAddr,
}

impl Connection {
    async fn serve(self, client: TcpStream) -> End {
        let broken = |message: String| End::Broken { message };
        let is_known = self.book.has_port(&self.name, self.to.port());
        let silence = if is_known { SILENCE } else { SILENCE_OF_STRANGERS };
        let first = match timeout(silence, flow::first_bytes(&client)).await {
            Ok(Ok(first)) => first,
            Ok(Err(error)) => return broken(error.to_string()),
            Err(_silent) => return self.unanswered("the program waits for the host to speak first"),
        };
        if let Err(reason) = flow::judge_head(&self.sandbox, &self.flow, &first) {
            return End::Refused { reason };
        }
        let is_tls = match &first.seen {
            Ok(Head::Tls(_)) => true,
            Ok(Head::Http(Some(_))) => false,
            _ => return self.unanswered("no HTTP is spoken that could have been recorded"),
        };
        let _slot = self.sandbox.intercept_slot().await;
        let closing = match Closing::of(&client) {
            Ok(closing) => closing,
            Err(error) => return broken(error.to_string()),
        };
        let FirstBytes { bytes, .. } = first;
        let client = Inside::new(Bytes::from(bytes), client, self.flow.clone());
        let served =
            if is_tls { self.over_tls(client).await } else { self.speak(client, Version::Http1, "http").await };
        match served {
            Ok(()) => {
                closing.in_order();
                End::Done
            }
            Err(message) => broken(message),
        }
    }

    async fn over_tls(&self, client: Inside) -> Result<(), String> {
        let late = |_| "TLS took too long".to_owned();
        self.sandbox.handshakes.take().await;
        let hello = timeout(HANDSHAKE_DEADLINE, LazyConfigAcceptor::new(Default::default(), client)).await;
        let hello = hello.map_err(late)?.map_err(|error| error.to_string())?;
        let offer = Offer::of(hello.client_hello().alpn()).ok_or("the program speaks neither HTTP/1.1 nor HTTP/2")?;
        let version = offer.best();
        let leaf = self.authority()?.leaf(&self.name).map_err(|error| error.to_string())?;
        let config = tls::server(leaf, version).map_err(|error| error.to_string())?;
        let client = timeout(HANDSHAKE_DEADLINE, hello.into_stream(config)).await;
        let client = client.map_err(late)?.map_err(|error| error.to_string())?;
        self.speak(client, version, "https").await
    }

    fn authority(&self) -> Result<Arc<Authority>, String> {
        match self.sandbox.secrets.state() {
            State::Empty { authority } | State::Holds { authority, .. } => Ok(authority),
            State::None | State::Lost { .. } => Err("the sandbox's certificate authority is lost".to_owned()),
        }
    }

    async fn speak<S>(&self, client: S, version: Version, scheme: &'static str) -> Result<(), String>
    where
        S: tokio::io::AsyncRead + tokio::io::AsyncWrite + Send + Unpin + 'static,
    {
        let Self { sandbox, book, flow, name, to } = self;
        let requests = Arc::new(Requests {
            sandbox: sandbox.clone(),
            book: book.clone(),
            flow: flow.id,
            name: name.clone(),
            port: to.port(),
            scheme,
        });
        let served = speaking::serve(client, version, move |request| {
            let requests = requests.clone();
            async move { requests.answer(request).await }
        });
        served.await.map_err(|error| protocol::error::chain(&error))
    }

    /// Tells of a connection on which no request can be answered.
    fn unanswered(&self, why: &str) -> End {
        self.sandbox.journal.record(What::Replay {
            flow: self.flow.id,
            host: self.name.to_string(),
            port: self.to.port(),
            method: String::new(),
            path: String::new(),
            status: 0,
            message: format!("not in the recording: {why}"),
        });
        End::Refused { reason: Reason::NotInRecording }
    }
}
