//! Authorities that can be made again: their keys follow from a secret that outlives the process and its supervisor.
//!
//! What a sandbox's programs trust cannot be changed while they run. An authority whose key is gone could show them nothing
//! more, and no credential could ever be given to them again. So the key of each follows from one secret of the machine and the
//! sandbox's id. It signs for hosts of that one sandbox only, which nobody but the sandbox believes.

use aws_lc_rs::hkdf::{HKDF_SHA256, KeyType, Salt};
use rcgen::{KeyPair, PKCS_ECDSA_P256_SHA256};
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, PrivatePkcs8KeyDer};
use zeroize::Zeroizing;

use super::{Authority, AuthorityError, params_of};
use crate::sealed::Key;

/// A P-256 key as PKCS #8 (RFC 5958, RFC 5915) before its 32 bytes; the public half follows from them.
const PKCS8_HEAD: [u8; 35] = [
    0x30, 0x41, 0x02, 0x01, 0x00, 0x30, 0x13, 0x06, 0x07, 0x2a, 0x86, 0x48, 0xce, 0x3d, 0x02, 0x01, 0x06, 0x08, 0x2a,
    0x86, 0x48, 0xce, 0x3d, 0x03, 0x01, 0x07, 0x04, 0x27, 0x30, 0x25, 0x02, 0x01, 0x01, 0x04, 0x20,
];
/// Bytes of a key's number.
const NUMBER_BYTES: usize = 32;
/// Numbers that are drawn before it is given up: one in four billion is none of the curve's.
const DRAWS: u8 = 4;

struct Number;

impl KeyType for Number {
    fn len(&self) -> usize {
        NUMBER_BYTES
    }
}

impl Authority {
    /// The authority of a sandbox that follows from a secret. Its certificate is new each time, its key is not.
    ///
    /// # Errors
    /// When no key follows.
    pub fn derive(sandbox: &str, secret: &Key) -> Result<Self, AuthorityError> {
        let drawn = (0..DRAWS).find_map(|draw| draw_key(sandbox, secret, draw));
        let key = drawn.ok_or(AuthorityError::Certificate(rcgen::Error::CouldNotParseKeyPair))?;
        let certificate_pem = params_of(sandbox).self_signed(&key)?.pem();
        Self::assemble(sandbox, certificate_pem, key)
    }

    /// The same authority under a certificate that was handed out before; `None` if that is of another key.
    pub fn under(mut self, certificate_pem: &str) -> Option<Self> {
        let certificate = CertificateDer::from_pem_slice(certificate_pem.as_bytes()).ok()?;
        let key = self.issuer.key().public_key_raw();
        let is_its_own = certificate.windows(key.len()).any(|window| window == key);
        certificate_pem.clone_into(&mut self.certificate_pem);
        is_its_own.then_some(self)
    }
}

fn draw_key(sandbox: &str, secret: &Key, draw: u8) -> Option<KeyPair> {
    let mut pkcs8 = Zeroizing::new([0; PKCS8_HEAD.len() + NUMBER_BYTES]);
    pkcs8[..PKCS8_HEAD.len()].copy_from_slice(&PKCS8_HEAD);
    let info = [b"osb authority", sandbox.as_bytes(), &[draw]];
    let from = Salt::new(HKDF_SHA256, &[]).extract(secret.bytes());
    from.expand(&info, Number).and_then(|number| number.fill(&mut pkcs8[PKCS8_HEAD.len()..])).ok()?;
    KeyPair::from_pkcs8_der_and_sign_algo(&PrivatePkcs8KeyDer::from(&pkcs8[..]), &PKCS_ECDSA_P256_SHA256).ok()
}
