//! Origins that speak HTTPS in the small internet, with an authority of its own, and a client for a sandbox.

use std::convert::Infallible;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use bytes::Bytes;
use egress::authority::Authority;
use egress::name::Name;
use http::header::{self, HeaderMap, HeaderValue};
use http::{Request, Response, StatusCode, Version};
use http_body_util::combinators::UnsyncBoxBody;
use http_body_util::{BodyExt, Full, StreamBody};
use hyper::body::{Frame, Incoming};
use hyper::client::conn::{http1, http2};
use hyper_util::rt::{TokioExecutor, TokioIo};
use rustls::crypto::aws_lc_rs::default_provider;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, ServerName};
use rustls::server::{ClientHello, ResolvesServerCert};
use rustls::sign::CertifiedKey;
use rustls::{ClientConfig, RootCertStore, ServerConfig};
use tokio::net::{TcpListener, TcpStream};
use tokio_rustls::client::TlsStream;
use tokio_rustls::{TlsAcceptor, TlsConnector};

use super::{Inside, World};

type Body = UnsyncBoxBody<Bytes, io::Error>;

/// An origin, and what it was asked.
#[derive(Clone, Default)]
pub struct Origin {
    /// Heads of requests, as text.
    pub heads: Arc<Mutex<Vec<String>>>,
    /// Connections that spoke TLS to the end of the handshake.
    pub connections: Arc<Mutex<u32>>,
}

impl Origin {
    pub fn heads(&self) -> Vec<String> {
        self.heads.lock().expect("a lock").clone()
    }

    pub fn connections(&self) -> u32 {
        *self.connections.lock().expect("a lock")
    }
}

#[derive(Debug)]
struct Shown(Arc<CertifiedKey>);

impl ResolvesServerCert for Shown {
    fn resolve(&self, _: ClientHello<'_>) -> Option<Arc<CertifiedKey>> {
        Some(self.0.clone())
    }
}

/// Serves HTTPS with a certificate for `name`, in HTTP/2 where it is offered and `protocols` has it.
pub fn serve(
    world: &World,
    (address, port): (impl Into<IpAddr>, u16),
    authority: &Authority,
    name: &str,
    protocols: &[&str],
) -> Origin {
    let leaf = authority.leaf(&Name::parse(name).expect("a name")).expect("a leaf");
    let mut config = ServerConfig::builder_with_provider(default_provider().into())
        .with_safe_default_protocol_versions()
        .expect("versions")
        .with_no_client_auth()
        .with_cert_resolver(Arc::new(Shown(leaf)));
    config.alpn_protocols = protocols.iter().map(|name| name.as_bytes().to_vec()).collect();
    let acceptor = TlsAcceptor::from(Arc::new(config));
    let address = SocketAddr::new(address.into(), port);
    let listener = world.internet.run(|| std::net::TcpListener::bind(address).expect("an origin's address"));
    listener.set_nonblocking(true).expect("a socket");
    let listener = TcpListener::from_std(listener).expect("a listener");
    let origin = Origin::default();
    let known = origin.clone();
    tokio::spawn(async move {
        while let Ok((stream, _)) = listener.accept().await {
            let (acceptor, origin) = (acceptor.clone(), known.clone());
            tokio::spawn(async move {
                let Ok(stream) = acceptor.accept(stream).await else { return };
                *origin.connections.lock().expect("a lock") += 1;
                let is_h2 = stream.get_ref().1.alpn_protocol() == Some(b"h2");
                let service = hyper::service::service_fn(move |request| {
                    let origin = origin.clone();
                    async move { answer(origin, request).await }
                });
                // What becomes of a connection is the client's to see.
                if is_h2 {
                    let http = hyper::server::conn::http2::Builder::new(TokioExecutor::new());
                    let _ = http.serve_connection(TokioIo::new(stream), service).await;
                } else {
                    let http = hyper::server::conn::http1::Builder::new();
                    let _ = http.serve_connection(TokioIo::new(stream), service).with_upgrades().await;
                }
            });
        }
    });
    origin
}

fn whole(text: impl Into<Bytes>) -> Body {
    Full::new(text.into()).map_err(|never| match never {}).boxed_unsync()
}

fn pieces(pieces: Vec<(u64, io::Result<Frame<Bytes>>)>) -> Body {
    let stream = futures_util::stream::unfold(pieces.into_iter(), |mut pieces| async move {
        let (ms, piece) = pieces.next()?;
        tokio::time::sleep(Duration::from_millis(ms)).await;
        Some((piece, pieces))
    });
    StreamBody::new(stream).boxed_unsync()
}

