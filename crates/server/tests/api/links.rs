//! Signed links and secure access: who opens a port, and who does not.

use std::time::Duration;

use crate::common::execd::Execd;
use crate::common::{Answer, KEY, SECRET, Server, token};
use bytes::Bytes;
use http::{Method, Request};
use http_body_util::Full;
use ingress::links::Keys;
use serde_json::{Value, json};
use tokio::net::{TcpListener, TcpStream};
use tokio_tungstenite::tungstenite::Error as WsError;
use tokio_tungstenite::tungstenite::client::IntoClientRequest as _;

/// A running sandbox whose execd answers.
async fn sandbox(server: &Server, changes: Value) -> (String, Execd) {
    let id = server.create(changes).await;
    let execd = Execd::serve(server.dir.path().join(format!("{id}.sock")));
    (id, execd)
}

async fn ask(server: &Server, method: Method, path: &str, headers: &[(&str, &str)]) -> Answer {
    let mut request = Request::builder().method(method).uri(path).header("host", "osb.example");
    for (name, value) in headers {
        request = request.header(*name, *value);
    }
    server.send(request.body(Full::new(Bytes::new())).expect("a request")).await
}

async fn open(server: &Server, path: &str) -> Answer {
    ask(server, Method::GET, path, &[]).await
}

fn in_seconds(seconds: i64) -> i64 {
    jiff::Timestamp::now().as_second() + seconds
}

/// The path of a link.
async fn link(server: &Server, id: &str, query: &str) -> String {
    let found = server.get(&format!("/v1/sandboxes/{id}/endpoints/44772?{query}")).await;
    assert_eq!(found.status, 200, "{:?}", found.json());
    assert_eq!(found.json().as_object().expect("an object").len(), 1, "no token comes with a link");
    let endpoint = found.json()["endpoint"].as_str().expect("an endpoint").to_owned();
    endpoint.strip_prefix(&server.address.to_string()).expect("the server's address").to_owned()
}

const WRONG: &str = "MISSING_OR_INVALID_SECURE_ACCESS";

#[tokio::test]
async fn os_033_a_link_opens_its_port_until_it_expires_and_nothing_else() {
    let server = Server::start().await;
    let (id, _execd) = sandbox(&server, json!({})).await;
    let (other, _other) = sandbox(&server, json!({})).await;
    for version in [1, 2] {
        let path = link(&server, &id, &format!("expires={}&version={version}", in_seconds(60))).await;
        assert!(path.starts_with(&format!("/v1/links/{id}/44772/")), "{path}");
        let answer = open(&server, &format!("{path}/echo/%2F?x=1")).await;
        let text = String::from_utf8_lossy(&answer.body).into_owned();
        assert!(text.starts_with("GET /echo/%2F?x=1\n"), "{text}");
        assert!(text.contains(&format!("x-execd-access-token: {}\n", token(&id))), "execd gets its token");
        assert_eq!(open(&server, path.strip_prefix("/v1").expect("as asked")).await.status, 200);
        for wrong in [
            path.replace(&id, &other),
            path.replace("/44772/", "/44773/"),
            format!("{}{}", &path[..path.len() - 1], if path.ends_with('z') { 'y' } else { 'z' }),
            path.to_ascii_uppercase().replace("/V1/LINKS/", "/v1/links/"),
            path.replace("/44772/", "/44772/0"),
        ] {
            open(&server, &wrong).await.is(401, WRONG);
        }
        let short = link(&server, &id, &format!("expires={}&version={version}", in_seconds(1))).await;
        tokio::time::sleep(Duration::from_millis(2100)).await;
        let expired = open(&server, &short).await;
        expired.is(401, WRONG);
        assert!(expired.message().contains("expired"), "{}", expired.message());
    }
    open(&server, &format!("/links/{id}/0/x/y")).await.is(400, "SANDBOX::INVALID_PORT");
    open(&server, &format!("/links/{id}/18080/x/y")).await.is(400, "SANDBOX::API_NOT_SUPPORTED");
    open(&server, "/links/unknown/80/x2qxvk/087b80a7a").await.is(401, WRONG);
}

#[tokio::test]
async fn links_of_version_2_are_bound_to_method_and_path() {
    let server = Server::start().await;
    let (id, _execd) = sandbox(&server, json!({})).await;
    let path = link(&server, &id, &format!("expires={}&method=GET&path=/docs", in_seconds(60))).await;
    assert_eq!(open(&server, &format!("{path}/docs/a?b=c")).await.status, 200);
    open(&server, &format!("{path}/other")).await.is(401, WRONG);
    open(&server, &format!("{path}/docs/%2e%2e/other")).await.is(401, WRONG);
    ask(&server, Method::POST, &format!("{path}/docs"), &[]).await.is(401, WRONG);
}

