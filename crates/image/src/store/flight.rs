//! One piece of work, many who wait for it.

use std::collections::HashMap;
use std::hash::Hash;
use std::sync::{Arc, Mutex, PoisonError};

use futures_util::FutureExt;
use futures_util::future::{Shared, WeakShared};
use tokio::sync::watch;

use crate::unpack::BoxFuture;
use crate::{Error, Progress};

type Work<T> = BoxFuture<'static, Result<T, Error>>;

/// Work under way, by key. Work that nobody waits for any more is dropped.
pub(super) struct Flights<K, T: Clone> {
    under_way: Mutex<HashMap<K, Flight<T>>>,
}

struct Flight<T: Clone> {
    work: WeakShared<Work<T>>,
    progress: watch::Receiver<Progress>,
}

impl<K: Eq + Hash + Clone, T: Clone> Flights<K, T> {
    pub(super) fn new() -> Self {
        Self { under_way: Mutex::new(HashMap::new()) }
    }

    /// Joins the work of that key, or begins it, and tells its progress until it ends.
    pub(super) async fn join(
        &self,
        key: K,
        begin: impl FnOnce(Arc<watch::Sender<Progress>>) -> Work<T>,
        report: &(dyn Fn(Progress) + Send + Sync),
    ) -> Result<T, Error> {
        let (work, mut progress) = self.find_or_begin(key.clone(), begin);
        let mut work = std::pin::pin!(work);
        let mut reported = None;
        let result = loop {
            tokio::select! {
                biased;
                result = &mut work => break result,
                Ok(()) = progress.changed() => {
                    let now = *progress.borrow_and_update();
                    report(now);
                    reported = Some(now);
                }
            }
        };
        // What changed last changed with the end.
        let last = *progress.borrow();
        if result.is_ok() && reported != Some(last) {
            report(last);
        }
        self.forget_ended(&key);
        result
    }

    fn find_or_begin(
        &self,
        key: K,
        begin: impl FnOnce(Arc<watch::Sender<Progress>>) -> Work<T>,
    ) -> (Shared<Work<T>>, watch::Receiver<Progress>) {
        let mut under_way = self.under_way.lock().unwrap_or_else(PoisonError::into_inner);
        under_way.retain(|_, flight| flight.work.upgrade().is_some());
        if let Some((work, progress)) = under_way
            .get(&key)
            .and_then(|flight| Some((flight.work.upgrade()?, flight.progress.clone())))
            // One that has ended answers for its own time only.
            .filter(|(work, _)| work.peek().is_none())
        {
            return (work, progress);
        }
        let (sender, receiver) = watch::channel(Progress::default());
        let work = begin(Arc::new(sender)).shared();
        if let Some(weak) = work.downgrade() {
            under_way.insert(key, Flight { work: weak, progress: receiver.clone() });
        }
        (work, receiver)
    }

    fn forget_ended(&self, key: &K) {
        let mut under_way = self.under_way.lock().unwrap_or_else(PoisonError::into_inner);
        let ended =
            under_way.get(key).is_some_and(|flight| flight.work.upgrade().is_none_or(|work| work.peek().is_some()));
        if ended {
            under_way.remove(key);
        }
    }
}
