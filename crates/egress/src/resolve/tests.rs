use std::str::FromStr;

use hickory_proto::rr::rdata::{A, CNAME};

use super::*;

type DnsName = hickory_proto::rr::Name;

fn name(text: &str) -> Name {
    Name::parse(text).expect("a name")
}

fn owner(text: &str) -> DnsName {
    DnsName::from_str(text).expect("a name")
}

fn a(of: &str, address: [u8; 4]) -> Record {
    Record::from_rdata(owner(of), 300, RData::A(A(address.into())))
}

fn alias(of: &str, to: &str) -> Record {
    Record::from_rdata(owner(of), 300, RData::CNAME(CNAME(owner(to))))
}

/// A resolver that answers each question with what `answer` makes of it, a list of datagrams.
async fn server(answer: impl Fn(Message) -> Vec<Vec<u8>> + Send + 'static) -> Resolver {
    let socket = UdpSocket::bind("127.0.0.1:0").await.expect("a socket");
    let resolver = Resolver::default();
    resolver.set_servers(vec![socket.local_addr().expect("an address")]);
    tokio::spawn(async move {
        let mut buffer = [0; 2048];
        while let Ok((length, from)) = socket.recv_from(&mut buffer).await {
            for datagram in answer(Message::from_vec(&buffer[..length]).expect("a question")) {
                socket.send_to(&datagram, from).await.expect("sent");
            }
        }
    });
    resolver
}

fn reply(question: &Message, answers: Vec<Record>) -> Message {
    let mut reply = Message::response(question.metadata.id, OpCode::Query);
    reply.add_queries(question.queries.clone());
    reply.insert_answers(answers);
    reply
}

fn bytes(message: &Message) -> Vec<u8> {
    message.to_vec().expect("a message")
}

#[test]
fn fuzz_answers_of_resolvers() {
    let mut asked = Message::new(7, MessageType::Query, OpCode::Query);
    asked.add_query(Query::query(owner("www.example."), RecordType::A));
    let good = reply(&asked, vec![alias("www.example.", "cdn.example."), a("cdn.example.", [1, 2, 3, 4])]);
    let circle = reply(&asked, vec![alias("www.example.", "b.example."), alias("b.example.", "www.example.")]);
    fuzz::run("answers of resolvers", &[&bytes(&good), &bytes(&circle)], |input| {
        let Some(answer) = Message::from_vec(input).ok().filter(|answer| fits(answer, &asked)) else { return };
        let found = chain(&answer.answers, &owner("www.example."), RecordType::A);
        assert!(found.len() <= answer.answers.len() + ALIASES);
        assert!(found.last().is_none_or(|record| record.record_type() == RecordType::A));
    });
}

#[tokio::test]
async fn aliases_are_followed_and_nothing_else() {
    let resolver = server(|question| {
        vec![bytes(&reply(
            &question,
            vec![
                a("evil.example.", [6, 6, 6, 6]),
                alias("www.example.", "cdn.example."),
                alias("cdn.example.", "edge.example."),
                a("edge.example.", [1, 2, 3, 4]),
            ],
        ))]
    })
    .await;
    let (found, ttl) = resolver.addresses(&name("www.example")).await.expect("addresses");
    assert_eq!((found, ttl), (vec![IpAddr::from([1, 2, 3, 4])], Duration::from_secs(300)));
}

#[tokio::test]
async fn aliases_that_lead_in_a_circle_lead_nowhere() {
    let resolver = server(|question| {
        vec![bytes(&reply(&question, vec![alias("a.example.", "b.example."), alias("b.example.", "a.example.")]))]
    })
    .await;
    assert_eq!(resolver.addresses(&name("a.example")).await, Err(ResolveError::NoData));
}

