//! The one task that makes sandboxes that wait and removes those that are too many.

use std::sync::Arc;
use std::time::{Duration, Instant};

use lifecycle::pool::Want;
use lifecycle::spec::{SandboxId, SandboxSpec};
use tokio::task::JoinSet;

use super::demand::share;
use super::group::{Group, Rule};
use super::{Inner, Name, Warm, new_id};
use crate::app::App;

/// Sandboxes that are made to wait at the same time: as many as keep two cores busy, so that a create beside them is not held
/// up by a queue of them.
const MAKERS: usize = 2;
/// Sandboxes that are removed at the same time.
const REMOVERS: usize = 4;
/// How many are removed at the same time when the server ends: nobody waits for anything else then.
const LAST_REMOVERS: usize = 32;
/// Between two looks at whether those that wait are still there.
const ROUND: Duration = Duration::from_secs(5);

/// What is to be done.
enum Job {
    Make(Name, u64, SandboxId, Box<SandboxSpec>, Turn),
    Remove(SandboxId),
}

/// Whether one of a stock was ever made: the first may have to fetch an image, which takes minutes and no core, and must not
/// hold up other stocks.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Turn {
    First,
    Later,
}

/// What was done.
enum Done {
    Made(Name, u64, SandboxId, Result<(), String>, Turn),
    Removed(SandboxId),
}

/// Makes and removes until the server ends; then removes all that wait.
pub(crate) async fn keep(app: Arc<App>) {
    if app.leased || app.runtime.warm().is_none() {
        return;
    }
    let warm = app.warm.clone();
    let mut jobs: JoinSet<Done> = JoinSet::new();
    let (mut making, mut removing) = (0, 0);
    let mut round = tokio::time::Instant::now() + ROUND;
    while !app.closing.is_cancelled() {
        let now = Instant::now();
        let (next, wake) = warm.lock().next(warm.places, now, MAKERS - making, REMOVERS - removing);
        for job in next {
            match &job {
                Job::Make(.., Turn::Later) => making += 1,
                Job::Make(.., Turn::First) => {}
                Job::Remove(_) => removing += 1,
            }
            jobs.spawn(run(app.clone(), job));
        }
        let wake = wake.map_or(round, |at| round.min(at.into()));
        tokio::select! {
            () = app.closing.cancelled() => break,
            () = warm.changed.notified() => {}
            Some(done) = jobs.join_next() => {
                let Ok(done) = done else { continue };
                match &done {
                    Done::Made(.., Turn::Later) => making -= 1,
                    Done::Made(.., Turn::First) => {}
                    Done::Removed(_) => removing -= 1,
                }
                take_in(&warm, done);
            }
            () = tokio::time::sleep_until(wake) => {
                if tokio::time::Instant::now() >= round {
                    round = tokio::time::Instant::now() + ROUND;
                    look(&app);
                }
            }
        }
    }
    dissolve(&app, jobs).await;
}

async fn run(app: Arc<App>, job: Job) -> Done {
    let runtime = app.runtime.clone();
    match job {
        Job::Make(name, serial, id, spec, turn) => {
            let made = match runtime.warm() {
                Some(warm) => warm.prepare(&id, &spec).await.map_err(|error| error.message),
                None => Err(format!("the runtime {} keeps nothing ready", runtime.name())),
            };
            Done::Made(name, serial, id, made, turn)
        }
        Job::Remove(id) => {
            remove(&app, &id).await;
            Done::Removed(id)
        }
    }
}

async fn remove(app: &App, id: &SandboxId) {
    let Some(warm) = app.runtime.warm() else { return };
    if let Err(error) = warm.discard(id).await {
        // It is nobody's from now on, and removed as all that is.
        tracing::warn!(sandbox_id = %id, error = %error, "a waiting sandbox could not be removed; it is tried again");
    }
}

fn take_in(warm: &Warm, done: Done) {
    let mut inner = warm.lock();
    match done {
        Done::Made(name, serial, id, made, _) => {
            let Inner { groups, known, doomed, .. } = &mut *inner;
            match (groups.get_mut(&name).filter(|group| group.serial == serial), made) {
                (Some(group), Ok(())) => group.made(Ok(id), Instant::now()),
                (None, Ok(())) => doomed.push(id),
                (group, Err(message)) => {
                    known.remove(&id);
                    tracing::warn!(stock = %word(&name), error = message, "a sandbox could not be kept ready");
                    if let Some(group) = group {
                        group.made(Err(message), Instant::now());
                    }
                }
            }
            drop(inner);
            warm.room.notify_waiters();
        }
        Done::Removed(id) => {
            inner.known.remove(&id);
        }
    }
}

/// Whose stock it is, for logs and figures.
pub(super) fn word(name: &Name) -> &str {
    match name {
        Name::Pool(name) => name,
        Name::Demand(_) => "",
    }
}

