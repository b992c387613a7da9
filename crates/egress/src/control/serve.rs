//! The egress process's side: does what the server asks, one request after the other.

use std::collections::HashMap;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::{Arc, Mutex, PoisonError};

use tokio_util::task::TaskTracker;

use super::packet::{self, Socket};
use super::{
    Demands, EVENTS_PER_PACKET, EXPECTED_BYTES, Events, Failure, POLICY_BYTES, Reply, Request, SANDBOX_ID_BYTES,
    SandboxStats, Settings, Stats, Taping, VAULT_BODY_BYTES,
};
use crate::intercept::taping::Recorder;
use crate::intercept::tls::Trust;
use crate::policy::{Policy, Source};
use crate::recording::{Book, Tape};
use crate::sandbox::{Attachment, Listeners, Sandbox, Shared, Traffic};
use crate::sealed::Secret;
use crate::secrets::{Expected, Refused, Shown, Terms};
use crate::verdicts::{Event, VaultChange};

/// Readers of events at a time: whoever watches a sandbox through the server. Each holds a descriptor, and is woken by
/// every event.
const WATCHERS: usize = 256;

/// Descriptors of an attach without an [`Expected`].
const ATTACH_FDS: usize = 6;

/// What is attached, by id.
type Attached = Arc<Mutex<HashMap<String, Arc<Sandbox>>>>;

/// Serves until the last holder of the other end is gone.
pub async fn serve(control: OwnedFd, shared: Arc<Shared>, instance: u64) -> io::Result<()> {
    let control = Socket::new(control)?;
    let mut desk = Desk {
        shared,
        instance,
        settings: Settings::default(),
        attached: Attached::default(),
        watchers: TaskTracker::new(),
    };
    loop {
        let (bytes, fds) = match control.receive().await {
            Ok(Some(packet)) => packet,
            Ok(None) => return Ok(()),
            Err(error) if error.raw_os_error() == Some(rustix::io::Errno::MSGSIZE.raw_os_error()) => {
                tracing::error!("a request that is too long, or more descriptors than there is room for");
                continue;
            }
            Err(error) => return Err(error),
        };
        let mut fds = fds.into_iter();
        let Some(reply_to) = fds.next() else {
            tracing::warn!("a request without a reply socket was passed over");
            continue;
        };
        match Socket::new(reply_to) {
            Ok(reply_to) => desk.serve_one(&bytes, fds.collect(), reply_to).await,
            Err(error) => tracing::warn!(%error, "a reply socket cannot be used"),
        }
    }
}

struct Desk {
    shared: Arc<Shared>,
    instance: u64,
    settings: Settings,
    attached: Attached,
    watchers: TaskTracker,
}

type Outcome = Result<(Reply, Vec<OwnedFd>), Failure>;

impl Desk {
    async fn serve_one(&mut self, bytes: &[u8], fds: Vec<OwnedFd>, reply_to: Socket) {
        let request = match serde_json::from_slice(bytes) {
            Ok(Request::Watch { sandbox, after }) => return self.watch(sandbox, after, reply_to),
            Ok(request) => Ok(request),
            Err(error) => Err(malformed(error)),
        };
        let outcome = match request {
            Ok(request) => self.act(request, fds).await,
            Err(failure) => Err(failure),
        };
        let (reply, fds) = outcome.unwrap_or_else(|failure| (Reply::Failed(failure), Vec::new()));
        let fds: Vec<_> = fds.iter().map(AsFd::as_fd).collect();
        if let Err(error) = reply_to.send(&reply, &fds).await {
            tracing::debug!(%error, "who asked is gone");
        }
    }

