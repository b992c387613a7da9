//! Connects to the first of several addresses that answers (RFC 8305, in short).

use std::io;
use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use futures_util::StreamExt;
use futures_util::stream::FuturesUnordered;
use tokio::net::TcpStream;
use tokio::time::{Instant, sleep_until, timeout};

/// How long all attempts together may take. Less than what most clients wait for a connection, so that the reason is
/// written down before they give up.
const DEADLINE: Duration = Duration::from_secs(20);
/// How long an attempt runs before the next address is tried beside it.
const STAGGER: Duration = Duration::from_millis(300);
/// A peer that is gone is noticed: first probe, between probes, probes.
const KEEPALIVE: (Duration, Duration, u32) = (Duration::from_secs(60), Duration::from_secs(15), 4);

/// Connects; `addresses` must not be empty.
///
/// # Errors
/// What the last attempt said.
pub async fn connect(addresses: &[IpAddr], port: u16) -> io::Result<TcpStream> {
    match timeout(DEADLINE, race(addresses, port)).await {
        Ok(connected) => connected,
        Err(_) => Err(io::ErrorKind::TimedOut.into()),
    }
}

async fn race(addresses: &[IpAddr], port: u16) -> io::Result<TcpStream> {
    let mut waiting = addresses.iter().map(|address| TcpStream::connect(SocketAddr::new(*address, port)));
    // The first and those after a failure start at once, without a timer: it would round up to a millisecond.
    let mut attempts: FuturesUnordered<_> = waiting.next().into_iter().collect();
    let mut next_at = Instant::now() + STAGGER;
    let mut last = io::Error::from(io::ErrorKind::AddrNotAvailable);
    loop {
        tokio::select! {
            Some(attempt) = attempts.next() => match attempt {
                Ok(stream) => {
                    prepare(&stream);
                    return Ok(stream);
                }
                Err(error) => last = error,
            },
            () = sleep_until(next_at), if waiting.len() > 0 => {}
            else => return Err(last),
        }
        attempts.extend(waiting.next());
        next_at = Instant::now() + STAGGER;
    }
}

/// Options of both ends of a relayed connection: nothing is held back, and a dead peer is noticed.
pub fn prepare(stream: &TcpStream) {
    use rustix::net::sockopt;
    let (idle, interval, probes) = KEEPALIVE;
    // Each fails only for what is no TCP socket.
    let _ = stream.set_nodelay(true);
    let _ = sockopt::set_socket_keepalive(stream, true);
    let _ = sockopt::set_tcp_keepidle(stream, idle);
    let _ = sockopt::set_tcp_keepintvl(stream, interval);
    let _ = sockopt::set_tcp_keepcnt(stream, probes);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn an_address_that_refuses_is_passed_over() {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.expect("a listener");
        let port = listener.local_addr().expect("an address").port();
        let addresses = ["127.0.0.2", "127.0.0.1"].map(|text| text.parse().expect("an address"));
        let stream = connect(&addresses, port).await.expect("the second answers");
        assert_eq!(stream.peer_addr().expect("a peer").ip(), addresses[1]);
    }

    #[tokio::test]
    async fn when_nobody_answers_the_reason_is_told() {
        let addresses = ["127.0.0.2".parse().expect("an address")];
        let error = connect(&addresses, 1).await.expect_err("nobody listens");
        assert_eq!(error.kind(), io::ErrorKind::ConnectionRefused);
    }
}
