use super::*;

fn parsed(url: &str) -> Result<UpstreamProxy, String> {
    UpstreamProxy::parse(url, &[])
}

#[test]
fn a_url_names_a_host_a_port_and_a_login() {
    let proxy = parsed("http://us%40er:p%3Ass@proxy.example:3128/").expect("a proxy");
    assert_eq!((proxy.host.as_str(), proxy.port), ("proxy.example", 3128));
    let expected = format!("Basic {}", STANDARD.encode("us@er:p:ss"));
    assert_eq!(proxy.authorization.as_deref(), Some(&expected));
    assert_eq!(parsed("http://10.0.0.1").expect("a proxy").port, DEFAULT_PORT);
    assert_eq!(parsed("http://[fd00::1]:8080").expect("a proxy").host, "fd00::1");
}

#[test]
fn what_is_wrong_is_said_without_the_login() {
    for url in [
        "",
        "proxy.example:3128",
        "https://u:s3cr3t@proxy.example",
        "http://u:s3cr3t@",
        "http://u:s3cr3t@a b:1",
        "http://u:s3cr3t@x:0",
        "http://u:s3cr3t@x:99999",
        "http://1.2.3",
    ] {
        let problem = parsed(url).expect_err(url);
        assert!(!problem.contains("s3cr3t"), "{problem}");
    }
    assert!(!format!("{:?}", parsed("http://u:s3cr3t@proxy.example").expect("a proxy")).contains("s3cr3t"));
    assert!(UpstreamProxy::parse("http://proxy.example", &["not a target".into()]).is_err());
}

#[test]
fn some_are_reached_without_it() {
    let direct = ["*.internal.example".to_owned(), "10.0.0.0/8".to_owned()];
    let proxy = UpstreamProxy::parse("http://proxy.example", &direct).expect("a proxy");
    let name = |text: &str| Name::parse(text).expect("a name");
    let (inner, outer) = ("10.1.2.3".parse().expect("an address"), "93.184.216.34".parse().expect("an address"));
    assert!(!proxy.is_for(Some(&name("a.internal.example")), outer));
    assert!(proxy.is_for(Some(&name("a.example")), outer));
    assert!(!proxy.is_for(None, inner));
    assert!(proxy.is_for(None, outer));
}
