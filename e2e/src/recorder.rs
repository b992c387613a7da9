//! A reverse proxy that checks every exchange against the contract.
//!
//! It stands between any client and a server of ours, passes bytes as they
//! come (streams are not held back), and appends one JSON line per finished
//! exchange to a report. The client's `Host` is kept, so that the endpoints
//! the server hands out lead through the recorder again.

mod tee;

use std::convert::Infallible;
use std::fs::{File, OpenOptions};
use std::io::Write as _;
use std::net::SocketAddr;
use std::path::Path;
use std::sync::{Arc, Mutex};
use std::time::Instant;

use anyhow::{Context, Result};
use early_answer::Hearing;
use http_body_util::{BodyExt as _, Full, combinators::BoxBody};
use hyper::body::{Bytes, Incoming};
use hyper::header::{CONNECTION, EXPECT, HeaderMap, HeaderName, TRANSFER_ENCODING, UPGRADE};
use hyper::{Request, Response, StatusCode};
use hyper_util::rt::TokioIo;
use serde::{Deserialize, Serialize};
use tokio::net::{TcpListener, TcpStream};

use crate::contract::{Body, Contract, Errata, Exchange, Outcome, check};
use tee::{Tee, Watched};

/// One line of the report.
#[derive(Debug, Serialize, Deserialize)]
pub struct Line {
    /// Who answered: `api METHOD template`.
    pub operation: String,
    /// What was asked for, when the control plane answered in its place.
    pub asked: Option<String>,
    /// The path that was really asked for.
    pub path: String,
    /// Status of the answer.
    pub status: u16,
    /// `success`, `refusal` or `fault`.
    pub outcome: String,
    /// The client, from its `User-Agent`.
    pub client: String,
    /// From the request's head to the end of the answer.
    pub elapsed_ms: u64,
    /// What the contract does not allow.
    pub violations: Vec<Deviation>,
}

/// A violation in the report.
#[derive(Debug, Serialize, Deserialize)]
pub struct Deviation {
    /// What sort.
    pub kind: String,
    /// What exactly.
    pub detail: String,
    /// Number of the entry of `errata.toml` that accepts it.
    pub erratum: Option<usize>,
}

/// The contract, the accepted differences and the open report.
pub struct Recorder {
    contract: Contract,
    errata: Errata,
    upstream: SocketAddr,
    report: Mutex<File>,
}

impl Recorder {
    /// Reads `specs` (`published/` and `errata.toml`) and opens `report` for appending.
    ///
    /// # Errors
    /// The documents cannot be read, or the report cannot be opened.
    pub fn new(specs: &Path, upstream: SocketAddr, report: &Path) -> Result<Self> {
        let file = OpenOptions::new().create(true).append(true).open(report);
        Ok(Self {
            contract: Contract::load(&specs.join("published"))?,
            errata: Errata::load(&specs.join("errata.toml"))?,
            upstream,
            report: Mutex::new(file.with_context(|| format!("open {}", report.display()))?),
        })
    }

    /// Serves until the task is dropped.
    ///
    /// # Errors
    /// The listener fails.
    pub async fn serve(self: Arc<Self>, listener: TcpListener) -> Result<()> {
        loop {
            let (stream, _) = listener.accept().await.context("accept a client")?;
            stream.set_nodelay(true)?;
            let recorder = Arc::clone(&self);
            let service = hyper::service::service_fn(move |request| {
                let recorder = Arc::clone(&recorder);
                async move { Ok::<_, Infallible>(recorder.pass(request).await) }
            });
            let connection = hyper::server::conn::http1::Builder::new()
                .serve_connection(TokioIo::new(stream), service)
                .with_upgrades();
            // A client that goes away ends its own connection and nothing else.
            tokio::spawn(async move {
                let _ = connection.await;
            });
        }
    }

    async fn pass(self: Arc<Self>, request: Request<Incoming>) -> Response<BoxBody<Bytes, hyper::Error>> {
        match self.forward(request).await {
            Ok(response) => response,
            Err(error) => {
                let text = format!("recorder: {error:#}\n");
                let body = Full::new(Bytes::from(text)).map_err(|never| match never {}).boxed();
                let mut response = Response::new(body);
                *response.status_mut() = StatusCode::BAD_GATEWAY;
                response
            }
        }
    }

