//! Calls to execd and to ports of a sandbox, through the server.

use std::net::SocketAddr;
use std::sync::atomic::Ordering;
use std::time::Duration;

use crate::common::execd::Execd;
use crate::common::{Answer, KEY, PATIENCE, Server, body_with, token};
use bytes::Bytes;
use futures_util::{SinkExt as _, StreamExt as _};
use http::{Method, Request};
use http_body_util::{BodyExt as _, Full};
use hyper::client::conn::http1;
use hyper_util::rt::TokioIo;
use lifecycle::runtime::{Exit, Observed};
use serde_json::json;
use tokio::io::{AsyncBufReadExt as _, AsyncReadExt as _, AsyncWriteExt as _, BufReader};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::mpsc;
use tokio_tungstenite::tungstenite::client::IntoClientRequest as _;
use tokio_tungstenite::tungstenite::protocol::{CloseFrame, frame::coding::CloseCode};
use tokio_tungstenite::tungstenite::{Error as WsError, Message};

/// A running sandbox whose execd answers.
async fn sandbox(server: &Server) -> (String, Execd) {
    let id = server.create(json!({})).await;
    let execd = Execd::serve(server.dir.path().join(format!("{id}.sock")));
    (id, execd)
}

async fn call(server: &Server, id: &str, port: u16, rest: &str, headers: &[(&str, &str)]) -> Answer {
    let mut request = Request::get(format!("/v1/sandboxes/{id}/proxy/{port}{rest}"))
        .header("host", "osb.example:8080")
        .header("OPEN-SANDBOX-API-KEY", KEY);
    for (name, value) in headers {
        request = request.header(*name, *value);
    }
    server.send(request.body(Full::new(Bytes::new())).expect("a request")).await
}

/// A server in the sandbox that answers each connection with `answer` and reports the head it saw.
async fn application(answer: &'static str) -> (u16, mpsc::UnboundedReceiver<String>) {
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
    let port = listener.local_addr().expect("bound").port();
    let (seen, heads) = mpsc::unbounded_channel();
    tokio::spawn(async move {
        while let Ok((stream, _)) = listener.accept().await {
            let seen = seen.clone();
            tokio::spawn(async move {
                let mut stream = BufReader::new(stream);
                let mut head = String::new();
                while stream.read_line(&mut head).await.is_ok_and(|n| n > 2) {}
                let _ = seen.send(head);
                let _ = stream.write_all(answer.as_bytes()).await;
            });
        }
    });
    (port, heads)
}

fn lines<'a>(head: &'a str, name: &str) -> Vec<&'a str> {
    head.lines()
        .filter_map(|line| line.split_once(':'))
        .filter(|(key, _)| key.eq_ignore_ascii_case(name))
        .map(|(_, value)| value.trim())
        .collect()
}

#[tokio::test]
async fn execd_is_reached_with_its_token_and_without_the_callers_keys() {
    let server = Server::start().await;
    let (id, _execd) = sandbox(&server).await;
    let answer =
        call(&server, &id, 44772, "/files/a%2Fb/../c?x=%20y&x", &[("Cookie", "c"), ("Authorization", "a")]).await;
    let text = String::from_utf8(answer.body.to_vec()).expect("text");
    assert!(text.starts_with("GET /files/a%2Fb/../c?x=%20y&x\n"), "{text}");
    assert_eq!(lines(&text, "x-execd-access-token"), [token(&id)]);
    assert_eq!(lines(&text, "host"), ["127.0.0.1:44772"]);
    for name in ["open-sandbox-api-key", "cookie", "authorization", "opensandbox-secure-access"] {
        assert!(lines(&text, name).is_empty(), "{name}: {text}");
    }
    assert_eq!(lines(&text, "x-request-id").len(), 1);
    let root = call(&server, &id, 44772, "", &[]).await;
    assert!(root.body.starts_with(b"GET /\n"), "{:?}", root.body);
}

