//! Archives and what becomes of them.

mod formats;
mod hostile;
mod overlay;
mod random;

use std::fs;
use std::os::fd::AsFd;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};

use sha2::{Digest as _, Sha256};
use tar::{Builder, EntryType, Header};
use tempfile::TempDir;

use super::{Compression, LayerStats, Limits, Ownership, UnpackError, unpack_layer};
use crate::LayerId;

/// Bounds small enough to pass in a test.
const SMALL: Limits = Limits {
    total_bytes: 1 << 20,
    entries: 100,
    stream_bytes: 4 << 20,
    archive: archive::Limits { path_bytes: 4095, depth: 32, header_bytes: 64 << 10, sparse_pieces: 64 },
};

/// An archive under construction, which checks nothing: names may be anything.
pub(super) struct Tar(Builder<Vec<u8>>);

impl Tar {
    pub(super) fn new() -> Self {
        Self(Builder::new(Vec::new()))
    }

    pub(super) fn add(mut self, kind: EntryType, name: &str, link: &str, data: &[u8]) -> Self {
        let mut header = header(kind, name, link);
        header.set_size(data.len() as u64);
        header.set_cksum();
        self.0.append(&header, data).expect("append to memory");
        self
    }

    pub(super) fn file(self, name: &str, data: &[u8]) -> Self {
        self.add(EntryType::Regular, name, "", data)
    }

    pub(super) fn directory(self, name: &str) -> Self {
        self.add(EntryType::Directory, name, "", b"")
    }

    pub(super) fn symlink(self, name: &str, target: &str) -> Self {
        self.add(EntryType::Symlink, name, target, b"")
    }

    pub(super) fn hard_link(self, name: &str, target: &str) -> Self {
        self.add(EntryType::Link, name, target, b"")
    }

    pub(super) fn device(mut self, name: &str, kind: EntryType, major: u32, minor: u32) -> Self {
        let mut header = header(kind, name, "");
        header.set_device_major(major).expect("ustar has devices");
        header.set_device_minor(minor).expect("ustar has devices");
        header.set_cksum();
        self.0.append(&header, &b""[..]).expect("append to memory");
        self
    }

    pub(super) fn owned(mut self, name: &str, uid: u64, gid: u64, mode: u32) -> Self {
        let mut header = header(EntryType::Regular, name, "");
        header.set_uid(uid);
        header.set_gid(gid);
        header.set_mode(mode);
        header.set_cksum();
        self.0.append(&header, &b""[..]).expect("append to memory");
        self
    }

    pub(super) fn pax(mut self, records: &[(&str, &[u8])]) -> Self {
        self.0.append_pax_extensions(records.iter().copied()).expect("append to memory");
        self
    }

    pub(super) fn raw(mut self, header: &Header, data: &[u8]) -> Self {
        self.0.append(header, data).expect("append to memory");
        self
    }

    pub(super) fn bytes(self) -> Vec<u8> {
        self.0.into_inner().expect("finish in memory")
    }
}

pub(super) fn header(kind: EntryType, name: &str, link: &str) -> Header {
    let mut header = Header::new_ustar();
    header.set_entry_type(kind);
    header.as_old_mut().name[..name.len()].copy_from_slice(name.as_bytes());
    header.as_old_mut().linkname[..link.len()].copy_from_slice(link.as_bytes());
    header.set_mode(if kind == EntryType::Directory { 0o755 } else { 0o644 });
    header.set_uid(0);
    header.set_gid(0);
    header.set_mtime(1_000_000);
    header.set_size(0);
    header
}

pub(super) fn diff_id(archive: &[u8]) -> LayerId {
    LayerId::from_sha256(Sha256::digest(archive).into())
}

/// A directory for a layer with a neighbour that must stay as it is.
pub(super) struct Ground {
    pub(super) directory: TempDir,
}

impl Ground {
    pub(super) fn new() -> Self {
        let directory = tempfile::tempdir().expect("make a temporary directory");
        fs::create_dir(directory.path().join("layer")).expect("make the layer");
        fs::create_dir(directory.path().join("outside")).expect("make the neighbour");
        fs::write(directory.path().join("outside/canary"), "alive").expect("write the canary");
        Self { directory }
    }

    pub(super) fn layer(&self) -> PathBuf {
        self.directory.path().join("layer")
    }

    pub(super) fn unpack_as(
        &self,
        archive: &[u8],
        ownership: Ownership,
        limits: &Limits,
    ) -> Result<LayerStats, UnpackError> {
        let root = fs::File::open(self.layer()).expect("open the layer");
        let result =
            unpack_layer(archive, Compression::detect(archive), root.as_fd(), &diff_id(archive), ownership, limits);
        self.assert_outside_untouched();
        result
    }

    pub(super) fn unpack(&self, archive: &[u8]) -> Result<LayerStats, UnpackError> {
        self.unpack_as(archive, Ownership::Keep, &SMALL)
    }

    fn assert_outside_untouched(&self) {
        let mut names: Vec<_> =
            fs::read_dir(self.directory.path()).expect("list").map(|item| item.expect("list").file_name()).collect();
        names.sort();
        assert_eq!(names, ["layer", "outside"]);
        let canary = self.directory.path().join("outside/canary");
        assert_eq!(fs::read_dir(self.directory.path().join("outside")).expect("list").count(), 1);
        assert_eq!(fs::read_to_string(&canary).expect("read the canary"), "alive");
        assert_eq!(fs::metadata(&canary).expect("look at the canary").nlink(), 1, "the canary got a hard link");
    }
}

/// Everything about a tree that an archive can say, one line for each file.
pub(super) fn listing(root: &Path) -> Vec<String> {
    let mut lines = Vec::new();
    list(root, Path::new("."), &mut lines);
    lines.sort();
    lines
}

fn list(root: &Path, path: &Path, lines: &mut Vec<String>) {
    let full = root.join(path);
    let metadata = fs::symlink_metadata(&full).expect("look at a file");
    let kind = metadata.file_type();
    let what = if kind.is_file() {
        format!("file {}", crate::digest::Digest::of(&fs::read(&full).expect("read a file")).hex())
    } else if kind.is_symlink() {
        format!("link {}", fs::read_link(&full).expect("read a link").display())
    } else if kind.is_char_device() {
        format!("device {}", metadata.rdev())
    } else if kind.is_fifo() {
        "fifo".to_owned()
    } else {
        "directory".to_owned()
    };
    lines.push(format!(
        "{} {:o} {}:{} {}.{:09} {what}",
        path.display(),
        metadata.mode() & 0o7777,
        metadata.uid(),
        metadata.gid(),
        metadata.mtime(),
        metadata.mtime_nsec()
    ));
    if kind.is_dir() {
        for item in fs::read_dir(&full).expect("list a directory") {
            list(root, &path.join(item.expect("list a directory").file_name()), lines);
        }
    }
}