    async fn act(&mut self, request: Request, fds: Vec<OwnedFd>) -> Outcome {
        let done = |()| (Reply::Done, Vec::new());
        match request {
            Request::Configure { settings } => self.configure(settings).map(done),
            Request::Attach { sandbox, revision, taping } => {
                self.attach(sandbox, revision, taping, fds).await.map(done)
            }
            Request::SetPolicy { sandbox, revision } => self.set_policy(&sandbox, revision, fds),
            Request::Detach { sandbox } => {
                self.detach(&sandbox).await;
                Ok(done(()))
            }
            Request::Listeners { sandbox } => {
                let found = self.find(&sandbox)?;
                let copies = found.listeners().map_err(system("duplicate a sandbox's sockets"))?;
                Ok((Reply::Listeners, copies))
            }
            Request::Verdicts { sandbox, after } => {
                let of = Of { shared: &self.shared, attached: &self.attached, sandbox: Some(&sandbox) };
                let count = of.count();
                let events = of.events(after, u64::MAX);
                let reply = match events.get(..EVENTS_PER_PACKET) {
                    Some(first) if first.len() < events.len() => reply(self.instance, 0, first),
                    _ => reply(self.instance, count, &events),
                };
                Ok((reply, Vec::new()))
            }
            Request::Authority { sandbox } => {
                check_id(&sandbox)?;
                let certificate_pem = self.shared.secrets.authority(&sandbox)?;
                Ok((Reply::Authority { certificate_pem }, Vec::new()))
            }
            Request::CreateVault { sandbox, operation, demands } => {
                let (found, body) = (self.find(&sandbox)?, read_body(fds)?);
                let terms = Terms { options: self.options(demands), policy: &found.policy() };
                told(&found, VaultChange::Created, self.shared.secrets.create(&sandbox, operation, &body, &terms)?)
            }
            Request::PatchVault { sandbox, operation, demands } => {
                let (found, body) = (self.find(&sandbox)?, read_body(fds)?);
                let terms = Terms { options: self.options(demands), policy: &found.policy() };
                told(&found, VaultChange::Patched, self.shared.secrets.patch(&sandbox, operation, &body, &terms)?)
            }
            Request::DeleteVault { sandbox, operation } => {
                self.shared.secrets.delete(&sandbox, operation)?;
                // It may not be attached just now; then nobody is served with it.
                if let Ok(found) = self.find(&sandbox) {
                    found.vault_changed(VaultChange::Deleted, 0, 0, 0);
                }
                Ok(done(()))
            }
            Request::Vault { sandbox } => Ok((Reply::Vault, vec![shown_file(&self.shared.secrets.show(&sandbox)?)?])),
            Request::Forget { sandbox } => Ok(done(self.shared.secrets.forget(&sandbox)?)),
            Request::Stats => Ok((Reply::Stats(self.stats()), Vec::new())),
            Request::Watch { .. } => unreachable!("a watch is served before"),
        }
    }

    fn configure(&mut self, settings: Settings) -> Result<(), Failure> {
        if settings.synthetic.prefix_len() > crate::names::MAX_PREFIX {
            return Err(malformed(format!("{} has too few addresses for names", settings.synthetic)));
        }
        self.shared.resolver.set_servers(settings.resolvers.clone());
        self.shared.set_proxy(settings.upstream_proxy.clone());
        if self.settings.upstream_ca_pem != settings.upstream_ca_pem {
            self.shared.set_trust(Trust::new(settings.upstream_ca_pem.clone()));
        }
        self.settings = settings;
        Ok(())
    }

    async fn attach(
        &mut self,
        sandbox: String,
        revision: u64,
        taping: Option<Taping>,
        mut fds: Vec<OwnedFd>,
    ) -> Result<(), Failure> {
        check_id(&sandbox)?;
        let recording = taping.zip(if taping.is_some() { fds.pop() } else { None });
        if taping.is_some() != recording.is_some() {
            return Err(malformed("a recording without its file"));
        }
        let expected = if fds.len() > ATTACH_FDS { fds.pop() } else { None };
        let [tcp4, tcp6, udp4, udp6, names, policy] =
            <[OwnedFd; ATTACH_FDS]>::try_from(fds).map_err(|_| malformed("not the descriptors of an attach"))?;
        let policy = read_policy(policy)?;
        let expected: Option<Expected> = match expected {
            Some(file) => Some(
                serde_json::from_slice(read(file, "what a sandbox should have", EXPECTED_BYTES)?.bytes())
                    .map_err(malformed)?,
            ),
            None => None,
        };
        // The one before must not write any more when its recording is read.
        self.detach(&sandbox).await;
        let traffic = match recording {
            Some((taping, file)) => tokio::task::spawn_blocking(move || traffic(taping, file))
                .await
                .map_err(|error| system("read a recording")(io::Error::other(error)))??,
            None => Traffic::Live,
        };
        let secrets = self.shared.secrets.attach(&sandbox, expected.as_ref());
        let with = Attachment {
            id: sandbox.clone(),
            listeners: Listeners { tcp4, tcp6, udp4, udp6 },
            names,
            range: self.settings.synthetic,
            revision,
            policy,
            secrets,
            traffic,
            limits: self.settings.limits,
        };
        let attached = Sandbox::attach(self.shared.clone(), with).map_err(system("attach a sandbox"))?;
        lock(&self.attached).insert(sandbox, attached);
        Ok(())
    }

