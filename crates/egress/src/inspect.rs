//! What the first bytes of a client say about where it wants to go: the server name of a TLS ClientHello, the Host of an
//! HTTP/1 request. Hostile input; pure, bounded, and it never guesses: bytes are something known, nothing known, or not
//! enough.

use crate::name::{BadName, Name};

mod http;
mod tls;

/// Most bytes that are held back to look at. A ClientHello with post-quantum key shares has two to three thousand; an
/// HTTP server refuses heads of more than eight to sixteen.
pub const HEAD_BYTES: usize = 16 * 1024;

/// What the first bytes are.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Head {
    /// They could still become something known, and as well be something else of which no more comes.
    Unsure,
    /// They are the beginning of something known: more are needed.
    Unfinished,
    /// A TLS ClientHello, with the server name that it asks for.
    Tls(Option<Name>),
    /// An HTTP/1 request for a path of this host, if it names one.
    Http(Option<Name>),
    /// Something else, of which nothing is known.
    Opaque,
}

/// Why first bytes are refused whatever the policy says: they are made so that two readers see two names.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum BadHead {
    /// It does not end within [`HEAD_BYTES`].
    #[error("the first message is longer than {HEAD_BYTES} bytes")]
    TooLong,
    /// It began and did not go on.
    #[error("the first message does not end in time")]
    TooLate,
    /// It begins like a ClientHello and is none.
    #[error("a ClientHello that contradicts itself")]
    Hello,
    /// More than one server name or Host.
    #[error("more than one host is named")]
    Ambiguous,
    /// The name is no name.
    #[error("the host that is named {0}")]
    Name(BadName),
}

/// Looks at the first bytes of a client.
///
/// # Errors
/// When they must be refused.
pub fn look(bytes: &[u8]) -> Result<Head, BadHead> {
    let head = if tls::could_be(bytes) { tls::look(bytes)? } else { http::look(bytes)? };
    if matches!(head, Head::Unfinished | Head::Unsure) && bytes.len() >= HEAD_BYTES {
        return Err(BadHead::TooLong);
    }
    Ok(head)
}

#[cfg(test)]
mod tests;