#[tokio::test]
async fn os_029_calls_without_the_right_token_or_key_are_401_over_http_and_websocket() {
    let server = Server::start().await;
    let (id, _execd) = sandbox(&server).await;
    let (port, mut heads) = application("HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nhi").await;
    let right = token(&id);
    let wrong = token("other");
    let upgrade = [
        ("Connection", "Upgrade"),
        ("Upgrade", "websocket"),
        ("Sec-WebSocket-Version", "13"),
        ("Sec-WebSocket-Key", "dGhlIHNhbXBsZSBub25jZQ=="),
    ];
    let send = async |id: &str, headers: &[(&str, &str)]| {
        let mut request = Request::get(format!("/sandboxes/{id}/proxy/{port}/"));
        for (name, value) in headers {
            request = request.header(*name, *value);
        }
        server.send(request.body(Full::new(Bytes::new())).expect("a request")).await
    };
    for extra in [&[][..], &upgrade[..]] {
        for header in [None, Some(wrong.as_str()), Some(""), Some(&right[..20])] {
            for name in ["OpenSandbox-Secure-Access", "X-EXECD-ACCESS-TOKEN", "OPEN-SANDBOX-API-KEY"] {
                let mut headers = extra.to_vec();
                headers.extend(header.map(|value| (name, value)));
                send(&id, &headers).await.is(401, "MISSING_OR_INVALID_SECURE_ACCESS");
                // An unknown sandbox looks the same to whoever may not ask.
                send("unknown", &headers).await.is(401, "MISSING_OR_INVALID_SECURE_ACCESS");
            }
        }
    }
    assert!(heads.try_recv().is_err(), "nothing reached the sandbox");
    for name in ["OpenSandbox-Secure-Access", "X-EXECD-ACCESS-TOKEN"] {
        let answer = send(&id, &[(name, &right)]).await;
        assert_eq!((answer.status.as_u16(), &answer.body[..]), (200, &b"hi"[..]));
        let head = heads.recv().await.expect("a head");
        assert!(!head.contains(&right), "the token is stripped: {head}");
    }
    send("unknown", &[("OPEN-SANDBOX-API-KEY", KEY)]).await.is(404, "SANDBOX::SANDBOX_NOT_FOUND");
}

#[tokio::test]
async fn os_031_the_key_never_reaches_the_sandbox() {
    let server = Server::start().await;
    let (id, _execd) = sandbox(&server).await;
    let (port, mut heads) = application("HTTP/1.1 204 No Content\r\n\r\n").await;
    assert_eq!(call(&server, &id, port, "/", &[]).await.status, 204);
    let head = heads.recv().await.expect("a head");
    assert!(!head.contains(KEY) && !head.contains(&token(&id)), "{head}");
}

#[tokio::test]
async fn os_025_hop_by_hop_headers_are_removed_in_both_directions() {
    let server = Server::start().await;
    let (id, _execd) = sandbox(&server).await;
    let (port, mut heads) = application(
        "HTTP/1.1 200 OK\r\nConnection: close, X-Inner-Hop\r\nX-Inner-Hop: 1\r\nKeep-Alive: timeout=5\r\n\
         Proxy-Authenticate: Basic\r\nServer: app\r\nSet-Cookie: a=1\r\nSet-Cookie: b=2\r\nX-Request-ID: theirs\r\n\
         Date: Thu, 01 Jan 1970 00:00:00 GMT\r\nContent-Length: 2\r\n\r\nok",
    )
    .await;
    let answer = call(
        &server,
        &id,
        port,
        "/",
        &[
            ("Connection", "close, X-Secret-Hop, Content-Length"),
            ("X-Secret-Hop", "1"),
            ("TE", "trailers"),
            ("Trailer", "X-T"),
            ("Proxy-Authorization", "Basic x"),
            ("Proxy-Connection", "keep-alive"),
            ("X-Two", "1"),
            ("X-Two", "2"),
        ],
    )
    .await;
    let head = heads.recv().await.expect("a head");
    for name in ["x-secret-hop", "te", "trailer", "proxy-authorization", "proxy-connection", "connection"] {
        assert!(lines(&head, name).is_empty(), "{name}: {head}");
    }
    assert_eq!(lines(&head, "x-two"), ["1", "2"]);
    for name in ["x-inner-hop", "keep-alive", "proxy-authenticate", "server"] {
        assert!(!answer.headers.contains_key(name), "{name}: {:?}", answer.headers);
    }
    assert_eq!(answer.headers.get_all("set-cookie").iter().collect::<Vec<_>>(), ["a=1", "b=2"]);
    assert_eq!(answer.headers.get_all("date").iter().collect::<Vec<_>>(), ["Thu, 01 Jan 1970 00:00:00 GMT"]);
    assert!(answer.headers.get_all("x-request-id").iter().all(|id| id != "theirs"));
}

