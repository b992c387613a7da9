//! TLS on both sides of an interceptor.

use std::io;
use std::sync::{Arc, OnceLock};

use rustls::crypto::CryptoProvider;
use rustls::crypto::aws_lc_rs::default_provider;
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, ServerName};
use rustls::server::{NoServerSessionStorage, ResolvesServerCert};
use rustls::sign::CertifiedKey;
use rustls::{ClientConfig, RootCertStore, ServerConfig};

use crate::name::Name;

/// HTTP/2 in a handshake (RFC 9113, section 3.3).
const H2: &[u8] = b"h2";
/// HTTP/1.1 in a handshake (RFC 7301, section 6).
const HTTP_1: &[u8] = b"http/1.1";

/// Which HTTP is spoken on a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Version {
    /// HTTP/1.1.
    Http1,
    /// HTTP/2.
    Http2,
}

/// What a client offers to speak.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Offer {
    /// HTTP/2.
    pub http2: bool,
    /// HTTP/1.1; also what is spoken where nothing is offered.
    pub http1: bool,
}

impl Offer {
    /// From the names in a ClientHello; `None` where it offers nothing that we speak.
    pub fn of<'a>(names: Option<impl Iterator<Item = &'a [u8]>>) -> Option<Self> {
        let Some(names) = names else { return Some(Self { http2: false, http1: true }) };
        let mut offer = Self { http2: false, http1: false };
        for name in names {
            offer.http2 |= name == H2;
            offer.http1 |= name == HTTP_1;
        }
        (offer.http1 || offer.http2).then_some(offer)
    }

    /// What is spoken where nobody else is there to say.
    pub fn best(self) -> Version {
        if self.http2 { Version::Http2 } else { Version::Http1 }
    }

    fn names(self) -> Vec<Vec<u8>> {
        let h2 = self.http2.then(|| H2.to_vec());
        h2.into_iter().chain(self.http1.then(|| HTTP_1.to_vec())).collect()
    }
}

/// How origins are verified: by the machine's authorities and those that the operator adds.
#[derive(Debug, Default)]
pub struct Trust {
    /// PEM of more authorities.
    added: Vec<String>,
    /// For an offer of HTTP/2, HTTP/1.1, and both. Read at the first use: it takes half a megabyte.
    configs: OnceLock<Result<[Arc<ClientConfig>; 3], String>>,
}

impl Trust {
    /// With the operator's own authorities, as PEM.
    pub fn new(added: Vec<String>) -> Self {
        Self { added, configs: OnceLock::new() }
    }

    /// How to speak to an origin.
    ///
    /// # Errors
    /// When there is no authority to verify it by.
    pub fn client(&self, offer: Offer) -> Result<Arc<ClientConfig>, String> {
        let configs = self.configs.get_or_init(|| self.load()).as_ref().map_err(Clone::clone)?;
        let at = match offer {
            Offer { http2: true, http1: false } => 0,
            Offer { http2: false, .. } => 1,
            Offer { http2: true, http1: true } => 2,
        };
        Ok(configs[at].clone())
    }

    fn load(&self) -> Result<[Arc<ClientConfig>; 3], String> {
        let mut roots = RootCertStore::empty();
        let found = rustls_native_certs::load_native_certs();
        for error in &found.errors {
            tracing::warn!(%error, "some of the machine's authorities cannot be read");
        }
        roots.add_parsable_certificates(found.certs);
        for pem in &self.added {
            for certificate in CertificateDer::pem_slice_iter(pem.as_bytes()) {
                let certificate = certificate.map_err(|error| format!("an added authority cannot be read: {error}"))?;
                roots.add(certificate).map_err(|error| format!("an added authority cannot be used: {error}"))?;
            }
        }
        if roots.is_empty() {
            return Err("the machine has no authorities to verify origins by (ca-certificates)".into());
        }
        let roots = Arc::new(roots);
        let offers = [(true, false), (false, true), (true, true)];
        let configs = offers.map(|(http2, http1)| {
            let builder = ClientConfig::builder_with_provider(provider()).with_safe_default_protocol_versions();
            let mut config = builder
                .expect("the provider has suites for both versions")
                .with_root_certificates(roots.clone())
                .with_no_client_auth();
            config.alpn_protocols = Offer { http2, http1 }.names();
            Arc::new(config)
        });
        Ok(configs)
    }
}

/// How to speak to a program of the sandbox, as a host.
///
/// # Errors
/// When the key does not fit.
pub fn server(leaf: Arc<CertifiedKey>, version: Version) -> io::Result<Arc<ServerConfig>> {
    let builder = ServerConfig::builder_with_provider(provider()).with_safe_default_protocol_versions();
    let mut config = builder.map_err(io::Error::other)?.with_no_client_auth().with_cert_resolver(Arc::new(One(leaf)));
    // A session that is resumed saves little on a way this short, and would outlive a change of the vault.
    config.session_storage = Arc::new(NoServerSessionStorage {});
    config.send_tls13_tickets = 0;
    config.alpn_protocols = match version {
        Version::Http2 => vec![H2.to_vec()],
        Version::Http1 => vec![HTTP_1.to_vec()],
    };
    Ok(Arc::new(config))
}

/// Whether a ClientHello may be for HTTP: it offers it, or offers nothing, as older programs do.
pub fn offers_http(mut hello: &[u8]) -> bool {
    let mut acceptor = rustls::server::Acceptor::default();
    while !hello.is_empty() {
        if acceptor.read_tls(&mut hello).is_err() {
            return false;
        }
        match acceptor.accept() {
            Ok(Some(accepted)) => return Offer::of(accepted.client_hello().alpn()).is_some(),
            Ok(None) => {}
            Err(_) => return false,
        }
    }
    false
}

/// The name of an origin, as TLS verifies it.
pub fn server_name(name: &Name) -> io::Result<ServerName<'static>> {
    ServerName::try_from(name.to_string()).map_err(io::Error::other)
}

/// What an origin chose to speak.
pub fn chosen(alpn: Option<&[u8]>) -> Version {
    if alpn == Some(H2) { Version::Http2 } else { Version::Http1 }
}

fn provider() -> Arc<CryptoProvider> {
    static PROVIDER: OnceLock<Arc<CryptoProvider>> = OnceLock::new();
    PROVIDER.get_or_init(|| Arc::new(default_provider())).clone()
}

/// Shows one certificate.
#[derive(Debug)]
struct One(Arc<CertifiedKey>);

impl ResolvesServerCert for One {
    fn resolve(&self, _hello: rustls::server::ClientHello<'_>) -> Option<Arc<CertifiedKey>> {
        Some(self.0.clone())
    }
}
