//! Reads the path of a call to a port.

use crate::error::{Error, ErrorKind};

/// A call to a port, every part as it was sent: `[/v1]/sandboxes/{id}/proxy/{port}[/rest]`, which wants a token, or
/// `[/v1]/links/{id}/{port}/{expires}/{signature}[/rest]`, which carries its own right.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Target<'a> {
    /// Which sandbox.
    pub id: &'a str,
    port: &'a str,
    /// Path for the backend: empty or with its leading slash, never decoded.
    pub rest: &'a str,
    /// What lies before `rest`: the prefix under which the caller sees the port.
    pub prefix: &'a str,
    /// What a link says of itself.
    pub link: Option<Signed<'a>>,
}

/// The last two parts of a link.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Signed<'a> {
    /// When it ends.
    pub expires: &'a str,
    /// Who vouches for it.
    pub signature: &'a str,
}

impl<'a> Target<'a> {
    /// `None` when the path is not one of a port.
    pub fn parse(path: &'a str) -> Option<Self> {
        let after = path.strip_prefix("/v1").unwrap_or(path);
        let (id, port, link, rest) = if let Some(after) = after.strip_prefix("/sandboxes/") {
            let (id, after) = after.split_once('/')?;
            let (port, rest) = part(after.strip_prefix("proxy/")?);
            (id, port, None, rest)
        } else {
            let (id, after) = after.strip_prefix("/links/")?.split_once('/')?;
            let (port, after) = after.split_once('/')?;
            let (expires, after) = after.split_once('/')?;
            let (signature, rest) = part(after);
            (id, port, Some(Signed { expires, signature }), rest)
        };
        if id.is_empty() || port.is_empty() {
            return None;
        }
        Some(Self { id, port, rest, prefix: &path[..path.len() - rest.len()], link })
    }

    /// The port as a number.
    ///
    /// # Errors
    /// It is none, or out of range.
    pub fn port(&self) -> Result<u16, Error> {
        parse_port(self.port)
    }

    /// The path as logs may show it: without what opens a link.
    pub fn shown(path: &str) -> &str {
        match Target::parse(path) {
            Some(Target { prefix, link: Some(link), .. }) => {
                &prefix[..prefix.len() - link.signature.len() - link.expires.len() - 1]
            }
            _ => path,
        }
    }
}

/// Up to the next slash, and from it on.
fn part(text: &str) -> (&str, &str) {
    text.split_at(text.find('/').unwrap_or(text.len()))
}

/// A port of a path.
///
/// # Errors
/// It is no number, or out of range.
pub fn parse_port(text: &str) -> Result<u16, Error> {
    let Ok(number) = text.parse::<i64>() else {
        return Err(Error::new(ErrorKind::NoPort, "port: must be a whole number"));
    };
    match u16::try_from(number) {
        Ok(port) if port > 0 => Ok(port),
        _ => Err(Error::new(ErrorKind::PortRange, "port: must lie between 1 and 65535")),
    }
}
