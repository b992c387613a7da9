//! One request, done and answered by the worker that was forked for it.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::Duration;

use rustix::net::SendFlags;

use super::{Jail, create, destroy, inspect, layers, network, session, snapshot};
use crate::disk::Disk;
use crate::error::{Failure, Kind, Result};
use crate::probe;
use crate::volumes;
use crate::wire::{self, Reply, Request};

/// What a worker has of the stock.
pub(super) struct Disks<'a> {
    /// A ready disk, for a create.
    pub(super) ready: Option<Disk>,
    /// Where it goes in the end.
    pub(super) home: BorrowedFd<'a>,
}

/// Does what one request asks for, and answers.
pub(super) fn perform(jail: &Jail, request: Request, reply: OwnedFd, mut fds: Vec<OwnedFd>, disks: Disks<'_>) {
    let take = |fds: &mut Vec<OwnedFd>, what: &str| {
        if fds.is_empty() {
            return Err(Failure::new(Kind::Refused, format!("the request came without {what}")));
        }
        Ok(fds.remove(0))
    };
    let done = |result: Result<()>| result.map(|()| Reply::Done);
    let mut settling = None;
    // Descriptors that go with the answer, and what is held until they are gone. Who does not take them asks again.
    let (mut beside, mut held) = (Vec::new(), None);
    let result = match request {
        Request::Create(plan) => {
            let order = take(&mut fds, "a boot configuration").and_then(|boot| {
                let lease = if plan.leased { Some(take(&mut fds, "a lease")?) } else { None };
                Ok(create::Order {
                    plan: *plan,
                    boot: Some(boot),
                    lease,
                    disk: disks.ready,
                    home: disks.home,
                    seat: None,
                })
            });
            match order {
                Ok(order) => return create::run(jail, order, reply),
                Err(failure) => Err(failure),
            }
        }
        Request::Prepare(plan) => {
            let (disk, home) = (disks.ready, disks.home);
            let order = create::Order { plan: *plan, boot: None, lease: None, disk, home, seat: None };
            return create::run(jail, order, reply);
        }
        Request::Destroy { id, grace_ms } => {
            let grace = Duration::from_millis(grace_ms.min(crate::policy::MAX_GRACE_MS));
            done(destroy::remove(jail, &id, grace))
        }
        Request::Pause { id } => done(inspect::pause(jail, &id)),
        Request::Resume { id } => done(inspect::resume(jail, &id)),
        Request::Inspect { id } => inspect::inspect(jail, &id).map(|observed| Reply::Observed { observed }),
        Request::List => inspect::list(jail).map(|ids| Reply::Listed { ids }),
        Request::Console { id, max_bytes } => inspect::console(jail, &id, max_bytes).map(|memory| {
            beside.push(memory);
            Reply::Console
        }),
        Request::Unpack { layer, compression } => {
            take(&mut fds, "a blob").and_then(|blob| layers::unpack(jail, &layer, compression, blob))
        }
        Request::HasLayer { layer } => layers::has(jail, &layer),
        Request::RemoveLayer { layer } => layers::remove(jail, &layer),
        Request::HostImage => layers::host(jail),
        Request::StartSession { sandbox, record, spec } => take(&mut fds, "a boot configuration").and_then(|boot| {
            done(session::start(jail, &session::Order { sandbox, record: *record, spec: *spec, boot }))
        }),
        Request::EndSession { sandbox, session } => done(session::end(jail, &sandbox, &session)),
        Request::Listen { id } => network::listen(jail, &id).map(|(sockets, lock)| {
            beside.extend(sockets);
            held = Some(lock);
            Reply::Listening
        }),
        Request::Sockets { id } => network::sockets(jail, &id).map(|sockets| {
            beside.extend(sockets);
            Reply::Sockets
        }),
        Request::Steer { id, reachable } => network::steer(jail, &id, reachable).map(|open| {
            settling = Some(open);
            Reply::Done
        }),
        Request::ListSessions { sandbox } => session::list(jail, &sandbox).map(|sessions| Reply::Sessions { sessions }),
        Request::MakeVolume { name, bytes } => done(make_volume(jail, &name, bytes)),
        Request::RemoveVolume { name } => {
            done(volumes::named::remove(&jail.paths, &name, |path| jail.user_ids.remove_tree(path)))
        }
        Request::ListVolumes => volumes::named::list(&jail.paths).map(|volumes| Reply::Volumes { volumes }),
        Request::TakeSnapshot { id, sandbox, found } => {
            let order = snapshot::Order { id, sandbox, found };
            snapshot::take(jail, &order, &reply).map(|taken| Reply::Snapshot { taken: Box::new(taken) })
        }
        Request::ListSnapshots => snapshot::list(jail).map(|memory| {
            beside.push(memory);
            Reply::Snapshots
        }),
        Request::RemoveSnapshot { id } => done(snapshot::remove(jail, &id)),
        Request::Probe => Ok(Reply::Probed(Box::new(probe::probe(jail)))),
    };
    let message = result.unwrap_or_else(Reply::Failed);
    let fds: Vec<BorrowedFd<'_>> = beside.iter().map(AsFd::as_fd).collect();
    if let Err(errno) = wire::send(reply.as_fd(), &message, &fds, SendFlags::empty()) {
        eprintln!("osb jailer: answer: {errno}");
    }
    drop(beside);
    drop(held);
    drop((reply, settling));
}

fn make_volume(jail: &Jail, name: &str, bytes: Option<u64>) -> Result<()> {
    if bytes.is_some() && !jail.disk_images {
        return Err(Failure::new(Kind::Unsupported, "a size limit of a volume cannot be kept on this machine"));
    }
    volumes::named::ensure(&jail.paths, name, bytes)
}