#[tokio::test]
async fn a_token_that_is_sent_counts_alone_beside_a_link() {
    let server = Server::start().await;
    let (id, _execd) = sandbox(&server, json!({})).await;
    let good = link(&server, &id, &format!("expires={}", in_seconds(60))).await;
    let wrong = format!("/v1/links/{id}/44772/x2qxvk/000000000");
    let with = async |path: &str, token: &str| {
        ask(&server, Method::GET, path, &[("opensandbox-secure-access", token)]).await.status.as_u16()
    };
    assert_eq!((with(&good, "").await, with(&good, "wrong").await), (401, 401));
    assert_eq!((with(&good, &token(&id)).await, with(&wrong, &token(&id)).await), (200, 200));
}

#[tokio::test]
async fn a_page_that_a_link_opens_is_an_origin_of_its_own() {
    let server = Server::start().await;
    let (id, _execd) = sandbox(&server, json!({})).await;
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
    let port = listener.local_addr().expect("bound").port();
    tokio::spawn(async move {
        use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
        let (mut stream, _) = listener.accept().await.expect("a connection");
        let mut head = [0; 2048];
        let _ = stream.read(&mut head).await.expect("a head");
        let answer = "HTTP/1.1 302 Found\r\nLocation: /login\r\nSet-Cookie: a=b\r\nClear-Site-Data: \"*\"\r\n\
                      Service-Worker-Allowed: /\r\nContent-Security-Policy: default-src 'self'\r\n\
                      Referrer-Policy: unsafe-url\r\nOpenSandbox-Error-Source: platform\r\nContent-Length: 0\r\n\r\n";
        stream.write_all(answer.as_bytes()).await.expect("written");
    });
    let path = link(&server, &id, &format!("expires={}", in_seconds(60))).await;
    // The key signs any port.
    let found = server.get(&format!("/sandboxes/{id}/endpoints/{port}?expires={}", in_seconds(60))).await.json();
    let path = found["endpoint"].as_str().expect("an endpoint").split_once('/').map_or(path, |(_, p)| format!("/{p}"));
    let answer = open(&server, &path).await;
    assert_eq!(answer.status, 302);
    assert_eq!(answer.headers["location"], format!("{path}/login").as_str());
    let policies: Vec<_> = answer.headers.get_all("content-security-policy").iter().collect();
    assert_eq!(policies.len(), 2, "{policies:?}");
    assert!(policies[1].to_str().expect("text").starts_with("sandbox "));
    assert!(!policies[1].to_str().expect("text").contains("allow-same-origin"));
    assert_eq!(answer.headers["referrer-policy"], "no-referrer");
    for name in ["set-cookie", "clear-site-data", "service-worker-allowed", "opensandbox-error-source"] {
        assert!(!answer.headers.contains_key(name), "{name}");
    }
}

#[tokio::test]
async fn wrong_links_are_limited_and_right_ones_of_version_2_are_not() {
    let server = Server::start().await;
    let (id, _execd) = sandbox(&server, json!({})).await;
    let (calm, _calm) = sandbox(&server, json!({})).await;
    let first = link(&server, &id, &format!("expires={}", in_seconds(60))).await;
    let second = link(&server, &id, &format!("expires={}&version=2", in_seconds(60))).await;
    for _ in 0..100 {
        assert_eq!(open(&server, &first).await.status, 200, "right ones are not counted");
    }
    let wrong = format!("{}00000000z", &first[..first.len() - 9]);
    let mut answers = Vec::new();
    for _ in 0..30 {
        answers.push(open(&server, &wrong).await.status.as_u16());
    }
    assert!(answers[..20].iter().all(|status| *status == 401), "{answers:?}");
    assert_eq!(answers.last(), Some(&429));
    let refused = open(&server, &first).await;
    refused.is(429, "SANDBOX::TOO_MANY_REQUESTS");
    assert!(refused.headers.contains_key("retry-after"));
    assert_eq!(open(&server, &second).await.status, 200);
    let elsewhere = link(&server, &calm, &format!("expires={}", in_seconds(60))).await;
    assert_eq!(open(&server, &elsewhere).await.status, 200);
}

#[tokio::test]
async fn os_033_configured_keys_sign_and_a_removed_one_opens_no_more() {
    let with = |active: &str, keys: &[(&str, &str)]| {
        let mut config = server::Config::default();
        config.ingress.keys = Some(std::sync::Arc::new(Keys::new(active, keys.iter().copied()).expect("keys")));
        config
    };
    let server = Server::with(with("a", &[("a", "b2xk")])).await;
    let (id, _execd) = sandbox(&server, json!({})).await;
    let old = link(&server, &id, &format!("expires={}", in_seconds(60))).await;
    assert!(old.ends_with('a'), "{old}");
    let (runtime, dir) = server.stop().await;
    let server = Server::again(with("b", &[("a", "b2xk"), ("b", "bmV3")]), runtime, dir).await;
    let new = link(&server, &id, &format!("expires={}", in_seconds(60))).await;
    assert_eq!((open(&server, &old).await.status.as_u16(), open(&server, &new).await.status.as_u16()), (200, 200));
    let (runtime, dir) = server.stop().await;
    let server = Server::again(with("b", &[("b", "bmV3")]), runtime, dir).await;
    assert_eq!((open(&server, &old).await.status.as_u16(), open(&server, &new).await.status.as_u16()), (401, 200));
}