#[tokio::test]
async fn an_answer_to_another_question_is_passed_over() {
    let resolver = server(|question| {
        let good = reply(&question, vec![a("a.example.", [1, 2, 3, 4])]);
        let mut wrong_id = reply(&question, vec![a("a.example.", [6, 6, 6, 6])]);
        wrong_id.metadata.id ^= 1;
        let mut wrong_name = Message::response(question.metadata.id, OpCode::Query);
        wrong_name.add_query(Query::query(owner("b.example."), RecordType::A));
        wrong_name.add_answer(a("a.example.", [6, 6, 6, 6]));
        let mut echo = question.clone();
        echo.add_answer(a("a.example.", [6, 6, 6, 6]));
        vec![bytes(&wrong_id), bytes(&wrong_name), bytes(&echo), b"\xff\xff\xff".to_vec(), bytes(&good)]
    })
    .await;
    let (found, _) = resolver.addresses(&name("a.example")).await.expect("addresses");
    assert_eq!(found, [IpAddr::from([1, 2, 3, 4])]);
}

#[tokio::test]
async fn a_name_that_does_not_exist_is_told_from_a_resolver_that_fails() {
    let none = server(|question| {
        let mut reply = reply(&question, Vec::new());
        reply.metadata.response_code = ResponseCode::NXDomain;
        vec![bytes(&reply)]
    })
    .await;
    assert_eq!(none.addresses(&name("a.example")).await, Err(ResolveError::NoSuchName));
    let broken = server(|question| {
        let mut reply = reply(&question, Vec::new());
        reply.metadata.response_code = ResponseCode::ServFail;
        vec![bytes(&reply)]
    })
    .await;
    assert!(matches!(broken.addresses(&name("a.example")).await, Err(ResolveError::Failed(_))));
    let nobody = Resolver::default();
    assert!(matches!(nobody.addresses(&name("a.example")).await, Err(ResolveError::Failed(_))));
}

#[tokio::test]
async fn an_answer_that_was_cut_off_is_asked_for_by_tcp() {
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.expect("a listener");
    let address = listener.local_addr().expect("an address");
    let udp = UdpSocket::bind(address).await.expect("the same port");
    tokio::spawn(async move {
        let mut buffer = [0; 2048];
        while let Ok((length, from)) = udp.recv_from(&mut buffer).await {
            let question = Message::from_vec(&buffer[..length]).expect("a question");
            let mut cut = reply(&question, Vec::new());
            cut.metadata.truncation = true;
            udp.send_to(&bytes(&cut), from).await.expect("sent");
        }
    });
    tokio::spawn(async move {
        while let Ok((mut stream, _)) = listener.accept().await {
            let length = stream.read_u16().await.expect("a length");
            let mut question = vec![0; usize::from(length)];
            stream.read_exact(&mut question).await.expect("a question");
            let question = Message::from_vec(&question).expect("a question");
            let answers = (0..200).map(|n| a("big.example.", [1, 2, 3, n])).collect();
            let answer = bytes(&reply(&question, answers));
            stream.write_u16(u16::try_from(answer.len()).expect("short")).await.expect("sent");
            stream.write_all(&answer).await.expect("sent");
        }
    });
    let resolver = Resolver::default();
    resolver.set_servers(vec![address]);
    let (found, _) = resolver.addresses(&name("big.example")).await.expect("addresses");
    assert_eq!(found.len(), ADDRESSES);
}

#[tokio::test]
async fn a_known_name_is_not_asked_for_again_until_its_time_is_over() {
    let asked = Arc::new(std::sync::atomic::AtomicU8::new(0));
    let counter = asked.clone();
    let resolver = server(move |question| {
        let is_v4 = question.queries[0].query_type() == RecordType::A;
        let answers = if is_v4 {
            vec![a("a.example.", [1, 2, 3, counter.fetch_add(1, std::sync::atomic::Ordering::SeqCst)])]
        } else {
            Vec::new()
        };
        vec![bytes(&reply(&question, answers))]
    })
    .await;
    let cache = Cache::default();
    for _ in 0..3 {
        let found = cache.addresses(&resolver, &name("a.example")).await.expect("addresses");
        assert_eq!(*found, [IpAddr::from([1, 2, 3, 0])]);
    }
    cache.known.lock().expect("a lock").get_mut(&name("a.example")).expect("known").until = Instant::now();
    let found = cache.addresses(&resolver, &name("a.example")).await.expect("addresses");
    assert_eq!(*found, [IpAddr::from([1, 2, 3, 1])]);
}
