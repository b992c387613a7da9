//! Takes and removes snapshots.
//!
//! A worker and its child share the work. The child reads what the sandbox wrote, which is hostile: it has no network, no
//! capability but those that files need, and by Landlock no file but the layers and the sandbox's disk. The worker freezes,
//! thaws and writes the record; it lets the child go on step by step:
//!
//! ```text
//!  worker:  freeze ─▶ Copy           thaw ─▶ Name              record ─▶ Commit        answer
//!  child:   Ready ──▶ copies ─▶ Copied ───▶ flushes, reads back ─▶ Named ──▶ renames ─▶ Committed
//! ```
//!
//! Whatever fails, the worker thaws before it answers. A worker that is killed leaves the sandbox frozen for as long as it
//! takes whoever asked to notice, which asks again or thaws; its child ends with it, and what that had made goes with it.

use std::fs;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::time::{Duration, Instant};

use image::LayerId;
use image::layers::Draft;
use image::unpack::{LayerStats, UnpackError};
use lifecycle::snapshot::{Found, SnapshotId, Standing, Taken};
use lifecycle::spec::SandboxId;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::{AtFlags, Mode as FileMode, OFlags};
use rustix::net::{RecvFlags, SendFlags};
use rustix::process::{Pid, Resource, Rlimit, Signal, WaitOptions, getrlimit, kill_process, setrlimit, waitpid};
use serde::{Deserialize, Serialize};

use super::{Jail, Mode, inspect, layers};
use crate::disk;
use crate::error::{Context, Failure, Kind, Result};
use crate::policy::MAX_LAYERS;
use crate::snapshot::{self, Counts, LeaveOut, Records, Source};
use crate::state::{self, Monitor, State};
use crate::sys::{self, Forked};
use crate::wire::{self, Kernel, Plan, Seen};

/// Longest time that a sandbox may stand still for a copy; one that takes longer has too much to copy at once.
const COPY_DEADLINE: Duration = Duration::from_secs(120);
/// Longest time for flushing and reading back, on a slow disk: some 40 GiB.
const NAME_DEADLINE: Duration = Duration::from_secs(1800);
/// Longest time for steps without content.
const QUICK_DEADLINE: Duration = Duration::from_secs(30);
/// Descriptors of the child: two for each level of a tree, and some.
const DESCRIPTORS: u64 = 2048;

/// Which snapshot is to be taken of what.
pub struct Order {
    /// The snapshot.
    pub id: SnapshotId,
    /// The sandbox.
    pub sandbox: SandboxId,
    /// How it is found and left.
    pub found: Found,
}

/// What the child is told.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
enum Step {
    Copy,
    Name,
    Commit,
}

/// What the child says.
#[derive(Debug, Serialize, Deserialize)]
enum Word {
    Ready { draft: String },
    Copied { entries: u64, bytes: u64, sockets: u64, attributes: u64 },
    Named { layer: String },
    Committed,
    Failed(Failure),
}

/// Whether snapshots can be taken here.
///
/// # Errors
/// What is missing, as a sentence for whoever asks for one.
pub(crate) fn means(jail: &Jail) -> Result<()> {
    let missing = |what: &str| Err(Failure::new(Kind::Unsupported, what));
    if jail.mode == Mode::User {
        return missing("an ordinary user's sandboxes have no snapshots: run the server as root");
    }
    if jail.kernel() != Kernel::Host {
        return missing("a gVisor sandbox has no snapshots: what it wrote may still be in gVisor's own memory");
    }
    if !jail.disk_images {
        return missing(
            "a sandbox without a disk image has no snapshots; `osb doctor` says why there are no disk images",
        );
    }
    if !jail.cgroups.as_ref().is_some_and(|found| found.can_freeze()) {
        return missing("a sandbox that cannot be frozen has no snapshots; this machine has no cgroup freezer");
    }
    Ok(())
}

