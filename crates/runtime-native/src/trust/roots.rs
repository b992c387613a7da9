//! The files and directories in which TLS libraries look for roots.

use std::io::Read as _;

use rustix::io::Errno;

use super::certificate::Certificate;
use super::files::{self, Covers, Root};
use super::{CERTIFICATE, unless_exhausted};
use crate::error::Result;

/// Bundles by distribution: Debian, Alpine, Arch and distroless; Red Hat, old and new; SUSE; OpenSSL's own name. Several
/// may be one file.
const BUNDLES: [&str; 5] = [
    "etc/ssl/certs/ca-certificates.crt",
    "etc/pki/tls/certs/ca-bundle.crt",
    "etc/pki/ca-trust/extracted/pem/tls-ca-bundle.pem",
    "etc/ssl/ca-bundle.pem",
    "etc/ssl/cert.pem",
];
/// Directories in which OpenSSL finds roots by hash, and Go by reading everything.
const DIRECTORIES: [&str; 2] = ["etc/ssl/certs", "etc/pki/tls/certs"];
/// What the distributions' programs make bundles from: where this directory is, that one has certificates under such a
/// name. `update-ca-certificates` of Debian and Alpine, `update-ca-trust` of Red Hat and of Arch, `update-ca-certificates`
/// of SUSE. An image without those programs may get them later.
const SOURCES: [(&str, &str, &str); 4] = [
    ("usr/local/share", "usr/local/share/ca-certificates", "opensandbox.crt"),
    ("etc/pki", "etc/pki/ca-trust/source/anchors", "opensandbox.pem"),
    ("etc/ca-certificates/trust-source", "etc/ca-certificates/trust-source/anchors", "opensandbox.crt"),
    ("etc/pki/trust", "etc/pki/trust/anchors", "opensandbox.pem"),
];
/// What the certificate is called in a directory of roots: as `update-ca-certificates` would call it.
const IN_DIRECTORY: &str = "opensandbox.pem";
/// Largest bundle that is extended: twenty times the public roots.
const MAX_BUNDLE_BYTES: usize = 4 << 20;
/// Certificates of one subject in a directory.
const SAME_SUBJECT: u32 = 10;
/// What every bundle has.
const PEM: &[u8] = b"-----BEGIN ";

/// Adds the certificate to the image's roots; gives the first bundle with it. An image without any gets the machine's, as
/// the merged file replaces the roots that some programs bring with them.
pub(super) fn extend(root: Root<'_>, covers: &mut Covers, certificate: &Certificate) -> Result<Vec<u8>> {
    let pem = certificate.pem().as_bytes();
    let mut merged = None;
    for path in BUNDLES {
        let Some(found) = root.find(path, MAX_BUNDLE_BYTES) else { continue };
        // Several names may be one file.
        let is_extended = found.ends_with(pem, 0);
        if is_extended && merged.is_some() {
            continue;
        }
        let Some(mut content) = found.read(pem.len() + 1).filter(|content| is_bundle(content)) else { continue };
        if !is_extended {
            append(&mut content, pem);
            unless_exhausted("extend a bundle of roots", root.rewrite(path, &found, &content, covers))?;
        }
        merged.get_or_insert(content);
    }
    let merged = match merged {
        Some(merged) => merged,
        None => {
            let mut merged = of_machine();
            append(&mut merged, pem);
            unless_exhausted("make a bundle of roots", make(root, BUNDLES[0], &merged))?;
            merged
        }
    };
    for directory in DIRECTORIES {
        unless_exhausted("add to the directory of roots", add_to_directory(root, directory, certificate))?;
    }
    for (condition, directory, name) in SOURCES {
        if root.directory(condition).is_ok() {
            unless_exhausted("add to the sources of roots", add_source(root, directory, name, pem))?;
        }
    }
    Ok(merged)
}

fn append(content: &mut Vec<u8>, pem: &[u8]) {
    if content.last().is_some_and(|byte| *byte != b'\n') {
        content.push(b'\n');
    }
    content.extend(pem);
}

fn is_bundle(content: &[u8]) -> bool {
    content.is_empty() || content.windows(PEM.len()).any(|part| part == PEM)
}

/// The roots of this machine, whose tree is still in sight.
fn of_machine() -> Vec<u8> {
    let read = |path: &str| -> Option<Vec<u8>> {
        let mut content = Vec::new();
        let file = std::fs::File::open(format!("/{path}")).ok()?;
        let length = file.take(MAX_BUNDLE_BYTES as u64).read_to_end(&mut content).ok()?;
        (length < MAX_BUNDLE_BYTES && is_bundle(&content)).then_some(content)
    };
    BUNDLES.iter().find_map(|path| read(path)).unwrap_or_default()
}

fn make(root: Root<'_>, path: &str, content: &[u8]) -> std::result::Result<(), Errno> {
    let (directory, name) = path.rsplit_once('/').unwrap_or((".", path));
    files::write(&files::create(&root.made(directory)?, name, 0o644)?, content)
}

/// The first directory is made where it is missing.
fn add_to_directory(root: Root<'_>, path: &str, certificate: &Certificate) -> std::result::Result<(), Errno> {
    let directory = if path == DIRECTORIES[0] { root.made(path)? } else { root.directory(path)? };
    files::link(&directory, IN_DIRECTORY, CERTIFICATE)?;
    let Some(hash) = certificate.subject_hash() else { return Ok(()) };
    for number in 0..SAME_SUBJECT {
        match rustix::fs::symlinkat(IN_DIRECTORY, &directory, format!("{hash}.{number}")) {
            Err(Errno::EXIST) => {}
            other => return other,
        }
    }
    Ok(())
}

fn add_source(root: Root<'_>, path: &str, name: &str, pem: &[u8]) -> std::result::Result<(), Errno> {
    files::write(&files::fresh(&root.made(path)?, name)?, pem)
}