    fn set_policy(&self, sandbox: &str, revision: u64, fds: Vec<OwnedFd>) -> Outcome {
        let found = self.find(sandbox)?;
        let [policy] = <[OwnedFd; 1]>::try_from(fds).map_err(|_| malformed("a policy is one descriptor"))?;
        let policy = read_policy(policy)?;
        let cut = found.set_policy(revision, policy).map_err(|in_force| Failure::Stale { in_force })?;
        Ok((Reply::PolicySet { cut }, Vec::new()))
    }

    async fn detach(&self, sandbox: &str) {
        let Ok(found) = self.find(sandbox) else { return };
        // Listed until its events are with the departed ones, so that no reader misses them.
        found.detach().await;
        lock(&self.attached).remove(sandbox);
    }

    fn find(&self, sandbox: &str) -> Result<Arc<Sandbox>, Failure> {
        lock(&self.attached).get(sandbox).cloned().ok_or(Failure::NotAttached)
    }

    fn stats(&self) -> Stats {
        let of = |sandbox: &Arc<Sandbox>| SandboxStats {
            sandbox: sandbox.id.clone(),
            revision: sandbox.revision(),
            flows: sandbox.flows.count(),
            names: sandbox.names.count(),
            events: sandbox.journal.count(),
            vault_revision: sandbox.secrets.revision(),
        };
        Stats {
            instance: self.instance,
            version: env!("CARGO_PKG_VERSION").to_owned(),
            sequence: self.shared.verdicts.newest(),
            sandboxes: lock(&self.attached).values().map(of).collect(),
            kept: self.shared.secrets.sandboxes(),
        }
    }

    /// What bindings of a sandbox may say.
    fn options(&self, demands: Demands) -> vault::Options {
        vault::Options {
            allow_http: self.settings.vault_plain_http,
            require_scoped_match: demands.scoped_match,
            ..vault::Options::default()
        }
    }

    fn watch(&self, sandbox: Option<String>, after: u64, reader: Socket) {
        if self.watchers.len() >= WATCHERS {
            tracing::warn!("too many readers of events, one more was refused");
            return;
        }
        let (shared, attached, instance) = (self.shared.clone(), self.attached.clone(), self.instance);
        self.watchers.spawn(async move {
            let of = Of { shared: &shared, attached: &attached, sandbox: sandbox.as_deref() };
            tell(&of, instance, after, &reader).await;
        });
    }
}

/// Sends events to one reader as they happen. A slow one makes nobody wait: what it misses falls out of the rings, and
/// shows as a gap in the numbers.
async fn tell(of: &Of<'_>, instance: u64, mut after: u64, reader: &Socket) {
    let mut changes = of.shared.verdicts.subscribe();
    changes.mark_changed();
    let mut is_first = true;
    loop {
        tokio::select! {
            changed = changes.changed() => if changed.is_err() { return },
            () = reader.gone() => return,
        }
        let count = of.count();
        let newest = of.shared.verdicts.newest();
        let events = of.events(after, newest);
        let mut packets = events.chunks(EVENTS_PER_PACKET).peekable();
        if is_first && packets.peek().is_none() && reader.send(&reply(instance, count, &[]), &[]).await.is_err() {
            return;
        }
        is_first = false;
        while let Some(packet) = packets.next() {
            let count = if packets.peek().is_some() { 0 } else { count };
            if reader.send(&reply(instance, count, packet), &[]).await.is_err() {
                return;
            }
        }
        after = newest;
    }
}

/// Whose events are asked for.
struct Of<'a> {
    shared: &'a Shared,
    attached: &'a Attached,
    /// All of them if absent.
    sandbox: Option<&'a str>,
}

