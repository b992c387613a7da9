//! Asks the machine's resolvers, as a stub does: a fresh port and a random id for every question, answers that fit the
//! question only, TCP when an answer was cut off. What comes back is hostile: bounded, and followed only along the chain
//! of aliases that starts at the question.

use std::collections::HashMap;
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::sync::{Arc, Mutex, PoisonError, RwLock};
use std::time::Duration;

use hickory_proto::op::{Edns, Message, MessageType, OpCode, Query, ResponseCode};
use hickory_proto::rr::{RData, Record, RecordType};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpStream, UdpSocket};
use tokio::sync::Notify;
use tokio::time::{Instant, timeout};

use crate::name::Name;

/// How long one look-up may take; the published default.
pub const DEADLINE: Duration = Duration::from_secs(5);
/// How long one server has before the next is asked.
const SERVER_DEADLINE: Duration = Duration::from_millis(1500);
/// How often the whole list is asked.
const ROUNDS: usize = 2;
/// What a datagram may carry without being cut into pieces on any path (the figure of DNS flag day 2020).
pub const UDP_BYTES: u16 = 1232;
/// Longest message over TCP.
const TCP_BYTES: usize = u16::MAX as usize;
/// Datagrams that do not fit the question and are passed over before a server counts as silent.
const STRANGERS: usize = 64;
/// Longest chain of aliases.
const ALIASES: usize = 16;
/// Addresses of one family that are kept of an answer.
const ADDRESSES: usize = 16;
/// How long IPv6 addresses are waited for once the answer about IPv4 is there.
const OTHER_FAMILY: Duration = Duration::from_millis(200);
/// Names whose addresses one sandbox keeps.
const CACHED_NAMES: usize = 512;
/// Bounds of how long an answer is kept: long enough for the dial that follows a question, not longer than a day's move.
const MIN_TTL: Duration = Duration::from_secs(1);
const MAX_TTL: Duration = Duration::from_secs(3600);
/// How long it is remembered that a name does not exist.
const NEGATIVE_TTL: Duration = Duration::from_secs(5);
/// Most servers that are asked.
pub const MAX_SERVERS: usize = 8;

/// Why there is no answer.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ResolveError {
    /// The name does not exist.
    #[error("no such name")]
    NoSuchName,
    /// It exists, and has none of what was asked for.
    #[error("the name has no address")]
    NoData,
    /// Nobody answered usefully in time.
    #[error("no resolver answered: {0}")]
    Failed(String),
}

/// The resolvers of this machine.
#[derive(Debug, Default)]
pub struct Resolver {
    servers: RwLock<Arc<[SocketAddr]>>,
}

impl Resolver {
    /// Asks these servers from now on, in this order.
    pub fn set_servers(&self, servers: Vec<SocketAddr>) {
        let servers = servers.into_iter().take(MAX_SERVERS).collect();
        *self.servers.write().unwrap_or_else(PoisonError::into_inner) = servers;
    }

    /// The addresses of a name, IPv4 first, and how long they hold.
    ///
    /// # Errors
    /// When there are none, or nobody says.
    pub async fn addresses(&self, name: &Name) -> Result<(Vec<IpAddr>, Duration), ResolveError> {
        let v4_is_known = Notify::new();
        let v4 = async {
            let v4 = self.family(name, RecordType::A).await;
            if matches!(v4, Ok(_) | Err(ResolveError::NoSuchName)) {
                v4_is_known.notify_one();
            }
            v4
        };
        let v6 = async {
            tokio::select! {
                v6 = self.family(name, RecordType::AAAA) => v6,
                () = async {
                    v4_is_known.notified().await;
                    tokio::time::sleep(OTHER_FAMILY).await;
                } => Err(ResolveError::NoData),
            }
        };
        let (v4, v6) = tokio::join!(v4, v6);
        match (v4, v6) {
            (Ok((mut v4, ttl4)), Ok((v6, ttl6))) => {
                v4.extend(v6);
                Ok((v4, ttl4.min(ttl6)))
            }
            (Ok(one), Err(_)) | (Err(_), Ok(one)) => Ok(one),
            (Err(ResolveError::NoSuchName), Err(_)) | (Err(_), Err(ResolveError::NoSuchName)) => {
                Err(ResolveError::NoSuchName)
            }
            (Err(ResolveError::NoData), Err(other)) | (Err(other), Err(_)) => Err(other),
        }
    }