#[tokio::test]
async fn os_029_secure_access_wants_the_token_and_strips_it() {
    let server = Server::start().await;
    let (id, _execd) = sandbox(&server, json!({ "secureAccess": true })).await;
    let found = server.get(&format!("/v1/sandboxes/{id}/endpoints/44772")).await.json();
    let both = json!({ "OpenSandbox-Secure-Access": token(&id), "X-EXECD-ACCESS-TOKEN": token(&id) });
    assert_eq!(found["headers"], both);
    let found = server.get(&format!("/v1/sandboxes/{id}/endpoints/8000")).await.json();
    assert_eq!(found["headers"], json!({ "OpenSandbox-Secure-Access": token(&id) }));

    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
    let port = listener.local_addr().expect("bound").port();
    let (heads, mut seen) = tokio::sync::mpsc::unbounded_channel();
    tokio::spawn(async move {
        use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
        while let Ok((mut stream, _)) = listener.accept().await {
            let mut head = vec![0; 4096];
            let n = stream.read(&mut head).await.expect("a head");
            let _ = heads.send(String::from_utf8_lossy(&head[..n]).into_owned());
            let _ = stream.write_all(b"HTTP/1.1 204 No Content\r\nConnection: close\r\n\r\n").await;
        }
    });
    let path = format!("/v1/sandboxes/{id}/proxy/{port}/");
    let right = token(&id);
    let wrong = format!("{}x", &right[..right.len() - 1]);
    for headers in [
        vec![],
        vec![("open-sandbox-api-key", KEY)],
        vec![("opensandbox-secure-access", wrong.as_str())],
        vec![("opensandbox-secure-access", "")],
        vec![("opensandbox-secure-access", wrong.as_str()), ("x-execd-access-token", right.as_str())],
        vec![("x-execd-access-token", wrong.as_str())],
    ] {
        let refused = ask(&server, Method::GET, &path, &headers).await;
        refused.is(401, WRONG);
        assert_eq!(refused.headers["opensandbox-error-source"], "platform");
    }
    let through = ask(&server, Method::GET, &path, &[("OpenSandbox-Secure-Access", &right), ("x-mine", "kept")]).await;
    assert_eq!(through.status, 204);
    let head = seen.recv().await.expect("a head").to_ascii_lowercase();
    assert!(head.contains("x-mine: kept") && !head.contains(&right.to_ascii_lowercase()), "{head}");
    assert!(!head.contains("secure-access") && !head.contains("api-key"), "{head}");

    for (token, status) in [(None, 401), (Some(&wrong), 401), (Some(&right), 204)] {
        let mut request = format!("ws://{}{path}", server.address).into_client_request().expect("a request");
        if let Some(token) = token {
            request.headers_mut().insert("opensandbox-secure-access", token.parse().expect("a value"));
        }
        let stream = TcpStream::connect(server.address).await.expect("connects");
        match tokio_tungstenite::client_async(request, stream).await {
            Err(WsError::Http(response)) => assert_eq!(response.status(), status),
            other => panic!("{other:?}"),
        }
    }
    let link = link(&server, &id, &format!("expires={}", in_seconds(60))).await;
    assert_eq!(open(&server, &format!("{link}/ping")).await.status, 200, "a link opens it, too");
    let server = server.restart().await;
    ask(&server, Method::GET, &path, &[("open-sandbox-api-key", KEY)]).await.is(401, WRONG);
}

#[tokio::test]
async fn a_link_is_not_made_with_the_secret_of_tokens() {
    let server = Server::start().await;
    let (id, _execd) = sandbox(&server, json!({})).await;
    let path = link(&server, &id, &format!("expires={}", in_seconds(60))).await;
    let keys = Keys::new("0", [("0", base64_of(&SECRET).as_str())]).expect("keys");
    let guess = ingress::links::sign(
        &keys,
        ingress::links::Link { id: &id, port: 44772, expires: 2_000_000_000 },
        &ingress::links::Version::V1,
    );
    open(&server, &format!("/links/{id}/44772/{guess}")).await.is(401, WRONG);
    let server = server.restart().await;
    let _execd = Execd::serve(server.dir.path().join(format!("{id}.sock2")));
    assert_ne!(open(&server, &path).await.status, 401, "it lasts through a restart");
}

fn base64_of(bytes: &[u8]) -> String {
    use base64::Engine as _;
    base64::engine::general_purpose::STANDARD.encode(bytes)
}
