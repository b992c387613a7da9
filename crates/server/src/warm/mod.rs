//! Sandboxes that wait: in pools that an operator made, and of kinds that were asked for lately.
//!
//! Owns who waits, in memory: a server that is killed forgets all of them, and each is removed by its own monitor then. What a
//! pool is lies in the database; which sandboxes it has given away is read from their rows. One task makes and removes
//! ([`keep`]); a create takes one in constant time, however many there are and wait.

mod demand;
mod figures;
mod group;
mod keep;
#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, HashMap, HashSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use http::StatusCode;
use lifecycle::pool::{Capacity, WhenEmpty};
use lifecycle::spec::{SandboxId, SandboxSpec};
use lifecycle::warm::Kind;
use protocol::error::code;
use protocol::lifecycle::{CreateSandboxRequest, PoolStatus};
use tokio::sync::Notify;

use crate::errors::ApiError;
use crate::store::PoolRow;
use demand::Demand;
use group::{Group, Pool, Rule};
pub(crate) use keep::keep;

/// Kinds that wait because they were asked for; the one that was not asked for longest gives way.
const MAX_KINDS: usize = 16;
/// What one that waits costs the machine, rounded up: its monitor, its execd, and what the kernel keeps for it.
const WAITING_BYTES: u64 = 4 << 20;

/// Whose stock it is.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) enum Name {
    /// A pool's.
    Pool(String),
    /// That of a kind which was asked for.
    Demand(Kind),
}

/// Everything that waits.
pub(crate) struct Warm {
    inner: Mutex<Inner>,
    /// Something is to be made or removed.
    changed: Notify,
    /// Somebody waits, or there is room for one more.
    room: Notify,
    /// How many may wait because they were asked for.
    places: usize,
    /// How long a create waits for a place in a pool that is full.
    patience: Duration,
}

#[derive(Default)]
struct Inner {
    groups: BTreeMap<Name, Group>,
    /// Ids that wait, are being made, or were taken and have no driver yet: not orphans, though nobody has them.
    known: HashSet<SandboxId>,
    /// Those of stocks that are gone, to be removed.
    doomed: Vec<SandboxId>,
    /// When each was claimed that is not done yet, and out of which stock.
    claims: HashMap<SandboxId, (Name, Instant)>,
}

/// A place for a create: a sandbox that waits, or the right to make one. What is not used goes back when it is dropped.
pub(crate) struct Place {
    warm: Arc<Warm>,
    name: Name,
    serial: u64,
    /// The sandbox that waits, or the id of one to be made.
    id: SandboxId,
    is_waiting: bool,
    is_used: bool,
}

impl Place {
    /// The new sandbox's id.
    pub(crate) fn id(&self) -> &SandboxId {
        &self.id
    }

    /// Its sandbox is remembered and has a driver: it is that one's now.
    pub(crate) fn use_up(mut self) {
        self.is_used = true;
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let mut inner = self.warm.lock();
        let Inner { groups, known, claims, doomed } = &mut *inner;
        if self.is_used {
            known.remove(&self.id);
            return;
        }
        claims.remove(&self.id);
        let mut group = groups.get_mut(&self.name).filter(|group| group.serial == self.serial);
        if let Some(pool) = group.as_deref_mut().and_then(Group::pool_mut) {
            pool.bound.remove(&self.id);
        }
        match (group, self.is_waiting) {
            (Some(group), true) => {
                // Nothing was claimed: it is as good as before.
                group.ready.push_front(self.id.clone());
            }
            (None, true) => doomed.push(self.id.clone()),
            (_, false) => {
                known.remove(&self.id);
            }
        }
        drop(inner);
        self.warm.changed.notify_one();
        self.warm.room.notify_waiters();
    }
}

/// What came of asking a pool for a place.
enum Asked {
    Place(Place),
    /// None is there now; one may be in a moment.
    Later,
    Refused(ApiError),
}

impl Warm {
    /// Nothing waits yet. `bytes` bounds what may wait because it was asked for.
    pub(crate) fn new(bytes: u64, patience: Duration) -> Arc<Self> {
        let places = usize::try_from(bytes / WAITING_BYTES).unwrap_or(usize::MAX);
        let (inner, changed, room) = (Mutex::default(), Notify::new(), Notify::new());
        Arc::new(Self { inner, changed, room, places, patience })
    }

