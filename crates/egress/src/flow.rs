//! One connection of a sandbox, from the moment it is accepted to its end.
//!
//! ```text
//! accept ─▶ where to? ─▶ name of that address ─▶ policy ─▶ resolve ─▶ policy on each address ─▶ dial
//!              │ :53 ─▶ dns::stream                                                              │
//!              ▼ local ─▶ reset                        first bytes: SNI, Host ◀── registered ◀────┘
//!                                                       │ names another host ─▶ reset
//!                                                       ▼
//!                                                     relay
//! ```
//!
//! A failure is always a reset: the sandbox's program saw its connection succeed before anything was decided, and must
//! not take what follows for an answer. That holds for the death of this process too.

use std::io;
use std::net::{IpAddr, SocketAddr};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};

use tokio::io::Interest;
use tokio::net::TcpStream;
use tokio::sync::Notify;
use tokio_util::sync::CancellationToken;

use crate::authority::Authority;
use crate::inspect::Head;
use crate::intercept::{self, Meeting};
use crate::name::Name;
use crate::policy::{Action, Because, Dialled, Policy};
use crate::relay::{self, Moved};
use crate::sandbox::{Sandbox, WayOut};
use crate::secrets::State;
use crate::upstream::UpstreamProxy;
use crate::verdicts::{End, Reason, What};
use crate::{dns, replay};

mod first;

pub(crate) use first::{FirstBytes, first_bytes, judge_head};

/// DNS over TCP is recognised by where it was going.
const DNS_PORT: u16 = 53;

/// A connection that was let through.
#[derive(Debug)]
pub struct Flow {
    /// Its number in this process.
    pub id: u64,
    name: Option<Name>,
    dialled: Dialled,
    /// Whether the operator's proxy was asked for the name: what it leads to is the proxy's to judge.
    is_by_proxy: bool,
    allowed_by: Because,
    presented: OnceLock<Name>,
    sent: Moved,
    received: Moved,
    /// Bytes that had moved when it was last looked at.
    seen: AtomicU64,
    end: OnceLock<End>,
    cut: CancellationToken,
    /// Whether its requests are read: its host is bound to a credential, or what it answers is recorded or comes from a
    /// recording.
    is_intercepted: AtomicBool,
}

impl Flow {
    /// One that is answered from a recording. Nothing is dialled for it: like one of which a proxy is asked, it is judged by
    /// its name alone.
    pub(crate) fn replayed(id: u64, name: Name, to: SocketAddr, allowed_by: Because, cut: CancellationToken) -> Self {
        Self {
            id,
            name: Some(name),
            dialled: Dialled { address: to.ip(), port: to.port(), block: None },
            is_by_proxy: true,
            allowed_by,
            presented: OnceLock::new(),
            sent: Moved::default(),
            received: Moved::default(),
            seen: AtomicU64::new(0),
            end: OnceLock::new(),
            cut,
            is_intercepted: AtomicBool::new(true),
        }
    }

    /// Where it goes, for people: its name, or else the address, and the port.
    pub(crate) fn place(&self) -> (String, u16) {
        let host = self.name.as_ref().map_or_else(|| self.dialled.address.to_string(), ToString::to_string);
        (host, self.dialled.port)
    }

    /// The name in its first bytes.
    pub(crate) fn presented(&self) -> Option<String> {
        self.presented.get().map(ToString::to_string)
    }

    /// Why it was cut.
    pub(crate) fn why_cut(&self) -> End {
        self.end.get().cloned().unwrap_or(End::Detached)
    }

    /// Ends it from outside.
    pub fn cut(&self, end: End) {
        // The first reason stands.
        let _ = self.end.set(end);
        self.cut.cancel();
    }

    /// Whether a policy would still let it through.
    pub fn is_allowed_by(&self, policy: &Policy) -> bool {
        let verdict = match &self.name {
            Some(name) if self.is_by_proxy => policy.name(name, self.dialled.port),
            name => policy.decide(name.as_ref(), &self.dialled),
        };
        let presented = self.presented.get().filter(|_| self.name.is_none());
        let ends = |name: &Name| policy.presented(&verdict.because, name, self.dialled.port).is_some();
        verdict.is_allowed() && !presented.is_some_and(ends)
    }

    /// Whether nothing moved since this was last asked.
    pub fn is_quiet(&self) -> bool {
        let now = self.sent.bytes() + self.received.bytes();
        self.seen.swap(now, Ordering::Relaxed) == now
    }

