//! The certificate authority of one sandbox, with which bound hosts are shown to its programs.
//!
//! Made when the sandbox is; its certificate goes into the sandbox, its key stays here and with the sealed copy. Leaves
//! live as long as the process and share one key.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant, SystemTime};

use rcgen::{
    BasicConstraints, CertificateParams, DistinguishedName, DnType, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair,
    KeyUsagePurpose, PKCS_ECDSA_P256_SHA256,
};
use rustls::crypto::aws_lc_rs::sign::any_supported_type;
use rustls::pki_types::{PrivateKeyDer, PrivatePkcs8KeyDer};
use rustls::sign::CertifiedKey;
use serde::{Deserialize, Serialize};
use zeroize::Zeroizing;

use crate::name::Name;

mod again;

/// Leaves that are kept; a sandbox that visits more bound hosts than this has some made again.
const MAX_LEAVES: usize = 256;
/// Certificates are valid from a day before, for clocks that are behind.
const BACKDATED: Duration = Duration::from_secs(24 * 3600);
/// An authority is valid for so long: ten years, longer than any sandbox lives.
const LIFETIME: Duration = Duration::from_secs(3650 * 24 * 3600);
/// A leaf for so long: what clients accept (398 days, CA/Browser Forum baseline requirements, section 6.3.2).
const LEAF_LIFETIME: Duration = Duration::from_secs(390 * 24 * 3600);
/// A leaf is made again when it is this old.
const LEAF_AGE: Duration = Duration::from_secs(30 * 24 * 3600);

/// Why an authority cannot be had.
#[derive(Debug, thiserror::Error)]
pub enum AuthorityError {
    /// A certificate cannot be made or read.
    #[error("a certificate cannot be made: {0}")]
    Certificate(#[from] rcgen::Error),
    /// A key cannot be used.
    #[error("a key cannot be used: {0}")]
    Key(#[from] rustls::Error),
}

/// An authority as it is kept, sealed: secret.
#[derive(Clone, Serialize, Deserialize)]
pub struct Stored {
    sandbox: String,
    certificate_pem: String,
    key_pkcs8: Zeroizing<Vec<u8>>,
}

impl std::fmt::Debug for Stored {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Stored(..)")
    }
}

/// A leaf, and since when there is it.
struct Leaf {
    since: Instant,
    key: Arc<CertifiedKey>,
}

/// Signs certificates for one sandbox.
pub struct Authority {
    sandbox: String,
    certificate_pem: String,
    issuer: Issuer<'static, KeyPair>,
    /// Of all leaves.
    leaf_key: KeyPair,
    leaves: Mutex<HashMap<Name, Leaf>>,
}

impl std::fmt::Debug for Authority {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Authority(..)")
    }
}

impl Authority {
    /// Makes a new one.
    ///
    /// # Errors
    /// When the system gives no random bytes.
    pub fn generate(sandbox: &str) -> Result<Self, AuthorityError> {
        let key = KeyPair::generate_for(&PKCS_ECDSA_P256_SHA256)?;
        let certificate_pem = params_of(sandbox).self_signed(&key)?.pem();
        Self::assemble(sandbox, certificate_pem, key)
    }

    /// From what [`Authority::stored`] gave.
    ///
    /// # Errors
    /// When that was not kept whole.
    pub fn restore(stored: &Stored) -> Result<Self, AuthorityError> {
        let key = PrivatePkcs8KeyDer::from(stored.key_pkcs8.as_slice());
        let key = KeyPair::from_pkcs8_der_and_sign_algo(&key, &PKCS_ECDSA_P256_SHA256)?;
        Self::assemble(&stored.sandbox, stored.certificate_pem.clone(), key)
    }

    fn assemble(sandbox: &str, certificate_pem: String, key: KeyPair) -> Result<Self, AuthorityError> {
        // Of the certificate a leaf repeats its name and its key's identifier, both of which follow from these.
        let issuer = Issuer::new(params_of(sandbox), key);
        let leaf_key = KeyPair::generate_for(&PKCS_ECDSA_P256_SHA256)?;
        Ok(Self { sandbox: sandbox.to_owned(), certificate_pem, issuer, leaf_key, leaves: Mutex::default() })
    }

    /// Its certificate, for those who are to trust it.
    pub fn pem(&self) -> &str {
        &self.certificate_pem
    }

    /// All of it, to be sealed.
    pub fn stored(&self) -> Stored {
        let key_pkcs8 = Zeroizing::new(self.issuer.key().serialize_der());
        Stored { sandbox: self.sandbox.clone(), certificate_pem: self.certificate_pem.clone(), key_pkcs8 }
    }

    /// The certificate of a host, with its key.
    ///
    /// # Errors
    /// When it cannot be signed.
    pub fn leaf(&self, host: &Name) -> Result<Arc<CertifiedKey>, AuthorityError> {
        if let Some(found) = self.leaves().get(host).filter(|leaf| leaf.since.elapsed() < LEAF_AGE) {
            return Ok(found.key.clone());
        }
        let mut params = CertificateParams::new(vec![host.to_string()])?;
        params.distinguished_name = DistinguishedName::new();
        params.distinguished_name.push(DnType::CommonName, common_name(&host.to_string()));
        params.key_usages = vec![KeyUsagePurpose::DigitalSignature];
        params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ServerAuth];
        params.use_authority_key_identifier_extension = true;
        limit(&mut params, LEAF_LIFETIME);
        let certificate = params.signed_by(&self.leaf_key, &self.issuer)?;
        let key = PrivateKeyDer::from(PrivatePkcs8KeyDer::from(self.leaf_key.serialize_der()));
        let leaf = Arc::new(CertifiedKey::new(vec![certificate.der().clone()], any_supported_type(&key)?));
        let mut leaves = self.leaves();
        if leaves.len() >= MAX_LEAVES {
            leaves.clear();
        }
        leaves.insert(host.clone(), Leaf { since: Instant::now(), key: leaf.clone() });
        Ok(leaf)
    }

    fn leaves(&self) -> std::sync::MutexGuard<'_, HashMap<Name, Leaf>> {
        self.leaves.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn params_of(sandbox: &str) -> CertificateParams {
    let mut params = CertificateParams::default();
    params.distinguished_name = DistinguishedName::new();
    params.distinguished_name.push(DnType::CommonName, common_name(&format!("Sandbox {sandbox}")));
    params.distinguished_name.push(DnType::OrganizationName, "osb egress");
    params.is_ca = IsCa::Ca(BasicConstraints::Constrained(0));
    params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
    limit(&mut params, LIFETIME);
    params
}

fn limit(params: &mut CertificateParams, lifetime: Duration) {
    let now = SystemTime::now();
    params.not_before = (now - BACKDATED).into();
    params.not_after = (now - BACKDATED + lifetime).into();
}

/// A common name has room for 64 characters (RFC 5280, appendix A.1); clients look at the alternative names.
fn common_name(text: &str) -> &str {
    if text.len() <= 64 { text } else { "sandbox" }
}

#[cfg(test)]
mod tests;