    /// The records of one type that a name has, aliases on the way included.
    ///
    /// # Errors
    /// When there are none, or nobody says.
    pub async fn records(&self, name: &Name, kind: RecordType) -> Result<Vec<Record>, ResolveError> {
        let message = timeout(DEADLINE, self.ask(name, kind)).await;
        let message = message.map_err(|_| ResolveError::Failed("too late".to_owned()))??;
        let records = chain(&message.answers, &dns_name(name), kind);
        if records.is_empty() { Err(ResolveError::NoData) } else { Ok(records.into_iter().cloned().collect()) }
    }

    async fn family(&self, name: &Name, kind: RecordType) -> Result<(Vec<IpAddr>, Duration), ResolveError> {
        let records = self.records(name, kind).await?;
        let ttl = records.iter().map(|record| record.ttl).min().unwrap_or(0);
        let address = |record: &Record| match &record.data {
            RData::A(a) => Some(IpAddr::V4(a.0)),
            RData::AAAA(aaaa) => Some(IpAddr::V6(aaaa.0)),
            _ => None,
        };
        let addresses: Vec<IpAddr> = records.iter().filter_map(address).take(ADDRESSES).collect();
        if addresses.is_empty() {
            return Err(ResolveError::NoData);
        }
        Ok((addresses, Duration::from_secs(ttl.into())))
    }

    async fn ask(&self, name: &Name, kind: RecordType) -> Result<Message, ResolveError> {
        let servers = self.servers.read().unwrap_or_else(PoisonError::into_inner).clone();
        let mut last = "none is configured".to_owned();
        for server in servers.iter().cycle().take(servers.len() * ROUNDS) {
            match timeout(SERVER_DEADLINE, exchange(*server, name, kind)).await {
                Ok(Ok(message)) => match message.metadata.response_code {
                    ResponseCode::NoError => return Ok(message),
                    ResponseCode::NXDomain => return Err(ResolveError::NoSuchName),
                    code => last = format!("{server} answered {code}"),
                },
                Ok(Err(error)) => last = format!("{server}: {error}"),
                Err(_) => last = format!("{server} did not answer"),
            }
        }
        Err(ResolveError::Failed(last))
    }
}

/// A name in the form of DNS messages.
pub fn dns_name(name: &Name) -> hickory_proto::rr::Name {
    hickory_proto::rr::Name::from_labels(name.as_str().split('.').map(str::as_bytes))
        .expect("a canonical name has labels that fit")
}

async fn exchange(server: SocketAddr, name: &Name, kind: RecordType) -> io::Result<Message> {
    let id = u16::from_ne_bytes(random()?);
    let mut message = Message::new(id, MessageType::Query, OpCode::Query);
    message.metadata.recursion_desired = true;
    message.add_query(Query::query(dns_name(name), kind));
    let mut edns = Edns::new();
    edns.set_max_payload(UDP_BYTES);
    message.set_edns(edns);
    let question = message.to_vec().map_err(io::Error::other)?;

    let answer = by_datagram(server, &question, &message).await?;
    if !answer.metadata.truncation {
        return Ok(answer);
    }
    by_stream(server, &question, &message).await
}

async fn by_datagram(server: SocketAddr, question: &[u8], asked: &Message) -> io::Result<Message> {
    let any: IpAddr = if server.is_ipv4() { Ipv4Addr::UNSPECIFIED.into() } else { Ipv6Addr::UNSPECIFIED.into() };
    let socket = UdpSocket::bind((any, 0)).await?;
    // Connected: datagrams of anybody else never reach us.
    socket.connect(server).await?;
    socket.send(question).await?;
    let mut buffer = vec![0; usize::from(UDP_BYTES)];
    for _ in 0..STRANGERS {
        let length = socket.recv(&mut buffer).await?;
        if let Some(answer) = Message::from_vec(&buffer[..length]).ok().filter(|answer| fits(answer, asked)) {
            return Ok(answer);
        }
    }
    Err(io::Error::new(io::ErrorKind::InvalidData, "answers that fit no question"))
}

