//! One request after the other: is it for this host, what does the vault say, what goes to the host, what comes back.

use std::io;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, PoisonError};

use bytes::{Bytes, BytesMut};
use http::header::{self, HeaderMap, HeaderValue};
use http::request::Parts;
use http::uri::PathAndQuery;
use http::{Method, Request, Response, StatusCode, Uri, Version as HttpVersion};
use http_body::Body as _;
use http_body_util::{BodyExt as _, Full};
use hyper::body::Incoming;
use hyper::upgrade::OnUpgrade;
use hyper_util::rt::TokioIo;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use vault::{BodySubstitution, Facts, Injection, Redactor, Scheme, Selection, Vault};

use super::answer::{self, Encoding, Masked};
use super::origin::{Origin, OriginError, Outgoing};
use super::request;
use super::speaking::{Answer, empty, own_answer};
use super::taping::{Heard, Recorder, Take};
use super::tls::Version;
use crate::flow::Flow;
use crate::sandbox::Sandbox;
use crate::secrets::State;
use crate::verdicts::{Reason, What};

/// Bodies up to here are held to put values into them, so that their new length can be told; longer ones are sent in
/// pieces.
const WHOLE_BODY_BYTES: usize = 1024 * 1024;
/// Bytes that a changed protocol moves at a time.
const TUNNEL_BYTES: usize = 16 * 1024;
/// The requests of one connection.
pub struct Exchange {
    sandbox: Arc<Sandbox>,
    flow: Arc<Flow>,
    to: SocketAddr,
    is_tls: bool,
    /// Or why there is none: every request is told.
    origin: Result<Origin, OriginError>,
    tunnels: Mutex<Vec<tokio::task::JoinHandle<io::Result<()>>>>,
}

/// Why a request is answered here and not by its host.
struct Refused {
    status: StatusCode,
    message: String,
    /// Whether another connection could serve it.
    closes: bool,
}

impl Refused {
    fn new(status: StatusCode, message: impl ToString) -> Self {
        Self { status, message: message.to_string(), closes: false }
    }

    fn forbidden(message: impl ToString) -> Self {
        Self::new(StatusCode::FORBIDDEN, message)
    }
}

impl From<OriginError> for Refused {
    fn from(error: OriginError) -> Self {
        let status = match error {
            OriginError::Denied => StatusCode::FORBIDDEN,
            _ => StatusCode::BAD_GATEWAY,
        };
        Self { closes: true, ..Self::new(status, error) }
    }
}

impl Exchange {
    /// Over a connection to a host, or with the reason why there is none.
    pub fn new(
        sandbox: Arc<Sandbox>,
        flow: Arc<Flow>,
        to: SocketAddr,
        is_tls: bool,
        origin: Result<Origin, OriginError>,
    ) -> Self {
        Self { sandbox, flow, to, is_tls, origin, tunnels: Mutex::default() }
    }

    /// Answers one request: with what the host says, or with why it was not asked.
    pub async fn answer(&self, request: Request<Incoming>) -> Response<Answer> {
        let method = request.method().clone();
        let version = request.version();
        match self.pass_on(request).await {
            Ok(response) => response,
            Err(refused) => {
                let host = self.flow.name().map(ToString::to_string).unwrap_or_default();
                let reason = Reason::Vault { message: refused.message.clone() };
                let status = refused.status.as_u16();
                let flow = self.flow.id;
                self.sandbox.journal.record(What::Request { flow, host, method: method.to_string(), status, reason });
                own_answer(refused.status, &refused.message, refused.closes.then_some(version))
            }
        }
    }

