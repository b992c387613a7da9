//! A runtime without a kernel, for tests of everything above the [`Runtime`] trait.
//!
//! Sandboxes are entries in a map. Tests hold creates back, make the next call of a kind fail, and end
//! sandboxes by hand. Waiting is done without timers, so that any executor can drive it.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::future::poll_fn;
use std::io;
use std::net::{Ipv4Addr, Ipv6Addr, TcpListener, UdpSocket};
use std::os::fd::OwnedFd;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard};
use std::task::{Poll, Waker};
use std::time::Duration;

use protocol::network::Cidr;

use crate::runtime::{
    BoxFuture, Capabilities, Create, Created, ErrorKind, ExecdAddress, Exit, Listeners, Network, Observed, Pause,
    Receipt, Runtime, RuntimeError, StoredVolume, VolumeMeans, Volumes,
};
use crate::snapshot::{Found, SnapshotId, Snapshots, Standing, Taken};
use crate::spec::{self, SandboxId};

/// The calls that can be made to fail.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Call {
    /// [`Runtime::create`].
    Create,
    /// [`Runtime::destroy`].
    Destroy,
    /// [`Pause::pause`].
    Pause,
    /// [`Pause::resume`].
    Resume,
    /// [`Network::listen`].
    Listen,
    /// [`Network::steer`].
    Steer,
    /// [`Volumes::ensure`].
    EnsureVolume,
    /// [`Volumes::remove`].
    RemoveVolume,
    /// [`Warm::prepare`](crate::warm::Warm::prepare).
    Prepare,
    /// [`Snapshots::take`].
    TakeSnapshot,
    /// [`Snapshots::remove`].
    RemoveSnapshot,
}

mod warm;

/// The fake; clones share their sandboxes, as a restarted server shares the machine.
#[derive(Clone, Default)]
pub struct FakeRuntime {
    inner: Arc<Mutex<Inner>>,
    sockets: PathBuf,
}

#[derive(Default)]
struct Inner {
    sandboxes: BTreeMap<SandboxId, Observed>,
    reachable: BTreeMap<SandboxId, Vec<Cidr>>,
    authorities: BTreeMap<SandboxId, String>,
    volumes: BTreeMap<String, Option<u64>>,
    snapshots: BTreeMap<SnapshotId, Taken>,
    copies_held: bool,
    failures: BTreeMap<Call, RuntimeError>,
    held: bool,
    ended: VecDeque<SandboxId>,
    wakers: Vec<Waker>,
    creates: usize,
    warm: bool,
    waiting: BTreeSet<SandboxId>,
    claims: usize,
}

impl Inner {
    fn wake(&mut self) {
        self.wakers.drain(..).for_each(Waker::wake);
    }

    fn fail(&mut self, call: Call) -> Result<(), RuntimeError> {
        self.failures.remove(&call).map_or(Ok(()), Err)
    }
}

impl FakeRuntime {
    /// A fake whose execd sockets are looked for as `<sockets>/<id>.sock`.
    pub fn new(sockets: impl Into<PathBuf>) -> Self {
        Self { inner: Arc::default(), sockets: sockets.into() }
    }

    fn lock(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().expect("no panic while the fake is locked")
    }

    /// Makes the next call of this kind fail.
    pub fn fail_next(&self, call: Call, kind: ErrorKind, message: &str) {
        self.lock().failures.insert(call, RuntimeError::new(kind, message));
    }

    /// Holds every create back until [`FakeRuntime::release`].
    pub fn hold(&self) {
        self.lock().held = true;
    }

    /// Lets held creates go on.
    pub fn release(&self) {
        let mut inner = self.lock();
        inner.held = false;
        inner.wake();
    }

    /// Ends a sandbox as if its main process had ended.
    pub fn end(&self, id: &SandboxId, exit: Exit) {
        let mut inner = self.lock();
        inner.sandboxes.insert(id.clone(), Observed::Ended(exit));
        inner.ended.push_back(id.clone());
        inner.wake();
    }

