//! Answers the questions of one sandbox: names that its policy may allow get the address that stands for them, records
//! that hold no address are asked of the machine's resolvers, everything else does not exist.
//!
//! IPv6 and service bindings (HTTPS, SVCB) of an allowed name are answered with "none": one address is one name, and
//! without a service binding no client encrypts the name that it asks a server for (ECH).

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::time::Duration;

use hickory_proto::op::{Edns, Message, MessageType, OpCode, Query, ResponseCode};
use hickory_proto::rr::rdata::{A, AAAA, PTR};
use hickory_proto::rr::{DNSClass, RData, Record, RecordType};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::time::timeout;

use crate::name::Name;
use crate::names::NameError;
use crate::recording::Book;
use crate::resolve::{self, ResolveError, UDP_BYTES};
use crate::sandbox::Sandbox;
use crate::verdicts::{Reason, What};

/// How long a program may remember an answer, in seconds. The address holds for ever; that it is allowed does not.
const TTL: u32 = 60;
/// Longest question: one name, and the options that clients add.
pub const QUESTION_BYTES: usize = 4096;
/// What a client takes by datagram when it does not say.
const PLAIN_BYTES: u16 = 512;
/// How long a TCP connection for questions may be silent.
const STREAM_IDLE: Duration = Duration::from_secs(10);

/// Over what an answer travels.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Transport {
    /// Datagrams: an answer that is too long says so, and is empty.
    Datagram,
    /// TCP.
    Stream,
}

/// Answers one message. `None` for what deserves no answer, which could only be used to make noise.
pub async fn answer(sandbox: &Sandbox, bytes: &[u8], transport: Transport) -> Option<Vec<u8>> {
    const HEADER_BYTES: usize = 12;
    const RESPONSE_BIT: u8 = 0x80;
    let header = bytes.get(..HEADER_BYTES)?;
    if header[2] & RESPONSE_BIT != 0 {
        return None;
    }
    let Ok(question) = Message::from_vec(bytes) else {
        let id = u16::from_be_bytes([header[0], header[1]]);
        return Message::error_msg(id, OpCode::Query, ResponseCode::FormErr).to_vec().ok();
    };
    let mut reply = Message::new(question.metadata.id, MessageType::Response, question.metadata.op_code);
    reply.metadata.recursion_desired = question.metadata.recursion_desired;
    reply.metadata.recursion_available = true;
    reply.add_queries(question.queries.iter().take(1).cloned());
    if question.edns.is_some() {
        let mut edns = Edns::new();
        edns.set_max_payload(UDP_BYTES);
        reply.set_edns(edns);
    }
    match records(sandbox, &question).await {
        Ok(records) => {
            reply.insert_answers(records);
        }
        Err(code) => reply.metadata.response_code = code,
    }
    let whole = reply.to_vec().ok()?;
    let takes = question.edns.as_ref().map_or(PLAIN_BYTES, |edns| edns.max_payload().clamp(PLAIN_BYTES, UDP_BYTES));
    if transport == Transport::Datagram && whole.len() > usize::from(takes) {
        return reply.truncate().to_vec().ok();
    }
    Some(whole)
}

/// Serves questions on a TCP connection until the client has no more.
pub async fn stream(sandbox: &Sandbox, mut client: TcpStream) {
    while let Ok(Ok(length)) = timeout(STREAM_IDLE, client.read_u16()).await {
        let mut question = vec![0; usize::from(length)];
        if question.len() > QUESTION_BYTES {
            return;
        }
        let Ok(Ok(_)) = timeout(STREAM_IDLE, client.read_exact(&mut question)).await else { return };
        sandbox.questions.take().await;
        let Some(answer) = answer(sandbox, &question, Transport::Stream).await else { return };
        let Ok(length) = u16::try_from(answer.len()) else { return };
        let answer = [&length.to_be_bytes(), &answer[..]].concat();
        let Ok(Ok(())) = timeout(STREAM_IDLE, client.write_all(&answer)).await else { return };
    }
}

async fn records(sandbox: &Sandbox, question: &Message) -> Result<Vec<Record>, ResponseCode> {
    if question.metadata.op_code != OpCode::Query {
        return Err(ResponseCode::NotImp);
    }
    let [query] = &question.queries[..] else { return Err(ResponseCode::FormErr) };
    if query.query_class() != DNSClass::IN {
        return Err(ResponseCode::Refused);
    }
    let Some(name) = canonical(query) else {
        refuse(sandbox, query, Reason::BadName);
        return Err(ResponseCode::NXDomain);
    };
    if is_local(&name) {
        return Ok(loopback(query));
    }
    if query.query_type() == RecordType::PTR && name.as_str().ends_with(".arpa") {
        return pointer(sandbox, query, &name);
    }
    let verdict = sandbox.policy().question(&judged(query.query_type(), &name));
    if !verdict.is_allowed() {
        refuse(sandbox, query, Reason::Policy { because: verdict.because });
        return Err(ResponseCode::NXDomain);
    }
    if let Some(book) = sandbox.book() {
        return recorded(sandbox, book, query, &name);
    }
    match query.query_type() {
        RecordType::A => address(sandbox, query, &name).await,
        RecordType::AAAA | RecordType::HTTPS | RecordType::SVCB => Ok(Vec::new()),
        kind if is_forwarded(kind) => forwarded(sandbox, query, &name).await,
        _ => Err(ResponseCode::Refused),
    }
}