    async fn forward(
        self: Arc<Self>,
        mut request: Request<Incoming>,
    ) -> Result<Response<BoxBody<Bytes, hyper::Error>>> {
        let started = Instant::now();
        let mut exchange = Exchange {
            method: request.method().to_string(),
            path: request.uri().path().to_owned(),
            request_type: text(request.headers(), "content-type"),
            ..Exchange::default()
        };
        let client = text(request.headers(), "user-agent");
        let upgrades = request.headers().contains_key(UPGRADE);
        let downstream = upgrades.then(|| hyper::upgrade::on(&mut request));
        let (parts, body) = request.into_parts();
        let (body, sent) = Tee::watch(body);
        let mut outgoing = Request::from_parts(parts, body);
        if !upgrades {
            strip_hop_by_hop(outgoing.headers_mut());
        }

        let stream = TcpStream::connect(self.upstream).await.context("connect to the server")?;
        stream.set_nodelay(true)?;
        let (mut sender, connection) =
            hyper::client::conn::http1::handshake(TokioIo::new(Hearing::new(stream))).await?;
        let connection = connection.with_upgrades();
        tokio::spawn(async move {
            let _ = connection.await;
        });
        let mut answer = sender.send_request(outgoing).await.context("send the request")?;

        exchange.status = answer.status().as_u16();
        exchange.headers = answer
            .headers()
            .iter()
            .map(|(name, value)| (name.as_str().to_owned(), String::from_utf8_lossy(value.as_bytes()).into_owned()))
            .collect();
        if answer.status() == StatusCode::SWITCHING_PROTOCOLS
            && let Some(downstream) = downstream
        {
            relay(downstream, hyper::upgrade::on(&mut answer));
            let (parts, _) = answer.into_parts();
            let body = Full::new(Bytes::new()).map_err(|never| match never {}).boxed();
            return Ok(Response::from_parts(parts, body));
        }
        let (mut parts, body) = answer.into_parts();
        strip_hop_by_hop(&mut parts.headers);
        let recorder = Arc::clone(&self);
        // The connection to the server lives exactly as long as its answer.
        let body = Tee::finish(body, move |response| {
            drop(sender);
            exchange.request = sent.take();
            exchange.response = response;
            recorder.record(&exchange, client, started);
        });
        Ok(Response::from_parts(parts, body.boxed()))
    }

    fn record(&self, exchange: &Exchange, client: String, started: Instant) {
        let finding = check(&self.contract, exchange);
        let violations = finding
            .violations
            .iter()
            .map(|violation| Deviation {
                kind: violation.kind.to_owned(),
                detail: violation.detail.clone(),
                erratum: self.errata.accepts(&finding.operation, violation),
            })
            .collect();
        let line = Line {
            operation: finding.operation,
            asked: finding.asked,
            path: exchange.path.clone(),
            status: exchange.status,
            outcome: match finding.outcome {
                Outcome::Success => "success",
                Outcome::Refusal => "refusal",
                Outcome::Fault => "fault",
            }
            .to_owned(),
            client,
            elapsed_ms: u64::try_from(started.elapsed().as_millis()).unwrap_or(u64::MAX),
            violations,
        };
        let mut text = serde_json::to_string(&line).expect("a report line is plain data");
        text.push('\n');
        let mut report = self.report.lock().expect("no holder of the report panics");
        if let Err(error) = report.write_all(text.as_bytes()) {
            eprintln!("recorder: write the report: {error}");
        }
    }
}

/// Copies bytes both ways between the two upgraded connections.
fn relay(downstream: hyper::upgrade::OnUpgrade, upstream: hyper::upgrade::OnUpgrade) {
    tokio::spawn(async move {
        let (Ok(downstream), Ok(upstream)) = tokio::join!(downstream, upstream) else {
            return;
        };
        let mut downstream = TokioIo::new(downstream);
        let mut upstream = TokioIo::new(upstream);
        let _ = tokio::io::copy_bidirectional(&mut downstream, &mut upstream).await;
    });
}

/// Each side of the recorder frames its own connection.
fn strip_hop_by_hop(headers: &mut HeaderMap) {
    for name in [CONNECTION, TRANSFER_ENCODING, EXPECT, HeaderName::from_static("keep-alive")] {
        headers.remove(name);
    }
}

fn text(headers: &HeaderMap, name: &str) -> String {
    headers.get(name).map_or_else(String::new, |value| String::from_utf8_lossy(value.as_bytes()).into_owned())
}

/// What was sent, once it is known.
impl Watched {
    fn take(&self) -> Body {
        std::mem::take(&mut *self.0.lock().expect("no holder of a body panics"))
    }
}
