//! nginx as the yardstick for transfers: one hop, a file in a directory, kept-alive connections.

use std::fs;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail, ensure};

use super::super::Bench;

/// How long it may take to answer.
const PATIENCE: Duration = Duration::from_secs(10);
/// Between two looks.
const LOOK: Duration = Duration::from_millis(5);

/// A running nginx, ended when dropped.
pub struct Nginx {
    child: Child,
    /// Where it listens.
    pub address: String,
}

impl Nginx {
    /// Starts it over an empty directory that takes uploads under `/files/`. Everything else goes to `upstream`,
    /// where one is given.
    ///
    /// # Errors
    /// It does not answer.
    pub fn start(bench: &Bench, upstream: Option<&str>) -> Result<Self> {
        let directory = tempfile::Builder::new().prefix("nginx-").tempdir_in(bench.scratch.path())?.keep();
        for part in ["files", "body"] {
            fs::create_dir(directory.join(part))?;
        }
        let port = std::net::TcpListener::bind("127.0.0.1:0")?.local_addr()?.port();
        let address = format!("127.0.0.1:{port}");
        fs::write(directory.join("nginx.conf"), configuration(&directory, &address, upstream))?;
        let mut child = Command::new("nginx")
            .arg("-p")
            .arg(&directory)
            .args(["-c", "nginx.conf", "-e", "error.log"])
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .context("start nginx: is nginx-light installed?")?;
        let start = Instant::now();
        while std::net::TcpStream::connect(&address).is_err() {
            if let Some(status) = child.try_wait()? {
                bail!(
                    "nginx ended with {status}: {}",
                    fs::read_to_string(directory.join("error.log")).unwrap_or_default()
                );
            }
            ensure!(start.elapsed() < PATIENCE, "nginx did not answer within {PATIENCE:?}");
            std::thread::sleep(LOOK);
        }
        Ok(Self { child, address })
    }
}

fn configuration(directory: &Path, address: &str, upstream: Option<&str>) -> String {
    let root = directory.display();
    let proxy =
        upstream.map_or(String::new(), |upstream| format!("upstream app {{ server {upstream}; keepalive 64; }}\n"));
    let location = upstream.map_or(
        "",
        |_| "location / { proxy_pass http://app; proxy_http_version 1.1; proxy_set_header Connection \"\"; }",
    );
    format!(
        "daemon off; user root; worker_processes 2; pid {root}/pid;\n\
         events {{ worker_connections 1024; }}\n\
         http {{\n\
         access_log off; sendfile on; client_max_body_size 0; keepalive_requests 10000000; client_body_temp_path {root}/body;\n\
         proxy_temp_path {root}/proxy; fastcgi_temp_path {root}/fastcgi; uwsgi_temp_path {root}/uwsgi; scgi_temp_path {root}/scgi;\n\
         {proxy}\
         server {{ listen {address}; root {root};\n\
         location /files/ {{ dav_methods PUT; }}\n\
         {location}\n\
         }}\n}}\n"
    )
}

impl Drop for Nginx {
    fn drop(&mut self) {
        // The master ends its workers on TERM; an error means that it is gone.
        let _ =
            rustix::process::kill_process(rustix::process::Pid::from_child(&self.child), rustix::process::Signal::TERM);
        let _ = self.child.wait();
    }
}