/// Takes a snapshot, unless it is there. `asker` is where the answer goes: nobody waits any more when it is closed.
pub fn take(jail: &Jail, order: &Order, asker: &OwnedFd) -> Result<Taken> {
    means(jail)?;
    let records = Records::of(&jail.paths);
    if let Some(taken) = records.get(&order.id)? {
        return Ok(taken);
    }
    let directory = jail.paths.sandbox(&order.sandbox);
    let plan = state::load::<Plan>(&directory, state::PLAN)?.ok_or_else(|| gone(&order.sandbox))?;
    if !matches!(inspect::inspect(jail, &order.sandbox)?, Seen::Running | Seen::Paused) {
        return Err(gone(&order.sandbox));
    }
    if plan.layers.len() >= MAX_LAYERS {
        let message = format!(
            "the sandbox stands on {MAX_LAYERS} layers already, each snapshot is one more; make a new image of it"
        );
        return Err(Failure::new(Kind::Unsupported, message));
    }
    let disk = disk_of(jail, &order.sandbox)?;
    let leave_out = LeaveOut::of(&directory)?;
    let (ours, theirs) = wire::pair().op("make a socket")?;
    let child = match sys::fork().op("fork to copy")? {
        Forked::Parent(pid) => Child(pid),
        Forked::Child => {
            drop(ours);
            copy_and_exit(jail, &plan, &disk, &leave_out, &theirs)
        }
    };
    drop(theirs);
    let talk = Talk { child: &ours, asker };
    let begun = talk.expect_ready();
    let taken = begun.as_ref().map_err(Clone::clone).and_then(|_| steer(jail, order, &plan, &records, &talk));
    drop(ours);
    // It ends when its socket closes, unless it is in the middle of something.
    child.end();
    if let (Ok(draft), Err(_)) = (begun, &taken)
        && let Err(leftover) = layers::open(jail)?.discard(&draft)
    {
        eprintln!("osb jailer: discard an unfinished snapshot: {leftover}");
    }
    taken
}

/// Lets the child go on, step by step.
fn steer(jail: &Jail, order: &Order, plan: &Plan, records: &Records<'_>, talk: &Talk<'_>) -> Result<Taken> {
    let frozen = Frozen::begin(jail, order)?;
    let copied = talk.ask(Step::Copy, COPY_DEADLINE);
    // Also when the copy failed, and before anybody hears of that.
    let frozen = frozen.end()?;
    let Word::Copied { entries, bytes, sockets, attributes } = copied? else { return Err(unexpected()) };
    let Word::Named { layer } = talk.ask(Step::Name, NAME_DEADLINE)? else { return Err(unexpected()) };
    let standing = Standing {
        layers: plan.layers.iter().cloned().chain([layer]).collect(),
        host_programs: plan.host_programs,
        env: plan.image_env.clone(),
        working_dir: plan.working_dir.clone(),
        user: plan.user.clone(),
    };
    let taken = Taken { standing, bytes, entries, sockets_left_out: sockets, attributes_left_out: attributes, frozen };
    let _lock = records.lock()?;
    talk.still_wanted()?;
    records.put(&order.id, &taken)?;
    match talk.ask(Step::Commit, NAME_DEADLINE) {
        Ok(Word::Committed) => Ok(taken),
        other => {
            records.forget(&order.id)?;
            other.and_then(|_| Err(unexpected()))
        }
    }
}

/// Every snapshot that is wholly there, as a memory file. What is left of others is removed before.
pub fn list(jail: &Jail) -> Result<OwnedFd> {
    let records = Records::of(&jail.paths);
    let _lock = records.lock()?;
    let whole = records.whole()?;
    for (id, _) in records.all()?.iter().filter(|(id, _)| whole.iter().all(|(other, _)| other != id)) {
        records.forget(id)?;
    }
    sweep(jail, &records)?;
    let text = serde_json::to_vec(&whole).map_err(|_| Failure::internal("encode the list of snapshots"))?;
    crate::user::memory_file("snapshots", &text)
}

