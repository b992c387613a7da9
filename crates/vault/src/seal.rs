//! A vault as it is kept, sealed: the one form of it that can be written.

use std::fmt;
use std::sync::Arc;

use secrecy::ExposeSecret;
use serde::{Deserialize, Serialize};
use zeroize::Zeroizing;

use crate::Refused;
use crate::binding::Binding;
use crate::vault::{Credential, Vault};

/// A vault with its values: secret, to be sealed before it is kept.
#[derive(Clone, Serialize, Deserialize)]
pub struct Sealed {
    revision: i64,
    credentials: Vec<SealedCredential>,
    bindings: Vec<Binding>,
}

#[derive(Clone, Serialize, Deserialize)]
struct SealedCredential {
    name: String,
    value: Zeroizing<String>,
    revision: i64,
}

impl fmt::Debug for Sealed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Sealed(..)")
    }
}

impl Vault {
    /// All of it, to be sealed.
    pub fn seal(&self) -> Sealed {
        let credentials = self.credentials.iter().map(|(name, credential)| SealedCredential {
            name: name.clone(),
            value: Zeroizing::new(credential.value.expose_secret().to_owned()),
            revision: credential.revision,
        });
        let bindings = self.bindings.values().map(|rendered| rendered.binding.clone());
        Sealed { revision: self.revision, credentials: credentials.collect(), bindings: bindings.collect() }
    }

    /// The vault that was sealed. Whether its sandbox's policy covers it is for [`Vault::recheck`] to say.
    ///
    /// # Errors
    /// When it was not kept whole.
    pub fn restore(sealed: &Sealed) -> Result<Self, Refused> {
        let credentials = sealed.credentials.iter().map(|kept| {
            let value = Arc::new(kept.value.as_str().into());
            (kept.name.clone(), Credential { value, revision: kept.revision })
        });
        let bindings = sealed.bindings.iter().map(|binding| (binding.name.clone(), binding.clone()));
        Self::assemble(sealed.revision, credentials.collect(), bindings.collect())
    }
}

#[cfg(test)]
mod tests;