    /// Makes a sandbox vanish behind everybody's back.
    pub fn vanish(&self, id: &SandboxId) {
        self.lock().sandboxes.remove(id);
    }

    /// Puts a sandbox there behind everybody's back.
    pub fn plant(&self, id: &SandboxId, observed: Observed) {
        self.lock().sandboxes.insert(id.clone(), observed);
    }

    /// How many creates were begun.
    pub fn creates(&self) -> usize {
        self.lock().creates
    }

    /// Holds every snapshot back until [`FakeRuntime::release_copies`].
    pub fn hold_copies(&self) {
        self.lock().copies_held = true;
    }

    /// Lets held snapshots go on.
    pub fn release_copies(&self) {
        let mut inner = self.lock();
        inner.copies_held = false;
        inner.wake();
    }

    /// The snapshots that exist.
    pub fn snapshots(&self) -> Vec<SnapshotId> {
        self.lock().snapshots.keys().cloned().collect()
    }

    /// The named volumes that exist.
    pub fn volumes(&self) -> BTreeMap<String, Option<u64>> {
        self.lock().volumes.clone()
    }

    /// Where connections of a sandbox may be asked for, if it has a network.
    pub fn reachable(&self, id: &SandboxId) -> Option<Vec<Cidr>> {
        self.lock().reachable.get(id).cloned()
    }

    /// The authority that the programs of a sandbox trust.
    pub fn authority(&self, id: &SandboxId) -> Option<String> {
        self.lock().authorities.get(id).cloned()
    }

    fn change(&self, id: &SandboxId, call: Call, from: &Observed, to: Observed) -> Result<(), RuntimeError> {
        let mut inner = self.lock();
        inner.fail(call)?;
        match inner.sandboxes.get_mut(id) {
            Some(now) if now == from || *now == to => *now = to,
            _ => return Err(RuntimeError::new(ErrorKind::NotFound, format!("sandbox {id} is not there"))),
        }
        Ok(())
    }
}