/// Removes a snapshot, and the layers of snapshots that nobody needs any more.
pub fn remove(jail: &Jail, id: &SnapshotId) -> Result<()> {
    let records = Records::of(&jail.paths);
    let _lock = records.lock()?;
    records.forget(id)?;
    sweep(jail, &records)
}

/// Removes the layers of snapshots on which neither a snapshot nor a sandbox stands. Those of images are the image store's.
fn sweep(jail: &Jail, records: &Records<'_>) -> Result<()> {
    let area = layers::open(jail)?;
    let used = records.layers_in_use()?;
    for layer in area.list().map_err(|error| failure(&error))? {
        if !used.contains(layer.as_str()) && is_of_snapshot(jail, &layer) {
            area.remove(&layer).map_err(|error| failure(&error))?;
        }
    }
    Ok(())
}

/// Whether a layer was made by a snapshot.
fn is_of_snapshot(jail: &Jail, layer: &LayerId) -> bool {
    jail.paths.layers().join(layer.as_str()).join(NOTE).exists()
}

/// File beside the files of a layer that a snapshot made.
const NOTE: &str = "snapshot";

/// Stands still from its making to its end.
struct Frozen<'a> {
    jail: &'a Jail,
    order: &'a Order,
    since: Option<Instant>,
}

impl<'a> Frozen<'a> {
    fn begin(jail: &'a Jail, order: &'a Order) -> Result<Self> {
        let since = match order.found {
            Found::Paused => None,
            Found::Running => {
                let now = Instant::now();
                inspect::pause(jail, &order.sandbox)?;
                Some(now)
            }
        };
        Ok(Self { jail, order, since })
    }

    /// Thaws; how long it was.
    fn end(mut self) -> Result<Duration> {
        let Some(since) = self.since.take() else { return Ok(Duration::ZERO) };
        match inspect::resume(self.jail, &self.order.sandbox) {
            Ok(()) => Ok(since.elapsed()),
            // It ended meanwhile, and nothing of it stands still.
            Err(failure) if failure.kind == Kind::NotFound => Err(failure),
            Err(failure) => Err(failure.during("thaw the sandbox after its files were copied")),
        }
    }
}

impl Drop for Frozen<'_> {
    fn drop(&mut self) {
        if self.since.is_some()
            && let Err(failure) = inspect::resume(self.jail, &self.order.sandbox)
        {
            eprintln!("osb jailer: thaw {}: {failure}", self.order.sandbox);
        }
    }
}

/// The child that copies.
struct Child(Pid);

impl Child {
    fn end(self) {
        // Not waited for yet, so the number is its own.
        let _ = kill_process(self.0, Signal::KILL);
        let _ = waitpid(Some(self.0), WaitOptions::empty());
    }
}

/// The worker's side of the talk.
struct Talk<'a> {
    child: &'a OwnedFd,
    asker: &'a OwnedFd,
}

impl Talk<'_> {
    /// Waits until the child may be told to copy; the name of its draft.
    fn expect_ready(&self) -> Result<String> {
        match self.hear(Instant::now() + QUICK_DEADLINE)? {
            Word::Ready { draft } => Ok(draft),
            Word::Failed(failure) => Err(failure),
            _ => Err(unexpected()),
        }
    }

    fn ask(&self, step: Step, within: Duration) -> Result<Word> {
        wire::send(self.child.as_fd(), &step, &[], SendFlags::empty()).map_err(|_| died())?;
        match self.hear(Instant::now() + within)? {
            Word::Failed(failure) => Err(failure),
            word => Ok(word),
        }
    }

    fn hear(&self, deadline: Instant) -> Result<Word> {
        loop {
            let left = deadline.saturating_duration_since(Instant::now());
            let timeout = Timespec { tv_sec: left.as_secs() as i64, tv_nsec: left.subsec_nanos().into() };
            let mut fds = [PollFd::new(self.child, PollFlags::IN), PollFd::new(self.asker, PollFlags::empty())];
            match poll(&mut fds, Some(&timeout)) {
                Ok(0) => return Err(Failure::internal("copying the sandbox's files took too long and was given up")),
                Ok(_) => {}
                Err(_) => continue,
            }
            if !fds[0].revents().is_empty() {
                break;
            }
            self.still_wanted()?;
        }
        let mut buffer = Vec::new();
        let (text, _) =
            wire::receive_bytes(self.child.as_fd(), &mut buffer, RecvFlags::empty()).ok().flatten().ok_or_else(died)?;
        serde_json::from_slice(text).map_err(|_| unexpected())
    }

    /// Fails when nobody waits for the snapshot any more.
    fn still_wanted(&self) -> Result<()> {
        let now = Timespec { tv_sec: 0, tv_nsec: 0 };
        match poll(&mut [PollFd::new(self.asker, PollFlags::empty())], Some(&now)) {
            Ok(0) => Ok(()),
            _ => Err(Failure::internal("nobody waits for the snapshot any more")),
        }
    }
}

