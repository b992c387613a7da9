//! Makes every program of a sandbox trust one more authority: that of whoever puts credentials into its requests.
//!
//! Done while the root is built, before anything of the image runs. The image is hostile: its files are read within
//! bounds, never waited for, and its links lead to places of its own root at most. What an image makes impossible is left
//! out, for its own programs only; a disk that is full fails the create.
//!
//! Three ways, because no single one reaches all programs:
//! - two files that nobody inside can change, and the variables that name them ([`ENVIRONMENT`]);
//! - the files and the directory that TLS libraries look at without a variable, for programs with a cleaned environment;
//! - the certificate among the sources of those files, so that it stays when the sandbox's root makes them anew.
//!
//! The certificate is all that comes here; the authority's key stays outside.

mod browsers;
mod certificate;
mod files;
mod java;
mod roots;

use std::path::Path;

use rustix::io::Errno;
use serde::{Deserialize, Serialize};

use crate::error::{Context, Failure, Kind, Result};
use certificate::Certificate;
use files::{Covers, Root};
use std::os::fd::OwnedFd;

/// The authority's certificate inside (published).
pub const CERTIFICATE: &str = "/opt/opensandbox/mitmproxy-ca-cert.pem";
/// The roots of the image and the authority's certificate inside (published).
pub const MERGED: &str = "/opt/opensandbox/merged-ca-certificates.pem";
/// Variables of every process of the sandbox. The first three are published; the others are for programs that have roots
/// of their own and look at no file of the system: Deno before 2.8, and gRPC outside of Go and Java.
pub const ENVIRONMENT: [(&str, &str); 5] = [
    ("NODE_EXTRA_CA_CERTS", CERTIFICATE),
    ("REQUESTS_CA_BUNDLE", MERGED),
    ("SSL_CERT_FILE", MERGED),
    ("DENO_CERT", CERTIFICATE),
    ("GRPC_DEFAULT_SSL_ROOTS_FILE_PATH", MERGED),
];
/// Longest path of an image's Java: what the kernel takes for a path.
pub const MAX_JAVA_HOME_BYTES: usize = 4095;
/// Longest text of one certificate: the largest real ones have 3 KiB.
const MAX_PEM_BYTES: usize = 16 << 10;

/// An authority that the programs of a sandbox are to trust.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Authority {
    /// PEM of its certificate and of nothing else.
    pub pem: String,
    /// Where the sandbox's environment says that its Java is.
    pub java_home: Option<String>,
}

/// Refuses what is not exactly one certificate.
pub fn check(authority: &Authority) -> Result<()> {
    parse(authority).map(drop)
}

fn parse(authority: &Authority) -> Result<Certificate> {
    let refuse = |why: String| Err(Failure::new(Kind::Refused, why));
    if authority.pem.len() > MAX_PEM_BYTES {
        return refuse(format!("the authority's certificate is longer than {MAX_PEM_BYTES} bytes"));
    }
    if authority.java_home.as_ref().is_some_and(|path| path.len() > MAX_JAVA_HOME_BYTES) {
        return refuse(format!("the path of the image's Java is longer than {MAX_JAVA_HOME_BYTES} bytes"));
    }
    match Certificate::parse(&authority.pem) {
        Some(certificate) => Ok(certificate),
        None => refuse("the authority must be the PEM of exactly one certificate".to_owned()),
    }
}

/// Writes the certificate wherever the programs of this root look. `place` is a directory in which to build; it goes
/// with the host's tree.
pub(crate) fn install(root: &OwnedFd, place: &Path, authority: &Authority) -> Result<()> {
    let certificate = parse(authority)?;
    let root = Root::new(root);
    let mut covers = Covers::new(place)?;
    let merged = roots::extend(root, &mut covers, &certificate)?;
    browsers::extend(root, &certificate)?;
    java::extend(root, &mut covers, &certificate, &merged, authority.java_home.as_deref())?;
    publish(root, &mut covers, CERTIFICATE, certificate.pem().as_bytes())?;
    publish(root, &mut covers, MERGED, &merged)
}

/// Shows a file at a published place, where nobody inside can change it. The directory stays the sandbox's.
fn publish(root: Root<'_>, covers: &mut Covers, path: &str, content: &[u8]) -> Result<()> {
    let (directory, name) = path.rsplit_once('/').unwrap_or(("", path));
    let placed = || -> std::result::Result<OwnedFd, Errno> { files::fresh(&root.made(directory)?, name) };
    let target = placed().map_err(|errno| match Failure::errno(format!("make {path}"), errno) {
        failure if failure.kind == Kind::Exhausted => failure,
        failure => Failure::new(Kind::Image, failure.message),
    })?;
    covers.cover(&target, content).op(format!("mount onto {path}"))
}

/// What a call came to; `None` where the image makes it impossible, which is its own loss.
fn unless_exhausted<T>(op: &str, result: std::result::Result<T, Errno>) -> Result<Option<T>> {
    match result {
        Ok(value) => Ok(Some(value)),
        Err(errno) => match Failure::errno(op, errno) {
            failure if failure.kind == Kind::Exhausted => Err(failure),
            _ => Ok(None),
        },
    }
}
