//! Reads the path of a call to a port.

use protocol::error::code;

use crate::errors::ApiError;

/// `[/v1]/sandboxes/{id}/proxy/{port}[/rest]`, every part as it was sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Target<'a> {
    pub(crate) id: &'a str,
    port: &'a str,
    /// Path for the backend: empty or with its leading slash, never decoded.
    pub(crate) rest: &'a str,
    /// What lies before `rest`: the prefix under which the caller sees the port.
    pub(crate) prefix: &'a str,
}

impl<'a> Target<'a> {
    /// `None` when the path is not one of a port.
    pub(crate) fn parse(path: &'a str) -> Option<Self> {
        let after = path.strip_prefix("/v1").unwrap_or(path).strip_prefix("/sandboxes/")?;
        let (id, after) = after.split_once('/')?;
        let after = after.strip_prefix("proxy/")?;
        let port = &after[..after.find('/').unwrap_or(after.len())];
        if id.is_empty() || port.is_empty() {
            return None;
        }
        let rest = &after[port.len()..];
        Some(Self { id, port, rest, prefix: &path[..path.len() - rest.len()] })
    }

    /// The port as a number.
    pub(crate) fn port(&self) -> Result<u16, ApiError> {
        parse_port(self.port)
    }
}

/// A port of a path: 422 when it is no number, 400 when it is out of range.
pub(crate) fn parse_port(text: &str) -> Result<u16, ApiError> {
    let Ok(number) = text.parse::<i64>() else {
        let loc = ["path".to_owned(), "port".to_owned()];
        return Err(ApiError::invalid(code::INVALID_PARAMETER, "int_parsing", &loc, "port: must be a whole number"));
    };
    match u16::try_from(number) {
        Ok(port) if port > 0 => Ok(port),
        _ => Err(ApiError::bad_request(code::INVALID_PORT, "port: must lie between 1 and 65535")),
    }
}