impl Of<'_> {
    /// Every event that is kept of those after `after` up to `newest`, in order.
    fn events(&self, after: u64, newest: u64) -> Vec<Arc<Event>> {
        let is_meant = |id: &str| self.sandbox.is_none_or(|meant| meant == id);
        let sandboxes: Vec<Arc<Sandbox>> =
            lock(self.attached).values().filter(|sandbox| is_meant(&sandbox.id)).cloned().collect();
        let mut events: Vec<_> = sandboxes.iter().flat_map(|sandbox| sandbox.journal.after(after)).collect();
        // Last, so that one which departs meanwhile is seen twice rather than never.
        events.extend(self.shared.verdicts.departed(after).into_iter().filter(|event| is_meant(&event.sandbox)));
        events.retain(|event| event.sequence <= newest);
        events.sort_unstable_by_key(|event| event.sequence);
        events.dedup_by_key(|event| event.sequence);
        events
    }

    /// How many events the one sandbox has had. Asked before [`Of::events`], so that those up to it are found there.
    fn count(&self) -> u64 {
        let one = self.sandbox.and_then(|sandbox| lock(self.attached).get(sandbox).cloned());
        one.map_or(0, |sandbox| sandbox.journal.count())
    }
}

fn reply(instance: u64, count: u64, events: &[Arc<Event>]) -> Reply {
    Reply::Events(Events { instance, count, events: events.iter().map(|event| Event::clone(event)).collect() })
}

/// The answer to a change of a vault, which is written down.
fn told(sandbox: &Sandbox, change: VaultChange, shown: Shown) -> Outcome {
    let state = &shown.state;
    sandbox.vault_changed(change, state.revision.unsigned_abs(), state.credentials.len(), state.bindings.len());
    Ok((Reply::Vault, vec![shown_file(&shown)?]))
}

fn shown_file(shown: &Shown) -> Result<OwnedFd, Failure> {
    let written = serde_json::to_vec(shown).map_err(io::Error::from);
    written.and_then(|bytes| packet::memory_file("vault", &bytes)).map_err(system("show a vault"))
}

/// What becomes of traffic by a recording.
fn traffic(taping: Taping, file: OwnedFd) -> Result<Traffic, Failure> {
    let file = std::fs::File::from(file);
    let traffic = match taping {
        Taping::Record { limit_bytes } => {
            Tape::open(file, limit_bytes).map(|tape| Traffic::Recorded(Recorder::new(tape)))
        }
        Taping::Replay => Book::open(file).map(|book| Traffic::Replayed(Arc::new(book))),
    };
    traffic.map_err(|error| system("read a recording")(io::Error::other(protocol::error::chain(&error))))
}

fn read_body(fds: Vec<OwnedFd>) -> Result<Secret, Failure> {
    let [body] = <[OwnedFd; 1]>::try_from(fds).map_err(|_| malformed("a request about a vault is one descriptor"))?;
    read(body, "a request about a vault", VAULT_BODY_BYTES)
}

fn read_policy(file: OwnedFd) -> Result<Policy, Failure> {
    let text = read(file, "a policy", POLICY_BYTES)?;
    let source: Source = serde_json::from_slice(text.bytes()).map_err(malformed)?;
    Policy::parse(&source, "networkPolicy")
        .map_err(|invalid| Failure::Policy { field: invalid.field, reason: invalid.reason })
}

/// All of a memory file.
fn read(file: OwnedFd, what: &str, most: u64) -> Result<Secret, Failure> {
    let file = std::fs::File::from(file);
    let failed = |error| Failure::System { operation: format!("read {what}"), message: io::Error::to_string(&error) };
    let length = file.metadata().map_err(failed)?.len();
    if length > most {
        return Err(malformed(format!("{what} of {length} bytes is longer than {most}")));
    }
    Secret::read(&file, usize::try_from(length).map_err(malformed)?).map_err(failed)
}

fn check_id(sandbox: &str) -> Result<(), Failure> {
    if sandbox.is_empty() || sandbox.len() > SANDBOX_ID_BYTES {
        return Err(malformed("the id of a sandbox is empty or too long"));
    }
    Ok(())
}

fn lock(attached: &Attached) -> std::sync::MutexGuard<'_, HashMap<String, Arc<Sandbox>>> {
    attached.lock().unwrap_or_else(PoisonError::into_inner)
}

impl From<Refused> for Failure {
    fn from(Refused { refusal, message }: Refused) -> Self {
        Self::Vault { refusal, message }
    }
}

fn malformed(message: impl ToString) -> Failure {
    Failure::Malformed { message: message.to_string() }
}

fn system(operation: &str) -> impl FnOnce(io::Error) -> Failure {
    move |error| Failure::System { operation: operation.to_owned(), message: error.to_string() }
}
