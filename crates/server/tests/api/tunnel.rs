//! Raw TCP to a port, by an upgrade on the port's own path.

use std::time::Duration;

use crate::common::execd::Execd;
use crate::common::{KEY, PATIENCE, Server, token};
use serde_json::json;
use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};

/// Bytes sent through in each direction.
const BYTES: u64 = 1024 * 1024 * 1024;
/// Longest time for them in a debug build on a busy machine.
const LONG: Duration = Duration::from_secs(300);

async fn sandbox(server: &Server) -> (String, Execd) {
    let id = server.create(json!({})).await;
    let execd = Execd::serve(server.dir.path().join(format!("{id}.sock")));
    (id, execd)
}

/// Asks for a tunnel; the connection and the head of the answer.
async fn ask(server: &Server, path: &str, header: &str) -> (TcpStream, String) {
    let mut stream = TcpStream::connect(server.address).await.expect("connects");
    let head = format!(
        "GET {path} HTTP/1.1\r\nHost: x\r\n{header}\r\nConnection: Upgrade\r\nUpgrade: opensandbox-tcp\r\n\r\n"
    );
    stream.write_all(head.as_bytes()).await.expect("written");
    let mut answer = Vec::new();
    while !answer.ends_with(b"\r\n\r\n") {
        answer.push(stream.read_u8().await.expect("a head"));
    }
    (stream, String::from_utf8(answer).expect("text"))
}

/// A block that depends on where it stands.
fn block(number: u64, block: &mut [u8]) {
    for (at, eight) in block.chunks_exact_mut(8).enumerate() {
        eight.copy_from_slice(&(number.wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ at as u64).to_le_bytes());
    }
}

const BLOCK: usize = 1024 * 1024;

async fn send(mut to: impl AsyncWrite + Unpin) {
    let mut bytes = vec![0; BLOCK];
    for number in 0..BYTES / BLOCK as u64 {
        block(number, &mut bytes);
        to.write_all(&bytes).await.expect("written");
    }
    to.shutdown().await.expect("ended");
}

async fn receive(mut from: impl AsyncRead + Unpin) {
    let (mut bytes, mut expected) = (vec![0; BLOCK], vec![0; BLOCK]);
    for number in 0..BYTES / BLOCK as u64 {
        from.read_exact(&mut bytes).await.expect("a block");
        block(number, &mut expected);
        assert!(bytes == expected, "block {number} differs");
    }
    assert_eq!(from.read(&mut bytes).await.expect("an end"), 0, "nothing follows");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_gibibyte_arrives_whole_in_both_directions_and_each_ends_by_itself() {
    let server = Server::start().await;
    let (id, _execd) = sandbox(&server).await;
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
    let port = listener.local_addr().expect("bound").port();
    let path = format!("/v1/sandboxes/{id}/proxy/{port}");
    let (caller, head) = ask(&server, &path, &format!("OpenSandbox-Secure-Access: {}", token(&id))).await;
    assert!(head.starts_with("HTTP/1.1 101 ") && head.to_lowercase().contains("upgrade: opensandbox-tcp"), "{head}");
    let (application, _) = listener.accept().await.expect("a connection");
    let through = async {
        // First one way to its end, then the other: an ended direction does not end the tunnel.
        let (mut from_caller, mut to_caller) = application.into_split();
        let (mut from_application, mut to_application) = caller.into_split();
        tokio::join!(send(&mut to_application), receive(&mut from_caller));
        tokio::join!(send(&mut to_caller), receive(&mut from_application));
    };
    tokio::time::timeout(LONG, through).await.expect("arrives in time");
}

#[tokio::test]
async fn tunnels_want_the_token_and_a_port_that_listens() {
    let server = Server::start().await;
    let (id, execd) = sandbox(&server).await;
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
    let port = listener.local_addr().expect("bound").port();
    let path = format!("/v1/sandboxes/{id}/proxy/{port}");
    let key = format!("OPEN-SANDBOX-API-KEY: {KEY}");
    let status = async |path: &str, header: &str| ask(&server, path, header).await.1[9..12].to_owned();
    assert_eq!(status(&path, "X-Nothing: x").await, "401");
    assert_eq!(status(&format!("/v1/sandboxes/{id}/proxy/44772"), &key).await, "400");
    assert_eq!(status("/v1/sandboxes/unknown/proxy/80", &key).await, "404");
    assert_eq!(status(&path, &key).await, "101");
    drop(listener);
    assert_eq!(status(&path, &key).await, "502");
    // A caller that leaves leaves nothing behind.
    let gone = tokio::time::timeout(PATIENCE, async {
        while execd.open.load(std::sync::atomic::Ordering::SeqCst) > 0 {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    });
    gone.await.expect("no connection stays");
}

#[tokio::test]
async fn ex_023_a_port_that_begins_to_listen_within_a_moment_is_reached() {
    let server = Server::start().await;
    let (id, _execd) = sandbox(&server).await;
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
    let address = listener.local_addr().expect("bound");
    drop(listener);
    let path = format!("/v1/sandboxes/{id}/proxy/{}", address.port());
    let key = format!("OPEN-SANDBOX-API-KEY: {KEY}");
    let asked = ask(&server, &path, &key);
    let late = async {
        tokio::time::sleep(Duration::from_millis(300)).await;
        TcpListener::bind(address).await.expect("the port is free")
    };
    let ((_, head), _listener) = tokio::join!(asked, late);
    assert!(head.starts_with("HTTP/1.1 101 "), "{head}");
}