fn died() -> Failure {
    Failure::internal("the process that copied the sandbox's files was killed")
}

fn unexpected() -> Failure {
    Failure::internal("the process that copied the sandbox's files said something unexpected")
}

fn gone(sandbox: &SandboxId) -> Failure {
    Failure::new(Kind::NotFound, format!("sandbox {sandbox} does not run"))
}

fn failure(error: &UnpackError) -> Failure {
    let kind = if matches!(error, UnpackError::NoSpace) { Kind::Exhausted } else { Kind::Internal };
    Failure::new(kind, error.to_string())
}

/// The disk of a sandbox, which its monitor has open.
fn disk_of(jail: &Jail, sandbox: &SandboxId) -> Result<OwnedFd> {
    let lost = || {
        let message = "the process that kept the sandbox's disk open was killed, so its files cannot be reached from \
                       outside; make a new sandbox to have snapshots of it";
        Failure::new(Kind::Unsupported, message)
    };
    let monitor = state::load::<Monitor>(&jail.paths.sandbox(sandbox), state::MONITOR)?.ok_or_else(lost)?.monitor;
    monitor.open().ok_or_else(lost)?;
    let mut found = None;
    for entry in fs::read_dir(format!("/proc/{}/fd", monitor.pid)).op("look at the sandbox's monitor")?.flatten() {
        // What is mounted nowhere has this name.
        if !fs::read_link(entry.path()).is_ok_and(|target| target.as_os_str() == "/") {
            continue;
        }
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let Ok(disk) = rustix::fs::open(entry.path(), flags, FileMode::empty()) else { continue };
        let has = |name: &str| rustix::fs::statat(&disk, name, AtFlags::SYMLINK_NOFOLLOW).is_ok();
        if [disk::UPPER, disk::WORK, disk::LOCAL].into_iter().all(has) {
            found = Some(disk);
            break;
        }
    }
    // Looked at again after it was opened: a number that was used again is noticed.
    monitor.open().ok_or_else(lost)?;
    found.ok_or_else(lost)
}

/// The child's whole life.
fn copy_and_exit(jail: &Jail, plan: &Plan, disk: &OwnedFd, leave_out: &LeaveOut, talk: &OwnedFd) -> ! {
    let mut keep = vec![0, 1, 2];
    keep.extend([disk.as_raw_fd(), talk.as_raw_fd()]);
    sys::close_all_except(&keep);
    if let Err(failure) = make_layer(jail, plan, disk, leave_out, talk) {
        // The worker may be gone, and then nobody needs to know.
        let _ = wire::send(talk.as_fd(), &Word::Failed(failure), &[], SendFlags::empty());
    }
    std::process::exit(0)
}