/// Records that say something of a name other than its address.
fn is_forwarded(kind: RecordType) -> bool {
    use RecordType::{CAA, CNAME, MX, NAPTR, NS, SOA, SRV, TXT};
    matches!(kind, CAA | CNAME | MX | NAPTR | NS | SOA | SRV | TXT)
}

/// The name that a rule must allow: a service of a host belongs to the host.
fn judged(kind: RecordType, name: &Name) -> Name {
    match kind {
        RecordType::SRV | RecordType::TXT => name.without_service_labels(),
        _ => name.clone(),
    }
}

async fn address(sandbox: &Sandbox, query: &Query, name: &Name) -> Result<Vec<Record>, ResponseCode> {
    if sandbox.names.find(name).is_none() {
        new_name(sandbox, query)?;
    }
    let out = sandbox.way_out().ok_or(ResponseCode::Refused)?;
    // Asked before anything is promised: a name that does not exist must not seem to. What a proxy is asked for, it resolves.
    let is_asked = sandbox.shared.proxy_for(Some(name), IpAddr::V4(Ipv4Addr::UNSPECIFIED)).is_none();
    if is_asked && let Err(error) = out.addresses(name).await {
        return unresolved(sandbox, query, &error);
    }
    standing_for(sandbox, query, name)
}

/// The names of a sandbox that is answered from a recording: those that are in it. Nobody is asked.
fn recorded(sandbox: &Sandbox, book: &Book, query: &Query, name: &Name) -> Result<Vec<Record>, ResponseCode> {
    if !book.has_host(name) {
        refuse(sandbox, query, Reason::NotInRecording);
        return Err(ResponseCode::NXDomain);
    }
    match query.query_type() {
        RecordType::A => standing_for(sandbox, query, name),
        _ => Ok(Vec::new()),
    }
}

/// The address that stands for a name.
fn standing_for(sandbox: &Sandbox, query: &Query, name: &Name) -> Result<Vec<Record>, ResponseCode> {
    match sandbox.names.address_of(name) {
        Ok(address) => Ok(vec![Record::from_rdata(query.name().clone(), TTL, RData::A(A(address)))]),
        Err(NameError::Full) => {
            refuse(sandbox, query, Reason::Limit { what: "names".to_owned() });
            Err(ResponseCode::ServFail)
        }
        Err(error) => {
            tracing::error!(sandbox_id = sandbox.id, %error, "names file cannot be written, names are not answered");
            Err(ResponseCode::ServFail)
        }
    }
}

async fn forwarded(sandbox: &Sandbox, query: &Query, name: &Name) -> Result<Vec<Record>, ResponseCode> {
    new_name(sandbox, query)?;
    let out = sandbox.way_out().ok_or(ResponseCode::Refused)?;
    match out.records(name, query.query_type()).await {
        Ok(records) => Ok(records),
        Err(error) => unresolved(sandbox, query, &error),
    }
}

/// A tunnel through DNS needs a new name for every piece that it carries.
fn new_name(sandbox: &Sandbox, query: &Query) -> Result<(), ResponseCode> {
    if sandbox.new_names.try_take() {
        return Ok(());
    }
    refuse(sandbox, query, Reason::Limit { what: "new names per second".to_owned() });
    Err(ResponseCode::ServFail)
}

fn unresolved(sandbox: &Sandbox, query: &Query, error: &ResolveError) -> Result<Vec<Record>, ResponseCode> {
    match error {
        ResolveError::NoData => Ok(Vec::new()),
        ResolveError::NoSuchName => Err(ResponseCode::NXDomain),
        ResolveError::Failed(_) => {
            refuse(sandbox, query, Reason::Unresolved { message: error.to_string() });
            Err(ResponseCode::ServFail)
        }
    }
}

fn pointer(sandbox: &Sandbox, query: &Query, name: &Name) -> Result<Vec<Record>, ResponseCode> {
    let found = reversed(name).and_then(|address| sandbox.names.name_of(address)).ok_or(ResponseCode::NXDomain)?;
    Ok(vec![Record::from_rdata(query.name().clone(), TTL, RData::PTR(PTR(resolve::dns_name(&found))))])
}

fn reversed(name: &Name) -> Option<Ipv4Addr> {
    let labels = name.as_str().strip_suffix(".in-addr.arpa")?;
    let mut octets = labels.split('.').rev().map(|label| label.parse::<u8>().ok());
    let address = [octets.next()??, octets.next()??, octets.next()??, octets.next()??];
    octets.next().is_none().then(|| address.into())
}

/// RFC 6761: `localhost` is answered here and asked of nobody.
fn is_local(name: &Name) -> bool {
    name.as_str() == "localhost" || name.as_str().ends_with(".localhost")
}

fn loopback(query: &Query) -> Vec<Record> {
    let data = match query.query_type() {
        RecordType::A => RData::A(A(Ipv4Addr::LOCALHOST)),
        RecordType::AAAA => RData::AAAA(AAAA(Ipv6Addr::LOCALHOST)),
        _ => return Vec::new(),
    };
    vec![Record::from_rdata(query.name().clone(), TTL, data)]
}

fn canonical(query: &Query) -> Option<Name> {
    let mut text = String::new();
    for label in query.name().iter() {
        if label.contains(&b'.') {
            return None;
        }
        text.push_str(std::str::from_utf8(label).ok()?);
        text.push('.');
    }
    Name::from_ascii(&text).ok()
}

fn refuse(sandbox: &Sandbox, query: &Query, reason: Reason) {
    let (name, kind) = (query.name().to_ascii(), query.query_type().to_string());
    sandbox.journal.record(What::Question { name, kind, reason });
}

#[cfg(test)]
mod tests;
