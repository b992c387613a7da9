//! Signed links: a path that opens one port of one sandbox until it ends, without any token. `docs/links.md` has the
//! exact formats.
//!
//! Version 1 is the published one: 32 bits of signature, so wrong ones are counted ([`Failures`]) and a sandbox that
//! was asked with too many answers none for a while. Version 2 is an HMAC-SHA-256 and can be bound to a method and
//! to what lies below a path. Only the canonical form of a link counts; signatures are compared in constant time.

mod failures;
mod keys;
mod scope;
#[cfg(test)]
mod tests;

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use hmac::{Hmac, KeyInit as _, Mac as _};
use http::Method;
use sha2::{Digest as _, Sha256};
use subtle::ConstantTimeEq as _;

pub use failures::Failures;
pub use keys::{KeyError, Keys};
pub use scope::{Scope, ScopeError};

/// Digits of the number of seconds in base 36 (published): 13 hold every 64-bit number.
const MAX_EXPIRES_DIGITS: usize = 13;
/// Hex digits of a signature of version 1 (published).
const V1_DIGITS: usize = 8;
/// Begins every signature of version 2; one of version 1 has no full stop.
const V2_MARK: &str = "v2.";
/// Stands for "any method" and for "any path".
const ANY: &str = "-";

/// What a link opens.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Link<'a> {
    /// Which sandbox.
    pub id: &'a str,
    /// Which port of it.
    pub port: u16,
    /// The last second in which it opens, counted from 1970.
    pub expires: u64,
}

/// Form of a signature.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Version {
    /// The published form.
    V1,
    /// Ours.
    V2(Scope),
}

/// A call by a link, as it was sent.
#[derive(Clone, Copy, Debug)]
pub struct Claim<'a> {
    /// Which sandbox.
    pub id: &'a str,
    /// Which port of it.
    pub port: u16,
    /// The part of the path that says when it ends.
    pub expires: &'a str,
    /// The part of the path that vouches for it.
    pub signature: &'a str,
    /// Method of the call.
    pub method: &'a Method,
    /// Path for the application: empty or with its leading slash, never decoded.
    pub rest: &'a str,
}

/// Why a link does not open anything.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Refused {
    /// It is not of the one form that a link has, or its key or signature is wrong. One answer for all, so that
    /// nothing is learnt from it.
    #[error("the link is not valid")]
    Invalid,
    /// It was valid.
    #[error("the link has expired; ask for a new one")]
    Expired,
    /// It is valid for other methods or paths.
    #[error("the link was made for another method or path")]
    Scope,
}

/// The two last parts of a link's path, `{expires}/{signature}`.
pub fn sign(keys: &Keys, link: Link<'_>, version: &Version) -> String {
    let expires = base36(link.expires);
    let (id, secret) = keys.active();
    let signature = match version {
        Version::V1 => format!("{}{}", v1(secret, link.id, link.port, &expires), char::from(id)),
        Version::V2(scope) => {
            let (method, prefix) = (scope.method().unwrap_or(ANY), scope.prefix_text());
            let mac = v2(secret, link.id, link.port, &expires, method, &prefix).finalize().into_bytes();
            format!("{V2_MARK}{}.{method}.{prefix}.{}", char::from(id), URL_SAFE_NO_PAD.encode(mac))
        }
    };
    format!("{expires}/{signature}")
}

/// Checks a call by a link at this second.
///
/// # Errors
/// The link does not open what is called.
pub fn check(keys: &Keys, claim: &Claim<'_>, now: u64) -> Result<(), Refused> {
    let expires = parse_base36(claim.expires).ok_or(Refused::Invalid)?;
    let scope = match claim.signature.strip_prefix(V2_MARK) {
        Some(rest) => Some(check_v2(keys, claim, rest)?),
        None => {
            check_v1(keys, claim)?;
            None
        }
    };
    if now > expires {
        return Err(Refused::Expired);
    }
    match scope {
        Some(scope) if !scope.covers(claim.method, claim.rest) => Err(Refused::Scope),
        _ => Ok(()),
    }
}

/// Whether a link is of the version whose wrong signatures must be counted.
pub fn is_guessable(claim: &Claim<'_>) -> bool {
    !claim.signature.starts_with(V2_MARK)
}

fn check_v1(keys: &Keys, claim: &Claim<'_>) -> Result<(), Refused> {
    let signature = claim.signature.as_bytes();
    let (key_id, digits) = signature.split_last().ok_or(Refused::Invalid)?;
    let is_hex = |digit: &u8| digit.is_ascii_digit() || (b'a'..=b'f').contains(digit);
    if digits.len() != V1_DIGITS || !digits.iter().all(is_hex) {
        return Err(Refused::Invalid);
    }
    let secret = keys.secret(*key_id).ok_or(Refused::Invalid)?;
    let expected = v1(secret, claim.id, claim.port, claim.expires);
    if bool::from(expected.as_bytes().ct_eq(digits)) { Ok(()) } else { Err(Refused::Invalid) }
}

/// The first eight digits of what the published gateway computes.
fn v1(secret: &[u8], id: &str, port: u16, expires: &str) -> String {
    let canonical = format!("v1\nshort\n{id}\n{port}\n{expires}\n");
    let length = |bytes: &[u8]| u32::try_from(bytes.len()).unwrap_or(u32::MAX).to_be_bytes();
    let digest = Sha256::new()
        .chain_update(length(secret))
        .chain_update(secret)
        .chain_update(length(canonical.as_bytes()))
        .chain_update(&canonical)
        .finalize();
    digest[..V1_DIGITS / 2].iter().map(|byte| format!("{byte:02x}")).collect()
}

fn check_v2(keys: &Keys, claim: &Claim<'_>, rest: &str) -> Result<Scope, Refused> {
    let parts: Vec<&str> = rest.split('.').collect();
    let [key_id, method, prefix, mac] = parts.as_slice() else {
        return Err(Refused::Invalid);
    };
    let [key_id] = key_id.as_bytes() else {
        return Err(Refused::Invalid);
    };
    let secret = keys.secret(*key_id).ok_or(Refused::Invalid)?;
    let mac = URL_SAFE_NO_PAD.decode(mac).map_err(|_| Refused::Invalid)?;
    let expected = v2(secret, claim.id, claim.port, claim.expires, method, prefix);
    // Whole and in constant time; the form of the scope is looked at only where we made it.
    expected.verify_slice(&mac).map_err(|_| Refused::Invalid)?;
    Scope::parse(method, prefix).ok_or(Refused::Invalid)
}

fn v2(secret: &[u8], id: &str, port: u16, expires: &str, method: &str, prefix: &str) -> Hmac<Sha256> {
    let mut mac = Hmac::<Sha256>::new_from_slice(secret).expect("HMAC takes keys of any length");
    mac.update(format!("opensandbox-link-v2\n{id}\n{port}\n{expires}\n{method}\n{prefix}\n").as_bytes());
    mac
}

fn base36(mut number: u64) -> String {
    let mut digits = Vec::new();
    loop {
        digits.push(char::from_digit((number % 36) as u32, 36).expect("is below the radix"));
        number /= 36;
        if number == 0 {
            return digits.iter().rev().collect();
        }
    }
}

/// The number, if this is the one way to write it.
fn parse_base36(text: &str) -> Option<u64> {
    let canonical = !text.is_empty()
        && text.len() <= MAX_EXPIRES_DIGITS
        && text.bytes().all(|digit| digit.is_ascii_digit() || digit.is_ascii_lowercase())
        && (text == "0" || !text.starts_with('0'));
    canonical.then(|| u64::from_str_radix(text, 36).ok()).flatten()
}
