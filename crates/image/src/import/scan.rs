//! Reads a file once, to tell what it is and to hash it.

use std::collections::HashMap;
use std::fs::File;
use std::io::{BufReader, Read, Seek};
use std::os::unix::fs::FileExt;
use std::path::Path;

use super::{docker, layout};
use crate::digest::{Digest, HashingReader};
use crate::unpack::{Archive, Bounded, Compression, Kind, Limits, MAGIC_BYTES, UnpackError};
use crate::{Error, LayerId};

/// Most members of an archive of images; `docker save` writes three for each layer.
const MAX_MEMBERS: usize = 10_000;
/// Bytes read at a time.
const READ_BYTES: usize = 256 * 1024;

pub(super) enum Scanned {
    RootFs(Whole),
    Images(ImageArchive),
}

/// A file that is one layer.
pub(super) struct Whole {
    pub(super) file: File,
    pub(super) diff_id: LayerId,
}

/// A tar that has images in it.
pub(super) struct ImageArchive {
    pub(super) file: File,
    pub(super) compression: Compression,
    pub(super) members: HashMap<String, Member>,
}

/// Where a member of an archive is.
#[derive(Debug, Clone)]
pub(super) enum Member {
    File {
        offset: u64,
        size: u64,
    },
    /// Another member, by its full name.
    Link(String),
}

pub(super) fn scan(mut file: File, path: &Path) -> Result<Scanned, Error> {
    let mut first = [0; MAGIC_BYTES];
    let read = file.read_at(&mut first, 0).map_err(|e| Error::io("read", path, e))?;
    let compression = Compression::detect(&first[..read]);
    let limits = Limits::default();
    let unknown = |e: UnpackError| match e {
        UnpackError::Malformed { reason } => Error::UnknownKind { path: path.to_owned(), reason },
        other => Error::UnknownKind { path: path.to_owned(), reason: other.to_string() },
    };
    let decoded = compression.reader(&file).map_err(|e| unknown(UnpackError::read(e)))?;
    let mut hashing =
        HashingReader::new(Bounded::new(BufReader::with_capacity(READ_BYTES, decoded), limits.stream_bytes));
    let (members, entries) = members(&mut hashing, &limits).map_err(unknown)?;
    let diff_id = hashing.finish();
    file.rewind().map_err(|e| Error::io("read", path, e))?;
    match members {
        Some(members) if members.contains_key(docker::MANIFEST) || members.contains_key(layout::MARKER) => {
            Ok(Scanned::Images(ImageArchive { file, compression, members }))
        }
        _ if entries == 0 => Err(Error::UnknownKind {
            path: path.to_owned(),
            reason: "it is an archive without a single entry".to_owned(),
        }),
        _ => Ok(Scanned::RootFs(Whole { file, diff_id: Digest::layer_id(&diff_id).clone() })),
    }
}

/// Lists the members, as long as they could be those of an archive of images.
fn members(input: impl Read, limits: &Limits) -> Result<(Option<HashMap<String, Member>>, u64), UnpackError> {
    let mut archive = Archive::new(input, limits.archive);
    let mut members = Some(HashMap::new());
    let mut entries = 0;
    while let Some(entry) = archive.next_entry()? {
        entries += 1;
        let Some(known) = &mut members else { continue };
        let name = normal(&entry.name);
        let member = match entry.kind {
            Kind::File if entry.pieces.is_none() => Some(Member::File { offset: archive.position(), size: entry.size }),
            Kind::Symlink => {
                normal(&entry.link).map(|target| Member::Link(beside(name.as_deref().unwrap_or_default(), &target)))
            }
            Kind::HardLink => normal(&entry.link).map(Member::Link),
            _ => None,
        };
        match name {
            Some(name) if belongs(&name, entry.kind) && known.len() < MAX_MEMBERS => {
                known.extend(member.map(|member| (name, member)))
            }
            _ => members = None,
        }
    }
    if !archive.ended_by_marker() && entries > 0 {
        return Err(UnpackError::malformed("it has no end mark, so it may be cut off"));
    }
    archive.drain()?;
    Ok((members, entries))
}

/// Whether a name is one that `docker save` and layout tools write.
fn belongs(name: &str, kind: Kind) -> bool {
    let top = name.split('/').next().unwrap_or_default();
    let is_hash = |text: &str| text.len() == 64 && text.bytes().all(|b| b.is_ascii_hexdigit());
    match top {
        "" => kind == Kind::Directory,
        "blobs" | "oci-layout" | "index.json" | "manifest.json" | "repositories" => true,
        top => {
            is_hash(top)
                || [".json", ".tar", ".tar.gz"].iter().any(|end| top.strip_suffix(end).is_some_and(is_hash))
                || top.starts_with("sha256:")
        }
    }
}

fn normal(name: &[u8]) -> Option<String> {
    let text = str::from_utf8(name).ok()?;
    let parts: Vec<&str> = text.split('/').filter(|part| !matches!(*part, "" | ".")).collect();
    Some(parts.join("/"))
}

/// The target of a symbolic link as a full name; targets look like `../<id>/layer.tar`.
fn beside(name: &str, target: &str) -> String {
    let mut parts: Vec<&str> = name.split('/').collect();
    parts.pop();
    for part in target.split('/') {
        match part {
            ".." => _ = parts.pop(),
            part => parts.push(part),
        }
    }
    parts.join("/")
}
