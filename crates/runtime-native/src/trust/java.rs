//! Java's stores of roots.
//!
//! Java looks at no file of the system but its own `cacerts`. A store in the old format is extended as it is; one in any
//! other is replaced by one in the old format, which every Java reads whatever it is set to.

use std::time::SystemTime;

use rustix::fs::Dir;
use sha1::{Digest as _, Sha1};

use super::certificate::{self, Certificate, expect, tag};
use super::files::{Covers, Root};
use super::unless_exhausted;
use crate::error::Result;

/// Stores of whole distributions, to which those of their Javas lead: Debian, Red Hat.
const STORES: [&str; 3] =
    ["etc/ssl/certs/java/cacerts", "etc/pki/java/cacerts", "etc/pki/ca-trust/extracted/java/cacerts"];
/// Directories that hold one directory for each Java: of all distributions, of Oracle's images, of Temurin's.
const HOMES: [&str; 3] = ["usr/lib/jvm", "usr/java", "opt/java"];
/// The store below a Java, and below the one that is in a Java 8.
const IN_HOME: [&str; 2] = ["lib/security/cacerts", "jre/lib/security/cacerts"];
/// Entries of such a directory that are looked at.
const MAX_HOMES: usize = 64;
/// Largest store that is looked at: ten times the public roots.
const MAX_STORE_BYTES: usize = 2 << 20;
/// Stores of one image that are extended; real ones have one or two.
const MAX_STORES: usize = 16;

// The format, as src/java.base/share/classes/sun/security/provider/JavaKeyStore.java of the JDK writes it.
const MAGIC: [u8; 4] = 0xfeed_feed_u32.to_be_bytes();
const VERSION: [u8; 4] = 2u32.to_be_bytes();
const HEADER_BYTES: usize = 12;
const TRUSTED_CERTIFICATE: [u8; 4] = 2u32.to_be_bytes();
const KIND: &str = "X.509";
const DIGEST_BYTES: usize = 20;
/// Bytes of an entry beside its certificate, and the digest; a little more than that.
const ENTRY_BYTES: usize = 128;
/// What the digest begins with, between the password and the content.
const WHITENER: &[u8] = b"Mighty Aphrodite";
/// Every `cacerts` has it.
const PASSWORD: &str = "changeit";
/// What the authority's certificate is called.
const ALIAS: &str = "opensandbox";

/// Adds the certificate to every store of the image. `merged` is what goes into a store that cannot be read.
pub(super) fn extend(
    root: Root<'_>,
    covers: &mut Covers,
    certificate: &Certificate,
    merged: &[u8],
    home: Option<&str>,
) -> Result<()> {
    let mut count = 0;
    for path in stores(root, home) {
        if count == MAX_STORES {
            break;
        }
        let Some(found) = root.find(&path, MAX_STORE_BYTES) else { continue };
        // Several names may be one store.
        if found.ends_with(certificate.der(), DIGEST_BYTES) {
            continue;
        }
        let Some(store) = found.read(ENTRY_BYTES + certificate.der().len()) else { continue };
        count += 1;
        let store = extended(store, certificate, merged);
        unless_exhausted("extend a store of Java's", root.rewrite(&path, &found, &store, covers))?;
    }
    Ok(())
}

fn stores(root: Root<'_>, home: Option<&str>) -> Vec<String> {
    let mut homes: Vec<String> = home.map(|home| home.trim_end_matches('/').to_owned()).into_iter().collect();
    for directory in HOMES {
        let Some(entries) = root.directory(directory).ok().and_then(|fd| Dir::read_from(fd).ok()) else { continue };
        let names =
            entries.take(MAX_HOMES).filter_map(|entry| entry.ok()?.file_name().to_str().ok().map(str::to_owned));
        homes.extend(names.filter(|name| !name.starts_with('.')).map(|name| format!("{directory}/{name}")));
    }
    let below = homes.iter().flat_map(|home| IN_HOME.map(|store| format!("{home}/{store}")));
    STORES.map(str::to_owned).into_iter().chain(below).collect()
}

/// The store with one more certificate.
fn extended(mut store: Vec<u8>, certificate: &Certificate, merged: &[u8]) -> Vec<u8> {
    let now = SystemTime::UNIX_EPOCH.elapsed().map_or(0, |since| since.as_millis() as u64);
    let count = match (old_count(&store), plain_certificates(&store)) {
        (Some(count), _) => {
            // The entries stay as they are: who reads them is their owner, with his own bounds.
            store.truncate(store.len() - DIGEST_BYTES);
            count
        }
        (None, Some(certificates)) => {
            let made = numbered(certificates.into_iter(), now);
            store = made.1;
            made.0
        }
        (None, None) => {
            let made = numbered(certificate::all_of(merged).iter().map(Vec::as_slice), now);
            store = made.1;
            made.0
        }
    };
    store[MAGIC.len() + VERSION.len()..HEADER_BYTES].copy_from_slice(&(count + 1).to_be_bytes());
    store.extend(entry(ALIAS, now, certificate.der()));
    let digest = digest(&store);
    store.extend(digest);
    store
}

