//! Upload and download of one gibibyte.

use std::time::Instant;

use anyhow::{Result, ensure};
use bytes::Bytes;
use http_body_util::BodyExt as _;
use hyper::{Method, StatusCode};
use serde_json::json;

use super::super::Bench;
use super::super::client::{Connection, Headers, Payload};
use super::super::peer::nginx::Nginx;
use super::super::process::{MIB, forget_peak, peak};
use super::super::report::{Figure, Row, Unit};
use super::super::sandbox::{Bed, Sandbox};

/// Bytes of one transfer.
const BYTES: u64 = 1 << 30;
/// Bytes handed to the connection at once.
const CHUNK: usize = 256 << 10;
/// Where the file lies in the sandbox.
const FILE: &str = "/var/tmp/bench";
/// Separates the parts of an upload.
const BOUNDARY: &str = "osb-bench-boundary";

/// Both ways.
pub async fn run(bench: &Bench) -> Result<Vec<Row>> {
    let runs = bench.runs(5).max(2);
    let mut bed = Bed::make(bench).await?;
    let sandbox = bed.sandbox().await?;
    let nginx = Nginx::start(bench, None)?;
    let mut yardstick = Connection::open(&nginx.address).await?;
    let server = bed.server.api_process()?;
    let (mut ups, mut downs, mut their_ups, mut their_downs) = (Vec::new(), Vec::new(), Vec::new(), Vec::new());
    let mut grown = [0.0_f64; 2];
    for run in 0..=runs {
        forget_peak(server)?;
        let before = peak(server)?;
        let up = upload(&mut bed.connection, &sandbox).await?;
        let between = peak(server)?;
        forget_peak(server)?;
        let path = format!("{}/files/download?path={FILE}", sandbox.execd);
        let start = peak(server)?;
        let down = download(&mut bed.connection, &path, &sandbox.headers()).await?;
        let after = peak(server)?;
        let their_up = put(&mut yardstick).await?;
        let their_down = download(&mut yardstick, "/files/bench", &[]).await?;
        // The first run warms up both.
        if run > 0 {
            for (samples, value) in
                [(&mut ups, up), (&mut downs, down), (&mut their_ups, their_up), (&mut their_downs, their_down)]
            {
                samples.push(value);
            }
            let growth = [between.saturating_sub(before), after.saturating_sub(start)];
            for (most, bytes) in grown.iter_mut().zip(growth) {
                *most = most.max(bytes as f64 / MIB);
            }
        }
    }
    let size = sandbox.run(&mut bed.connection, &format!("stat -c %s {FILE}")).await?;
    ensure!(size.trim() == BYTES.to_string(), "the file in the sandbox has {} bytes", size.trim());
    sandbox.delete(&mut bed.connection, &bed.key).await?;
    let note = "1 GiB through the server to and from a file in the sandbox, kept alive. Beside it: nginx, one hop, `PUT` (into a \
        temporary file, then renamed) and a plain file with sendfile.";
    let row = |what: &str, ours: Vec<f64>, theirs: Vec<f64>, grown: f64| {
        let ours = Figure::new("osb", Unit::Mebibytes, ours);
        let theirs = Figure::new("nginx", Unit::Mebibytes, theirs);
        let (p50, share) = (ours.p50(), 100.0 * ours.p50() / theirs.p50());
        let growth = Figure::single("osb, growth of the server's memory", Unit::Memory, grown);
        Row::new(what, vec![ours, theirs, growth], note)
            .at_least("p50", p50, 400.0, " MiB/s")
            .at_least("share of nginx", share, 50.0, " %")
            .at_most("growth", grown, 32.0, " MiB")
    };
    Ok(vec![row("upload of 1 GiB", ups, their_ups, grown[0]), row("download of 1 GiB", downs, their_downs, grown[1])])
}

fn chunk() -> Bytes {
    Bytes::from(vec![b'x'; CHUNK])
}

fn rate(start: Instant) -> f64 {
    BYTES as f64 / MIB / start.elapsed().as_secs_f64()
}

async fn upload(connection: &mut Connection, sandbox: &Sandbox) -> Result<f64> {
    let metadata = json!({ "path": FILE, "mode": 644 });
    let head = format!(
        "--{BOUNDARY}\r\ncontent-disposition: form-data; name=\"metadata\"; filename=\"metadata\"\r\n\
         content-type: application/json\r\n\r\n{metadata}\r\n--{BOUNDARY}\r\n\
         content-disposition: form-data; name=\"file\"; filename=\"bench\"\r\n\
         content-type: application/octet-stream\r\n\r\n"
    );
    let body = Payload::Parts(vec![
        (head.into(), 1),
        (chunk(), BYTES / CHUNK as u64),
        (format!("\r\n--{BOUNDARY}--\r\n").into(), 1),
    ]);
    let kind = format!("multipart/form-data; boundary={BOUNDARY}");
    let mut headers = sandbox.headers();
    headers.push(("content-type", &kind));
    let start = Instant::now();
    connection.ask(Method::POST, &format!("{}/files/upload", sandbox.execd), &headers, body).await?;
    Ok(rate(start))
}

async fn put(connection: &mut Connection) -> Result<f64> {
    let body = Payload::Parts(vec![(chunk(), BYTES / CHUNK as u64)]);
    let start = Instant::now();
    connection.ask(Method::PUT, "/files/bench", &[], body).await?;
    Ok(rate(start))
}

async fn download(connection: &mut Connection, path: &str, headers: Headers<'_>) -> Result<f64> {
    let start = Instant::now();
    let response = connection.send(Method::GET, path, headers, Payload::Empty).await?;
    ensure!(response.status() == StatusCode::OK, "GET {path}: {}", response.status());
    let mut body = response.into_body();
    let mut bytes = 0;
    while let Some(frame) = body.frame().await {
        if let Ok(data) = frame?.into_data() {
            bytes += data.len() as u64;
        }
    }
    ensure!(bytes == BYTES, "GET {path} delivered {bytes} of {BYTES} bytes");
    Ok(rate(start))
}
