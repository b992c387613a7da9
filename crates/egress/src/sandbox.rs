//! Everything of one sandbox: its sockets, its policy, its names, what it has taken of its limits, and its connections.

use std::collections::HashMap;
use std::io;
use std::net::IpAddr;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError, RwLock};
use std::time::Duration;

use ipnet::Ipv4Net;
use tokio::net::{TcpListener, UdpSocket};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use crate::dns::{self, Transport};
use crate::flow::{self, Flow};
use crate::guard::own::Routes;
use crate::intercept::tls::Trust;
use crate::limits::{Bucket, Limits, QUESTIONS_AT_A_TIME};
use crate::name::Name;
use crate::names::Names;
use crate::policy::{Dialled, Policy};
use crate::relay::{Held, Pipes};
use crate::resolve::{Cache, Resolver};
use crate::secrets::{Holdings, Secrets, State};
use crate::upstream::UpstreamProxy;
use crate::verdicts::{End, Journal, VaultChange, Verdicts, What};

mod traffic;

pub use traffic::{Traffic, WayOut};

/// How often connections are looked at for whether anything moved.
const QUIET_CHECK: Duration = Duration::from_secs(1800);
/// So many looks in a row without a byte end a connection: two hours. A peer that is gone is found by keep-alive in two
/// minutes; this is for those that are there and have forgotten.
const QUIET_LOOKS: u32 = 4;
/// How long the end of a sandbox's tasks is waited for; they end at their next step.
const STOP_DEADLINE: Duration = Duration::from_secs(5);
/// The first so many connections of each sandbox have room of their own in the process.
const ASSURED_FLOWS: usize = 16;
/// One part in so many of all room is kept for that.
const ASSURED_PART: usize = 3;
/// What the kernel may hold of a connection on the sandbox's side, each way; it doubles it for its own needs. The way is
/// so short that more makes nothing faster.
const INSIDE_BUFFER_BYTES: usize = 256 * 1024;
/// Pause after an accept that failed for want of something, so that it is not asked for in a circle.
const ACCEPT_PAUSE: Duration = Duration::from_millis(50);

/// What all sandboxes share.
#[derive(Debug)]
pub struct Shared {
    /// The machine's resolvers.
    pub resolver: Resolver,
    /// Who knows which addresses are this machine's.
    pub routes: Routes,
    /// Pipes on loan.
    pub pipes: Pipes,
    /// All events.
    pub verdicts: Arc<Verdicts>,
    /// Authorities and vaults, by sandbox.
    pub secrets: Holdings,
    /// Room for connections of the whole process, whoever comes first.
    common_flows: Arc<Semaphore>,
    /// Room for the first few connections of each sandbox.
    assured_flows: Arc<Semaphore>,
    flows_so_far: AtomicU64,
    /// How origins are verified.
    trust: RwLock<Arc<Trust>>,
    /// By which proxy the internet is reached, if not directly.
    proxy: RwLock<Option<Arc<UpstreamProxy>>>,
    /// Addresses of that proxy.
    proxy_addresses: Cache,
}

impl Shared {
    /// With room for so many connections, and what is kept of credentials.
    ///
    /// # Errors
    /// When the kernel does not tell routes.
    pub fn new(flows: usize, secrets: Holdings) -> io::Result<Self> {
        Ok(Self {
            secrets,
            resolver: Resolver::default(),
            routes: Routes::open()?,
            pipes: Pipes::default(),
            verdicts: Arc::default(),
            common_flows: Arc::new(Semaphore::new(flows - flows / ASSURED_PART)),
            assured_flows: Arc::new(Semaphore::new(flows / ASSURED_PART)),
            flows_so_far: AtomicU64::new(0),
            trust: RwLock::default(),
            proxy: RwLock::default(),
            proxy_addresses: Cache::default(),
        })
    }

