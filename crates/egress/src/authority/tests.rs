use std::sync::Arc;

use rustls::client::WebPkiServerVerifier;
use rustls::client::danger::ServerCertVerifier as _;
use rustls::crypto::aws_lc_rs::default_provider;
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, ServerName, UnixTime};

use super::*;

fn verifier(pem: &str) -> Arc<WebPkiServerVerifier> {
    let mut roots = rustls::RootCertStore::empty();
    roots.add(CertificateDer::from_pem_slice(pem.as_bytes()).expect("a certificate")).expect("an authority");
    WebPkiServerVerifier::builder_with_provider(roots.into(), default_provider().into()).build().expect("a verifier")
}

fn accepts(pem: &str, leaf: &CertifiedKey, host: &str) -> bool {
    let host = ServerName::try_from(host.to_owned()).expect("a name");
    verifier(pem).verify_server_cert(&leaf.cert[0], &[], &host, &[], UnixTime::now()).is_ok()
}

#[test]
fn a_leaf_is_good_for_its_host_and_no_other() {
    let authority = Authority::generate("one").expect("an authority");
    let leaf = authority.leaf(&Name::parse("api.example.com").expect("a name")).expect("a leaf");
    assert!(accepts(authority.pem(), &leaf, "api.example.com"));
    assert!(!accepts(authority.pem(), &leaf, "other.example.com"));
    let other = Authority::generate("one").expect("an authority");
    assert!(!accepts(other.pem(), &leaf, "api.example.com"));
}

#[test]
fn an_authority_is_restored_from_what_is_kept() {
    let authority = Authority::generate("one").expect("an authority");
    let kept = serde_json::to_vec(&authority.stored()).expect("JSON");
    let restored = Authority::restore(&serde_json::from_slice(&kept).expect("JSON")).expect("the authority");
    assert_eq!(restored.pem(), authority.pem());
    let host = format!("{}.example.com", "long".repeat(15));
    let leaf = restored.leaf(&Name::parse(&host).expect("a name")).expect("a leaf");
    assert!(accepts(authority.pem(), &leaf, &host));
}

#[test]
fn nothing_of_a_key_is_shown() {
    let authority = Authority::generate("one").expect("an authority");
    assert_eq!(format!("{authority:?} {:?}", authority.stored()), "Authority(..) Stored(..)");
}

#[test]
fn an_authority_that_follows_from_a_secret_is_made_again_and_shows_hosts_to_those_who_trusted_it_before() {
    let memory = crate::Memory::new().expect("a memory file").for_authorities([7; 32]);
    let secret = memory.authorities.as_ref().expect("a secret");
    let before = Authority::derive("one", secret).expect("an authority");
    let again = Authority::derive("one", secret).expect("the authority").under(before.pem()).expect("the same key");
    assert_eq!(again.pem(), before.pem());
    let leaf = again.leaf(&Name::parse("api.example.com").expect("a name")).expect("a leaf");
    assert!(accepts(before.pem(), &leaf, "api.example.com"));
    let other = Authority::derive("two", secret).expect("an authority");
    assert!(other.under(before.pem()).is_none());
    assert!(Authority::generate("one").expect("an authority").under(before.pem()).is_none());
    assert!(Authority::derive("one", secret).expect("the authority").under("no certificate").is_none());
    let kept = Authority::restore(&before.stored()).expect("the authority");
    assert_eq!(kept.pem(), before.pem());
}