    /// The name that it is bound to, if it came by one.
    pub fn name(&self) -> Option<&Name> {
        self.name.as_ref()
    }

    /// Whether its requests are read.
    pub fn is_intercepted(&self) -> bool {
        self.is_intercepted.load(Ordering::Relaxed)
    }

    /// Is cancelled when it is cut.
    pub(crate) fn cut_token(&self) -> CancellationToken {
        self.cut.clone()
    }

    /// Counts bytes from the sandbox.
    pub(crate) fn count_sent(&self, bytes: usize) {
        self.sent.add(bytes);
    }

    /// Counts bytes to the sandbox.
    pub(crate) fn count_received(&self, bytes: usize) {
        self.received.add(bytes);
    }

    /// Bytes from the sandbox, and to it.
    pub fn bytes(&self) -> (u64, u64) {
        (self.sent.bytes(), self.received.bytes())
    }
}

/// Serves one connection to its end. Its close is a reset until it is known to end well: it has that from its listener.
pub async fn run(sandbox: &Arc<Sandbox>, client: TcpStream) {
    match destination(&client) {
        Some(to) if to.port() == DNS_PORT => {
            relay::close_in_order(&client);
            tokio::select! {
                () = dns::stream(sandbox, client) => {}
                () = sandbox.stop.cancelled() => {}
            }
        }
        Some(to) => match sandbox.book() {
            Some(book) => replay::connection(sandbox, book, client, to).await,
            None => connection(sandbox, client, to).await,
        },
        None => {
            let to = client.local_addr().unwrap_or_else(|_| SocketAddr::from(([0, 0, 0, 0], 0)));
            Told { sandbox, id: sandbox.shared.next_flow(), name: None, to }.denied(None, Reason::Local);
        }
    }
}

/// Where the sandbox meant to go; `None` for its own addresses, this listener among them.
fn destination(client: &TcpStream) -> Option<SocketAddr> {
    let own = client.local_addr().ok()?;
    // A connection that was handed over as it came has its destination as its own address; one that was redirected has
    // the listener's, and the kernel remembers where it was going.
    let original = match own {
        _ if !own.ip().to_canonical().is_loopback() => own,
        SocketAddr::V4(_) => SocketAddr::V4(rustix::net::sockopt::ip_original_dst(client).ok()?),
        SocketAddr::V6(_) => SocketAddr::V6(rustix::net::sockopt::ipv6_original_dst(client).ok()?),
    };
    let to = SocketAddr::new(original.ip().to_canonical(), original.port());
    let is_local = to.ip().is_loopback() || to.ip().is_unspecified();
    (!is_local).then_some(to)
}

/// What every event of a connection tells.
pub(crate) struct Told<'a> {
    /// Whose it is.
    pub sandbox: &'a Sandbox,
    /// Its number.
    pub id: u64,
    /// The name that it is bound to, if it came by one.
    pub name: Option<Name>,
    /// Where the sandbox meant to go.
    pub to: SocketAddr,
}

impl Told<'_> {
    /// Tells that it was refused.
    pub fn denied(&self, dialled: Option<IpAddr>, reason: Reason) {
        self.decided(Action::Deny, dialled, reason);
    }

    /// Tells what was decided about it.
    pub fn decided(&self, action: Action, dialled: Option<IpAddr>, reason: Reason) {
        let name = self.name.as_ref().map(ToString::to_string);
        let (flow, to) = (self.id, self.to);
        self.sandbox.journal.record(What::Connection { flow, name, to, dialled, action, reason });
    }
}