    /// How origins of bound hosts are verified.
    pub fn trust(&self) -> Arc<Trust> {
        self.trust.read().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Verifies them otherwise from now on.
    pub fn set_trust(&self, trust: Trust) {
        *self.trust.write().unwrap_or_else(PoisonError::into_inner) = Arc::new(trust);
    }

    /// The proxy by which a destination is reached; the address does not matter where there is a name.
    pub fn proxy_for(&self, name: Option<&Name>, address: IpAddr) -> Option<Arc<UpstreamProxy>> {
        let proxy = self.proxy.read().unwrap_or_else(PoisonError::into_inner).clone();
        proxy.filter(|proxy| proxy.is_for(name, address))
    }

    /// Reaches the internet by another proxy, or by none.
    pub fn set_proxy(&self, proxy: Option<UpstreamProxy>) {
        *self.proxy.write().unwrap_or_else(PoisonError::into_inner) = proxy.map(Arc::new);
    }

    /// A number for a connection.
    pub fn next_flow(&self) -> u64 {
        self.flows_so_far.fetch_add(1, Ordering::Relaxed) + 1
    }

    /// A destination with all that is known of its address.
    pub fn look_at(&self, address: IpAddr, port: u16) -> Dialled {
        let dialled = Dialled::new(address, port);
        match self.routes.is_own(dialled.address) {
            Ok(false) => dialled,
            Ok(true) => dialled.of_host(),
            Err(error) => {
                tracing::warn!(%error, "the kernel does not say whose an address is, it is taken for ours");
                dialled.of_host()
            }
        }
    }
}

/// The sockets that were made in a sandbox's namespace.
#[derive(Debug)]
pub struct Listeners {
    /// TCP over IPv4, listening.
    pub tcp4: OwnedFd,
    /// TCP over IPv6, listening.
    pub tcp6: OwnedFd,
    /// UDP over IPv4.
    pub udp4: OwnedFd,
    /// UDP over IPv6.
    pub udp6: OwnedFd,
}

impl Listeners {
    /// From descriptors in the order of the fields.
    pub fn from_array([tcp4, tcp6, udp4, udp6]: [OwnedFd; 4]) -> Self {
        Self { tcp4, tcp6, udp4, udp6 }
    }

