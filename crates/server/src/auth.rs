//! Who may call: the API key of the server and the token of each sandbox.
//!
//! A sandbox's token is an HMAC of its id under the server's secret: it is never stored, and it survives a
//! restart. Comparisons take the same time whatever was sent: hashes of both sides are compared.

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use hmac::{Hmac, KeyInit as _, Mac as _};
use http::HeaderMap;
use protocol::error::code;
use protocol::headers;
use secrecy::{ExposeSecret as _, SecretString};
use sha2::{Digest as _, Sha256};
use subtle::ConstantTimeEq as _;

use crate::errors::ApiError;

/// Keys and the secret from which tokens are made.
pub(crate) struct Auth {
    api_key_hash: [u8; 32],
    secret: secrecy::SecretBox<[u8; 32]>,
}

impl Auth {
    pub(crate) fn new(api_key: &SecretString, secret: [u8; 32]) -> Self {
        Self {
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

    /// Checks a call to a port of a sandbox: the API key or the sandbox's token, in any of their headers.
    pub(crate) fn check_access(&self, id: &str, headers: &HeaderMap) -> Result<(), ApiError> {
        if headers.get_all(headers::API_KEY).iter().any(|value| self.is_api_key(value.as_bytes())) {
            return Ok(());
        }
        let expected = hash(self.token(id).expose_secret().as_bytes());
        for name in [headers::EXECD_ACCESS_TOKEN, headers::SECURE_ACCESS] {
            for value in headers.get_all(name) {
                if same(&hash(value.as_bytes().trim_ascii()), &expected) {
                    return Ok(());
                }
            }
        }
        Err(unauthorized(
            code::MISSING_OR_INVALID_SECURE_ACCESS,
            "send the headers that the endpoint look-up of this sandbox returned, or the API key",
        ))
    }

    fn is_api_key(&self, value: &[u8]) -> bool {
        same(&hash(value), &self.api_key_hash)
    }
}

fn unauthorized(code: &str, message: &str) -> ApiError {
    ApiError::new(http::StatusCode::UNAUTHORIZED, code, message)
}

fn hash(bytes: &[u8]) -> [u8; 32] {
    Sha256::digest(bytes).into()
}

fn same(a: &[u8; 32], b: &[u8; 32]) -> bool {
    a.ct_eq(b).into()
}