    async fn pass_on(&self, request: Request<Incoming>) -> Result<Response<Answer>, Refused> {
        let (mut parts, body) = request.into_parts();
        let name = self.flow.name().ok_or_else(|| Refused::forbidden("the connection is bound to no name"))?;
        let default_port = request::default_port(self.is_tls);
        request::check_host(&parts, name, self.to.port(), default_port)
            .map_err(|bad| Refused { closes: true, ..Refused::new(bad.status(), bad) })?;
        let host = name.to_string();
        let injection = self.select(&parts, &host)?;
        let origin = self
            .origin
            .as_ref()
            .map_err(|error| Refused { closes: true, ..Refused::new(StatusCode::BAD_GATEWAY, error) })?;
        let upgrade = request::upgrade(&parts);
        let (body, take) = self.take(&parts, body, &host);
        let client_upgrade = parts.extensions.remove::<OnUpgrade>().filter(|_| upgrade.is_some());
        request::remove_hop_headers(&mut parts.headers);
        // This side said it already, as HTTP wants it.
        parts.headers.remove(header::EXPECT);
        if let Some(protocol) = &upgrade {
            parts.headers.insert(header::CONNECTION, HeaderValue::from_static("upgrade"));
            parts.headers.insert(header::UPGRADE, protocol.clone());
        }
        let told = self.told(&parts, &host);
        let body = match &injection {
            Some(injection) => self.inject(&mut parts, body, injection).await?,
            None => plain(body),
        };
        if self.guard().is_some() {
            answer::ask_for_plain(&mut parts.headers);
        }
        self.address(&mut parts, origin.version(), &host)?;
        let response = origin.ask(Request::from_parts(parts, body)).await;
        // One that broke off may have been heard; the others were not sent.
        if let (Some(injection), Ok(_) | Err(OriginError::Broken(_))) = (&injection, &response) {
            self.record(&told, injection);
        }
        let response = response?;
        self.pass_back(response, injection, client_upgrade, take).await
    }

    fn recorder(&self) -> Option<&Recorder> {
        self.sandbox.recorder()
    }

    /// What keeps values of the vault out of a recording, whoever told them.
    fn guard(&self) -> Option<Redactor> {
        self.recorder()?.guard(&self.sandbox.secrets.state())
    }

    /// Begins to record, as the sandbox's program sent it, where that is done.
    fn take(&self, parts: &Parts, body: Incoming, host: &str) -> (Heard, Option<Take>) {
        let Some(recorder) = self.recorder() else { return (Heard::deaf(body), None) };
        let scheme = if self.is_tls { Scheme::Https } else { Scheme::Http };
        let place = (scheme.as_str(), host, self.to.port());
        recorder.take(&self.sandbox, &self.flow, parts, body, place)
    }

    /// What the vault says of a request now: it may have changed since the connection began.
    fn select(&self, parts: &Parts, host: &str) -> Result<Option<Arc<Injection>>, Refused> {
        let vault: Arc<Vault> = match self.sandbox.secrets.state() {
            State::Holds { vault, .. } if vault.is_bound(host) => vault,
            State::Lost { hosts } if self.recorder().is_none() || vault::is_any(hosts.iter(), host) => {
                return Err(Refused::forbidden(
                    "the credential vault was lost; fill it again, or delete it to reach the host without",
                ));
            }
            _ if self.recorder().is_some() => return Ok(None),
            // Another connection to this host is not looked into.
            _ => {
                return Err(Refused {
                    closes: true,
                    ..Refused::new(StatusCode::MISDIRECTED_REQUEST, "the host is not bound any more")
                });
            }
        };
        let path = parts.uri.path_and_query().map_or("/", PathAndQuery::as_str);
        if parts.method == Method::OPTIONS && path == "*" {
            return Ok(None);
        }
        let scheme = if self.is_tls { Scheme::Https } else { Scheme::Http };
        let facts = Facts { scheme, host, port: self.to.port(), method: parts.method.as_str(), path_and_query: path };
        match vault.select(&facts) {
            Selection::None => Ok(None),
            Selection::One(injection) => Ok(Some(injection)),
            Selection::Ambiguous => Err(Refused::forbidden("credential binding ambiguous")),
            Selection::BadPath => Err(Refused::forbidden(
                "the path can be read in two ways (dot segments, encoded separators, backslashes), and the host is bound \
                 to a credential",
            )),
        }
    }