async fn by_stream(server: SocketAddr, question: &[u8], asked: &Message) -> io::Result<Message> {
    let mut stream = TcpStream::connect(server).await?;
    let length = u16::try_from(question.len()).expect("a question is short");
    stream.write_all(&[&length.to_be_bytes(), question].concat()).await?;
    let length = usize::from(stream.read_u16().await?).min(TCP_BYTES);
    let mut buffer = vec![0; length];
    stream.read_exact(&mut buffer).await?;
    let answer = Message::from_vec(&buffer).ok().filter(|answer| fits(answer, asked));
    answer.ok_or_else(|| io::Error::new(io::ErrorKind::InvalidData, "an answer that fits no question"))
}

/// Whether a message answers exactly what was asked.
fn fits(answer: &Message, asked: &Message) -> bool {
    let (answered, asked_for) = (&answer.metadata, &asked.metadata);
    answered.message_type == MessageType::Response
        && answered.id == asked_for.id
        && answered.op_code == OpCode::Query
        && answer.queries == asked.queries
}

/// The records of a type at the end of the aliases that start at `name`, and those aliases. Anything else that an answer
/// carries is somebody's wish that we knew more.
fn chain<'a>(answers: &'a [Record], name: &hickory_proto::rr::Name, kind: RecordType) -> Vec<&'a Record> {
    let mut owner = name.clone();
    let mut found = Vec::new();
    for _ in 0..ALIASES {
        let of_owner = |record: &&Record| record.name == owner;
        let wanted: Vec<&Record> =
            answers.iter().filter(of_owner).filter(|record| record.record_type() == kind).collect();
        if !wanted.is_empty() {
            found.extend(wanted);
            return found;
        }
        let alias = answers.iter().filter(of_owner).find_map(|record| match &record.data {
            RData::CNAME(target) => Some((record, target.0.clone())),
            _ => None,
        });
        let Some((record, target)) = alias else { break };
        found.push(record);
        owner = target;
    }
    Vec::new()
}

fn random<const N: usize>() -> io::Result<[u8; N]> {
    let mut bytes = [0; N];
    getrandom::fill(&mut bytes).map_err(|_| io::Error::other("the kernel gives no random bytes"))?;
    Ok(bytes)
}

/// What one sandbox knows of names. Of each sandbox its own: the time an answer takes must not tell what neighbours ask.
#[derive(Debug, Default)]
pub struct Cache {
    known: Mutex<HashMap<Name, Known>>,
}

#[derive(Debug)]
struct Known {
    outcome: Result<Arc<[IpAddr]>, ResolveError>,
    until: Instant,
}

impl Cache {
    /// The addresses of a name, asked for if they are not known.
    ///
    /// # Errors
    /// As [`Resolver::addresses`].
    pub async fn addresses(&self, resolver: &Resolver, name: &Name) -> Result<Arc<[IpAddr]>, ResolveError> {
        if let Some(outcome) = self.fresh(name) {
            return outcome;
        }
        let (outcome, ttl) = match resolver.addresses(name).await {
            Ok((addresses, ttl)) => (Ok(Arc::from(addresses)), ttl.clamp(MIN_TTL, MAX_TTL)),
            // That nobody answered says nothing about the next time.
            Err(error @ ResolveError::Failed(_)) => return Err(error),
            Err(error) => (Err(error), NEGATIVE_TTL),
        };
        self.keep(name, Known { outcome: outcome.clone(), until: Instant::now() + ttl });
        outcome
    }

    fn fresh(&self, name: &Name) -> Option<Result<Arc<[IpAddr]>, ResolveError>> {
        let known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        known.get(name).filter(|known| known.until > Instant::now()).map(|known| known.outcome.clone())
    }

    fn keep(&self, name: &Name, entry: Known) {
        let mut known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        if known.len() >= CACHED_NAMES && !known.contains_key(name) {
            let now = Instant::now();
            known.retain(|_, entry| entry.until > now);
            let soonest = known.iter().min_by_key(|(_, entry)| entry.until).map(|(name, _)| name.clone());
            if let Some(soonest) = soonest.filter(|_| known.len() >= CACHED_NAMES) {
                known.remove(&soonest);
            }
        }
        known.insert(name.clone(), entry);
    }
}

#[cfg(test)]
mod tests;
