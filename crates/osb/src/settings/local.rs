//! The server of this machine: `server.json` and `api-key` in its data directory tell where it is and what it asks for.

use std::fs;
use std::path::{Path, PathBuf};

use serde::Deserialize;

use super::Environment;

/// The data directory of a server that root runs.
const SYSTEM_DATA_DIR: &str = "/var/lib/osb";
/// Largest `server.json` and `api-key` that are read, in bytes: both are below 200.
const MAX_BYTES: u64 = 64 * 1024;

/// A server of this machine that is alive.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LocalServer {
    /// Its `host:port`.
    pub domain: String,
    /// Its scheme.
    pub protocol: String,
    /// The file that says so.
    pub file: PathBuf,
    /// Its key, where this user may read it.
    pub api_key: Option<String>,
}

/// `server.json`, written by the server.
#[derive(Deserialize)]
struct Announcement {
    url: String,
    #[serde(default)]
    pid: Option<i32>,
}

impl LocalServer {
    /// The file that holds the key.
    pub fn key_file(&self) -> PathBuf {
        self.file.with_file_name("api-key")
    }

    /// Whether an address means this server.
    pub fn is_at(&self, domain: &str) -> bool {
        let plain = |text: &str| text.replace("localhost", "127.0.0.1");
        plain(&self.domain) == plain(domain)
    }
}

/// Directories in which a server may have left its files, the user's own first.
pub fn data_dirs(env: Environment<'_>, home: Option<&Path>) -> Vec<PathBuf> {
    if let Some(dir) = env("OSB_DATA_DIR").filter(|dir| !dir.is_empty()) {
        return vec![PathBuf::from(dir)];
    }
    let mut dirs = Vec::new();
    if !rustix::process::geteuid().is_root() {
        match env("XDG_DATA_HOME").filter(|dir| dir.starts_with('/')) {
            Some(dir) => dirs.push(Path::new(&dir).join("osb")),
            None => dirs.extend(home.map(|home| home.join(".local/share/osb"))),
        }
    }
    dirs.push(PathBuf::from(SYSTEM_DATA_DIR));
    dirs
}

/// The first server that is announced and whose process lives.
pub fn find(env: Environment<'_>, home: Option<&Path>) -> Option<LocalServer> {
    let servers: Vec<LocalServer> = data_dirs(env, home).iter().filter_map(|dir| read(dir)).collect();
    // One whose key this user may read is worth more than one that will refuse him.
    servers.iter().find(|server| server.api_key.is_some()).or(servers.first()).cloned()
}

fn read(dir: &Path) -> Option<LocalServer> {
    let file = dir.join("server.json");
    let announcement: Announcement = serde_json::from_str(&read_small(&file)?).ok()?;
    if announcement.pid.is_some_and(|pid| !lives(pid)) {
        return None;
    }
    let (protocol, domain) = announcement.url.split_once("://")?;
    let api_key = read_small(&dir.join("api-key")).map(|key| key.trim().to_owned()).filter(|key| !key.is_empty());
    Some(LocalServer { domain: domain.trim_end_matches('/').to_owned(), protocol: protocol.to_owned(), file, api_key })
}

fn read_small(path: &Path) -> Option<String> {
    let meta = fs::metadata(path).ok()?;
    if !meta.is_file() || meta.len() > MAX_BYTES {
        return None;
    }
    fs::read_to_string(path).ok()
}

/// Whether a process exists; that of another user does, too.
fn lives(pid: i32) -> bool {
    let Some(pid) = rustix::process::Pid::from_raw(pid) else { return false };
    !matches!(rustix::process::test_kill_process(pid), Err(rustix::io::Errno::SRCH))
}
