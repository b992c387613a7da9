//! Debian's `docker-registry` on loopback.

use std::io::{BufRead, BufReader};
use std::process::{Child, Command, Stdio};

use reqwest::StatusCode;
use tempfile::TempDir;

use super::{Recipe, digest};

/// `user` with the password `correct horse`, as `htpasswd -B` writes it.
const HTPASSWD: &str = "user:$2y$05$I4M5uKwmkM3gHNAF63gv/eZ8dWADC9XinaN7agjCe3gDlbIRk9mHC";
pub const USERNAME: &str = "user";
pub const PASSWORD: &str = "correct horse";

/// Who may use the registry.
pub enum Auth {
    Nobody,
    Htpasswd,
}

/// A running registry; it ends with this.
pub struct Registry {
    process: Child,
    _directory: TempDir,
    pub host: String,
    basic: bool,
}

impl Registry {
    pub fn start(auth: Auth) -> Self {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().display();
        let mut config = format!(
            "version: 0.1\nlog:\n  level: info\nstorage:\n  filesystem:\n    rootdirectory: {path}/data\nhttp:\n  addr: 127.0.0.1:0\n"
        );
        if matches!(auth, Auth::Htpasswd) {
            std::fs::write(directory.path().join("htpasswd"), HTPASSWD).unwrap();
            config += &format!("auth:\n  htpasswd:\n    realm: test\n    path: {path}/htpasswd\n");
        }
        std::fs::write(directory.path().join("config.yml"), config).unwrap();
        let mut process = Command::new("docker-registry")
            .arg("serve")
            .arg(directory.path().join("config.yml"))
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            .spawn()
            .expect("start docker-registry; on Debian: apt-get install docker-registry");
        let mut lines = BufReader::new(process.stderr.take().unwrap()).lines();
        let host = loop {
            let line = lines.next().expect("the registry ended").unwrap();
            if let Some((_, rest)) = line.split_once("listening on ") {
                break rest.chars().take_while(|c| c.is_ascii_digit() || ".:".contains(*c)).collect();
            }
        };
        // The log must be read on, or the registry would block on it.
        std::thread::spawn(move || lines.for_each(drop));
        Self { process, _directory: directory, host, basic: matches!(auth, Auth::Htpasswd) }
    }

    pub async fn push(&self, repository: &str, tag: &str, recipe: &Recipe) {
        for blob in recipe.blobs() {
            self.push_blob(repository, blob).await;
        }
        self.push_manifest(repository, tag, recipe.manifest_type, &recipe.manifest).await;
    }

    pub async fn push_blob(&self, repository: &str, blob: &[u8]) {
        let start = self
            .request(reqwest::Method::POST, format!("http://{}/v2/{repository}/blobs/uploads/", self.host))
            .send()
            .await
            .unwrap();
        assert_eq!(start.status(), StatusCode::ACCEPTED);
        let location = start.headers()["location"].to_str().unwrap().to_owned();
        let put = self
            .request(reqwest::Method::PUT, format!("{location}&digest={}", digest(blob)))
            .header("content-type", "application/octet-stream")
            .body(blob.to_vec())
            .send()
            .await
            .unwrap();
        assert_eq!(put.status(), StatusCode::CREATED);
    }

    pub async fn push_manifest(&self, repository: &str, tag: &str, media_type: &str, manifest: &[u8]) {
        let put = self
            .request(reqwest::Method::PUT, format!("http://{}/v2/{repository}/manifests/{tag}", self.host))
            .header("content-type", media_type)
            .body(manifest.to_vec())
            .send()
            .await
            .unwrap();
        assert_eq!(put.status(), StatusCode::CREATED, "{}", put.text().await.unwrap());
    }

    pub fn stop(&mut self) {
        self.process.kill().unwrap();
        self.process.wait().unwrap();
    }

    fn request(&self, method: reqwest::Method, url: String) -> reqwest::RequestBuilder {
        let request = reqwest::Client::new().request(method, url);
        match self.basic {
            true => request.basic_auth(USERNAME, Some(PASSWORD)),
            false => request,
        }
    }
}

impl Drop for Registry {
    fn drop(&mut self) {
        // It may have been stopped by the test already.
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}
