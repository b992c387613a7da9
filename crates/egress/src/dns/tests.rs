use std::net::{TcpListener, UdpSocket};
use std::sync::Arc;

use proptest::prelude::*;

use super::*;
use crate::limits::Limits;
use crate::names::DEFAULT_RANGE;
use crate::policy::Policy;
use crate::sandbox::{Attachment, Listeners, Shared};
use crate::secrets::{Holdings, Secrets};

/// A sandbox that may ask for everything, of a machine without resolvers.
fn sandbox() -> Arc<Sandbox> {
    let tcp = || TcpListener::bind("127.0.0.1:0").expect("a listener").into();
    let udp = || UdpSocket::bind("127.0.0.1:0").expect("a socket").into();
    let with = Attachment {
        id: "s".to_owned(),
        listeners: Listeners::from_array([tcp(), tcp(), udp(), udp()]),
        names: tempfile::tempfile().expect("a file").into(),
        range: DEFAULT_RANGE,
        revision: 1,
        policy: Policy::public_internet(),
        secrets: Secrets::none(),
        traffic: crate::sandbox::Traffic::Live,
        limits: Limits::default(),
    };
    Sandbox::attach(Arc::new(Shared::new(16, Holdings::open(None).expect("no memory to read")).expect("routes")), with)
        .expect("attached")
}

fn check(bytes: &[u8]) -> Option<Message> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
    runtime.block_on(async {
        let sandbox = sandbox();
        let answer = answer(&sandbox, bytes, Transport::Datagram).await?;
        Some(Message::from_vec(&answer).expect("what we say is well-formed"))
    })
}

fn question(labels: &[&[u8]], kind: u16) -> Vec<u8> {
    let mut bytes = vec![0, 7, 1, 0, 0, 1, 0, 0, 0, 0, 0, 0];
    for label in labels {
        bytes.push(u8::try_from(label.len()).expect("a label"));
        bytes.extend_from_slice(label);
    }
    bytes.push(0);
    bytes.extend_from_slice(&kind.to_be_bytes());
    bytes.extend_from_slice(&[0, 1]);
    bytes
}

#[test]
fn a_dot_within_a_label_makes_no_other_name() {
    let reply = check(&question(&[b"good.example"], 1)).expect("an answer");
    assert_eq!(reply.metadata.response_code, ResponseCode::NXDomain);
}

#[test]
fn an_answer_echoes_the_question_and_its_number() {
    let reply = check(&question(&[b"LocalHost"], 28)).expect("an answer");
    assert_eq!((reply.metadata.id, reply.queries[0].name().to_ascii()), (7, "LocalHost.".to_owned()));
    assert_eq!(reply.answers.len(), 1);
}

#[test]
fn reversed_addresses_are_read_and_nothing_else() {
    let read = |text: &str| reversed(&Name::parse(text).expect("a name"));
    assert_eq!(read("4.3.2.1.in-addr.arpa"), Some(Ipv4Addr::new(1, 2, 3, 4)));
    for text in ["3.2.1.in-addr.arpa", "5.4.3.2.1.in-addr.arpa", "a.3.2.1.in-addr.arpa", "256.3.2.1.in-addr.arpa"] {
        assert_eq!(read(text), None, "{text}");
    }
}

#[test]
fn fuzz_questions() {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
    let _within = runtime.enter();
    let sandbox = sandbox();
    let with_options = [
        &question(&[b"a", b"example"], 16)[..11],
        &[1],
        &question(&[b"a", b"example"], 16)[12..],
        &[0, 0, 41, 4, 208, 0, 0, 0, 0, 0, 0],
    ]
    .concat();
    fuzz::run(
        "questions",
        &[&question(&[b"a", b"example"], 1), &question(&[b"localhost"], 28), &with_options],
        |input| {
            let answer = runtime.block_on(answer(&sandbox, input, Transport::Datagram));
            if let Some(answer) = answer {
                assert!(answer.len() <= usize::from(UDP_BYTES), "{} bytes", answer.len());
                Message::from_vec(&answer).expect("what we say is well-formed");
            }
        },
    );
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn any_bytes_get_a_well_formed_answer_or_none(bytes in proptest::collection::vec(any::<u8>(), 0..64)) {
        check(&bytes);
        check(&[&[0, 7, 1, 0, 0, 1, 0, 0, 0, 0, 0, 0], &bytes[..]].concat());
    }

    #[test]
    fn any_label_and_type_gets_a_well_formed_answer(label in proptest::collection::vec(any::<u8>(), 1..63), kind: u16) {
        prop_assert!(check(&question(&[&label, b"example"], kind)).is_some());
    }
}
