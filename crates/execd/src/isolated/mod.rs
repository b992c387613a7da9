//! Isolated sessions: this execd as the init of one.
//!
//! The runtime has built the session's mounts and namespaces; this execd keeps one shell for its runs, answers the file
//! calls over what the session sees, and tells and applies what its overlays hold. It ends the session by ending itself:
//! when it was idle for too long, or some time after its shell has ended.
//!
//! ```text
//! active --`exit` in a run, or the shell dies--> dead --a minute--> ended
//!    +----------idle for too long--------------------------------> ended
//! ```

mod background;
mod changes;
mod environment;
mod overlay;
mod route;
mod run;
mod shell;

pub use route::{route, unavailable};

use std::cell::Cell;
use std::os::fd::OwnedFd;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use protocol::execd::boot::IsolatedBoot;
use protocol::execd::isolated::{Mode, Session as Shown};
use tokio::sync::{Mutex, Notify};
use tokio::time::{Instant, sleep_until, timeout_at};

use crate::clock;
use crate::daemon::Daemon;
use crate::init;
use background::Runs;
use overlay::Overlay;
use shell::Shell;

/// How long a session whose shell has ended can still be asked about (published: swept every minute).
const DEAD_FOR: Duration = Duration::from_secs(60);

/// The session.
pub struct Session {
    boot: IsolatedBoot,
    shell: Shell,
    /// Runs take turns.
    turn: Mutex<()>,
    last_run_ms: Cell<i64>,
    /// When the idle time began; `None` while something runs.
    idle_since: Cell<Option<Instant>>,
    busy: Cell<u32>,
    news: Notify,
    runs: Runs,
    overlays: Arc<Vec<Overlay>>,
    /// Number of the last foreground run.
    run: Cell<u64>,
    /// Whether what the shell said at its start was dropped.
    quiet: Cell<bool>,
}

/// Counts as a run until it is dropped.
struct Busy(Rc<Session>);

impl Drop for Busy {
    fn drop(&mut self) {
        let busy = self.0.busy.get() - 1;
        self.0.busy.set(busy);
        if busy == 0 {
            self.0.idle_since.set(Some(Instant::now()));
            self.0.news.notify_waiters();
        }
    }
}

impl Session {
    fn id(&self) -> &str {
        &self.boot.session_id
    }

    fn begin(self: &Rc<Self>) -> Busy {
        self.busy.set(self.busy.get() + 1);
        self.idle_since.set(None);
        self.last_run_ms.set(clock::now_ms());
        Busy(Rc::clone(self))
    }

    /// How many runs go on.
    pub fn running(&self) -> u32 {
        self.busy.get()
    }

    fn idle_timeout(&self) -> Option<Duration> {
        let seconds = self.boot.asked.idle_timeout_seconds.unwrap_or(0);
        u64::try_from(seconds).ok().filter(|seconds| *seconds > 0).map(Duration::from_secs)
    }

    fn ends_at(&self) -> Option<Instant> {
        self.idle_since.get()?.checked_add(self.idle_timeout()?)
    }

    fn shown(&self) -> Shown {
        let remaining = self.idle_timeout().map(|whole| {
            self.ends_at().map_or(whole, |at| at.saturating_duration_since(Instant::now())).as_secs() as i64
        });
        Shown {
            session_id: self.id().to_owned(),
            status: if self.shell.has_ended() { "dead" } else { "active" }.to_owned(),
            created_at: clock::rfc3339_ms(self.boot.created_ms),
            last_run_at: clock::rfc3339_ms(self.last_run_ms.get()),
            idle_remaining_seconds: remaining,
            asked: self.boot.asked.clone(),
        }
    }

    /// The first mount, where runs begin and where the logs of background runs lie.
    fn workspace(&self) -> &str {
        self.boot.asked.overlays.iter().flatten().next().map_or("/", |overlay| overlay.path.as_str())
    }
}

/// Starts the session's shell. `sides` are the overlays' directories, two for each.
///
/// # Errors
/// Why there can be no shell, for people.
pub fn start(daemon: &Rc<Daemon>, boot: IsolatedBoot, sides: Vec<(OwnedFd, OwnedFd)>) -> Result<Rc<Session>, String> {
    let paths =
        boot.asked.overlays.iter().flatten().filter(|overlay| overlay.mode.unwrap_or_default() == Mode::Overlay);
    let overlays =
        paths.zip(sides).map(|(overlay, (lower, upper))| Overlay { path: overlay.path.clone(), lower, upper });
    let overlays = Arc::new(overlays.collect());
    let workspace = boot.asked.overlays.iter().flatten().next().map_or("/", |overlay| overlay.path.as_str());
    let shell = Shell::start(daemon, workspace, &boot.asked)?;
    let session = Rc::new(Session {
        last_run_ms: Cell::new(boot.created_ms),
        boot,
        shell,
        turn: Mutex::new(()),
        idle_since: Cell::new(Some(Instant::now())),
        busy: Cell::new(0),
        news: Notify::new(),
        runs: Runs::default(),
        overlays,
        run: Cell::new(0),
        quiet: Cell::new(false),
    });
    tokio::task::spawn_local(shell::listen(Rc::clone(&session)));
    Ok(session)
}

/// Waits for the end of the session.
///
/// # Errors
/// When signals cannot be watched.
pub async fn until_end(session: Rc<Session>) -> std::io::Result<()> {
    tokio::select! {
        asked = init::asked_to_end() => asked,
        () = idle(&session) => Ok(()),
        () = dead(&session) => Ok(()),
    }
}

async fn idle(session: &Session) {
    loop {
        let news = session.news.notified();
        match session.ends_at() {
            Some(at) if at <= Instant::now() => return,
            Some(at) => {
                let _ = timeout_at(at, news).await; // looked at again in any case
            }
            None => news.await,
        }
    }
}

async fn dead(session: &Session) {
    session.shell.ended().await;
    sleep_until(Instant::now() + DEAD_FOR).await;
}
