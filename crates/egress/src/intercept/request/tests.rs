use http::Request;

use super::*;

fn parts(uri: &str, host: &[&str]) -> Parts {
    let mut request = Request::builder().uri(uri);
    for host in host {
        request = request.header("host", *host);
    }
    request.body(()).expect("a request").into_parts().0
}

fn is_for(uri: &str, host: &[&str], port: u16) -> bool {
    let name = Name::parse("api.example.com").expect("a name");
    check_host(&parts(uri, host), &name, port, 443).is_ok()
}

#[test]
fn a_request_names_the_host_of_its_connection() {
    assert!(is_for("/x", &["api.example.com"], 443));
    assert!(is_for("/x", &["API.Example.com"], 443));
    assert!(is_for("/x", &["api.example.com."], 443));
    assert!(is_for("/x", &["api.example.com:443"], 443));
    assert!(is_for("/x", &["api.example.com:8443"], 8443));
    assert!(is_for("https://api.example.com/x", &[], 443));
    assert!(is_for("https://api.example.com/x", &["api.example.com"], 443));
}

#[test]
fn any_other_is_refused() {
    for (uri, host, port) in [
        ("/x", &[][..], 443),
        ("/x", &["evil.example.com"], 443),
        ("/x", &["api.example.com", "api.example.com"], 443),
        ("/x", &["api.example.com:8443"], 443),
        ("/x", &["api.example.com"], 8443),
        ("/x", &["api.example.com:"], 8443),
        ("/x", &["api.example.com:"], 443),
        ("/x", &["api.example.com:api.example.com"], 443),
        ("/x", &["api.example.com:443:api.example.com"], 443),
        ("/x", &["api.example.com:99999"], 443),
        ("/x", &["user@api.example.com"], 443),
        ("/x", &["api.example.com@evil.example.com"], 443),
        ("/x", &["api.example.com evil"], 443),
        ("/x", &[""], 443),
        ("https://evil.example.com/x", &["api.example.com"], 443),
        ("https://api.example.com/x", &["evil.example.com"], 443),
    ] {
        assert!(!is_for(uri, host, port), "{uri} {host:?} {port}");
    }
    let mut connect = parts("api.example.com:443", &[]);
    connect.method = Method::CONNECT;
    let name = Name::parse("api.example.com").expect("a name");
    assert_eq!(check_host(&connect, &name, 443, 443), Err(BadRequest::Connect));
}

#[test]
fn what_is_about_one_connection_stays_there() {
    let mut headers = HeaderMap::new();
    for (name, value) in
        [("connection", "close, X-Own"), ("x-own", "1"), ("keep-alive", "5"), ("te", "gzip, trailers"), ("accept", "a")]
    {
        headers.append(HeaderName::try_from(name).expect("a name"), HeaderValue::from_static(value));
    }
    remove_hop_headers(&mut headers);
    let mut left: Vec<_> = headers.iter().map(|(name, value)| (name.as_str(), value.to_str().expect("text"))).collect();
    left.sort_unstable();
    assert_eq!(left, [("accept", "a"), ("te", "trailers")]);
}

#[test]
fn an_upgrade_is_one_that_the_connection_lists() {
    let asked = |connection: &str, protocol: &str| {
        let request = Request::builder().uri("/").header("connection", connection).header("upgrade", protocol);
        upgrade(&request.body(()).expect("a request").into_parts().0).is_some()
    };
    assert!(asked("keep-alive, Upgrade", "websocket"));
    assert!(!asked("keep-alive", "websocket"));
    assert!(!asked("Upgrade", "h2c"));
}

#[test]
fn fuzz_heads_of_requests() {
    let examples: [&[u8]; 4] = [
        b"GET\n/v1/x?y\nhost: api.example.com\nconnection: close, x-own\nx-own: 1\nte: trailers\n",
        b"POST\nhttps://api.example.com:443/\nhost: api.example.com\nupgrade: websocket\nconnection: Upgrade\n",
        b"CONNECT\napi.example.com:443\nhost: user@api.example.com\n",
        b"OPTIONS\n*\nhost: [::1]:80\nhost: api.example.com.\n",
    ];
    let name = Name::parse("api.example.com").expect("a name");
    fuzz::run("heads of requests", &examples, |input| {
        let mut lines = input.split(|byte| *byte == b'\n');
        let (method, uri) = (lines.next().unwrap_or_default(), lines.next().unwrap_or_default());
        let mut request = Request::builder().method(method).uri(uri);
        for line in lines {
            let mut halves = line.splitn(2, |byte| *byte == b':');
            let (field, value) = (halves.next().unwrap_or_default(), halves.next().unwrap_or_default());
            request = request.header(field, value.trim_ascii());
        }
        let Ok(request) = request.body(()) else { return };
        let mut parts = request.into_parts().0;
        if check_host(&parts, &name, 443, 443).is_ok() {
            // Every place that could name a host names this one.
            let said = parts.headers.get_all("host").iter().map(|value| value.as_bytes().to_ascii_lowercase());
            let said = said.chain(parts.uri.authority().map(|said| said.as_str().as_bytes().to_ascii_lowercase()));
            let said: Vec<Vec<u8>> = said.collect();
            assert!(!said.is_empty());
            for said in said {
                let is_ours =
                    [&b"api.example.com"[..], b"api.example.com.", b"api.example.com:443", b"api.example.com.:443"];
                assert!(is_ours.contains(&said.as_slice()), "{}", said.escape_ascii());
            }
        }
        let _ = upgrade(&parts);
        remove_hop_headers(&mut parts.headers);
        assert!(HOP_HEADERS.iter().all(|name| !parts.headers.contains_key(name)));
        assert!(parts.headers.get_all("te").iter().all(|value| value == "trailers"));
    });
}
