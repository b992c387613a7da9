//! The operator's own HTTP proxy, for machines that reach the internet only by one: connections are asked of it with
//! CONNECT (RFC 9110, section 9.3.6).
//!
//! Names are sent to it as names: it resolves them, so that what they lead to is its to judge. Addresses that sandboxes
//! connect to are judged here as ever.

use std::fmt;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde::{Deserialize, Serialize};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tokio::time::timeout;
use zeroize::Zeroizing;

use crate::dial;
use crate::name::Name;
use crate::policy::Target;
use crate::resolve::{Cache, Resolver};

/// How long the proxy may take to connect and to answer.
const DEADLINE: Duration = Duration::from_secs(20);
/// Most bytes of the head of its answer.
const HEAD_BYTES: usize = 8 * 1024;
/// Port of a proxy whose URL names none.
const DEFAULT_PORT: u16 = 80;

/// A proxy, and for whom it is not used.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct UpstreamProxy {
    host: String,
    port: u16,
    /// The value of `Proxy-Authorization`.
    authorization: Option<Zeroizing<String>>,
    /// Names, addresses and networks that are reached without it.
    direct: Vec<String>,
}

impl fmt::Debug for UpstreamProxy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { host, port, authorization, direct } = self;
        let has_login = authorization.is_some();
        write!(f, "UpstreamProxy({host}:{port}, login {has_login}, direct {direct:?})")
    }
}

impl UpstreamProxy {
    /// From a URL `http://[USER:PASSWORD@]HOST[:PORT]` and the targets that are reached without it, written like those of a
    /// policy.
    ///
    /// # Errors
    /// What is wrong with either, without the login.
    pub fn parse(url: &str, direct: &[String]) -> Result<Self, String> {
        let Some(rest) = url.strip_prefix("http://") else {
            return Err("a proxy is http://[USER:PASSWORD@]HOST[:PORT]; it is spoken to without TLS".into());
        };
        let rest = rest.trim_end_matches('/');
        let (login, place) = match rest.rsplit_once('@') {
            Some((login, place)) => (Some(login), place),
            None => (None, rest),
        };
        let authority: http::uri::Authority =
            place.parse().map_err(|_| "the part for HOST:PORT is no host and port".to_owned())?;
        let port = match place.strip_prefix(authority.host()) {
            Some("") => DEFAULT_PORT,
            _ => authority.port_u16().filter(|port| *port > 0).ok_or("the port is none, use 1 to 65535")?,
        };
        let host = authority.host().trim_start_matches('[').trim_end_matches(']').to_owned();
        if host.parse::<IpAddr>().is_err() && Name::parse(&host).is_err() {
            return Err("the host is no name and no address".into());
        }
        for text in direct {
            Target::parse(text).map_err(|reason| format!("\"{text}\": {reason}"))?;
        }
        let authorization = login.map(|login| {
            let login = Zeroizing::new(percent_decoded(login));
            Zeroizing::new(format!("Basic {}", STANDARD.encode(&*login)))
        });
        Ok(Self { host, port, authorization, direct: direct.to_vec() })
    }

    /// Whether it is used for a destination.
    pub fn is_for(&self, name: Option<&Name>, address: IpAddr) -> bool {
        let is_direct = |text: &String| {
            Target::parse(text).is_ok_and(|target| match name {
                Some(name) => target.matches_name(name),
                None => target.matches_address(address),
            })
        };
        !self.direct.iter().any(is_direct)
    }

    /// Connects to a host by it, whose name or address and port are `host` and `port`.
    ///
    /// # Errors
    /// When it cannot be reached, or does not connect.
    pub async fn connect(
        &self,
        (resolver, cache): (&Resolver, &Cache),
        host: &str,
        port: u16,
    ) -> io::Result<TcpStream> {
        let addresses: Vec<IpAddr> = match self.host.parse() {
            Ok(address) => vec![address],
            Err(_) => {
                let name = Name::parse(&self.host).map_err(io::Error::other)?;
                let found = cache.addresses(resolver, &name).await;
                found.map_err(|error| failed(&format!("its name has no address: {error}")))?.to_vec()
            }
        };
        let mut stream = dial::connect(&addresses, self.port).await.map_err(|error| failed(&error.to_string()))?;
        match timeout(DEADLINE, self.ask(&mut stream, host, port)).await {
            Ok(asked) => asked.map(|()| stream),
            Err(_late) => Err(failed("it does not answer")),
        }
    }

    async fn ask(&self, stream: &mut TcpStream, host: &str, port: u16) -> io::Result<()> {
        let place = match host.parse::<IpAddr>() {
            Ok(address) => SocketAddr::new(address, port).to_string(),
            Err(_) => format!("{host}:{port}"),
        };
        let login = self.authorization.as_ref().map(|value| format!("Proxy-Authorization: {}\r\n", value.as_str()));
        let login = Zeroizing::new(login.unwrap_or_default());
        let request = Zeroizing::new(format!("CONNECT {place} HTTP/1.1\r\nHost: {place}\r\n{}\r\n", login.as_str()));
        stream.write_all(request.as_bytes()).await?;
        let head = head(stream).await?;
        let line = head.lines().next().unwrap_or_default();
        let mut words = line.splitn(3, ' ');
        let (version, status) = (words.next().unwrap_or_default(), words.next().unwrap_or_default());
        match status {
            _ if !version.starts_with("HTTP/1.") => Err(failed("it does not speak HTTP/1")),
            "200" => Ok(()),
            "407" => Err(failed("it wants another login (407)")),
            // Its own words are of nobody that is trusted.
            status => Err(failed(&format!("it answered {}", status.chars().take(3).collect::<String>()))),
        }
    }
}

/// The head of the answer and not a byte more: what follows is said by the host, which may speak first.
async fn head(stream: &mut TcpStream) -> io::Result<String> {
    let mut bytes = Vec::new();
    let mut seen = vec![0; HEAD_BYTES];
    loop {
        let length = stream.peek(&mut seen).await?;
        if length == 0 {
            return Err(failed("it closed the connection"));
        }
        // The end may lie over the border of what was taken and what is seen.
        let before = bytes.len();
        bytes.extend_from_slice(&seen[..length]);
        let end = bytes.windows(4).position(|four| four == b"\r\n\r\n").map(|at| at + 4);
        let taken = end.unwrap_or(bytes.len()) - before;
        stream.read_exact(&mut seen[..taken]).await?;
        bytes.truncate(before + taken);
        if end.is_some() {
            return String::from_utf8(bytes).map_err(|_| failed("its answer is no text"));
        }
        if bytes.len() > HEAD_BYTES {
            return Err(failed("its answer has too long a head"));
        }
    }
}

fn failed(why: &str) -> io::Error {
    io::Error::other(format!("the upstream proxy: {why}"))
}

fn percent_decoded(text: &str) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.as_bytes();
    while let Some((&byte, after)) = rest.split_first() {
        let hex = after.get(..2).and_then(|hex| std::str::from_utf8(hex).ok());
        match hex.and_then(|hex| u8::from_str_radix(hex, 16).ok()).filter(|_| byte == b'%') {
            Some(decoded) => {
                bytes.push(decoded);
                rest = &after[2..];
            }
            None => {
                bytes.push(byte);
                rest = after;
            }
        }
    }
    bytes
}

#[cfg(test)]
mod tests;
