//! Helpers for tests of files.

use std::fs;
use std::os::unix::fs::MetadataExt;

use serde_json::Value;

use super::{Daemon, Response};

/// A multipart body of pairs of metadata and content.
pub fn multipart(files: &[(Value, &[u8])]) -> Vec<u8> {
    let mut body = Vec::new();
    for (metadata, content) in files {
        body.extend_from_slice(
            b"--B\r\nContent-Disposition: form-data; name=\"metadata\"; filename=\"metadata\"\r\n\r\n",
        );
        body.extend_from_slice(metadata.to_string().as_bytes());
        body.extend_from_slice(b"\r\n--B\r\nContent-Disposition: form-data; name=\"file\"; filename=\"f\"\r\n\r\n");
        body.extend_from_slice(content);
        body.extend_from_slice(b"\r\n");
    }
    body.extend_from_slice(b"--B--\r\n");
    body
}

pub const MULTIPART: (&str, &str) = ("Content-Type", "multipart/form-data; boundary=B");

pub fn upload(daemon: &Daemon, files: &[(Value, &[u8])]) -> Response {
    upload_raw(daemon, &multipart(files))
}

pub fn upload_raw(daemon: &Daemon, body: &[u8]) -> Response {
    daemon.connect().request("POST", "/files/upload", &[MULTIPART], body)
}

pub fn write(daemon: &Daemon, name: &str, content: &str) -> String {
    let path = daemon.path(name);
    fs::write(&path, content).expect("a file");
    path
}

pub fn mode(path: &str) -> u32 {
    fs::metadata(path).expect("a file").mode() & 0o7777
}
