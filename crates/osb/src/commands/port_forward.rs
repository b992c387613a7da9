//! `osb port-forward`: ports of this machine that lead to ports of a sandbox.

use std::net::{IpAddr, SocketAddr};
use std::process::ExitCode;
use std::str::FromStr;
use std::sync::Arc;
use std::time::Duration;

use clap::Args;
use serde_json::json;
use tokio::io::copy_bidirectional_with_sizes;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Semaphore;

use super::signals::Signals;
use super::{Context, Outcome};
use crate::client::ports::Port;
use crate::failure::Failure;
use crate::output::Printer;

/// Bytes copied at once in each direction.
const COPY_BYTES: usize = 128 * 1024;
/// Connections open at the same time through one pair; each costs a descriptor here and two at the server.
const MAX_CONNECTIONS: usize = 512;
/// Wait after a failed accept: it fails for want of descriptors.
const ACCEPT_RETRY: Duration = Duration::from_millis(50);

/// What `osb port-forward` is given.
#[derive(Args, Debug)]
#[command(
    after_help = "Examples:\n  osb port-forward ID 8080:80           127.0.0.1:8080 leads to port 80\n  osb port-forward ID 5432 :6379         the same port, and a free one\n  osb port-forward ID 8080:80 --address 0.0.0.0"
)]
pub struct PortForwardArgs {
    /// The sandbox
    id: String,
    /// LOCAL:REMOTE, PORT for the same on both sides, or :REMOTE for a free port here
    #[arg(required = true, value_name = "LOCAL:REMOTE")]
    pairs: Vec<Pair>,
    /// Address of this machine to listen on
    #[arg(long, default_value = "127.0.0.1", value_name = "IP")]
    address: IpAddr,
}

/// A port here and a port there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Pair {
    /// 0 takes a free one.
    local: u16,
    remote: u16,
}

impl FromStr for Pair {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let wrong = || format!("`{text}` is no pair of ports; write LOCAL:REMOTE, PORT or :REMOTE");
        let port = |text: &str| text.parse::<u16>().ok().filter(|port| *port > 0).ok_or_else(wrong);
        match text.split_once(':') {
            None => port(text).map(|port| Self { local: port, remote: port }),
            Some(("", remote)) => Ok(Self { local: 0, remote: port(remote)? }),
            Some((local, remote)) => Ok(Self { local: port(local)?, remote: port(remote)? }),
        }
    }
}

/// Listens until it is interrupted.
pub async fn run(ctx: &Context, args: &PortForwardArgs) -> Outcome {
    let client = ctx.client()?;
    let mut signals = Signals::listen()?;
    let mut forwards = Vec::new();
    for pair in &args.pairs {
        let port = client.port(&args.id, pair.remote).await?;
        let wanted = SocketAddr::new(args.address, pair.local);
        let failed = |error: std::io::Error| Failure::new("LOCAL_PORT", format!("listen on {wanted}: {error}"));
        let listener = TcpListener::bind(wanted).await.map_err(failed)?;
        let local = listener.local_addr().map_err(failed)?;
        let told = json!({ "local": local.to_string(), "remote": pair.remote });
        ctx.printer.document(&told, || format!("{local} -> port {} of {}", pair.remote, args.id))?;
        forwards.push(forward(listener, Arc::new(port), ctx.printer.clone()));
    }
    tokio::select! {
        _ = futures_util::future::join_all(forwards) => Ok(ExitCode::SUCCESS),
        // People end it so.
        _ = signals.next() => Ok(ExitCode::SUCCESS),
    }
}

/// Connects each caller of the listener with the port.
async fn forward(listener: TcpListener, port: Arc<Port>, printer: Printer) {
    let places = Arc::new(Semaphore::new(MAX_CONNECTIONS));
    let mut connections = tokio::task::JoinSet::new();
    loop {
        while connections.try_join_next().is_some() {}
        let place = places.clone().acquire_owned().await.expect("never closed");
        let stream = match listener.accept().await {
            Ok((stream, _)) => stream,
            Err(error) => {
                printer.note(&format!("a connection could not be accepted: {error}"));
                tokio::time::sleep(ACCEPT_RETRY).await;
                continue;
            }
        };
        let (port, printer) = (port.clone(), printer.clone());
        connections.spawn(async move {
            let _place = place;
            // The caller sees its connection close; whoever reads this sees why.
            if let Err(failure) = connect(stream, &port).await {
                printer.note(&format!("a connection failed: {failure}"));
            }
        });
    }
}

async fn connect(mut here: TcpStream, port: &Port) -> Result<(), Failure> {
    // Only latency is at stake.
    let _ = here.set_nodelay(true);
    let mut there = port.connect().await?;
    // Either side may break off; the other sees the end of its connection.
    let _ = copy_bidirectional_with_sizes(&mut here, &mut there, COPY_BYTES, COPY_BYTES).await;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::Pair;

    #[test]
    fn pairs_are_read_as_people_write_them() {
        for (text, expected) in [
            ("8080:80", Some((8080, 80))),
            ("80", Some((80, 80))),
            (":80", Some((0, 80))),
            ("0:80", None),
            ("80:", None),
            ("80:0", None),
            ("65536", None),
            ("a:b", None),
            ("1:2:3", None),
            ("", None),
        ] {
            let pair = text.parse::<Pair>().ok().map(|pair| (pair.local, pair.remote));
            assert_eq!(pair, expected, "{text}");
        }
    }
}