impl Runtime for FakeRuntime {
    fn name(&self) -> &'static str {
        "fake"
    }

    fn capabilities(&self) -> Capabilities {
        let limits = ["cpu", "memory", "pids", "disk", "inodes"].map(|k| (k.to_owned(), "fake".to_owned()));
        Capabilities {
            isolation: crate::runtime::Isolation::default(),
            runtime: "fake".to_owned(),
            arch: "amd64".to_owned(),
            mode: "user".to_owned(),
            pause: true,
            snapshots: true,
            limits: limits.into(),
            fractional_cpu: true,
            network: "egress".to_owned(),
            volumes: VolumeMeans { named: true, size_limit: "fake".to_owned(), ids: "id-mapped".to_owned() },
            weaker: vec!["isolates nothing".to_owned()],
        }
    }

    fn create<'a>(&'a self, request: Create<'a>) -> BoxFuture<'a, Result<Created, RuntimeError>> {
        self.lock().creates += 1;
        (request.progress)("making it".to_owned());
        Box::pin(poll_fn(move |ctx| {
            let mut inner = self.lock();
            if inner.held {
                inner.wakers.push(ctx.waker().clone());
                return Poll::Pending;
            }
            if let Err(error) = inner.fail(Call::Create) {
                return Poll::Ready(Err(error));
            }
            let steered = match &request.spec.network {
                spec::Network::None => None,
                spec::Network::Steered { reachable } => {
                    inner.reachable.insert(request.id.clone(), reachable.clone());
                    (request.listening)(listeners()?);
                    Some(())
                }
            };
            if inner.waiting.remove(request.id) {
                inner.claims += 1;
            }
            inner.sandboxes.insert(request.id.clone(), Observed::Running);
            if let Some(authority) = request.authority {
                inner.authorities.insert(request.id.clone(), authority.to_owned());
            }
            let network = if steered.is_some() { "egress" } else { "none" }.to_owned();
            let receipt = Receipt { mode: "user".to_owned(), network, ..Receipt::default() };
            Poll::Ready(Ok(Created { receipt, listeners: None }))
        }))
    }

    fn destroy<'a>(&'a self, id: &'a SandboxId, _grace: Duration) -> BoxFuture<'a, Result<(), RuntimeError>> {
        Box::pin(async move {
            let mut inner = self.lock();
            inner.fail(Call::Destroy)?;
            inner.sandboxes.remove(id);
            inner.waiting.remove(id);
            inner.reachable.remove(id);
            inner.authorities.remove(id);
            Ok(())
        })
    }

    fn observe<'a>(&'a self, id: &'a SandboxId) -> BoxFuture<'a, Result<Observed, RuntimeError>> {
        Box::pin(async move { Ok(self.lock().sandboxes.get(id).cloned().unwrap_or(Observed::Absent)) })
    }

    fn list(&self) -> BoxFuture<'_, Result<Vec<SandboxId>, RuntimeError>> {
        Box::pin(async move { Ok(self.lock().sandboxes.keys().cloned().collect()) })
    }

    fn next_end(&self) -> BoxFuture<'_, SandboxId> {
        Box::pin(poll_fn(move |ctx| {
            let mut inner = self.lock();
            match inner.ended.pop_front() {
                Some(id) => Poll::Ready(id),
                None => {
                    inner.wakers.push(ctx.waker().clone());
                    Poll::Pending
                }
            }
        }))
    }

    fn execd(&self, id: &SandboxId) -> ExecdAddress {
        ExecdAddress::Unix(self.sockets.join(format!("{id}.sock")))
    }

    fn console<'a>(&'a self, id: &'a SandboxId, max_bytes: usize) -> BoxFuture<'a, Result<Vec<u8>, RuntimeError>> {
        let text = format!("console of {id}\n").into_bytes();
        Box::pin(async move { Ok(text.into_iter().take(max_bytes).collect()) })
    }

    fn pause(&self) -> Option<&dyn Pause> {
        Some(self)
    }

    fn warm(&self) -> Option<&dyn crate::warm::Warm> {
        self.lock().warm.then_some(self as _)
    }

    fn network(&self) -> Option<&dyn Network> {
        Some(self)
    }

    fn volumes(&self) -> Option<&dyn Volumes> {
        Some(self)
    }

    fn snapshots(&self) -> Option<&dyn Snapshots> {
        Some(self)
    }
}

impl Snapshots for FakeRuntime {
    fn take<'a>(
        &'a self,
        id: &'a SnapshotId,
        sandbox: &'a SandboxId,
        found: Found,
    ) -> BoxFuture<'a, Result<Taken, RuntimeError>> {
        Box::pin(poll_fn(move |ctx| {
            let mut inner = self.lock();
            if inner.copies_held {
                inner.wakers.push(ctx.waker().clone());
                return Poll::Pending;
            }
            if let Err(error) = inner.fail(Call::TakeSnapshot) {
                return Poll::Ready(Err(error));
            }
            let expected = match found {
                Found::Running => Observed::Running,
                Found::Paused => Observed::Paused,
            };
            if inner.sandboxes.get(sandbox) != Some(&expected) {
                let message = format!("sandbox {sandbox} does not run");
                return Poll::Ready(Err(RuntimeError::new(ErrorKind::NotFound, message)));
            }
            let standing = Standing {
                layers: vec!["base".to_owned(), id.to_string()],
                host_programs: false,
                env: Vec::new(),
                working_dir: None,
                user: None,
            };
            let taken = Taken {
                standing,
                bytes: 1,
                entries: 1,
                sockets_left_out: 0,
                attributes_left_out: 0,
                frozen: Duration::from_millis(1),
            };
            inner.snapshots.insert(id.clone(), taken.clone());
            Poll::Ready(Ok(taken))
        }))
    }

    fn list(&self) -> BoxFuture<'_, Result<Vec<(SnapshotId, Taken)>, RuntimeError>> {
        Box::pin(
            async move { Ok(self.lock().snapshots.iter().map(|(id, taken)| (id.clone(), taken.clone())).collect()) },
        )
    }

    fn remove<'a>(&'a self, id: &'a SnapshotId) -> BoxFuture<'a, Result<(), RuntimeError>> {
        Box::pin(async move {
            let mut inner = self.lock();
            inner.fail(Call::RemoveSnapshot)?;
            inner.snapshots.remove(id);
            Ok(())
        })
    }
}