/// Forgets those that are there no more: somebody else ended them.
fn look(app: &App) {
    let Some(runtime) = app.runtime.warm() else { return };
    let mut inner = app.warm.lock();
    let Inner { groups, doomed, .. } = &mut *inner;
    for group in groups.values_mut() {
        let lost: Vec<SandboxId> = group.ready.iter().filter(|id| !runtime.is_waiting(id)).cloned().collect();
        if !lost.is_empty() {
            tracing::warn!(count = lost.len(), "waiting sandboxes were ended by somebody else");
            group.ready.retain(|id| !lost.contains(id));
            // What is left of them goes, too.
            doomed.extend(lost);
        }
    }
}

/// Removes everything that waits.
async fn dissolve(app: &Arc<App>, mut jobs: JoinSet<Done>) {
    while let Some(done) = jobs.join_next().await {
        if let Ok(done) = done {
            take_in(&app.warm, done);
        }
    }
    let mut left: Vec<SandboxId> = {
        let mut inner = app.warm.lock();
        let mut left = std::mem::take(&mut inner.doomed);
        left.extend(std::mem::take(&mut inner.groups).into_values().flat_map(|group| group.ready));
        left
    };
    let mut removals = JoinSet::new();
    while let Some(id) = left.pop() {
        if removals.len() >= LAST_REMOVERS {
            // Its outcome is in the log.
            let _ = removals.join_next().await;
        }
        let app = app.clone();
        removals.spawn(async move { remove(&app, &id).await });
    }
    removals.join_all().await;
}

impl Inner {
    /// What is to be done now, within what may be under way at the same time; and when to look again by the clock.
    fn next(&mut self, places: usize, now: Instant, makers: usize, removers: usize) -> (Vec<Job>, Option<Instant>) {
        let shares = self.shares(places, now);
        let Self { groups, known, doomed, .. } = self;
        let mut jobs = Vec::new();
        let (mut makers, mut removers) = (makers, removers);
        let mut wake: Option<Instant> = None;
        // The emptiest first, so that none starves beside one that is drained all the time.
        let mut order: Vec<(usize, Name)> =
            groups.iter().map(|(name, group)| (group.ready.len() + group.making as usize, name.clone())).collect();
        order.sort();
        for (_, name) in order {
            let Some(group) = groups.get_mut(&name) else { continue };
            let share = shares.iter().find(|(of, _)| *of == name).map_or(0, |(_, share)| *share);
            match group.want(share, now) {
                Want::Make(count) => {
                    let is_first = group.counts.refilled == 0;
                    let (turn, most) = match is_first {
                        true => (Turn::First, usize::from(group.making == 0)),
                        false => (Turn::Later, makers),
                    };
                    for _ in 0..most.min(count as usize) {
                        let id = new_id();
                        known.insert(id.clone());
                        group.making += 1;
                        if !is_first {
                            makers -= 1;
                        }
                        jobs.push(Job::Make(name.clone(), group.serial, id, Box::new(group.spec.clone()), turn));
                    }
                }
                Want::Drop(count) => {
                    for _ in 0..removers.min(count as usize) {
                        // The newest stays longest: the oldest is given away next.
                        let Some(id) = group.ready.pop_back() else { break };
                        removers -= 1;
                        jobs.push(Job::Remove(id));
                    }
                }
                Want::Nothing => {
                    let rest = group.rests_until(now);
                    wake = wake.into_iter().chain(rest).min();
                }
            }
        }
        while removers > 0
            && let Some(id) = doomed.pop()
        {
            removers -= 1;
            jobs.push(Job::Remove(id));
        }
        (jobs, wake)
    }

    /// How many of each kind may wait because such were asked for; kinds that nobody asks for any more are gone.
    fn shares(&mut self, places: usize, now: Instant) -> Vec<(Name, usize)> {
        let mut targets: Vec<(Instant, Name, usize)> = Vec::new();
        for (name, group) in &mut self.groups {
            if let Rule::Demand(demand) = &mut group.rule {
                let pinned = usize::from(!group.pins.is_empty());
                targets.push((demand.last(), name.clone(), demand.target(now).max(pinned)));
            }
        }
        let over: Vec<&Name> = targets.iter().filter(|(_, _, target)| *target == 0).map(|(_, name, _)| name).collect();
        for name in over {
            let is_empty = |group: &Group| group.ready.is_empty() && group.making == 0;
            if self.groups.get(name).is_some_and(is_empty) {
                self.groups.remove(name);
            }
        }
        targets.sort_by(|a, b| b.cmp(a));
        let numbers: Vec<usize> = targets.iter().map(|(_, _, target)| *target).collect();
        let shares = share(places, &numbers);
        targets.into_iter().map(|(_, name, _)| name).zip(shares).collect()
    }
}