/// Repeats what it is asked, in the way that the path names.
async fn answer(origin: Origin, mut request: Request<Incoming>) -> Result<Response<Body>, Infallible> {
    let mut head =
        format!("{} {}\n", request.method(), request.uri().path_and_query().map_or("*", |path| path.as_str()));
    if let Some(authority) = request.uri().authority() {
        head += &format!("host: {authority}\n");
    }
    for (name, value) in request.headers() {
        head += &format!("{name}: {}\n", String::from_utf8_lossy(value.as_bytes()));
    }
    origin.heads.lock().expect("a lock").push(head.clone());
    let path = request.uri().path().to_owned();
    let secret = request.headers().get(header::AUTHORIZATION).cloned();
    let told = secret.clone().unwrap_or_else(|| HeaderValue::from_static("nothing"));
    let mut response = Response::new(whole(""));
    if request.headers().contains_key("x-end") {
        response.headers_mut().insert(header::CONNECTION, HeaderValue::from_static("close"));
    }
    match path.as_str() {
        "/gzip" => {
            use std::io::Write as _;
            let mut packed = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::default());
            packed.write_all(head.repeat(40_000).as_bytes()).expect("memory");
            response.headers_mut().insert(header::CONTENT_ENCODING, HeaderValue::from_static("gzip"));
            *response.body_mut() = whole(packed.finish().expect("packed"));
        }
        "/brotli" => {
            response.headers_mut().insert(header::CONTENT_ENCODING, HeaderValue::from_static("br"));
            *response.body_mut() = whole("packed");
        }
        "/events" => {
            let event = |text: &str| Ok(Frame::data(Bytes::from(format!("data: {text}\n\n"))));
            let text = String::from_utf8_lossy(told.as_bytes()).into_owned();
            response.headers_mut().insert(header::CONTENT_TYPE, HeaderValue::from_static("text/event-stream"));
            *response.body_mut() = pieces(vec![(0, event("one")), (300, event(&text)), (300, event("three"))]);
        }
        "/split" => {
            // One byte at a time.
            let bytes = told.as_bytes().iter().map(|byte| (0, Ok(Frame::data(Bytes::copy_from_slice(&[*byte])))));
            *response.body_mut() = pieces(bytes.collect());
        }
        "/trailers" => {
            let mut trailers = HeaderMap::new();
            trailers.insert("x-told", told);
            response.headers_mut().insert(header::TRAILER, HeaderValue::from_static("x-told"));
            let frames = vec![(0, Ok(Frame::data(Bytes::from("body")))), (0, Ok(Frame::trailers(trailers)))];
            *response.body_mut() = pieces(frames);
        }
        "/header" => drop(response.headers_mut().insert("x-told", told)),
        "/early" => {
            *response.status_mut() = StatusCode::PAYLOAD_TOO_LARGE;
            *response.body_mut() = whole("too much");
        }
        "/cut" => {
            response.headers_mut().insert(header::CONTENT_LENGTH, HeaderValue::from_static("100"));
            let cut = io::Error::other("cut");
            *response.body_mut() = pieces(vec![(0, Ok(Frame::data(Bytes::from("short")))), (50, Err(cut))]);
        }
        "/count" => {
            let mut count = 0;
            while let Some(Ok(frame)) = request.body_mut().frame().await {
                count += frame.data_ref().map_or(0, Bytes::len);
            }
            *response.body_mut() = whole(count.to_string());
        }
        "/upgrade" => {
            let upgraded = hyper::upgrade::on(&mut request);
            tokio::spawn(async move {
                use tokio::io::{AsyncReadExt, AsyncWriteExt};
                let mut stream = TokioIo::new(upgraded.await.expect("upgraded"));
                let _ = stream.write_all(&[b"told ", told.as_bytes(), b"\n"].concat()).await;
                let mut buffer = [0; 256];
                while let Ok(length) = stream.read(&mut buffer).await {
                    if length == 0 || stream.write_all(&buffer[..length]).await.is_err() {
                        break;
                    }
                }
            });
            *response.status_mut() = StatusCode::SWITCHING_PROTOCOLS;
            response.headers_mut().insert(header::CONNECTION, HeaderValue::from_static("upgrade"));
            response.headers_mut().insert(header::UPGRADE, HeaderValue::from_static("websocket"));
        }
        _ => {
            let body = request.into_body().collect().await.map(|body| body.to_bytes()).unwrap_or_default();
            *response.body_mut() = whole([head.as_bytes(), b"\n", &body].concat());
        }
    }
    Ok(response)
}

/// TLS from inside a sandbox, which trusts `pem`.
pub async fn tls(
    inside: &Inside,
    (host, port): (&str, u16),
    server: &str,
    pem: &str,
    protocols: &[&str],
) -> io::Result<TlsStream<TcpStream>> {
    tls_to(inside, (inside.address(host), port), server, pem, protocols).await
}