    /// Puts the credential in.
    async fn inject(&self, parts: &mut Parts, body: Heard, injection: &Arc<Injection>) -> Result<Outgoing, Refused> {
        let mut uri = parts.uri.clone().into_parts();
        uri.path_and_query = Some(injection.path_and_query().clone());
        parts.uri = Uri::from_parts(uri).map_err(|_| Refused::forbidden("a value does not fit into a path"))?;
        injection.apply_headers(&mut parts.headers);
        answer::ask_for_plain(&mut parts.headers);
        // What a WebSocket compresses cannot be looked into.
        parts.headers.remove(header::SEC_WEBSOCKET_EXTENSIONS);
        let kind = parts.headers.get(header::CONTENT_TYPE).and_then(|value| value.to_str().ok());
        let encoding = parts.headers.get(header::CONTENT_ENCODING).and_then(|value| value.to_str().ok());
        match injection.body_form(kind, encoding) {
            Some(substitution) if !body.is_end_stream() => substituted(&mut parts.headers, body, substitution).await,
            None if injection.substitutes_body() && !body.is_end_stream() => Err(Refused::new(
                StatusCode::UNSUPPORTED_MEDIA_TYPE,
                "the body is compressed, so that values cannot be put into it; send it without Content-Encoding",
            )),
            _ => Ok(plain(body)),
        }
    }

    /// The request's target as the host's HTTP wants it.
    fn address(&self, parts: &mut Parts, version: Version, host: &str) -> Result<(), Refused> {
        let path = parts.uri.path_and_query().cloned();
        let default_port = request::default_port(self.is_tls);
        let port = self.to.port();
        let authority = if port == default_port { host.to_owned() } else { format!("{host}:{port}") };
        let bad = |_| Refused::new(StatusCode::BAD_REQUEST, "the target of the request cannot be passed on");
        let mut uri = http::uri::Parts::default();
        uri.path_and_query = path;
        match version {
            Version::Http1 => {
                let value =
                    HeaderValue::try_from(authority).map_err(|_| Refused::new(StatusCode::BAD_REQUEST, "no host"))?;
                parts.headers.insert(header::HOST, value);
                parts.version = HttpVersion::HTTP_11;
            }
            Version::Http2 => {
                parts.headers.remove(header::HOST);
                uri.scheme = Some(if self.is_tls { http::uri::Scheme::HTTPS } else { http::uri::Scheme::HTTP });
                uri.authority = Some(authority.parse().map_err(|_| Refused::new(StatusCode::BAD_REQUEST, "no host"))?);
                parts.version = HttpVersion::HTTP_2;
            }
        }
        parts.uri = Uri::from_parts(uri).map_err(bad)?;
        parts.extensions = http::Extensions::new();
        Ok(())
    }

    async fn pass_back(
        &self,
        mut response: Response<Incoming>,
        injection: Option<Arc<Injection>>,
        client_upgrade: Option<OnUpgrade>,
        take: Option<Take>,
    ) -> Result<Response<Answer>, Refused> {
        if response.status() == StatusCode::SWITCHING_PROTOCOLS {
            let Some(client_upgrade) = client_upgrade else {
                return Err(Refused::new(StatusCode::BAD_GATEWAY, "the host changed the protocol unasked"));
            };
            if let Some(take) = take {
                take.give_up("the connection was changed to another protocol, as WebSockets are");
            }
            let host_upgrade = hyper::upgrade::on(&mut response);
            self.tunnel(client_upgrade, host_upgrade, injection.clone());
            let mut response = response.map(|_| empty());
            if let Some(injection) = &injection {
                injection.redactor().headers(response.headers_mut());
            }
            return Ok(response);
        }
        request::remove_hop_headers(response.headers_mut());
        let own = injection.as_ref().map(|injection| injection.redactor().clone());
        let redactors: Vec<Redactor> = own.into_iter().chain(self.guard()).collect();
        let pass = |response: Response<Incoming>| response.map(|body| body.map_err(Into::into).boxed_unsync());
        if redactors.is_empty() {
            let response = pass(response);
            return Ok(match take {
                Some(take) => take.answer(response),
                None => response,
            });
        }
        let Some(encoding) = Encoding::of(response.headers()) else {
            if injection.is_none() {
                if let Some(take) = take {
                    take.give_up("the host answered in an encoding that cannot be searched for credentials");
                }
                return Ok(pass(response));
            }
            return Err(Refused::new(
                StatusCode::BAD_GATEWAY,
                "the host answered in an encoding that cannot be searched for the credential, although none was asked for",
            ));
        };
        let (mut parts, body) = response.into_parts();
        redactors.iter().for_each(|redactor| redactor.headers(&mut parts.headers));
        if encoding != Encoding::Identity {
            parts.headers.remove(header::CONTENT_ENCODING);
            parts.headers.remove(header::CONTENT_LENGTH);
        }
        let response = Response::from_parts(parts, Masked::new(body, redactors, encoding).boxed_unsync());
        Ok(match take {
            Some(take) => take.answer(response),
            None => response,
        })
    }

