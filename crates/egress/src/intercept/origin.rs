//! The connection to the host that a flow is bound to: verified, spoken to, and made again when it has ended.

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use early_answer::Hearing;
use http::{Request, Response};
use http_body_util::combinators::UnsyncBoxBody;
use hyper::body::Incoming;
use hyper::client::conn::{TrySendError, http1, http2};
use hyper_util::rt::{TokioExecutor, TokioIo};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;
use tokio::sync::Mutex;
use tokio::time::timeout;
use tokio_rustls::TlsConnector;
use tokio_util::sync::CancellationToken;

use super::tls::{self, Offer, Version};
use super::{HTTP2_CONNECTION_BYTES, HTTP2_STREAM_BYTES, MAX_HEADERS, READ_BUFFER_BYTES};
use crate::flow::{self, Flow};
use crate::sandbox::Sandbox;

/// How long an origin may take for TLS.
const HANDSHAKE_DEADLINE: Duration = Duration::from_secs(20);
/// A request that could not be sent because the connection had just ended is sent on so many others.
const RESENDS: u32 = 2;

/// The body of a request to an origin.
pub type Outgoing = UnsyncBoxBody<Bytes, BodyError>;
/// Why a body ends before its time.
pub type BodyError = Box<dyn std::error::Error + Send + Sync>;

/// Why an origin did not answer.
#[derive(Debug, thiserror::Error)]
pub enum OriginError {
    /// It is not who it should be.
    #[error("the host could not be verified, and got nothing: {0}")]
    Unverified(String),
    /// It could not be reached or spoken to.
    #[error("the host could not be reached: {0}")]
    Unreachable(String),
    /// It broke off.
    #[error("the host broke off: {0}")]
    Broken(String),
    /// The policy does not allow it any more.
    #[error("the policy does not allow the host any more")]
    Denied,
}

/// What a connection is for.
pub struct Purpose {
    /// Whose it is.
    pub sandbox: Arc<Sandbox>,
    /// Its flow.
    pub flow: Arc<Flow>,
    /// Where the sandbox meant to go.
    pub to: SocketAddr,
    /// What the sandbox's program speaks; `None` without TLS.
    pub offer: Option<Offer>,
    /// Ends what was begun for it.
    pub ended: CancellationToken,
}

/// The host of a flow.
pub struct Origin {
    purpose: Purpose,
    sender: Mutex<Sender>,
    version: Version,
}

#[derive(Clone)]
enum Sender {
    /// Not to be had: it was sent to, and is given back when the answer's head is there.
    Away,
    Http1(Arc<Mutex<http1::SendRequest<Outgoing>>>),
    Http2(http2::SendRequest<Outgoing>),
}

trait Duplex: AsyncRead + AsyncWrite + Send + Unpin {}
impl<T: AsyncRead + AsyncWrite + Send + Unpin> Duplex for T {}

impl Origin {
    /// Speaks to a host over a connection that was just made.
    ///
    /// # Errors
    /// When it is not the host, or does not speak as offered.
    pub async fn over(connection: TcpStream, purpose: Purpose) -> Result<Self, OriginError> {
        let (sender, version) = speak(connection, &purpose).await?;
        Ok(Self { purpose, sender: Mutex::new(sender), version })
    }

    /// What it speaks.
    pub fn version(&self) -> Version {
        self.version
    }

    /// Sends a request and waits for the head of its answer. Over HTTP/1.1 one at a time.
    ///
    /// # Errors
    /// When it cannot be sent, or is not answered.
    pub async fn ask(&self, mut request: Request<Outgoing>) -> Result<Response<Incoming>, OriginError> {
        let mut resends = 0;
        loop {
            let sent = match self.sender().await? {
                Sender::Http1(sender) => {
                    let mut sender = sender.lock().await;
                    match sender.ready().await {
                        Ok(()) => sender.try_send_request(request).await,
                        Err(_ended) if resends < RESENDS => {
                            drop(sender);
                            resends += 1;
                            self.forget().await;
                            continue;
                        }
                        Err(ended) => return Err(OriginError::Broken(protocol::error::chain(&ended))),
                    }
                }
                Sender::Http2(mut sender) => sender.try_send_request(request).await,
                Sender::Away => unreachable!("it was just made"),
            };
            let mut unsent: TrySendError<Request<Outgoing>> = match sent {
                Ok(response) => return Ok(response),
                Err(unsent) => unsent,
            };
            match unsent.take_message() {
                Some(message) if resends < RESENDS => {
                    request = message;
                    resends += 1;
                    self.forget().await;
                }
                _ => return Err(OriginError::Broken(protocol::error::chain(&unsent.into_error()))),
            }
        }
    }