    /// In the order of the fields.
    pub fn as_fds(&self) -> [std::os::fd::BorrowedFd<'_>; 4] {
        [self.tcp4.as_fd(), self.tcp6.as_fd(), self.udp4.as_fd(), self.udp6.as_fd()]
    }
}

/// The sockets as they are listened to.
#[derive(Debug)]
struct Sockets {
    tcp: [Arc<TcpListener>; 2],
    udp: [Arc<UdpSocket>; 2],
}

impl Sockets {
    fn new(listeners: Listeners) -> io::Result<Self> {
        let Listeners { tcp4, tcp6, udp4, udp6 } = listeners;
        Ok(Self { tcp: [tcp(tcp4)?, tcp(tcp6)?], udp: [udp(udp4)?, udp(udp6)?] })
    }
}

/// A policy, and which it is.
#[derive(Clone, Debug)]
struct InForce {
    revision: u64,
    policy: Arc<Policy>,
}

/// One attached sandbox.
#[derive(Debug)]
pub struct Sandbox {
    /// Its id.
    pub id: String,
    /// What all share.
    pub shared: Arc<Shared>,
    /// Addresses that stand for names.
    pub names: Names,
    /// What it knows of names.
    cache: Cache,
    /// What became of its questions and connections.
    pub journal: Journal,
    /// Its connections.
    pub flows: Flows,
    /// Large pipes that it holds.
    pub pipes_held: Held,
    /// Its authority and its vault.
    pub secrets: Secrets,
    /// What becomes of its traffic.
    traffic: Traffic,
    /// TLS handshakes with bound hosts per second.
    pub handshakes: Bucket,
    /// Questions per second.
    pub questions: Bucket,
    /// New names per second.
    pub new_names: Bucket,
    /// Ends everything of it.
    pub stop: CancellationToken,
    in_force: RwLock<InForce>,
    /// Taken out at the end, so that they are closed whoever still looks at the sandbox.
    sockets: Mutex<Option<Sockets>>,
    new_flows: Bucket,
    most_flows: usize,
    flow_slots: Arc<Semaphore>,
    intercept_slots: Arc<Semaphore>,
    question_slots: Arc<Semaphore>,
    tasks: TaskTracker,
}

/// With what a sandbox is attached.
#[derive(Debug)]
pub struct Attachment {
    /// The sandbox.
    pub id: String,
    /// Its sockets.
    pub listeners: Listeners,
    /// Its names file.
    pub names: OwnedFd,
    /// Where names live.
    pub range: Ipv4Net,
    /// Number of its policy.
    pub revision: u64,
    /// Its policy.
    pub policy: Policy,
    /// Its authority and its vault.
    pub secrets: Secrets,
    /// What becomes of its traffic.
    pub traffic: Traffic,
    /// Its limits.
    pub limits: Limits,
}

impl Sandbox {
    /// Begins to serve a sandbox.
    ///
    /// # Errors
    /// When a descriptor is not what it should be.
    pub fn attach(shared: Arc<Shared>, with: Attachment) -> io::Result<Arc<Self>> {
        let sockets = Sockets::new(with.listeners)?;
        let (tcp, udp) = (sockets.tcp.clone(), sockets.udp.clone());
        let limits = with.limits;
        let sandbox = Arc::new(Self {
            names: Names::load(with.names, with.range)?,
            cache: Cache::default(),
            secrets: with.secrets,
            traffic: with.traffic,
            journal: Journal::new(&with.id, shared.verdicts.clone(), limits.verdicts),
            flows: Flows::default(),
            pipes_held: Held::default(),
            handshakes: Bucket::new(limits.handshakes),
            questions: Bucket::new(limits.questions),
            new_names: Bucket::new(limits.new_names),
            stop: CancellationToken::new(),
            in_force: RwLock::new(InForce { revision: with.revision, policy: Arc::new(with.policy) }),
            sockets: Mutex::new(Some(sockets)),
            new_flows: Bucket::new(limits.new_flows),
            most_flows: limits.flows,
            flow_slots: Arc::new(Semaphore::new(limits.flows)),
            intercept_slots: Arc::new(Semaphore::new(limits.intercepted)),
            question_slots: Arc::new(Semaphore::new(QUESTIONS_AT_A_TIME)),
            tasks: TaskTracker::new(),
            id: with.id,
            shared,
        });
        for listener in tcp {
            sandbox.spawn(accept(sandbox.clone(), listener));
        }
        for socket in udp {
            sandbox.spawn(questions(sandbox.clone(), socket));
        }
        sandbox.spawn(sweep(sandbox.clone()));
        Ok(sandbox)
    }

    /// Ends everything of it; its connections are reset. Its sockets are closed when this returns.
    pub async fn detach(self: Arc<Self>) {
        self.stop.cancel();
        self.tasks.close();
        if tokio::time::timeout(STOP_DEADLINE, self.tasks.wait()).await.is_err() {
            tracing::error!(sandbox_id = self.id, "tasks of a detached sandbox do not end");
        }
        if let Some(recorder) = self.recorder() {
            recorder.close();
        }
        drop(self.sockets.lock().unwrap_or_else(PoisonError::into_inner).take());
        self.shared.verdicts.depart(&self.journal);
    }

    /// The policy in force.
    pub fn policy(&self) -> Arc<Policy> {
        self.in_force.read().unwrap_or_else(PoisonError::into_inner).policy.clone()
    }

    /// Its number.
    pub fn revision(&self) -> u64 {
        self.in_force.read().unwrap_or_else(PoisonError::into_inner).revision
    }

    /// Puts another policy in force and cuts the connections that it does not allow. Returns how many.
    ///
    /// # Errors
    /// The revision in force, when that is newer.
    pub fn set_policy(&self, revision: u64, policy: Policy) -> Result<usize, u64> {
        let policy = Arc::new(policy);
        {
            let mut in_force = self.in_force.write().unwrap_or_else(PoisonError::into_inner);
            if revision < in_force.revision {
                return Err(in_force.revision);
            }
            *in_force = InForce { revision, policy: policy.clone() };
        }
        let mut cut = 0;
        for flow in self.flows.all() {
            if !flow.is_allowed_by(&policy) {
                flow.cut(End::PolicyChanged { revision });
                cut += 1;
            }
        }
        Ok(cut)
    }