/// The same to an address that is known.
pub async fn tls_to(
    inside: &Inside,
    (address, port): (IpAddr, u16),
    server: &str,
    pem: &str,
    protocols: &[&str],
) -> io::Result<TlsStream<TcpStream>> {
    tls_over(inside.connect(address, port)?, server, pem, protocols).await
}

/// TLS on a connection of a program that trusts `pem`.
pub async fn tls_over(
    stream: std::net::TcpStream,
    server: &str,
    pem: &str,
    protocols: &[&str],
) -> io::Result<TlsStream<TcpStream>> {
    let mut roots = RootCertStore::empty();
    roots.add(CertificateDer::from_pem_slice(pem.as_bytes()).expect("a certificate")).expect("an authority");
    let mut config = ClientConfig::builder_with_provider(default_provider().into())
        .with_safe_default_protocol_versions()
        .expect("versions")
        .with_root_certificates(roots)
        .with_no_client_auth();
    config.alpn_protocols = protocols.iter().map(|name| name.as_bytes().to_vec()).collect();
    stream.set_nodelay(true)?;
    stream.set_nonblocking(true)?;
    let stream = TcpStream::from_std(stream)?;
    let server = ServerName::try_from(server.to_owned()).expect("a name");
    TlsConnector::from(Arc::new(config)).connect(server, stream).await
}

/// A client with one connection.
pub enum Client {
    H1(http1::SendRequest<Body>),
    H2(http2::SendRequest<Body>),
}

/// An answer as a program sees it.
#[derive(Debug)]
pub struct Answered {
    pub status: StatusCode,
    pub headers: HeaderMap,
    pub body: Vec<u8>,
    pub trailers: HeaderMap,
}

impl Answered {
    pub fn text(&self) -> String {
        String::from_utf8_lossy(&self.body).into_owned()
    }
}

impl Client {
    pub async fn over(stream: TlsStream<TcpStream>) -> Self {
        let is_h2 = stream.get_ref().1.alpn_protocol() == Some(b"h2");
        let stream = TokioIo::new(stream);
        if is_h2 {
            let (sender, connection) = http2::handshake(TokioExecutor::new(), stream).await.expect("HTTP/2");
            tokio::spawn(connection);
            Self::H2(sender)
        } else {
            let (sender, connection) = http1::handshake(stream).await.expect("HTTP/1.1");
            tokio::spawn(connection.with_upgrades());
            Self::H1(sender)
        }
    }

    pub async fn send(&mut self, request: Request<Body>) -> Result<Response<Incoming>, hyper::Error> {
        match self {
            Self::H1(sender) => {
                sender.ready().await?;
                sender.send_request(request).await
            }
            Self::H2(sender) => {
                sender.ready().await?;
                sender.send_request(request).await
            }
        }
    }

    /// Asks with these headers and this body.
    pub async fn ask(
        &mut self,
        host: &str,
        (method, path): (&str, &str),
        headers: &[(&str, &str)],
        body: impl Into<Bytes>,
    ) -> Result<Answered, String> {
        let request = request(matches!(self, Self::H2(_)), host, (method, path), headers, whole(body));
        let response = self.send(request).await.map_err(|error| format!("{error:?}"))?;
        let (parts, body) = response.into_parts();
        let collected = body.collect().await.map_err(|error| format!("{error:?}"))?;
        let trailers = collected.trailers().cloned().unwrap_or_default();
        let body = collected.to_bytes().to_vec();
        Ok(Answered { status: parts.status, headers: parts.headers, body, trailers })
    }

    pub async fn get(&mut self, host: &str, path: &str) -> Answered {
        self.ask(host, ("GET", path), &[], "").await.expect("an answer")
    }
}

/// A request in the form of either HTTP.
pub fn request(
    is_h2: bool,
    host: &str,
    (method, path): (&str, &str),
    headers: &[(&str, &str)],
    body: Body,
) -> Request<Body> {
    let mut request = Request::builder().method(method);
    request = if is_h2 {
        request.version(Version::HTTP_2).uri(format!("https://{host}{path}"))
    } else {
        request.uri(path).header("host", host)
    };
    for (name, value) in headers {
        request = request.header(*name, *value);
    }
    request.body(body).expect("a request")
}

/// A body of so many bytes, in pieces.
pub fn long_body(bytes: usize) -> Body {
    let piece = Bytes::from(vec![b'x'; 64 * 1024]);
    let count = bytes / piece.len();
    pieces((0..count).map(|_| (0, Ok(Frame::data(piece.clone())))).collect())
}

/// A body of these pieces.
pub fn body_of(parts: &[&str]) -> Body {
    pieces(parts.iter().map(|part| (0, Ok(Frame::data(Bytes::copy_from_slice(part.as_bytes()))))).collect())
}
