//! A vault as a file: the request of the API, for sandboxes that are made with it.

use std::io::Read as _;
use std::path::Path;

use protocol::egress::NetworkRule;
use secrecy::SecretString;
use serde::Deserialize;

use crate::failure::Failure;

/// Largest file, in bytes; the server takes no larger one.
const MAX_FILE: u64 = 1024 * 1024;

/// A request to make a vault, as it was read.
pub struct VaultFile {
    /// The request.
    pub request: SecretString,
    /// Hosts that it is about, each once.
    hosts: Vec<String>,
}

/// As much of the request as has hosts in it; the rest is the server's to judge.
#[derive(Deserialize)]
struct Request {
    #[serde(default)]
    bindings: Vec<Binding>,
}

#[derive(Deserialize)]
struct Binding {
    #[serde(default, rename = "match")]
    matches: Match,
}

#[derive(Default, Deserialize)]
struct Match {
    #[serde(default)]
    hosts: Vec<String>,
}

impl VaultFile {
    /// Reads one.
    ///
    /// # Errors
    /// When it is not there, or is no such request. No word of it is told.
    pub fn read(path: &Path) -> Result<Self, Failure> {
        let mut text = String::new();
        let read = std::fs::File::open(path).and_then(|file| file.take(MAX_FILE + 1).read_to_string(&mut text));
        read.map_err(|error| Failure::file("read", path, &error))?;
        if text.len() as u64 > MAX_FILE {
            return Err(Failure::usage(format!("{} is longer than {MAX_FILE} bytes", path.display())));
        }
        let request: Request = serde_json::from_str(&text).map_err(|error| {
            let (line, column) = (error.line(), error.column());
            Failure::usage(format!("{} is no vault: see line {line}, column {column}", path.display()))
                .hint("write {\"credentials\": [{\"name\": ..., \"source\": {\"value\": ...}}], \"bindings\": [...]}")
        })?;
        let mut hosts: Vec<String> = request.bindings.into_iter().flat_map(|binding| binding.matches.hosts).collect();
        hosts.sort();
        hosts.dedup();
        Ok(Self { request: SecretString::from(text), hosts })
    }

    /// Rules that allow its hosts.
    pub fn rules(&self) -> impl Iterator<Item = NetworkRule> {
        self.hosts.iter().map(|host| NetworkRule {
            action: Some("allow".into()),
            target: Some(host.clone()),
            ..NetworkRule::default()
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hosts_are_found_and_mistakes_quote_nothing() {
        let file = tempfile::NamedTempFile::new().expect("a file");
        let vault = |text: &str| {
            std::fs::write(file.path(), text).expect("written");
            VaultFile::read(file.path())
        };
        let text = r#"{"credentials": [{"name": "t", "source": {"value": "s3cret"}}],
            "bindings": [{"name": "b", "match": {"hosts": ["b.test", "a.test"]}, "auth": {}}, {"match": {"hosts": ["a.test"]}}]}"#;
        let targets: Vec<String> = vault(text).expect("a vault").rules().filter_map(|rule| rule.target).collect();
        assert_eq!(targets, ["a.test", "b.test"]);
        let failure = vault(r#"{"bindings": "s3cret"}"#).err().expect("no vault");
        assert!(!failure.message.contains("s3cret") && failure.message.contains("line 1"), "{failure}");
    }
}
