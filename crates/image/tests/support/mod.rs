//! Images made by hand and stores to put them into.

#![allow(dead_code)] // Each test program uses its own part.

pub mod fake;
pub mod real;

use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};

use image::unpack::Limits;
use image::{Credentials, EnsureOptions, Error, Image, InProcess, Progress, Store};
use serde_json::json;
use sha2::{Digest, Sha256};
use tempfile::TempDir;

pub fn hex(bytes: &[u8]) -> String {
    Sha256::digest(bytes).iter().map(|byte| format!("{byte:02x}")).collect()
}

pub fn digest(bytes: &[u8]) -> String {
    format!("sha256:{}", hex(bytes))
}

/// A tar with these files.
pub fn tar(files: &[(&str, &[u8])]) -> Vec<u8> {
    let mut builder = tar::Builder::new(Vec::new());
    for (name, content) in files {
        let mut header = tar::Header::new_ustar();
        header.set_size(content.len() as u64);
        header.set_mode(0o644);
        header.set_mtime(1);
        builder.append_data(&mut header, name, *content).expect("append to memory");
    }
    builder.into_inner().expect("finish in memory")
}

/// A tar of `len` bytes that does not shrink when packed, different for each seed.
pub fn noise(seed: u8, len: usize) -> Vec<u8> {
    let mut state = u64::from(seed) + 1;
    let content: Vec<u8> = (0..len)
        .map(|_| {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            state.to_le_bytes()[0]
        })
        .collect();
    tar(&[(&format!("noise{seed}"), &content)])
}

pub fn gzip(data: &[u8]) -> Vec<u8> {
    use std::io::Write;
    let mut encoder = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
    encoder.write_all(data).expect("pack in memory");
    encoder.finish().expect("pack in memory")
}

pub fn zstd(data: &[u8]) -> Vec<u8> {
    zstd::encode_all(data, 1).expect("pack in memory")
}

/// An image as a registry has it.
#[derive(Clone)]
pub struct Recipe {
    pub manifest: Vec<u8>,
    pub manifest_type: &'static str,
    pub config: Vec<u8>,
    pub layers: Vec<Vec<u8>>,
}

impl Recipe {
    /// An image of gzip layers for a processor.
    pub fn new(architecture: &str, layers: &[Vec<u8>]) -> Self {
        let diff_ids: Vec<String> = layers.iter().map(|layer| digest(layer)).collect();
        let packed = layers.iter().map(|layer| gzip(layer)).collect();
        Self::with(architecture, &diff_ids, packed)
    }

    /// An image whose configuration claims these diff ids.
    pub fn with(architecture: &str, diff_ids: &[String], layers: Vec<Vec<u8>>) -> Self {
        let config = serde_json::to_vec(&json!({
            "architecture": architecture, "os": "linux", "created": "2026-01-02T03:04:05Z",
            "config": { "Env": ["PATH=/bin", "EMPTY=", "A=b=c"], "WorkingDir": "/work", "User": "1000:100",
                "Entrypoint": ["/entry"], "Cmd": ["--flag"], "Labels": {"k": "v"}, "ExposedPorts": {"80/tcp": {}} },
            "rootfs": { "type": "layers", "diff_ids": diff_ids },
        }))
        .unwrap();
        let descriptors: Vec<_> = layers
            .iter()
            .map(|layer| json!({"mediaType": "application/vnd.oci.image.layer.v1.tar+gzip", "digest": digest(layer), "size": layer.len()}))
            .collect();
        let manifest = serde_json::to_vec(&json!({
            "schemaVersion": 2, "mediaType": "application/vnd.oci.image.manifest.v1+json",
            "config": {"mediaType": "application/vnd.oci.image.config.v1+json", "digest": digest(&config), "size": config.len()},
            "layers": descriptors,
        }))
        .unwrap();
        Self { manifest, manifest_type: "application/vnd.oci.image.manifest.v1+json", config, layers }
    }