impl Volumes for FakeRuntime {
    fn ensure<'a>(&'a self, name: &'a str, bytes: Option<u64>) -> BoxFuture<'a, Result<(), RuntimeError>> {
        Box::pin(async move {
            let mut inner = self.lock();
            inner.fail(Call::EnsureVolume)?;
            inner.volumes.entry(name.to_owned()).or_insert(bytes);
            Ok(())
        })
    }

    fn remove<'a>(&'a self, name: &'a str) -> BoxFuture<'a, Result<(), RuntimeError>> {
        Box::pin(async move {
            let mut inner = self.lock();
            inner.fail(Call::RemoveVolume)?;
            inner.volumes.remove(name);
            Ok(())
        })
    }

    fn list(&self) -> BoxFuture<'_, Result<Vec<StoredVolume>, RuntimeError>> {
        Box::pin(async move {
            let stored = |(name, bytes): (&String, &Option<u64>)| StoredVolume { name: name.clone(), bytes: *bytes };
            Ok(self.lock().volumes.iter().map(stored).collect())
        })
    }
}

/// Sockets on free ports of the machine's own loopback, so that a test can come from the sandbox's side.
fn listeners() -> Result<Listeners, RuntimeError> {
    let made = || -> io::Result<[OwnedFd; 4]> {
        let (v4, v6) = ((Ipv4Addr::LOCALHOST, 0), (Ipv6Addr::LOCALHOST, 0));
        Ok([
            TcpListener::bind(v4)?.into(),
            TcpListener::bind(v6)?.into(),
            UdpSocket::bind(v4)?.into(),
            UdpSocket::bind(v6)?.into(),
        ])
    };
    let made = made().map_err(|error| RuntimeError::new(ErrorKind::Internal, format!("make sockets: {error}")))?;
    Ok(Listeners::from(made))
}

fn without_network(id: &SandboxId) -> RuntimeError {
    RuntimeError::new(ErrorKind::Invalid, format!("sandbox {id} has no network"))
}

impl Network for FakeRuntime {
    fn listen<'a>(&'a self, id: &'a SandboxId) -> BoxFuture<'a, Result<Listeners, RuntimeError>> {
        Box::pin(async move {
            let mut inner = self.lock();
            inner.fail(Call::Listen)?;
            match inner.reachable.contains_key(id) {
                true => listeners(),
                false => Err(without_network(id)),
            }
        })
    }

    fn steer<'a>(&'a self, id: &'a SandboxId, reachable: &'a [Cidr]) -> BoxFuture<'a, Result<(), RuntimeError>> {
        Box::pin(async move {
            let mut inner = self.lock();
            inner.fail(Call::Steer)?;
            let known = inner.reachable.get_mut(id).ok_or_else(|| without_network(id))?;
            *known = reachable.to_vec();
            Ok(())
        })
    }
}

impl Pause for FakeRuntime {
    fn pause<'a>(&'a self, id: &'a SandboxId) -> BoxFuture<'a, Result<(), RuntimeError>> {
        Box::pin(async move { self.change(id, Call::Pause, &Observed::Running, Observed::Paused) })
    }

    fn resume<'a>(&'a self, id: &'a SandboxId) -> BoxFuture<'a, Result<(), RuntimeError>> {
        Box::pin(async move { self.change(id, Call::Resume, &Observed::Paused, Observed::Running) })
    }
}