fn make_layer(jail: &Jail, plan: &Plan, disk: &OwnedFd, leave_out: &LeaveOut, talk: &OwnedFd) -> Result<()> {
    let first_id = first_id(jail, plan, disk)?;
    let area = layers::open(jail)?;
    let limit = getrlimit(Resource::Nofile);
    let wanted = limit.maximum.map_or(DESCRIPTORS, |most| most.min(DESCRIPTORS));
    setrlimit(Resource::Nofile, Rlimit { current: Some(wanted), ..limit }).op("raise the number of descriptors")?;
    layers::confine(jail, Some(disk))?;
    rustix::process::umask(FileMode::empty());
    let draft = area.begin().map_err(|error| failure(&error))?;
    let scratch = draft.scratch().map_err(|error| failure(&error))?;
    let open = |name: &str| {
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        rustix::fs::openat(disk, name, flags, FileMode::empty()).op("open the sandbox's disk")
    };
    let upper = open(disk::UPPER)?;
    let local = if plan.host_programs { Some(open(disk::LOCAL)?) } else { None };
    let source = Source { upper: upper.as_fd(), local: local.as_ref().map(AsFd::as_fd), first_id, leave_out };

    say(talk, &Word::Ready { draft: draft.name().to_owned() })?;
    hear(talk, Step::Copy)?;
    let (sum, counts) = snapshot::copy(&source, draft.root(), scratch.as_fd())?;
    let Counts { entries, bytes, sockets_left_out: sockets, attributes_left_out: attributes } = counts;
    say(talk, &Word::Copied { entries, bytes, sockets, attributes })?;
    hear(talk, Step::Name)?;
    drop(scratch);
    let layer = name(&draft, sum)?;
    say(talk, &Word::Named { layer: layer.to_string() })?;
    hear(talk, Step::Commit)?;
    let stats = LayerStats { entries, bytes, dropped_attributes: attributes, ..LayerStats::default() };
    draft.note(NOTE).and_then(|()| draft.commit(&layer, &stats)).map_err(|error| failure(&error))?;
    say(talk, &Word::Committed)
}

/// Flushes the copy, reads it back from the disk, and gives it the name of what was read.
fn name(draft: &Draft, sum: u32) -> Result<LayerId> {
    rustix::fs::syncfs(draft.root()).op("flush the snapshot")?;
    let (digest, again, _) = snapshot::read_back(draft.root())?;
    if again != sum {
        let message =
            "what was read back from the disk is not what was copied; the disk that holds the layers may be bad";
        return Err(Failure::internal(message));
    }
    let digits: String = digest.iter().map(|byte| format!("{byte:02x}")).collect();
    digits.parse().map_err(|_| Failure::internal("name the layer of a snapshot"))
}

/// The number that the sandbox's root has on this mount of the disk: 0, or where the mount is id-mapped, the first of
/// the sandbox's range. Nothing inside can reach the disk's top directory.
fn first_id(jail: &Jail, plan: &Plan, disk: &OwnedFd) -> Result<u32> {
    let owner = rustix::fs::fstat(disk).op("look at the sandbox's disk")?.st_uid;
    let known = state::load::<State>(&jail.paths.sandbox(&plan.id), state::STATE)?;
    let first = known.and_then(|known| known.slot).map(|slot| crate::idrange::Slot(slot).range().first);
    match owner {
        0 => Ok(0),
        owner if Some(owner) == first => Ok(owner),
        owner => Err(Failure::internal(format!("the sandbox's disk belongs to {owner}"))),
    }
}

fn say(talk: &OwnedFd, word: &Word) -> Result<()> {
    wire::send(talk.as_fd(), word, &[], SendFlags::empty()).op("tell the worker")
}

fn hear(talk: &OwnedFd, expected: Step) -> Result<()> {
    let mut buffer = Vec::new();
    let received = wire::receive_bytes(talk.as_fd(), &mut buffer, RecvFlags::empty()).op("listen to the worker")?;
    let step = received.and_then(|(text, _)| serde_json::from_slice::<Step>(text).ok());
    // Otherwise the worker was killed, and whoever asked begins again.
    if step == Some(expected) { Ok(()) } else { Err(Failure::internal("the worker went away")) }
}