#[tokio::test]
async fn os_026_forwarded_headers_are_set_once_and_kept_only_by_option() {
    for (trust, proto, host) in [(false, "http", "osb.example:8080"), (true, "https", "outer.example")] {
        let mut config = server::Config::default();
        config.proxy.trust_forwarded = trust;
        let server = Server::with(config).await;
        let (id, _execd) = sandbox(&server).await;
        let (port, mut heads) = application("HTTP/1.1 204 No Content\r\n\r\n").await;
        call(&server, &id, port, "/", &[]).await;
        let head = heads.recv().await.expect("a head");
        assert_eq!(lines(&head, "x-forwarded-proto"), ["http"]);
        assert_eq!(lines(&head, "x-forwarded-host"), ["osb.example:8080"]);
        assert_eq!(lines(&head, "x-forwarded-for"), ["127.0.0.1"]);
        assert_eq!(lines(&head, "x-forwarded-prefix"), [format!("/v1/sandboxes/{id}/proxy/{port}")]);
        let sent = [("X-FORWARDED-proto", "https"), ("x-forwarded-HOST", "outer.example")];
        call(&server, &id, port, "/", &sent).await;
        let head = heads.recv().await.expect("a head");
        assert_eq!((lines(&head, "x-forwarded-proto"), lines(&head, "x-forwarded-host")), (vec![proto], vec![host]));
    }
}

