//! HTTP to a port of a sandbox.

use std::time::{Duration, Instant};

use anyhow::{Context as _, Result};
use hyper::Method;

use super::super::Bench;
use super::super::client::{Connection, Payload};
use super::super::peer::nginx::Nginx;
use super::super::report::{Figure, Row, Unit};
use super::super::sandbox::Bed;
use super::millis;

/// Clients at the same time.
const CLIENTS: usize = 8;
/// Port of the application in the sandbox.
const PORT: u16 = 8000;
/// The same application for both: nginx with a short answer of its own.
const APPLICATION: &str = "daemon off; master_process off; pid /tmp/app.pid; error_log /dev/null; events {} http { access_log off; \
    keepalive_requests 10000000; client_body_temp_path /tmp/b; proxy_temp_path /tmp/p; fastcgi_temp_path /tmp/f; \
    uwsgi_temp_path /tmp/u; scgi_temp_path /tmp/s; server { listen 127.0.0.1:PORT; location / { return 200 ok; } } }";

/// Rate with eight clients and latency with one, through the server and through nginx.
pub async fn run(bench: &Bench) -> Result<Vec<Row>> {
    let mut bed = Bed::make(bench).await?;
    let sandbox = bed.sandbox().await?;
    let inside = APPLICATION.replace("PORT", &PORT.to_string());
    let start = format!(
        "printf '%s' '{inside}' > /tmp/app.conf; nginx -e /dev/null -c /tmp/app.conf >/dev/null 2>&1 & \
         for i in $(seq 200); do (exec 3<>/dev/tcp/127.0.0.1/{PORT}) 2>/dev/null && exit 0; sleep 0.05; done; exit 1"
    );
    sandbox.run(&mut bed.connection, &start).await.context("start the application in the sandbox")?;
    let (path, headers) = sandbox.port(&mut bed.connection, &bed.key, PORT).await?;
    let ours = Subject { address: bed.server.address().to_owned(), path: format!("{path}/"), headers };

    let port = std::net::TcpListener::bind("127.0.0.1:0")?.local_addr()?.port();
    let upstream = format!("127.0.0.1:{port}");
    let _application = Application::start(bench, port)?;
    let nginx = Nginx::start(bench, Some(&upstream))?;
    let direct = Subject { address: upstream, path: "/".to_owned(), headers: Vec::new() };
    let theirs = Subject { address: nginx.address.clone(), path: "/".to_owned(), headers: Vec::new() };

    let seconds = Duration::from_millis(300 * bench.runs(10) as u64);
    let mut rates = Vec::new();
    let mut latencies = Vec::new();
    for (subject, name) in [(&ours, "osb"), (&theirs, "nginx proxy_pass"), (&direct, "direct")] {
        rates.push(Figure::single(name, Unit::Rate, subject.rate(seconds).await?));
        latencies.push(Figure::new(name, Unit::Millis, subject.latency(bench.runs(2000)).await?));
    }
    sandbox.delete(&mut bed.connection, &bed.key).await?;
    let share = 100.0 * rates[0].p50() / rates[1].p50();
    let added = latencies[0].p99() - latencies[2].p99();
    let rate_note = "Eight kept-alive connections, one request after another on each, an nginx as the application: inside the \
        sandbox for us, on the machine for the others.";
    Ok(vec![
        Row::new("HTTP proxy to a sandbox's port: rate", rates, rate_note).at_least(
            "share of nginx",
            share,
            70.0,
            " %",
        ),
        Row::new(
            "HTTP proxy to a sandbox's port: latency",
            latencies,
            "One kept-alive connection; added is against direct.",
        )
        .at_most("added p99", added, 1.0, " ms"),
    ])
}

/// Somebody who answers.
struct Subject {
    address: String,
    path: String,
    headers: Vec<(String, String)>,
}

impl Subject {
    async fn latency(&self, runs: usize) -> Result<Vec<f64>> {
        let mut connection = Connection::open(&self.address).await?;
        let mut samples = Vec::new();
        for _ in 0..runs {
            let start = Instant::now();
            self.ask(&mut connection).await?;
            samples.push(millis(start));
        }
        Ok(samples)
    }

    async fn rate(&self, length: Duration) -> Result<f64> {
        let mut connections = Vec::new();
        for _ in 0..CLIENTS {
            connections.push(Connection::open(&self.address).await?);
        }
        let start = Instant::now();
        let client = async |mut connection: Connection| -> Result<usize> {
            let mut answers = 0;
            while start.elapsed() < length {
                self.ask(&mut connection).await?;
                answers += 1;
            }
            Ok(answers)
        };
        let counts = futures_util::future::try_join_all(connections.into_iter().map(client)).await?;
        Ok(counts.iter().sum::<usize>() as f64 / start.elapsed().as_secs_f64())
    }

    async fn ask(&self, connection: &mut Connection) -> Result<()> {
        let headers: Vec<(&str, &str)> =
            self.headers.iter().map(|(name, value)| (name.as_str(), value.as_str())).collect();
        connection.ask(Method::GET, &self.path, &headers, Payload::Empty).await?;
        Ok(())
    }
}

/// The application on the machine itself, ended when dropped.
struct Application(std::process::Child);

impl Application {
    fn start(bench: &Bench, port: u16) -> Result<Self> {
        let directory = tempfile::Builder::new().prefix("app-").tempdir_in(bench.scratch.path())?.keep();
        let text = APPLICATION.replace("PORT", &port.to_string()).replace("/tmp", &directory.display().to_string());
        std::fs::write(directory.join("app.conf"), text)?;
        let mut command = std::process::Command::new("nginx");
        command.args(["-e", "/dev/null", "-c"]).arg(directory.join("app.conf"));
        command
            .stdin(std::process::Stdio::null())
            .stdout(std::process::Stdio::null())
            .stderr(std::process::Stdio::null());
        let application = Self(command.spawn().context("start nginx: is nginx-light installed?")?);
        while std::net::TcpStream::connect(("127.0.0.1", port)).is_err() {
            std::thread::sleep(Duration::from_millis(5));
        }
        Ok(application)
    }
}

impl Drop for Application {
    fn drop(&mut self) {
        // Gone already is what we want.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}
