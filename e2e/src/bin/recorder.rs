//! `recorder --upstream ADDR --report FILE [--specs DIR]`: prints the address it
//! listens on, then records until its standard input ends.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;

use anyhow::{Context, Result, bail};
use e2e::recorder::Recorder;
use tokio::io::AsyncReadExt as _;

fn main() -> Result<()> {
    let mut upstream: Option<SocketAddr> = None;
    let mut report: Option<PathBuf> = None;
    let mut specs = PathBuf::from("specs");
    let mut arguments = std::env::args().skip(1);
    while let Some(name) = arguments.next() {
        let value = arguments.next().with_context(|| format!("{name} needs a value"))?;
        match name.as_str() {
            "--upstream" => upstream = Some(value.parse().context("--upstream is an address")?),
            "--report" => report = Some(value.into()),
            "--specs" => specs = value.into(),
            _ => bail!("unknown argument {name}"),
        }
    }
    let recorder =
        Recorder::new(&specs, upstream.context("--upstream is missing")?, &report.context("--report is missing")?)?;
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    runtime.block_on(async {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await?;
        println!("{}", listener.local_addr()?);
        let mut stdin = tokio::io::stdin();
        let mut ignored = [0; 64];
        tokio::select! {
            served = Arc::new(recorder).serve(listener) => served,
            // Whoever started us holds the other end: when it goes, so do we.
            _ = async { while stdin.read(&mut ignored).await.is_ok_and(|read| read > 0) {} } => Ok(()),
        }
    })
}