    pub fn blobs(&self) -> impl Iterator<Item = &Vec<u8>> {
        self.layers.iter().chain([&self.config])
    }
}

/// An index of images for several processors.
pub fn index(images: &[(&str, &Recipe)]) -> Vec<u8> {
    let mut manifests: Vec<_> = images
        .iter()
        .map(|(architecture, recipe)| {
            json!({"mediaType": recipe.manifest_type, "digest": digest(&recipe.manifest), "size": recipe.manifest.len(),
                "platform": {"os": "linux", "architecture": architecture}})
        })
        .collect();
    // What build tools add for signatures.
    manifests.push(
        json!({"mediaType": "application/vnd.oci.image.manifest.v1+json", "digest": digest(b"attestation"), "size": 1,
        "platform": {"os": "unknown", "architecture": "unknown"}}),
    );
    serde_json::to_vec(
        &json!({"schemaVersion": 2, "mediaType": "application/vnd.oci.image.index.v1+json", "manifests": manifests}),
    )
    .unwrap()
}

pub fn own_architecture() -> &'static str {
    match std::env::consts::ARCH {
        "aarch64" => "arm64",
        _ => "amd64",
    }
}

pub fn other_architecture() -> &'static str {
    match std::env::consts::ARCH {
        "aarch64" => "amd64",
        _ => "arm64",
    }
}

/// A store in a directory of its own.
pub struct Ground {
    pub directory: TempDir,
    pub store: Store,
}

impl Ground {
    pub async fn new() -> Self {
        Self::with(Limits::default()).await
    }

    pub async fn with(limits: Limits) -> Self {
        let directory = tempfile::tempdir().unwrap();
        let store = open(directory.path(), limits).await;
        Self { directory, store }
    }

    pub fn layers(&self) -> PathBuf {
        self.directory.path().join("layers")
    }

    pub async fn ensure(&self, name: &str) -> Result<Image, Error> {
        self.store.ensure(name, EnsureOptions::default(), &|_| {}).await
    }

    pub async fn ensure_as(&self, name: &str, username: &str, password: &str) -> Result<Image, Error> {
        self.store.ensure(name, account(username, password), &|_| {}).await
    }

    /// Names and hashes of all files, apart from the lock.
    pub fn listing(&self) -> Vec<String> {
        let mut files = Vec::new();
        collect(self.directory.path(), &mut files);
        files.retain(|(path, _)| !path.ends_with("lock"));
        let mut lines: Vec<String> =
            files.iter().map(|(path, content)| format!("{} {}", path.display(), hex(content))).collect();
        lines.sort();
        lines
    }
}

pub async fn open(directory: &Path, limits: Limits) -> Store {
    let unpacker = InProcess::open(&directory.join("layers"), limits).unwrap();
    Store::open(&directory.join("store"), Arc::new(unpacker)).await.unwrap()
}

pub fn account(username: &str, password: &str) -> EnsureOptions {
    let credentials = Credentials { username: username.to_owned(), password: password.into() };
    EnsureOptions { credentials: Some(credentials), ..EnsureOptions::default() }
}

pub fn collect(directory: &Path, files: &mut Vec<(PathBuf, Vec<u8>)>) {
    for item in std::fs::read_dir(directory).unwrap() {
        let path = item.unwrap().path();
        if path.is_dir() {
            files.push((path.clone(), Vec::new()));
            collect(&path, files);
        } else {
            files.push((path.clone(), std::fs::read(&path).unwrap()));
        }
    }
}

/// Remembers what was reported.
#[derive(Default)]
pub struct Reports(pub Mutex<Vec<Progress>>);

impl Reports {
    pub fn sink(&self) -> impl Fn(Progress) + Send + Sync {
        |progress| self.0.lock().unwrap().push(progress)
    }
}

/// The whole chain of an error, as a person sees it.
pub fn chain(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut source = error.source();
    while let Some(cause) = source {
        text = format!("{text}: {cause}");
        source = cause.source();
    }
    text
}
