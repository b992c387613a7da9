//! Who may call: the API key of the server and the token of each sandbox.
//!
//! A sandbox's token is an HMAC of its id under the server's secret: it is never stored, and it survives a
//! restart. Comparisons take the same time whatever was sent: hashes of both sides are compared.

use std::sync::Arc;
use std::time::Duration;

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use hmac::{Hmac, KeyInit as _, Mac as _};
use http::{HeaderMap, HeaderValue, StatusCode};
use ingress::links::{self, Claim, Failures, Keys, Link, Version};
use protocol::error::code;
use protocol::headers;
use secrecy::{ExposeSecret as _, SecretString};
use sha2::{Digest as _, Sha256};
use subtle::ConstantTimeEq as _;

use crate::errors::ApiError;

/// Keys and the secret from which tokens are made.
pub(crate) struct Auth {
    api_key_hash: [u8; 32],
    links: Arc<Keys>,
    secret: secrecy::SecretBox<[u8; 32]>,
}

impl Auth {
    /// Links are signed with `keys`, or else with one made from the secret.
    pub(crate) fn new(api_key: &SecretString, secret: [u8; 32], keys: Option<Arc<Keys>>) -> Self {
        Self {
            links: keys.unwrap_or_else(|| Arc::new(Keys::derived(&secret))),
            api_key_hash: hash(api_key.expose_secret().as_bytes()),
            secret: secrecy::SecretBox::new(Box::new(secret)),
        }
    }

    /// The token of one sandbox.
    pub(crate) fn token(&self, id: &str) -> SecretString {
        let mut mac =
            Hmac::<Sha256>::new_from_slice(self.secret.expose_secret()).expect("HMAC takes keys of any length");
        mac.update(id.as_bytes());
        SecretString::from(URL_SAFE_NO_PAD.encode(mac.finalize().into_bytes()))
    }

    /// Checks the API key of a call to the lifecycle API.
    pub(crate) fn check_api_key(&self, headers: &HeaderMap) -> Result<(), ApiError> {
        let Some(value) = headers.get(headers::API_KEY) else {
            return Err(unauthorized(code::MISSING_API_KEY, "send the API key in the header OPEN-SANDBOX-API-KEY"));
        };
        if self.is_api_key(value.as_bytes()) {
            return Ok(());
        }
        Err(unauthorized(code::INVALID_API_KEY, "the API key in OPEN-SANDBOX-API-KEY is not this server's"))
    }

    /// Checks a call to a port of a sandbox: the API key or the sandbox's token, in any of their headers. Where
    /// secure access was asked for the key is not enough, and a wrong token is not made good by another.
    pub(crate) fn check_access(
        &self,
        token: &SecretString,
        headers: &HeaderMap,
        access: Secured,
    ) -> Result<(), ApiError> {
        let expected = hash(token.expose_secret().as_bytes());
        let is_token = |value: &HeaderValue| same(&hash(value.as_bytes().trim_ascii()), &expected);
        let opens = match (access, headers.get(headers::SECURE_ACCESS)) {
            (Secured::Yes, Some(token)) => is_token(token),
            (Secured::Yes, None) => headers.get(headers::EXECD_ACCESS_TOKEN).is_some_and(is_token),
            (Secured::No, _) => {
                headers.get_all(headers::API_KEY).iter().any(|value| self.is_api_key(value.as_bytes()))
                    || headers.get_all(headers::EXECD_ACCESS_TOKEN).iter().any(is_token)
                    || headers.get_all(headers::SECURE_ACCESS).iter().any(is_token)
            }
        };
        if opens {
            return Ok(());
        }
        let message = match access {
            Secured::Yes => "send the headers that the endpoint look-up of this sandbox returned",
            Secured::No => "send the headers that the endpoint look-up of this sandbox returned, or the API key",
        };
        Err(unauthorized(code::MISSING_OR_INVALID_SECURE_ACCESS, message))
    }

    /// The two last parts of a link's path.
    pub(crate) fn sign(&self, link: Link<'_>, version: &Version) -> String {
        links::sign(&self.links, link, version)
    }

    /// Checks a call by a link at this second; `failures` are those of the sandbox, where there is one.
    pub(crate) fn check_link(&self, claim: &Claim<'_>, now: u64, failures: Option<&Failures>) -> Result<(), ApiError> {
        let counted = failures.filter(|_| links::is_guessable(claim));
        if let Some(Err(wait)) = counted.map(Failures::try_take) {
            return Err(too_many_wrong_links(wait));
        }
        let checked = links::check(&self.links, claim, now);
        if let Some(failures) = counted
            && checked != Err(links::Refused::Invalid)
        {
            failures.give_back();
        }
        checked.map_err(|why| unauthorized(code::MISSING_OR_INVALID_SECURE_ACCESS, &why.to_string()))
    }

    /// Whether a call to the network policy of a sandbox carries the sandbox's token in the header made for that.
    pub(crate) fn opens_policy(&self, token: &SecretString, headers: &HeaderMap) -> bool {
        let expected = hash(token.expose_secret().as_bytes());
        headers.get_all(headers::EGRESS_AUTH).iter().any(|value| same(&hash(value.as_bytes().trim_ascii()), &expected))
    }

    fn is_api_key(&self, value: &[u8]) -> bool {
        same(&hash(value), &self.api_key_hash)
    }
}

/// Whether a sandbox was made with `secureAccess`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Secured {
    Yes,
    No,
}

fn too_many_wrong_links(wait: Duration) -> ApiError {
    let message = "there were too many wrong links to this sandbox; wait, or ask for a link of version 2";
    let seconds = u32::try_from(wait.as_secs()).unwrap_or(u32::MAX).saturating_add(1);
    ApiError::new(StatusCode::TOO_MANY_REQUESTS, code::TOO_MANY_REQUESTS, message).retry_after(seconds)
}

fn unauthorized(code: &str, message: &str) -> ApiError {
    ApiError::new(StatusCode::UNAUTHORIZED, code, message)
}

fn hash(bytes: &[u8]) -> [u8; 32] {
    Sha256::digest(bytes).into()
}

fn same(a: &[u8; 32], b: &[u8; 32]) -> bool {
    a.ct_eq(b).into()
}
