//! How a registry asks for credentials, and what is sent then.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use secrecy::{ExposeSecret, SecretString};

use crate::Credentials;

/// A `WWW-Authenticate` header, as far as registries use it.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Challenge {
    Basic,
    Bearer { realm: String, service: Option<String>, scope: Option<String> },
}

impl Challenge {
    pub(super) fn parse(header: &str) -> Option<Self> {
        let (scheme, rest) = header.trim().split_once(' ').unwrap_or((header.trim(), ""));
        if scheme.eq_ignore_ascii_case("basic") {
            return Some(Self::Basic);
        }
        if !scheme.eq_ignore_ascii_case("bearer") {
            return None;
        }
        let (mut realm, mut service, mut scope) = (None, None, None);
        for (key, value) in parameters(rest) {
            match key.to_ascii_lowercase().as_str() {
                "realm" => realm = Some(value),
                "service" => service = Some(value),
                "scope" => scope = Some(value),
                _ => {}
            }
        }
        Some(Self::Bearer { realm: realm?, service, scope })
    }

    /// Bearer before Basic: the password then goes to the token address only.
    pub(super) fn preference(&self) -> u8 {
        match self {
            Self::Basic => 0,
            Self::Bearer { .. } => 1,
        }
    }
}

/// Reads `key="value"` pairs; values may have commas and escaped quotes in them.
fn parameters(text: &str) -> Vec<(String, String)> {
    let mut pairs = Vec::new();
    let mut rest = text;
    while let Some((key, after)) = rest.split_once('=') {
        let key = key.trim_matches([' ', ',']).to_owned();
        let mut value = String::new();
        let mut characters = after.char_indices();
        let mut end = after.len();
        if after.starts_with('"') {
            characters.next();
            while let Some((at, character)) = characters.next() {
                match character {
                    '\\' => value.extend(characters.next().map(|(_, escaped)| escaped)),
                    '"' => {
                        end = at + 1;
                        break;
                    }
                    other => value.push(other),
                }
            }
        } else {
            end = after.find(',').unwrap_or(after.len());
            value.push_str(after[..end].trim());
        }
        pairs.push((key, value));
        rest = &after[end..];
    }
    pairs
}

/// The value of `Authorization` for a user name and password.
pub(super) fn basic(credentials: &Credentials) -> SecretString {
    let pair = format!("{}:{}", credentials.username, credentials.password.expose_secret());
    format!("Basic {}", STANDARD.encode(pair)).into()
}

/// The value of `Authorization` from the answer of a token address.
pub(super) fn token(body: &[u8]) -> Option<SecretString> {
    let answer: serde_json::Value = serde_json::from_slice(body).ok()?;
    let token =
        ["token", "access_token"].iter().find_map(|key| answer.get(key)?.as_str().filter(|token| !token.is_empty()))?;
    Some(format!("Bearer {token}").into())
}