    /// What follows a change of protocol: WebSocket frames and the like.
    fn tunnel(&self, client: OnUpgrade, host: OnUpgrade, injection: Option<Arc<Injection>>) {
        let cut = self.flow.cut_token();
        let task = tokio::spawn(async move {
            tokio::select! {
                ended = relay(client, host, injection) => ended,
                () = cut.cancelled() => Err(io::ErrorKind::ConnectionReset.into()),
            }
        });
        self.tunnels.lock().unwrap_or_else(PoisonError::into_inner).push(task);
    }

    /// Waits for them.
    pub async fn tunnels_end(&self) -> io::Result<()> {
        let tunnels = std::mem::take(&mut *self.tunnels.lock().unwrap_or_else(PoisonError::into_inner));
        for tunnel in tunnels {
            tunnel.await.map_err(io::Error::other)??;
        }
        Ok(())
    }

    fn told(&self, parts: &Parts, host: &str) -> Told {
        let path = super::told_path(parts.uri.path()).to_owned();
        Told { host: host.to_owned(), method: parts.method.to_string(), path }
    }

    fn record(&self, told: &Told, injection: &Injection) {
        let Told { host, method, path } = told;
        self.sandbox.journal.record(What::Injected {
            flow: self.flow.id,
            host: host.clone(),
            method: method.clone(),
            path: path.clone(),
            binding: injection.binding().to_owned(),
            revision: injection.revision(),
            headers: injection.header_names().map(ToString::to_string).collect(),
        });
    }
}

/// What an event tells of a request: as the program wrote it, before anything was put in.
struct Told {
    host: String,
    method: String,
    path: String,
}

async fn relay(client: OnUpgrade, host: OnUpgrade, injection: Option<Arc<Injection>>) -> io::Result<()> {
    let (client, host) = tokio::try_join!(client, host).map_err(io::Error::other)?;
    let (mut from_client, mut to_client) = tokio::io::split(TokioIo::new(client));
    let (mut from_host, mut to_host) = tokio::io::split(TokioIo::new(host));
    let up = async {
        tokio::io::copy(&mut from_client, &mut to_host).await?;
        to_host.shutdown().await
    };
    let down = async {
        let Some(injection) = injection else {
            tokio::io::copy(&mut from_host, &mut to_client).await?;
            return to_client.shutdown().await;
        };
        let mut masks = injection.redactor().stream();
        let mut buffer = BytesMut::with_capacity(TUNNEL_BYTES);
        loop {
            buffer.reserve(TUNNEL_BYTES);
            if from_host.read_buf(&mut buffer).await? == 0 {
                break;
            }
            to_client.write_all(&masks.push(buffer.split().freeze())).await?;
            to_client.flush().await?;
        }
        to_client.write_all(&masks.finish()).await?;
        to_client.shutdown().await
    };
    tokio::try_join!(up, down).map(|_| ())
}

/// A body as it comes.
fn plain(body: Heard) -> Outgoing {
    body.map_err(Into::into).boxed_unsync()
}

/// A body with values put into it: whole where it is short, so that its length is told, and else piece by piece.
async fn substituted(
    headers: &mut HeaderMap,
    mut body: Heard,
    mut substitution: BodySubstitution,
) -> Result<Outgoing, Refused> {
    let broken =
        |error: hyper::Error| Refused::new(StatusCode::BAD_REQUEST, format!("the request's body broke off: {error}"));
    let mut held = BytesMut::new();
    headers.remove(header::CONTENT_LENGTH);
    while held.len() <= WHOLE_BODY_BYTES {
        match body.frame().await.transpose().map_err(broken)? {
            None => {
                let whole = Bytes::from(substitution.whole(held.into()));
                headers.insert(header::CONTENT_LENGTH, HeaderValue::from(whole.len()));
                return Ok(Full::new(whole).map_err(|never| match never {}).boxed_unsync());
            }
            Some(frame) => match frame.into_data() {
                Ok(data) => held.extend_from_slice(&data),
                // Trailers of a request end it; few send any, and they are not for the vault.
                Err(_trailers) => {}
            },
        }
    }
    let first = substitution.push(held.freeze());
    Ok(super::pieces::Pieces::new(first, body, substitution).boxed_unsync())
}