#[tokio::test]
async fn os_027_a_caller_that_leaves_closes_the_connection_behind_it() {
    let server = Server::start().await;
    let (id, execd) = sandbox(&server).await;
    for _ in 0..200 {
        let stream = TcpStream::connect(server.address).await.expect("connects");
        let (mut sender, connection) = http1::handshake(TokioIo::new(stream)).await.expect("a handshake");
        let connection = tokio::spawn(connection);
        let request = Request::get(format!("/v1/sandboxes/{id}/proxy/44772/endless"))
            .header("OPEN-SANDBOX-API-KEY", KEY)
            .body(Full::new(Bytes::new()))
            .expect("a request");
        let mut response = sender.send_request(request).await.expect("an answer");
        response.frame().await.expect("a first frame").expect("whole");
        drop(response);
        connection.abort();
    }
    assert_eq!(call(&server, &id, 44772, "/ping", &[]).await.status, 200);
    let baseline = tokio::time::timeout(PATIENCE, async {
        // One idle connection is kept for the next call.
        while execd.open.load(Ordering::SeqCst) > 1 {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    });
    assert!(baseline.await.is_ok(), "{} connections stay open", execd.open.load(Ordering::SeqCst));
}

#[tokio::test]
async fn os_115_connections_to_a_sandbox_are_reused() {
    let server = Server::start().await;
    let (id, execd) = sandbox(&server).await;
    for _ in 0..100 {
        assert_eq!(call(&server, &id, 44772, "/ping", &[]).await.status, 200);
        assert!(call(&server, &id, 44772, "/echo", &[]).await.body.starts_with(b"GET /echo"));
    }
    assert!(execd.accepted.load(Ordering::SeqCst) <= 3, "{} connections", execd.accepted.load(Ordering::SeqCst));
}

#[tokio::test]
async fn ex_023_each_way_of_not_answering_has_its_own_code() {
    let server = Server::start().await;
    let (id, _execd) = sandbox(&server).await;
    let closed = TcpListener::bind("127.0.0.1:0").await.expect("a port").local_addr().expect("bound").port();
    let silent = call(&server, &id, closed, "/", &[]).await;
    silent.is(502, "BACKEND_CONNECTION_FAILED");
    assert_eq!(silent.headers["retry-after"], "1");
    let own = call(&server, &id, 44772, "/error", &[]).await;
    assert_eq!((own.status.as_u16(), own.code()), (502, "APP".to_owned()), "an application's answer passes as it is");
    call(&server, "unknown", 80, "/", &[]).await.is(404, "SANDBOX::SANDBOX_NOT_FOUND");
    call(&server, &id, 0, "/", &[]).await.is(400, "SANDBOX::INVALID_PORT");
    assert_eq!(server.get(&format!("/v1/sandboxes/{id}/proxy/web/")).await.status, 422);
    let closed_policy = call(&server, &id, 18080, "/policy", &[]).await;
    assert_eq!((closed_policy.status.as_u16(), &closed_policy.json()["mode"]), (200, &"deny_all".into()));
    call(&server, &id, 18080, "/credential-vault", &[]).await.is(404, "SANDBOX::CREDENTIAL_VAULT_NOT_FOUND");
    call(&server, &id, 18080, "/else", &[]).await.is(404, "SANDBOX::ROUTE_NOT_FOUND");
    server.call(Method::POST, &format!("/v1/sandboxes/{id}/pause"), None).await;
    for port in [44772, 18080, closed] {
        call(&server, &id, port, "/", &[]).await.is(409, "SANDBOX::SANDBOX_NOT_RUNNING");
    }
    server.runtime.end(&crate::common::id(&id), Exit::Exited { code: 1 });
    server.reaches(&id, "Failed").await;
    call(&server, &id, 44772, "/ping", &[]).await.is(409, "SANDBOX::SANDBOX_NOT_RUNNING");
}

#[tokio::test]
async fn os_021_an_execd_that_is_gone_is_noticed_at_the_next_call() {
    let server = Server::start().await;
    let (id, execd) = sandbox(&server).await;
    drop(execd);
    server.runtime.plant(&crate::common::id(&id), Observed::Ended(Exit::Signaled { signal: 9 }));
    call(&server, &id, 44772, "/ping", &[]).await.is(502, "BACKEND_CONNECTION_FAILED");
    server.reaches(&id, "Failed").await;
}

#[tokio::test]
async fn a_call_to_a_sandbox_that_is_being_made_waits_for_it() {
    let server = Server::start().await;
    server.runtime.hold();
    let created = server.post("/v1/sandboxes", body_with(json!({}))).await.json();
    let id = created["id"].as_str().expect("an id").to_owned();
    let _execd = Execd::serve(server.dir.path().join(format!("{id}.sock")));
    let ping = call(&server, &id, 44772, "/ping", &[]);
    tokio::pin!(ping);
    tokio::select! {
        early = &mut ping => panic!("answered while Pending: {early:?}"),
        () = async { server.get("/v1/sandboxes").await; } => {}
    }
    server.runtime.release();
    assert_eq!(ping.await.status, 200);
}

#[tokio::test]
async fn large_bodies_stream_up_and_every_byte_arrives() {
    const BYTES: usize = 64 * 1024 * 1024;
    let server = Server::start().await;
    let (id, _execd) = sandbox(&server).await;
    let mut stream = TcpStream::connect(server.address).await.expect("connects");
    let head = format!(
        "POST /v1/sandboxes/{id}/proxy/44772/count HTTP/1.1\r\nHost: x\r\nOPEN-SANDBOX-API-KEY: {KEY}\r\n\
         Expect: 100-continue\r\nConnection: close\r\nContent-Length: {BYTES}\r\n\r\n"
    );
    stream.write_all(head.as_bytes()).await.expect("written");
    let mut interim = [0; 25];
    stream.read_exact(&mut interim).await.expect("an interim answer");
    assert_eq!(&interim, b"HTTP/1.1 100 Continue\r\n\r\n");
    let chunk = vec![b'x'; 1024 * 1024];
    for _ in 0..BYTES / chunk.len() {
        stream.write_all(&chunk).await.expect("written");
    }
    let mut answer = String::new();
    stream.read_to_string(&mut answer).await.expect("an answer");
    assert!(answer.starts_with("HTTP/1.1 200") && answer.ends_with(&BYTES.to_string()), "{answer}");
}

#[tokio::test]
async fn redirects_within_the_application_stay_under_its_prefix() {
    let server = Server::start().await;
    let (id, _execd) = sandbox(&server).await;
    for (answer, expected) in [
        ("HTTP/1.1 302 Found\r\nLocation: /login?x=1\r\nContent-Length: 0\r\n\r\n", "{prefix}/login?x=1"),
        ("HTTP/1.1 302 Found\r\nLocation: next\r\nContent-Length: 0\r\n\r\n", "next"),
        ("HTTP/1.1 302 Found\r\nLocation: //cdn.example/\r\nContent-Length: 0\r\n\r\n", "//cdn.example/"),
        ("HTTP/1.1 302 Found\r\nLocation: http://a.example/\r\nContent-Length: 0\r\n\r\n", "http://a.example/"),
    ] {
        let (port, _heads) = application(answer).await;
        let prefix = format!("/v1/sandboxes/{id}/proxy/{port}");
        let moved = call(&server, &id, port, "/", &[]).await;
        assert_eq!(moved.headers["location"], expected.replace("{prefix}", &prefix).as_str());
    }
}

#[tokio::test]
async fn an_answer_that_breaks_off_is_no_whole_answer() {
    let server = Server::start().await;
    let (id, _execd) = sandbox(&server).await;
    let (port, _heads) = application("HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\nshort").await;
    let mut stream = TcpStream::connect(server.address).await.expect("connects");
    let head = format!(
        "GET /v1/sandboxes/{id}/proxy/{port}/ HTTP/1.1\r\nHost: x\r\nOPEN-SANDBOX-API-KEY: {KEY}\r\nConnection: close\r\n\r\n"
    );
    stream.write_all(head.as_bytes()).await.expect("written");
    let mut answer = String::new();
    let _ = stream.read_to_string(&mut answer).await;
    assert!(answer.to_lowercase().contains("content-length: 100") && answer.ends_with("short"), "{answer}");
    let (port, _heads) = application("nonsense\r\n\r\n").await;
    call(&server, &id, port, "/", &[]).await.is(502, "BACKEND_RESPONSE_FAILED");
}

#[tokio::test]
async fn an_answer_before_the_end_of_the_request_arrives() {
    let server = Server::start().await;
    let (id, _execd) = sandbox(&server).await;
    let (port, _heads) = application("HTTP/1.1 413 Content Too Large\r\nContent-Length: 2\r\n\r\nno").await;
    for _ in 0..50 {
        let stream = TcpStream::connect(server.address).await.expect("connects");
        let (mut reader, mut writer) = stream.into_split();
        let head = format!(
            "POST /v1/sandboxes/{id}/proxy/{port}/ HTTP/1.1\r\nHost: x\r\nOPEN-SANDBOX-API-KEY: {KEY}\r\nContent-Length: 1000000000\r\n\r\n"
        );
        let sending = tokio::spawn(async move {
            writer.write_all(head.as_bytes()).await.expect("written");
            while writer.write_all(&[b'x'; 65536]).await.is_ok() {}
        });
        let mut answer = String::new();
        let _ = reader.read_to_string(&mut answer).await;
        assert!(answer.starts_with("HTTP/1.1 413 "), "{answer:?}");
        sending.await.expect("the sender is told");
    }
}

/// A WebSocket server in the sandbox: echoes, picks the subprotocol `b`, closes with 4001 at `bye`.
async fn echo_websocket() -> u16 {
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
    let port = listener.local_addr().expect("bound").port();
    tokio::spawn(async move {
        use tokio_tungstenite::tungstenite::handshake::server::{Request, Response};
        while let Ok((stream, _)) = listener.accept().await {
            tokio::spawn(async move {
                #[allow(clippy::result_large_err, reason = "the callback's type is given")]
                let choose = |_: &Request, mut response: Response| {
                    response.headers_mut().insert("sec-websocket-protocol", "b".parse().expect("a value"));
                    Ok(response)
                };
                let mut socket = tokio_tungstenite::accept_hdr_async(stream, choose).await.expect("a handshake");
                while let Some(Ok(message)) = socket.next().await {
                    if message == Message::text("bye") {
                        let frame = CloseFrame { code: CloseCode::Library(4001), reason: "done".into() };
                        let _ = socket.close(Some(frame)).await;
                    } else if message.is_text() || message.is_binary() {
                        let _ = socket.send(message).await;
                    }
                }
            });
        }
    });
    port
}

async fn websocket(
    address: SocketAddr,
    path: &str,
    token: &str,
) -> Result<tokio_tungstenite::WebSocketStream<TcpStream>, WsError> {
    let mut request = format!("ws://{address}{path}").into_client_request().expect("a request");
    request.headers_mut().insert("sec-websocket-protocol", "a, b".parse().expect("a value"));
    request.headers_mut().insert("opensandbox-secure-access", token.parse().expect("a value"));
    let stream = TcpStream::connect(address).await.expect("connects");
    let (socket, response) = tokio_tungstenite::client_async(request, stream).await?;
    assert_eq!(response.headers()["sec-websocket-protocol"], "b");
    Ok(socket)
}

#[tokio::test]
async fn websockets_pass_with_subprotocol_messages_and_close_code() {
    let server = Server::start().await;
    let (id, _execd) = sandbox(&server).await;
    let port = echo_websocket().await;
    let path = format!("/v1/sandboxes/{id}/proxy/{port}/chat?x=1");
    let mut socket = websocket(server.address, &path, &token(&id)).await.expect("a websocket");
    let large = Message::binary(vec![7; 1024 * 1024]);
    for message in [Message::text("hello"), large] {
        socket.send(message.clone()).await.expect("sent");
        assert_eq!(socket.next().await.expect("a message").expect("whole"), message);
    }
    socket.send(Message::text("bye")).await.expect("sent");
    match socket.next().await {
        Some(Ok(Message::Close(Some(frame)))) => {
            assert_eq!((u16::from(frame.code), frame.reason.as_str()), (4001, "done"));
        }
        other => panic!("{other:?}"),
    }
}

#[tokio::test]
async fn a_websocket_to_a_port_that_refuses_is_answered_as_http() {
    let server = Server::start().await;
    let (id, _execd) = sandbox(&server).await;
    let (port, _heads) = application("HTTP/1.1 403 Forbidden\r\nContent-Length: 0\r\n\r\n").await;
    let closed = TcpListener::bind("127.0.0.1:0").await.expect("a port").local_addr().expect("bound").port();
    for (port, status) in [(port, 403), (closed, 502)] {
        let path = format!("/v1/sandboxes/{id}/proxy/{port}/");
        match websocket(server.address, &path, &token(&id)).await {
            Err(WsError::Http(response)) => assert_eq!(response.status(), status),
            other => panic!("{other:?}"),
        }
    }
}

#[tokio::test]
async fn ex_044_a_stop_lets_open_streams_finish_and_takes_no_new_work() {
    let server = Server::start().await;
    let (id, _execd) = sandbox(&server).await;
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
    let port = listener.local_addr().expect("bound").port();
    let mut stream = TcpStream::connect(server.address).await.expect("connects");
    let head = format!(
        "GET /v1/sandboxes/{id}/proxy/{port}/ HTTP/1.1\r\nHost: x\r\nOPEN-SANDBOX-API-KEY: {KEY}\r\nConnection: close\r\n\r\n"
    );
    stream.write_all(head.as_bytes()).await.expect("written");
    let (application, _) = listener.accept().await.expect("a connection");
    let mut application = BufReader::new(application);
    let mut asked = String::new();
    while application.read_line(&mut asked).await.is_ok_and(|n| n > 2) {}
    application.write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\non").await.expect("written");
    let mut first = vec![0; 12];
    stream.read_exact(&mut first).await.expect("the head is through");
    let address = server.address;
    let stopping = tokio::spawn(server.stop());
    let refused = tokio::time::timeout(PATIENCE, async {
        while TcpStream::connect(address).await.is_ok() {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    });
    refused.await.expect("no new connection is taken");
    application.write_all(b"ce").await.expect("written");
    let mut rest = String::new();
    stream.read_to_string(&mut rest).await.expect("the rest comes");
    assert!(rest.ends_with("once"), "{rest}");
    stopping.await.expect("stops");
}

#[tokio::test]
async fn ex_044_a_stop_lets_open_websockets_finish() {
    let server = Server::start().await;
    let (id, _execd) = sandbox(&server).await;
    let port = echo_websocket().await;
    let address = server.address;
    let path = format!("/v1/sandboxes/{id}/proxy/{port}/chat");
    let mut socket = websocket(address, &path, &token(&id)).await.expect("a websocket");
    let stopping = tokio::spawn(server.stop());
    let refused = tokio::time::timeout(PATIENCE, async {
        while TcpStream::connect(address).await.is_ok() {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    });
    refused.await.expect("no new connection is taken");
    socket.send(Message::text("still here")).await.expect("sent");
    assert_eq!(socket.next().await.expect("a message").expect("whole"), Message::text("still here"));
    socket.close(None).await.expect("closed");
    while let Some(Ok(_)) = socket.next().await {}
    drop(socket);
    stopping.await.expect("stops");
}
