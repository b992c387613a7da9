//! The keys that sign links.

use base64::Engine as _;
use base64::alphabet::STANDARD;
use base64::engine::{DecodePaddingMode, GeneralPurpose, GeneralPurposeConfig};
use hmac::{Hmac, KeyInit as _, Mac as _};
use secrecy::{ExposeSecret as _, SecretSlice};
use sha2::Sha256;

/// Published keys are written with and without padding.
const BASE64: GeneralPurpose = GeneralPurpose::new(
    &STANDARD,
    GeneralPurposeConfig::new().with_decode_padding_mode(DecodePaddingMode::Indifferent),
);
/// Names a key that was derived, as those that are configured are named.
const DERIVED_ID: u8 = b'0';
/// Most keys: old ones are kept for the longest life of a link.
const MAX_KEYS: usize = 36;

/// The keys that count, one of which signs.
pub struct Keys {
    active: usize,
    keys: Vec<(u8, SecretSlice<u8>)>,
}

/// Why keys cannot be used. Never repeats a key.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum KeyError {
    /// A name is not one of `[0-9a-z]`.
    #[error("a key_id must be one character of 0-9 and a-z")]
    Id,
    /// Two keys have the same name.
    #[error("the key_id {0} is there twice")]
    Twice(char),
    /// A key is no base64, or empty.
    #[error("the key {0} must be base64, and not empty")]
    Secret(char),
    /// The active key is none of them.
    #[error("the active key {0:?} is none of the keys")]
    Active(String),
}

impl Keys {
    /// Keys as configured: names, and base64 of their bytes. `active` names the one that signs.
    ///
    /// # Errors
    /// The first that cannot be used.
    pub fn new<'a>(active: &str, keys: impl IntoIterator<Item = (&'a str, &'a str)>) -> Result<Self, KeyError> {
        let mut kept: Vec<(u8, SecretSlice<u8>)> = Vec::new();
        for (id, text) in keys {
            let [id] = *id.as_bytes() else { return Err(KeyError::Id) };
            if !(id.is_ascii_digit() || id.is_ascii_lowercase()) {
                return Err(KeyError::Id);
            }
            let name = char::from(id);
            if kept.len() == MAX_KEYS || kept.iter().any(|(other, _)| *other == id) {
                return Err(KeyError::Twice(name));
            }
            match BASE64.decode(text.trim()) {
                Ok(secret) if !secret.is_empty() => kept.push((id, SecretSlice::from(secret))),
                _ => return Err(KeyError::Secret(name)),
            }
        }
        let position = kept.iter().position(|(id, _)| active.as_bytes() == [*id]);
        let active = position.ok_or_else(|| KeyError::Active(active.to_owned()))?;
        Ok(Self { active, keys: kept })
    }

    /// The one key of a server for which none is configured.
    pub fn derived(secret: &[u8; 32]) -> Self {
        let mut mac = Hmac::<Sha256>::new_from_slice(secret).expect("HMAC takes keys of any length");
        // A sandbox's token is an HMAC of its id under the same secret, and ids have no blanks.
        mac.update(b"key of signed links");
        Self { active: 0, keys: vec![(DERIVED_ID, SecretSlice::from(mac.finalize().into_bytes().to_vec()))] }
    }

    pub(super) fn active(&self) -> (u8, &[u8]) {
        let (id, secret) = &self.keys[self.active];
        (*id, secret.expose_secret())
    }

    pub(super) fn secret(&self, id: u8) -> Option<&[u8]> {
        self.keys.iter().find(|(key, _)| *key == id).map(|(_, secret)| secret.expose_secret())
    }
}