    fn lock(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether somebody here answers for this id, though no driver does.
    pub(crate) fn knows(&self, id: &SandboxId) -> bool {
        self.lock().known.contains(id)
    }

    /// Until when a create that comes now waits for a place in a pool.
    pub(crate) fn until(&self) -> tokio::time::Instant {
        tokio::time::Instant::now() + self.patience
    }

    /// One of this kind that waits because such were asked for.
    pub(crate) fn take(self: &Arc<Self>, kind: Kind) -> Option<Place> {
        let name = Name::Demand(kind);
        let now = Instant::now();
        let mut inner = self.lock();
        let group = inner.groups.get_mut(&name)?;
        let Some(id) = group.take(now) else {
            group.counts.misses += 1;
            return None;
        };
        group.counts.hits += 1;
        let serial = group.serial;
        inner.claims.insert(id.clone(), (name.clone(), now));
        drop(inner);
        self.changed.notify_one();
        Some(Place { warm: self.clone(), name, serial, id, is_waiting: true, is_used: false })
    }

    /// A place in a pool for a sandbox of this kind. Where none waits one is made, or it is waited for, or the create is refused,
    /// as the pool says; never more than the pool may hold.
    ///
    /// # Errors
    /// The pool is gone, or full.
    pub(crate) async fn take_from(
        self: &Arc<Self>,
        pool: &str,
        kind: Option<&Kind>,
        until: tokio::time::Instant,
    ) -> Result<Place, ApiError> {
        let mut has_waited = false;
        loop {
            let mut room = std::pin::pin!(self.room.notified());
            // From here on nothing is missed.
            room.as_mut().enable();
            match self.ask(pool, kind, has_waited) {
                Asked::Place(place) => return Ok(place),
                Asked::Refused(error) => return Err(error),
                Asked::Later => has_waited = true,
            }
            if tokio::time::timeout_at(until, room).await.is_err() {
                return Err(self.refuse(pool));
            }
        }
    }

    fn ask(self: &Arc<Self>, pool_name: &str, kind: Option<&Kind>, has_waited: bool) -> Asked {
        let name = Name::Pool(pool_name.to_owned());
        let now = Instant::now();
        let mut inner = self.lock();
        let Inner { groups, known, claims, .. } = &mut *inner;
        let Some(group) = groups.get_mut(&name) else { return Asked::Refused(no_pool(pool_name)) };
        let census = group.census();
        let fits = kind == Some(&group.kind);
        let waiting = if fits { group.take(now) } else { None };
        let Some(pool) = group.pool_mut() else { return Asked::Refused(no_pool(pool_name)) };
        let (id, is_waiting) = match waiting {
            Some(id) => (id, true),
            None if census.total() < pool.capacity.pool_max && (pool.when_empty == WhenEmpty::Create || !fits) => {
                (new_id(), false)
            }
            None => {
                // Counted once for each create, however often it looks.
                group.counts.waits += u64::from(!has_waited);
                return Asked::Later;
            }
        };
        pool.bound.insert(id.clone());
        known.insert(id.clone());
        if is_waiting {
            group.counts.hits += 1;
            claims.insert(id.clone(), (name.clone(), now));
        } else {
            group.counts.misses += 1;
        }
        let serial = group.serial;
        drop(inner);
        self.changed.notify_one();
        Asked::Place(Place { warm: self.clone(), name, serial, id, is_waiting, is_used: false })
    }

    fn refuse(&self, pool: &str) -> ApiError {
        let mut inner = self.lock();
        let Some(group) = inner.groups.get_mut(&Name::Pool(pool.to_owned())) else { return no_pool(pool) };
        group.counts.refused += 1;
        let (census, status) = (group.census(), group.status());
        let most = group.pool().map_or(0, |pool| pool.capacity.pool_max);
        let why = match status.message {
            Some(message) => format!("; the last that was made failed: {message}"),
            None => String::new(),
        };
        let message = format!(
            "pool \"{pool}\" has no sandbox left: {} of {most} are in use and none waits{why}; end some, raise poolMax, or \
             try again",
            census.bound
        );
        ApiError::new(StatusCode::TOO_MANY_REQUESTS, code::POOL_CAPACITY_EXHAUSTED, message).retry_after(RETRY_SECONDS)
    }

    /// A sandbox was made, out of a stock or not: such are asked for. `base` is what others of its kind would be made by.
    pub(crate) fn made(&self, id: &SandboxId, kind: Option<Kind>, base: impl FnOnce() -> SandboxSpec) {
        let now = Instant::now();
        let mut inner = self.lock();
        let Inner { groups, claims, doomed, .. } = &mut *inner;
        if let Some((name, at)) = claims.remove(id)
            && let Some(group) = groups.get_mut(&name)
        {
            group.claimed(now.duration_since(at));
        }
        let Some(kind) = kind.filter(|_| self.places > 0) else { return };
        let name = Name::Demand(kind.clone());
        let group =
            groups.entry(name.clone()).or_insert_with(|| Group::new(kind, base(), Rule::Demand(Demand::new(now))));
        if let Rule::Demand(demand) = &mut group.rule {
            demand.count(now);
        }
        let kinds = groups.iter().filter_map(|(name, group)| match &group.rule {
            Rule::Demand(demand) => Some((demand.last(), name.clone())).filter(|_| group.pins.is_empty()),
            Rule::Pool(_) => None,
        });
        let kinds: Vec<_> = kinds.collect();
        if kinds.len() > MAX_KINDS
            && let Some((_, oldest)) = kinds.into_iter().min()
            && let Some(group) = groups.remove(&oldest)
        {
            doomed.extend(group.ready);
        }
        drop(inner);
        self.changed.notify_one();
    }

    /// Has one of this kind wait as long as the template is there.
    pub(crate) fn pin(&self, template: &str, kind: Kind, base: SandboxSpec) {
        if self.places == 0 {
            return;
        }
        let mut inner = self.lock();
        let group = inner.groups.entry(Name::Demand(kind.clone()));
        let group = group.or_insert_with(|| Group::new(kind, base, Rule::Demand(Demand::new(Instant::now()))));
        group.pins.insert(template.to_owned());
        drop(inner);
        self.changed.notify_one();
    }

    /// A template is gone.
    pub(crate) fn unpin(&self, template: &str) {
        for group in self.lock().groups.values_mut() {
            group.pins.remove(template);
        }
        self.changed.notify_one();
    }

    /// A sandbox has ended, could not be made or is gone: it counts against its pool no more.
    pub(crate) fn ended(&self, id: &SandboxId, pool: Option<&str>) {
        let mut inner = self.lock();
        inner.claims.remove(id);
        let Some(pool) = pool else { return };
        let group = inner.groups.get_mut(&Name::Pool(pool.to_owned()));
        if group.and_then(Group::pool_mut).is_some_and(|pool| pool.bound.remove(id)) {
            drop(inner);
            self.changed.notify_one();
            self.room.notify_waiters();
        }
    }

    /// Begins to keep a pool. `bound` are the sandboxes that it has given away.
    pub(crate) fn open(
        &self,
        row: &PoolRow,
        template: CreateSandboxRequest,
        kind: Kind,
        spec: SandboxSpec,
        bound: HashSet<SandboxId>,
    ) {
        let pool = Pool {
            capacity: row.capacity,
            when_empty: row.when_empty,
            template,
            governor: lifecycle::pool::Governor::default(),
            revision: row.revision,
            bound,
        };
        let group = Group::new(kind, spec, Rule::Pool(Box::new(pool)));
        self.lock().groups.insert(Name::Pool(row.name.clone()), group);
        self.changed.notify_one();
    }

    /// Keeps a pool between other numbers.
    pub(crate) fn resize(&self, row: &PoolRow) {
        if let Some(pool) = self.lock().groups.get_mut(&Name::Pool(row.name.clone())).and_then(Group::pool_mut) {
            (pool.capacity, pool.when_empty, pool.revision) = (row.capacity, row.when_empty, row.revision);
        }
        self.changed.notify_one();
        self.room.notify_waiters();
    }

    /// Keeps a pool no more; who has one of its sandboxes keeps it.
    pub(crate) fn close(&self, name: &str) {
        let mut inner = self.lock();
        if let Some(group) = inner.groups.remove(&Name::Pool(name.to_owned())) {
            inner.doomed.extend(group.ready);
        }
        drop(inner);
        self.changed.notify_one();
        self.room.notify_waiters();
    }

    /// What the sandboxes of a pool have in common.
    pub(crate) fn template(&self, pool: &str) -> Option<CreateSandboxRequest> {
        let inner = self.lock();
        let group = inner.groups.get(&Name::Pool(pool.to_owned()))?;
        group.pool().map(|pool| pool.template.clone())
    }

    /// The pool that would serve a create best that leaves the choice: one with its image, of these the one with most that
    /// wait, of these the first by name.
    pub(crate) fn choose(&self, image: Option<&str>) -> Option<String> {
        let inner = self.lock();
        let fitting = inner.groups.iter().filter_map(|(name, group)| match name {
            Name::Pool(name) if image.is_none_or(|image| image == group.spec.image) => Some((name, group)),
            _ => None,
        });
        let room = |group: &Group| {
            group.pool().map_or(0, |pool| pool.capacity.pool_max).saturating_sub(group.census().total())
        };
        let best = fitting.max_by(|(a, left), (b, right)| {
            (left.ready.len(), room(left)).cmp(&(right.ready.len(), room(right))).then_with(|| b.cmp(a))
        });
        best.map(|(name, _)| name.clone())
    }

    /// How a pool is.
    pub(crate) fn status(&self, pool: &str) -> Option<PoolStatus> {
        self.lock().groups.get(&Name::Pool(pool.to_owned())).map(Group::status)
    }
}

/// When a create should come again that a full pool refused.
const RETRY_SECONDS: u32 = 1;

fn no_pool(name: &str) -> ApiError {
    ApiError::missing(code::POOL_NOT_FOUND, "pool", name)
}

/// A new sandbox's id.
pub(crate) fn new_id() -> SandboxId {
    SandboxId::parse(&uuid::Uuid::new_v4().hyphenated().to_string()).expect("a UUID is an id")
}

/// Numbers that a pool is kept between, as they lie in the database.
pub(crate) fn capacity_of(text: &str) -> Option<Capacity> {
    let mut numbers = text.split(' ').map(str::parse);
    let mut next = || numbers.next()?.ok();
    Some(Capacity { buffer_min: next()?, buffer_max: next()?, pool_min: next()?, pool_max: next()? })
}

/// The same as text.
pub(crate) fn capacity_text(capacity: &Capacity) -> String {
    let Capacity { buffer_min, buffer_max, pool_min, pool_max } = capacity;
    format!("{buffer_min} {buffer_max} {pool_min} {pool_max}")
}
