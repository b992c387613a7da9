//! Input of requests: query strings and JSON bodies.

use http::{Request, StatusCode};
use http_body_util::{BodyExt, Limited};
use hyper::body::Incoming;
use protocol::execd::code;
use serde::de::DeserializeOwned;

use crate::error::{ApiError, Result};

/// Bytes of a JSON body: texts to replace travel in it; file content does not.
const MAX_JSON_BYTES: usize = 16 * 1024 * 1024;

/// The parameters of a query string, in order.
pub struct Query(Vec<(String, String)>);

impl Query {
    /// Decodes `+` and `%XX`; what is not UTF-8 afterwards becomes U+FFFD.
    pub fn of(request: &Request<Incoming>) -> Self {
        Self::parse(request.uri().query().unwrap_or(""))
    }

    fn parse(query: &str) -> Self {
        let pairs = query.split('&').filter(|pair| !pair.is_empty());
        Self(
            pairs
                .map(|pair| {
                    let (name, value) = pair.split_once('=').unwrap_or((pair, ""));
                    (decode(name), decode(value))
                })
                .collect(),
        )
    }

    /// The first value of a name.
    pub fn get(&self, name: &str) -> Option<&str> {
        self.0.iter().find(|pair| pair.0 == name).map(|pair| pair.1.as_str())
    }

    /// All values of a name.
    pub fn all<'a>(&'a self, name: &'a str) -> impl Iterator<Item = &'a str> {
        self.0.iter().filter(move |pair| pair.0 == name).map(|pair| pair.1.as_str())
    }

    /// The first value, which must be there and not empty.
    ///
    /// # Errors
    /// 400 naming the parameter.
    pub fn require(&self, name: &str) -> Result<&str> {
        self.get(name).filter(|value| !value.is_empty()).ok_or_else(|| ApiError::missing_query(name))
    }
}

fn decode(text: &str) -> String {
    let mut out = Vec::with_capacity(text.len());
    let mut bytes = text.bytes();
    while let Some(byte) = bytes.next() {
        match byte {
            b'+' => out.push(b' '),
            b'%' => {
                let mut ahead = bytes.clone();
                let pair = (ahead.next().and_then(hex), ahead.next().and_then(hex));
                if let (Some(high), Some(low)) = pair {
                    out.push(high << 4 | low);
                    bytes = ahead;
                } else {
                    out.push(b'%');
                }
            }
            byte => out.push(byte),
        }
    }
    String::from_utf8_lossy(&out).into_owned()
}

fn hex(byte: u8) -> Option<u8> {
    char::from(byte).to_digit(16).map(|digit| digit as u8)
}

/// Reads the first JSON value of a body; its type and what follows are not looked at, as published.
///
/// # Errors
/// 400 for an empty or malformed body, 413 for one beyond the bound.
pub async fn read_json<T: DeserializeOwned>(request: Request<Incoming>) -> Result<T> {
    read_optional_json(request).await?.ok_or_else(|| ApiError::body("the body is empty; JSON is expected"))
}

/// As [`read_json`], but an empty body is `None`.
///
/// # Errors
/// As [`read_json`].
pub async fn read_optional_json<T: DeserializeOwned>(request: Request<Incoming>) -> Result<Option<T>> {
    let body = Limited::new(request.into_body(), MAX_JSON_BYTES).collect().await.map_err(|error| {
        if error.is::<http_body_util::LengthLimitError>() {
            let message = format!("the body is larger than {MAX_JSON_BYTES} bytes; send file content to /files/upload");
            ApiError::new(StatusCode::PAYLOAD_TOO_LARGE, code::INVALID_REQUEST_BODY, message)
        } else {
            ApiError::body(format!("read the body: {error}"))
        }
    })?;
    let bytes = body.to_bytes();
    match serde_json::Deserializer::from_slice(&bytes).into_iter().next() {
        Some(Ok(value)) => Ok(Some(value)),
        Some(Err(error)) => Err(ApiError::body(format!("the body is not the expected JSON: {error}"))),
        None => Ok(None),
    }
}

#[cfg(test)]
mod tests {
    use super::Query;

    #[test]
    fn plus_and_percent_are_decoded_and_lists_repeat() {
        let query = Query::parse("path=a+b&path=%2Fc%zz&x");
        assert_eq!(query.all("path").collect::<Vec<_>>(), ["a b", "/c%zz"]);
        assert_eq!(query.get("x"), Some(""));
    }
}