    /// Writes down that its vault is another, and cuts connections to hosts that are bound now and were not, or were and are
    /// not any more. Those to a host that stays bound go on: each request of theirs is judged by what holds then.
    pub fn vault_changed(&self, change: VaultChange, revision: u64, credentials: usize, bindings: usize) {
        self.journal.record(What::Vault { change, revision, credentials, bindings });
        let vault = match self.secrets.state() {
            State::Holds { vault, .. } => Some(vault),
            _ => None,
        };
        for flow in self.flows.all() {
            let named = flow.name().zip(vault.as_ref());
            let is_bound = named.is_some_and(|(name, vault)| vault.is_bound(&name.to_string()));
            let is_served_wrongly = match &self.traffic {
                Traffic::Live => is_bound != flow.is_intercepted(),
                Traffic::Recorded(_) => is_bound && !flow.is_intercepted(),
                Traffic::Replayed(_) => false,
            };
            if is_served_wrongly {
                flow.cut(End::VaultChanged);
            }
        }
    }

    /// Duplicates of its sockets, in the order of [`Listeners`]; none once it is detached.
    ///
    /// # Errors
    /// When there is no room for descriptors.
    pub fn listeners(&self) -> io::Result<Vec<OwnedFd>> {
        let sockets = self.sockets.lock().unwrap_or_else(PoisonError::into_inner);
        let Some(Sockets { tcp, udp }) = &*sockets else { return Ok(Vec::new()) };
        let tcp = tcp.iter().map(|socket| socket.as_fd().try_clone_to_owned());
        tcp.chain(udp.iter().map(|socket| socket.as_fd().try_clone_to_owned())).collect()
    }

    /// Room for one more connection to a bound host, once there is some.
    pub async fn intercept_slot(&self) -> OwnedSemaphorePermit {
        slot(&self.intercept_slots).await
    }

    /// Room for one more connection in the process. A dozen sandboxes at their limit take what is for all; what is for
    /// the first connections of each is left.
    async fn room(&self) -> OwnedSemaphorePermit {
        let open = self.most_flows - self.flow_slots.available_permits();
        if open <= ASSURED_FLOWS
            && let Ok(permit) = self.shared.assured_flows.clone().try_acquire_owned()
        {
            return permit;
        }
        slot(&self.shared.common_flows).await
    }

    fn spawn(&self, task: impl Future<Output = ()> + Send + 'static) {
        let stop = self.stop.clone();
        self.tasks.spawn(async move {
            tokio::select! {
                () = task => {}
                () = stop.cancelled() => {}
            }
        });
    }
}

/// The connections of one sandbox.
#[derive(Debug, Default)]
pub struct Flows(Mutex<HashMap<u64, Arc<Flow>>>);

/// Takes a connection out of the list when it is dropped.
pub struct Registered<'a> {
    flows: &'a Flows,
    id: u64,
}

impl Flows {
    /// Puts one in.
    pub fn register(&self, flow: Arc<Flow>) -> Registered<'_> {
        let id = flow.id;
        self.0.lock().unwrap_or_else(PoisonError::into_inner).insert(id, flow);
        Registered { flows: self, id }
    }

    /// All of them.
    pub fn all(&self) -> Vec<Arc<Flow>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).values().cloned().collect()
    }

    /// How many there are.
    pub fn count(&self) -> usize {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).len()
    }
}

impl Drop for Registered<'_> {
    fn drop(&mut self) {
        self.flows.0.lock().unwrap_or_else(PoisonError::into_inner).remove(&self.id);
    }
}

