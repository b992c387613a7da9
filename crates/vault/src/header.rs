//! Names of headers that a binding may set, in canonical case, and those that it may not.

/// What says how a message is framed, whom it is for or who sent it, which is not for bindings to say.
const REFUSED: [&str; 14] = [
    "host",
    "content-length",
    "content-type",
    "transfer-encoding",
    "connection",
    "upgrade",
    "te",
    "trailer",
    "proxy-authorization",
    "proxy-authenticate",
    "forwarded",
    "x-forwarded-for",
    "x-forwarded-host",
    "x-forwarded-proto",
];
/// Of one connection, too; HTTP/2 has no place for them.
const OF_A_CONNECTION: [&str; 3] = ["keep-alive", "proxy-connection", "http2-settings"];
/// Longest name of a header.
const MAX_NAME_BYTES: usize = 256;

/// Reads the name of a header that a binding sets: `PRIVATE-TOKEN` becomes `Private-Token`.
pub(crate) fn canonical(name: &str) -> Result<String, String> {
    let lower = name.to_ascii_lowercase();
    if name.len() > MAX_NAME_BYTES || http::HeaderName::from_bytes(lower.as_bytes()).is_err() {
        return Err("is not the name of a header".to_owned());
    }
    if REFUSED.contains(&lower.as_str()) || OF_A_CONNECTION.contains(&lower.as_str()) {
        return Err(format!("{lower:?} cannot be set by a binding"));
    }
    let mut begins = true;
    let canonical = lower.chars().map(|letter| {
        let shown = if begins { letter.to_ascii_uppercase() } else { letter };
        begins = letter == '-';
        shown
    });
    Ok(canonical.collect())
}

/// Whether placeholders in this header are replaced.
pub(crate) fn is_substituted(name: &http::HeaderName) -> bool {
    let name = name.as_str();
    name == "content-type" || !(REFUSED.contains(&name) || OF_A_CONNECTION.contains(&name))
}

/// Whether this header of an answer says how the answer is framed: it is left as it is.
pub(crate) fn is_framing(name: &http::HeaderName) -> bool {
    matches!(
        name.as_str(),
        "content-length" | "transfer-encoding" | "connection" | "upgrade" | "trailer" | "keep-alive"
    )
}

/// Whether this text can be the value of a header.
pub(crate) fn is_value(text: &str) -> bool {
    text.bytes().all(|byte| byte == b'\t' || (byte >= b' ' && byte != 0x7f))
}

#[cfg(test)]
mod tests;
