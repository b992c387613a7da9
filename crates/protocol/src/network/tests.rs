use super::*;

fn range(text: &str) -> Cidr {
    text.parse().unwrap_or_else(|error| panic!("{error}"))
}

fn address(text: &str) -> IpAddr {
    text.parse().expect("an address")
}

#[test]
fn a_range_reaches_from_its_first_to_its_last_address() {
    for (text, shown, first, last) in [
        ("203.0.113.7/24", "203.0.113.0/24", "203.0.113.0", "203.0.113.255"),
        ("0.0.0.0/0", "0.0.0.0/0", "0.0.0.0", "255.255.255.255"),
        ("192.0.2.1", "192.0.2.1/32", "192.0.2.1", "192.0.2.1"),
        ("2001:db8::1/32", "2001:db8::/32", "2001:db8::", "2001:db8:ffff:ffff:ffff:ffff:ffff:ffff"),
        ("::/0", "::/0", "::", "ffff:ffff:ffff:ffff:ffff:ffff:ffff:ffff"),
        ("::1", "::1/128", "::1", "::1"),
    ] {
        let range = range(text);
        assert_eq!((range.to_string().as_str(), range.first(), range.last()), (shown, address(first), address(last)));
        assert!(range.contains(address(first)) && range.contains(address(last)), "{text}");
    }
    assert!(!range("203.0.113.0/24").contains(address("203.0.114.0")));
    assert!(!range("0.0.0.0/0").contains(address("::ffff:1.2.3.4")));
}

#[test]
fn what_is_no_range_is_refused() {
    for text in
        ["", "/", "1.2.3.4/", "1.2.3.4/33", "::1/129", "1.2.3.4/+8", "1.2.3.4/-1", "a.b/8", "1.2.3/8", "1.2.3.4/8/8"]
    {
        assert!(text.parse::<Cidr>().is_err(), "{text}");
    }
}

#[test]
fn a_range_is_text_on_the_wire() {
    let text = serde_json::to_string(&range("10.1.2.3/8")).expect("text");
    assert_eq!(text, "\"10.0.0.0/8\"");
    assert_eq!(serde_json::from_str::<Cidr>(&text).expect("a range"), range("10.0.0.0/8"));
}