fn tcp(fd: OwnedFd) -> io::Result<Arc<TcpListener>> {
    if !rustix::net::sockopt::socket_acceptconn(&fd)? {
        return Err(io::Error::new(io::ErrorKind::InvalidInput, "a socket that does not listen"));
    }
    // Every connection inherits it: whatever ends this process, its end is a reset (see `flow`).
    rustix::net::sockopt::set_socket_linger(&fd, Some(Duration::ZERO))?;
    // And these, which keep a sandbox that reads or writes nothing from filling the kernel's memory for all sockets.
    rustix::net::sockopt::set_socket_send_buffer_size(&fd, INSIDE_BUFFER_BYTES)?;
    rustix::net::sockopt::set_socket_recv_buffer_size(&fd, INSIDE_BUFFER_BYTES)?;
    let listener = std::net::TcpListener::from(fd);
    listener.set_nonblocking(true)?;
    TcpListener::from_std(listener).map(Arc::new)
}

fn udp(fd: OwnedFd) -> io::Result<Arc<UdpSocket>> {
    if rustix::net::sockopt::socket_type(&fd)? != rustix::net::SocketType::DGRAM {
        return Err(io::Error::new(io::ErrorKind::InvalidInput, "a socket that is not for datagrams"));
    }
    let socket = std::net::UdpSocket::from(fd);
    socket.set_nonblocking(true)?;
    UdpSocket::from_std(socket).map(Arc::new)
}

async fn accept(sandbox: Arc<Sandbox>, listener: Arc<TcpListener>) {
    loop {
        let client = match listener.accept().await {
            Ok((client, _)) => client,
            Err(error) => {
                tracing::warn!(sandbox_id = sandbox.id, %error, "a connection cannot be accepted");
                tokio::time::sleep(ACCEPT_PAUSE).await;
                continue;
            }
        };
        sandbox.new_flows.take().await;
        let permits = (slot(&sandbox.flow_slots).await, sandbox.room().await);
        crate::dial::prepare(&client);
        let sandbox_of_flow = sandbox.clone();
        // Not cut off with the others: a connection ends itself, so that what became of it is written down.
        sandbox.tasks.spawn(async move {
            flow::run(&sandbox_of_flow, client).await;
            drop(permits);
        });
    }
}

async fn slot(of: &Arc<Semaphore>) -> OwnedSemaphorePermit {
    of.clone().acquire_owned().await.expect("the semaphores of connections and questions are never closed")
}

async fn questions(sandbox: Arc<Sandbox>, socket: Arc<UdpSocket>) {
    let mut buffer = vec![0; dns::QUESTION_BYTES];
    loop {
        let (length, from) = match socket.recv_from(&mut buffer).await {
            Ok(received) => received,
            Err(error) => {
                tracing::debug!(sandbox_id = sandbox.id, %error, "a question cannot be received");
                tokio::time::sleep(ACCEPT_PAUSE).await;
                continue;
            }
        };
        sandbox.questions.take().await;
        let permit = slot(&sandbox.question_slots).await;
        let question = buffer[..length].to_vec();
        let (asked, socket) = (sandbox.clone(), socket.clone());
        sandbox.spawn(async move {
            if let Some(answer) = dns::answer(&asked, &question, Transport::Datagram).await {
                // Who asked has gone, or its buffer is full: datagrams may be lost, and are asked again.
                let _ = socket.send_to(&answer, from).await;
            }
            drop(permit);
        });
    }
}

/// Ends connections on which nothing moved from one look to the next but one.
async fn sweep(sandbox: Arc<Sandbox>) {
    let mut ticks = tokio::time::interval(QUIET_CHECK);
    let mut quiet: HashMap<u64, u32> = HashMap::new();
    loop {
        ticks.tick().await;
        let flows = sandbox.flows.all();
        let still = flows.iter().filter(|flow| flow.is_quiet());
        quiet = still.map(|flow| (flow.id, quiet.get(&flow.id).copied().unwrap_or(0) + 1)).collect();
        for flow in flows.iter().filter(|flow| quiet.get(&flow.id).is_some_and(|looks| *looks >= QUIET_LOOKS)) {
            flow.cut(End::Idle);
        }
    }
}