async fn connection(sandbox: &Arc<Sandbox>, client: TcpStream, to: SocketAddr) {
    let mut told = Told { sandbox, id: sandbox.shared.next_flow(), name: None, to };
    let reached = match whom(sandbox, to) {
        Ok(name) => {
            told.name = name;
            // A sandbox that goes waits for nobody.
            tokio::select! {
                reached = reach(sandbox, told.name.as_ref(), to) => reached,
                () = sandbox.stop.cancelled() => return,
            }
        }
        Err(reason) => Err(reason.into()),
    };
    let Reached { upstream, dialled, because, is_by_proxy } = match reached {
        Ok(reached) => reached,
        Err(Refused { address, reason }) => return told.denied(address, reason),
    };
    relay::reset_on_close(&upstream);
    let flow = Arc::new(Flow {
        id: told.id,
        name: told.name.clone(),
        dialled,
        is_by_proxy,
        allowed_by: because.clone(),
        presented: OnceLock::new(),
        sent: Moved::default(),
        received: Moved::default(),
        seen: AtomicU64::new(0),
        end: OnceLock::new(),
        cut: sandbox.stop.child_token(),
        is_intercepted: AtomicBool::new(false),
    });
    let _registered = sandbox.flows.register(flow.clone());
    // Only now would a change of the policy find it: one that came before is asked here.
    let policy = sandbox.policy();
    if !flow.is_allowed_by(&policy) {
        let because = policy.decide(flow.name.as_ref(), &flow.dialled).because;
        return told.denied(Some(flow.dialled.address), Reason::Policy { because });
    }
    told.decided(Action::Allow, Some(flow.dialled.address), Reason::Policy { because });
    let end = match pump(sandbox, &flow, &client, &upstream).await {
        Pumped::Over(end) => {
            if end == End::Done {
                relay::close_in_order(&client);
                relay::close_in_order(&upstream);
            }
            end
        }
        Pumped::Bound(found) => intercepted(sandbox, &flow, to, (client, upstream), found).await,
    };
    let (sent_bytes, received_bytes) = flow.bytes();
    let presented = flow.presented();
    let name = flow.name.as_ref().map(ToString::to_string);
    sandbox.journal.record(What::Closed { flow: flow.id, name, to, presented, sent_bytes, received_bytes, end });
}

/// The name that an address stands for, if it is one for names.
pub(crate) fn whom(sandbox: &Sandbox, to: SocketAddr) -> Result<Option<Name>, Reason> {
    match to.ip() {
        IpAddr::V4(address) if sandbox.names.is_synthetic(address) => {
            sandbox.names.name_of(address).map(Some).ok_or(Reason::UnknownName)
        }
        _ => Ok(None),
    }
}

/// Why nothing was dialled, and the address that was refused if the name was not.
struct Refused {
    address: Option<IpAddr>,
    reason: Reason,
}

impl From<Reason> for Refused {
    fn from(reason: Reason) -> Self {
        Self { address: None, reason }
    }
}

/// A connection that the policy permits.
struct Reached {
    upstream: TcpStream,
    dialled: Dialled,
    because: Because,
    is_by_proxy: bool,
}

/// Dials what the policy permits, at an address that it permits.
async fn reach(sandbox: &Sandbox, name: Option<&Name>, to: SocketAddr) -> Result<Reached, Refused> {
    let policy = sandbox.policy();
    let out = sandbox.way_out().ok_or(Reason::NotInRecording)?;
    if let Some(name) = name
        && let Some(proxy) = sandbox.shared.proxy_for(Some(name), to.ip())
    {
        return by_proxy(&out, &policy, &proxy, name, to.port()).await;
    }
    let addresses: Arc<[IpAddr]> = match name {
        Some(name) => {
            let verdict = policy.name(name, to.port());
            if !verdict.is_allowed() {
                return Err(Reason::Policy { because: verdict.because }.into());
            }
            let found = out.addresses(name).await;
            found.map_err(|error| Reason::Unresolved { message: error.to_string() })?
        }
        None => Arc::from([to.ip()]),
    };
    let mut permitted = Vec::new();
    let mut refused = (None, Because::Default);
    for address in addresses.iter() {
        let dialled = sandbox.shared.look_at(*address, to.port());
        let verdict = policy.decide(name, &dialled);
        if verdict.is_allowed() {
            permitted.push((dialled, verdict.because));
        } else {
            refused = (Some(dialled.address), verdict.because);
        }
    }
    if permitted.is_empty() {
        let (address, because) = refused;
        return Err(Refused { address, reason: Reason::Policy { because } });
    }
    let addresses: Vec<IpAddr> = permitted.iter().map(|(dialled, _)| dialled.address).collect();
    let unreachable = |error: io::Error| Reason::Unreachable { message: error.to_string() };
    if name.is_none()
        && let Some(proxy) = sandbox.shared.proxy_for(None, to.ip())
        && let Some((dialled, because)) = permitted.pop()
    {
        let upstream = out.connect_by(&proxy, &dialled.address.to_string(), to.port()).await;
        return Ok(Reached { upstream: upstream.map_err(unreachable)?, dialled, because, is_by_proxy: true });
    }
    let upstream = out.connect(&addresses, to.port()).await.map_err(unreachable)?;
    let peer = upstream.peer_addr().map_err(unreachable)?.ip().to_canonical();
    let reached = permitted.into_iter().find(|(dialled, _)| dialled.address == peer);
    let (dialled, because) = reached.ok_or_else(|| unreachable(io::Error::other("connected to somebody else")))?;
    Ok(Reached { upstream, dialled, because, is_by_proxy: false })
}

