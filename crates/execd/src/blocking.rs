//! File work off the event loop.
//!
//! One thread lives as long as execd; more are started when needed and end when idle. tokio's own pool
//! panics when a thread cannot be started; in a sandbox at its process limit that would end PID 1, while
//! here the work waits for a thread that there is.

use std::collections::VecDeque;
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::oneshot;

/// Threads at most: slow uploads each hold one.
const MAX_THREADS: usize = 64;
/// An idle thread ends after this long.
const IDLE: Duration = Duration::from_secs(2);
/// Stack of a thread: directory walks keep their state on the heap.
const STACK_BYTES: usize = 256 * 1024;
/// Stack of a thread for work that keeps its state there; what is not used is not there either.
pub const DEEP_STACK_BYTES: usize = 16 * 1024 * 1024;

/// Waits until no work runs or waits any more, at most for `longest`.
pub fn settle(longest: Duration) {
    let state = pool();
    // A thread that ends or becomes idle tells nobody but this.
    let _ = SETTLED.wait_timeout_while(state, longest, |state| !state.jobs.is_empty() || state.idle < state.threads);
}

type Job = Box<dyn FnOnce() + Send>;

struct Pool {
    jobs: VecDeque<Job>,
    threads: usize,
    idle: usize,
}

static POOL: Mutex<Pool> = Mutex::new(Pool { jobs: VecDeque::new(), threads: 0, idle: 0 });
static WORK: Condvar = Condvar::new();
/// Told whenever a thread has nothing to do.
static SETTLED: Condvar = Condvar::new();

fn pool() -> MutexGuard<'static, Pool> {
    POOL.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Runs `work` on a thread and returns its value.
///
/// # Errors
/// When the work panicked, or there is no thread at all.
pub async fn run<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> std::io::Result<T> {
    let (sender, receiver) = oneshot::channel();
    submit(Box::new(move || {
        let _ = sender.send(work()); // the asker may have gone
    }));
    receiver.await.map_err(|_| {
        std::io::Error::other("no worker thread could do the work; the sandbox may be at its process limit")
    })
}

/// Runs `work`, which goes deep, on a thread of its own and returns its value.
///
/// # Errors
/// When the work panicked, or there is no thread.
pub async fn run_deep<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> std::io::Result<T> {
    let (sender, receiver) = oneshot::channel();
    let thread = std::thread::Builder::new().name("deep".into()).stack_size(DEEP_STACK_BYTES);
    thread.spawn(move || drop(sender.send(work())))?; // the asker may have gone
    receiver.await.map_err(|_| std::io::Error::other("the work panicked"))
}

/// Starts the thread that stays, while there surely is room for it.
pub fn start() {
    let mut state = pool();
    state.threads += 1;
    if !spawn(Life::Permanent) {
        state.threads -= 1;
    }
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Life {
    Permanent,
    WhileBusy,
}

fn spawn(life: Life) -> bool {
    let thread = std::thread::Builder::new().name("files".into()).stack_size(STACK_BYTES);
    thread.spawn(move || work_loop(life)).is_ok()
}

fn submit(job: Job) {
    let mut state = pool();
    state.jobs.push_back(job);
    if state.idle >= state.jobs.len() {
        WORK.notify_one();
        return;
    }
    if state.threads >= MAX_THREADS {
        return; // the next free thread takes it
    }
    state.threads += 1;
    if spawn(Life::WhileBusy) {
        return;
    }
    state.threads -= 1;
    if state.threads == 0 {
        state.jobs.pop_back(); // dropped, its asker is told
    }
}

fn work_loop(life: Life) {
    let mut state = pool();
    loop {
        if let Some(job) = state.jobs.pop_front() {
            drop(state);
            // A panic is our bug; it must cost one request and not the count of threads.
            let _ = std::panic::catch_unwind(std::panic::AssertUnwindSafe(job));
            state = pool();
            continue;
        }
        state.idle += 1;
        SETTLED.notify_all();
        if life == Life::Permanent {
            state = WORK.wait(state).unwrap_or_else(PoisonError::into_inner);
            state.idle -= 1;
            continue;
        }
        let (next, timeout) = WORK.wait_timeout(state, IDLE).unwrap_or_else(PoisonError::into_inner);
        state = next;
        state.idle -= 1;
        if timeout.timed_out() && state.jobs.is_empty() {
            state.threads -= 1;
            return;
        }
    }
}