    /// A connection that is open as far as anybody knows.
    async fn sender(&self) -> Result<Sender, OriginError> {
        let mut slot = self.sender.lock().await;
        let is_open = match &*slot {
            Sender::Away => false,
            // One that is locked is in use.
            Sender::Http1(sender) => sender.try_lock().map_or(true, |sender| !sender.is_closed()),
            Sender::Http2(sender) => !sender.is_closed(),
        };
        if !is_open {
            let connection = self.dial().await?;
            let (sender, version) = speak(connection, &self.purpose).await?;
            if version != self.version {
                return Err(OriginError::Unreachable("it speaks another HTTP than before".into()));
            }
            *slot = sender;
        }
        Ok(slot.clone())
    }

    async fn forget(&self) {
        *self.sender.lock().await = Sender::Away;
    }

    /// Another connection to the address that the policy was asked about.
    async fn dial(&self) -> Result<TcpStream, OriginError> {
        let Purpose { sandbox, flow, to, .. } = &self.purpose;
        if !flow.is_allowed_by(&sandbox.policy()) {
            return Err(OriginError::Denied);
        }
        let connection = flow::again(sandbox, flow, to.port()).await;
        connection.map_err(|error| OriginError::Unreachable(error.to_string()))
    }
}

/// TLS, if it is wanted, and HTTP.
async fn speak(connection: TcpStream, purpose: &Purpose) -> Result<(Sender, Version), OriginError> {
    let broken = |error: hyper::Error| OriginError::Broken(protocol::error::chain(&error));
    let (stream, version) = match purpose.offer {
        None => (Box::new(Hearing::new(connection)) as Box<dyn Duplex>, Version::Http1),
        Some(offer) => secure(connection, purpose, offer).await?,
    };
    let stream = TokioIo::new(stream);
    let ended = purpose.ended.clone();
    match version {
        Version::Http1 => {
            let (sender, connection) = http1::Builder::new()
                .max_buf_size(READ_BUFFER_BYTES)
                .max_headers(MAX_HEADERS)
                .preserve_header_case(true)
                .handshake(stream)
                .await
                .map_err(broken)?;
            // Its error reaches whoever waits for the answer.
            tokio::spawn(ended.run_until_cancelled_owned(connection.with_upgrades()));
            Ok((Sender::Http1(Arc::new(Mutex::new(sender))), version))
        }
        Version::Http2 => {
            let (sender, connection) = http2::Builder::new(TokioExecutor::new())
                .initial_stream_window_size(HTTP2_STREAM_BYTES)
                .initial_connection_window_size(HTTP2_CONNECTION_BYTES)
                .handshake(stream)
                .await
                .map_err(broken)?;
            tokio::spawn(ended.run_until_cancelled_owned(connection));
            Ok((Sender::Http2(sender), version))
        }
    }
}

async fn secure(
    connection: TcpStream,
    purpose: &Purpose,
    offer: Offer,
) -> Result<(Box<dyn Duplex>, Version), OriginError> {
    let unreachable = |error: io::Error| OriginError::Unreachable(error.to_string());
    let Some(name) = purpose.flow.name() else {
        return Err(OriginError::Unverified("the connection is bound to no name".into()));
    };
    let config = purpose.sandbox.shared.trust().client(offer).map_err(OriginError::Unverified)?;
    let server = tls::server_name(name).map_err(unreachable)?;
    let handshake = TlsConnector::from(config).connect(server, Hearing::new(connection));
    let stream = match timeout(HANDSHAKE_DEADLINE, handshake).await {
        Err(_late) => return Err(unreachable(io::ErrorKind::TimedOut.into())),
        Ok(Ok(stream)) => stream,
        Ok(Err(error)) => {
            let cause = error.get_ref().and_then(|cause| cause.downcast_ref::<rustls::Error>());
            return Err(match cause {
                Some(rustls::Error::InvalidCertificate(why)) => OriginError::Unverified(format!("{name}: {why}")),
                _ => unreachable(error),
            });
        }
    };
    let version = tls::chosen(stream.get_ref().1.alpn_protocol());
    Ok((Box::new(stream), version))
}