/// Asks the operator's proxy for a name. What is told and counted as dialled is the proxy.
async fn by_proxy(
    out: &WayOut<'_>,
    policy: &Policy,
    proxy: &UpstreamProxy,
    name: &Name,
    port: u16,
) -> Result<Reached, Refused> {
    let verdict = policy.name(name, port);
    if !verdict.is_allowed() {
        return Err(Reason::Policy { because: verdict.because }.into());
    }
    let unreachable = |error: io::Error| Reason::Unreachable { message: error.to_string() };
    let upstream = out.connect_by(proxy, name.as_str(), port).await.map_err(unreachable)?;
    let address = upstream.peer_addr().map_err(unreachable)?.ip().to_canonical();
    let dialled = Dialled { address, port, block: None };
    Ok(Reached { upstream, dialled, because: verdict.because, is_by_proxy: true })
}

/// Connects once more to where a flow goes: to the same address, or by the proxy to the same name.
///
/// # Errors
/// When nobody answers there.
pub(crate) async fn again(sandbox: &Sandbox, flow: &Flow, port: u16) -> io::Result<TcpStream> {
    let address = flow.dialled.address;
    let out = sandbox.way_out().ok_or_else(|| io::Error::other("nothing leaves this sandbox"))?;
    let proxy = sandbox.shared.proxy_for(flow.name(), address).filter(|_| flow.is_by_proxy);
    let upstream = match (proxy, flow.name()) {
        (Some(proxy), Some(name)) => out.connect_by(&proxy, name.as_str(), port).await?,
        (Some(proxy), None) => out.connect_by(&proxy, &address.to_string(), port).await?,
        (None, _) if flow.is_by_proxy => return Err(io::Error::other("the upstream proxy is another one now")),
        (None, _) => out.connect(&[address], port).await?,
    };
    relay::reset_on_close(&upstream);
    Ok(upstream)
}

/// What became of moving bytes.
enum Pumped {
    Over(End),
    /// Nothing was moved: the host is bound to a credential, or its answers are recorded.
    Bound(Found),
}

/// A connection whose requests are read.
struct Found {
    authority: Arc<Authority>,
    first: Vec<u8>,
    is_tls: bool,
}

/// Why bytes of a sandbox are not moved on.
enum Stop {
    End(End),
    Bound(Found),
}

async fn intercepted(
    sandbox: &Arc<Sandbox>,
    flow: &Arc<Flow>,
    to: SocketAddr,
    (client, upstream): (TcpStream, TcpStream),
    found: Found,
) -> End {
    flow.is_intercepted.store(true, Ordering::Relaxed);
    let Found { authority, first, is_tls } = found;
    let (sandbox, of_flow) = (sandbox.clone(), flow.clone());
    let meeting = Meeting { sandbox, flow: of_flow, to, authority, client, upstream, first, is_tls };
    tokio::select! {
        biased;
        () = flow.cut.cancelled() => flow.why_cut(),
        end = intercept::serve(meeting) => end,
    }
}

async fn pump(sandbox: &Sandbox, flow: &Flow, client: &TcpStream, upstream: &TcpStream) -> Pumped {
    let (pipes, held) = (&sandbox.shared.pipes, &sandbox.pipes_held);
    let ended = |error: io::Error| End::Broken { message: error.to_string() };
    let broken = |error: io::Error| Stop::End(ended(error));
    let (client_is_done, upstream_is_done) = (Notify::new(), Notify::new());
    let up = async {
        let head = first_bytes(client).await.map_err(broken)?;
        let refused = |reason| Stop::End(End::Refused { reason });
        judge_head(sandbox, flow, &head).map_err(refused)?;
        let head = match bound(sandbox, flow, head).map_err(refused)? {
            Ok(found) => return Err(Stop::Bound(found)),
            Err(head) => match recorded(sandbox, flow, head) {
                Ok(found) => return Err(Stop::Bound(found)),
                Err(head) => head,
            },
        };
        send(upstream, &head.bytes).await.map_err(broken)?;
        flow.sent.add(head.bytes.len());
        drop(head);
        relay::one_way(client, upstream, pipes, held, &flow.sent).await.map_err(broken)?;
        client_is_done.notify_one();
        Ok(())
    };
    let down = async {
        relay::one_way(upstream, client, pipes, held, &flow.received).await.map_err(broken)?;
        upstream_is_done.notify_one();
        Ok(())
    };
    tokio::select! {
        biased;
        // Asked first: what comes after a cut is not moved.
        () = flow.cut.cancelled() => Pumped::Over(flow.why_cut()),
        // Asked next: when both are done, nothing that fails then matters.
        moved = async { tokio::try_join!(up, down) } => match moved {
            Ok(_) => Pumped::Over(End::Done),
            Err(Stop::End(end)) => Pumped::Over(end),
            Err(Stop::Bound(found)) => Pumped::Bound(found),
        },
        error = fails_after(client, &client_is_done) => Pumped::Over(ended(error)),
        error = fails_after(upstream, &upstream_is_done) => Pumped::Over(ended(error)),
    }
}