/// A store of these certificates without its end, and their number.
fn numbered<'a>(certificates: impl Iterator<Item = &'a [u8]>, now: u64) -> (u32, Vec<u8>) {
    let mut store = [MAGIC, VERSION, [0; 4]].concat();
    let mut count = 0;
    for der in certificates {
        count += 1;
        store.extend(entry(&format!("root-{count}"), now, der));
    }
    (count, store)
}

fn entry(alias: &str, millis: u64, der: &[u8]) -> Vec<u8> {
    let text = |text: &str| [&(text.len() as u16).to_be_bytes()[..], text.as_bytes()].concat();
    let length = (der.len() as u32).to_be_bytes();
    [&TRUSTED_CERTIFICATE[..], &text(alias), &millis.to_be_bytes(), &text(KIND), &length, der].concat()
}

fn digest(content: &[u8]) -> [u8; DIGEST_BYTES] {
    let mut hash = Sha1::new();
    PASSWORD.encode_utf16().for_each(|unit| hash.update(unit.to_be_bytes()));
    hash.update(WHITENER);
    hash.update(content);
    hash.finalize().into()
}

/// Number of the entries of a store in the old format.
fn old_count(store: &[u8]) -> Option<u32> {
    let header = store.get(..HEADER_BYTES).filter(|_| store.len() >= HEADER_BYTES + DIGEST_BYTES)?;
    let count = u32::from_be_bytes(header.strip_prefix(&MAGIC)?.strip_prefix(&VERSION)?.try_into().ok()?);
    (count < u32::MAX).then_some(count)
}

/// The certificates of a store in the new format, if it is not encrypted: as Java is delivered since version 18 (RFC 7292,
/// section 4).
fn plain_certificates(store: &[u8]) -> Option<Vec<&[u8]>> {
    let (store, _) = expect(store, tag::SEQUENCE)?;
    let (_version, rest) = expect(store, tag::INTEGER)?;
    let mut safes = sequence(data(rest)?.0)?;
    let mut found = Vec::new();
    while !safes.is_empty() {
        let (safe, rest) = data(safes)?;
        safes = rest;
        let mut bags = sequence(safe)?;
        while !bags.is_empty() {
            let (bag, rest) = expect(bags, tag::SEQUENCE)?;
            bags = rest;
            found.extend(certificate_of(bag));
        }
    }
    (!found.is_empty()).then_some(found)
}

/// What a ContentInfo of the kind `data` holds, and what follows it.
fn data(bytes: &[u8]) -> Option<(&[u8], &[u8])> {
    /// 1.2.840.113549.1.7.1.
    const DATA: &[u8] = b"\x2a\x86\x48\x86\xf7\x0d\x01\x07\x01";
    let (info, rest) = expect(bytes, tag::SEQUENCE)?;
    Some((octets_named(info, DATA)?, rest))
}

/// The certificate in a bag.
fn certificate_of(bag: &[u8]) -> Option<&[u8]> {
    /// 1.2.840.113549.1.12.10.1.3.
    const CERTIFICATE_BAG: &[u8] = b"\x2a\x86\x48\x86\xf7\x0d\x01\x0c\x0a\x01\x03";
    /// 1.2.840.113549.1.9.22.1.
    const X509: &[u8] = b"\x2a\x86\x48\x86\xf7\x0d\x01\x09\x16\x01";
    let (kind, rest) = expect(bag, tag::OBJECT)?;
    let (bag, _) = expect(rest, tag::ZERO).filter(|_| kind == CERTIFICATE_BAG)?;
    octets_named(sequence(bag)?, X509)
}

/// The octets behind this name.
fn octets_named<'a>(bytes: &'a [u8], name: &[u8]) -> Option<&'a [u8]> {
    let (kind, rest) = expect(bytes, tag::OBJECT)?;
    let (content, _) = expect(rest, tag::ZERO).filter(|_| kind == name)?;
    expect(content, tag::OCTET_STRING).map(|(octets, _)| octets)
}

fn sequence(bytes: &[u8]) -> Option<&[u8]> {
    expect(bytes, tag::SEQUENCE).map(|(content, _)| content)
}

#[cfg(test)]
mod tests;
