use super::*;

fn kind(text: &str) -> Option<Kind> {
    block(text.parse().expect("an address")).map(|block| block.kind)
}

#[test]
fn public_addresses_are_in_no_block() {
    for text in ["1.1.1.1", "8.8.8.8", "100.128.0.1", "172.32.0.1", "2606:4700::1111", "2001:4860:4860::8888"] {
        assert_eq!(kind(text), None, "{text}");
    }
}

#[test]
fn what_must_never_be_reached_by_chance_is_in_a_block() {
    let cases = [
        ("127.0.0.1", Kind::Loopback),
        ("127.255.255.255", Kind::Loopback),
        ("0.0.0.0", Kind::Unspecified),
        ("0.1.2.3", Kind::Unspecified),
        ("10.255.0.1", Kind::Private),
        ("172.16.0.1", Kind::Private),
        ("172.31.255.255", Kind::Private),
        ("192.168.1.1", Kind::Private),
        ("169.254.1.1", Kind::LinkLocal),
        ("169.254.169.254", Kind::Metadata),
        ("100.64.0.1", Kind::CarrierNat),
        ("100.100.100.200", Kind::Metadata),
        ("168.63.129.16", Kind::Metadata),
        ("192.0.0.192", Kind::Metadata),
        ("192.0.0.1", Kind::Reserved),
        ("198.19.255.1", Kind::Reserved),
        ("224.0.0.1", Kind::Multicast),
        ("255.255.255.255", Kind::Multicast),
        ("240.0.0.1", Kind::Reserved),
        ("::1", Kind::Loopback),
        ("::", Kind::Unspecified),
        ("::127.0.0.1", Kind::Embedded),
        ("64:ff9b::a00:1", Kind::Embedded),
        ("64:ff9b:1::a00:1", Kind::Embedded),
        ("2002:a00:1::", Kind::Embedded),
        ("2001:0:1::1", Kind::Embedded),
        ("fd00:ec2::254", Kind::Metadata),
        ("fd12::1", Kind::Private),
        ("fe80::1", Kind::LinkLocal),
        ("fec0::1", Kind::Private),
        ("ff02::1", Kind::Multicast),
        ("2001:db8::1", Kind::Reserved),
        ("4000::1", Kind::Reserved),
        ("100::1", Kind::Reserved),
    ];
    for (text, expected) in cases {
        assert_eq!(kind(text), Some(expected), "{text}");
    }
}

#[test]
fn mapped_addresses_are_the_addresses_they_map() {
    assert_eq!(kind("::ffff:169.254.169.254"), Some(Kind::Metadata));
    assert_eq!(kind("::ffff:10.0.0.1"), Some(Kind::Private));
    assert_eq!(kind("::ffff:1.1.1.1"), None);
}