/// Whether requests of a connection are to be read, since its host is bound to a credential; what it said otherwise.
/// Protocols in which no credential can be put are relayed like those of any host.
fn bound(sandbox: &Sandbox, flow: &Flow, head: FirstBytes) -> Result<Result<Found, FirstBytes>, Reason> {
    let Some(name) = &flow.name else { return Ok(Err(head)) };
    let refused = |message: &str| Err(Reason::Vault { message: message.into() });
    let host = name.to_string();
    let authority = match sandbox.secrets.state() {
        State::Holds { authority, vault } if vault.is_bound(&host) => authority,
        State::Lost { hosts } if vault::is_any(hosts.iter(), &host) => {
            return refused("the credential vault was lost; fill it again, or delete it to reach the host without");
        }
        _ => return Ok(Err(head)),
    };
    let is_tls = match &head.seen {
        Ok(Head::Tls(Some(_))) => true,
        Ok(Head::Http(Some(_))) => false,
        Ok(Head::Tls(None)) => {
            return refused("TLS without a server name, and the host is bound to a credential");
        }
        Ok(Head::Http(None)) => return refused("a request without a host, and the host is bound to a credential"),
        _ => return Ok(Err(head)),
    };
    if flow.received.bytes() > 0 {
        return refused("the host spoke first, and it is bound to a credential");
    }
    Ok(Ok(Found { authority, first: head.bytes, is_tls }))
}

/// Whether requests of a connection are to be read because its sandbox is recorded; what it said otherwise, which is passed
/// on, and that it is not recorded is told.
fn recorded(sandbox: &Sandbox, flow: &Flow, head: FirstBytes) -> Result<Found, FirstBytes> {
    let Some(recorder) = sandbox.recorder().filter(|_| !head.bytes.is_empty()) else { return Err(head) };
    let is_tls = match &head.seen {
        Ok(Head::Tls(_)) => Some(true),
        Ok(Head::Http(Some(_))) => Some(false),
        _ => None,
    };
    let why = match (is_tls, sandbox.secrets.state()) {
        _ if flow.name.is_none() => "the connection is to an address, not to a name",
        (None, _) => "no HTTP is spoken that can be recorded",
        _ if flow.received.bytes() > 0 => "the host spoke first, so that no HTTP is spoken",
        (Some(true), _) if !intercept::tls::offers_http(&head.bytes) => {
            "neither HTTP/1.1 nor HTTP/2 is spoken within TLS"
        }
        (Some(is_tls), State::Empty { authority } | State::Holds { authority, .. }) => {
            return Ok(Found { authority, first: head.bytes, is_tls });
        }
        _ => "the sandbox's certificate authority is lost",
    };
    recorder.not_recorded(sandbox, flow, why);
    Err(head)
}

/// Waits until a socket from which no more is read fails: nobody else would notice while its peer is silent.
async fn fails_after(socket: &TcpStream, done: &Notify) -> io::Error {
    done.notified().await;
    match socket.ready(Interest::ERROR).await {
        Ok(_) => socket.take_error().ok().flatten().unwrap_or_else(|| io::ErrorKind::ConnectionReset.into()),
        Err(error) => error,
    }
}

async fn send(to: &TcpStream, mut bytes: &[u8]) -> io::Result<()> {
    while !bytes.is_empty() {
        to.writable().await?;
        match to.try_write(bytes) {
            Ok(sent) => bytes = &bytes[sent..],
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
            Err(error) => return Err(error),
        }
    }
    Ok(())
}
