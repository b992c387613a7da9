//! The process of an interpreter, with everything that it starts.

use std::rc::Rc;

use rustix::process::Signal;

use crate::daemon::Daemon;
use crate::id;
use crate::reaper::{Exit, Process};
use crate::spawn::{Error, Extra, Plan, Stdio, spawn_with};
use crate::tree;

/// The process.
pub struct Child {
    daemon: Rc<Daemon>,
    process: Process,
    tag: u64,
    oom_kills_before: u64,
    is_over: bool,
}

impl Child {
    /// Starts it.
    ///
    /// # Errors
    /// As [`spawn_with`].
    pub fn start(daemon: &Rc<Daemon>, plan: &Plan, stdio: &Stdio<'_>, extra: Extra<'_>) -> Result<Self, Error> {
        let tag = id::tag();
        let oom_kills_before = daemon.counters.oom_kills();
        let pid = spawn_with(plan, stdio, Extra { tag: Some(tag), ..extra })?;
        let process = daemon.reaper.register(pid);
        Ok(Self { daemon: Rc::clone(daemon), process, tag, oom_kills_before, is_over: false })
    }

    /// Interrupts what its group does in the foreground, as a terminal would.
    pub fn interrupt(&self) {
        self.process.signal_group(Signal::INT);
    }

    /// Kills its group.
    pub fn kill(&self) {
        self.process.signal_group(Signal::KILL);
    }

    /// Whether the process itself has ended, also when its end has not been read yet.
    pub fn has_ended(&self) -> bool {
        self.process.has_ended()
    }

    /// Waits for the end of the process itself.
    pub async fn wait(&self) {
        self.process.wait().await;
    }

    /// Kills what the ended process left, in the background: nobody could end it any more.
    pub fn sweep(&self) {
        tokio::task::spawn_local(tree::kill_tagged(self.tag));
    }

    /// Kills it with everything that it started, and waits for that.
    pub async fn end(mut self) {
        self.kill();
        self.process.wait().await;
        tree::kill_tagged(self.tag).await;
        self.is_over = true;
    }

    /// How it ended, to follow its name.
    pub fn last_words(&self) -> String {
        let is_oom = || self.daemon.counters.oom_kills() > self.oom_kills_before;
        match self.process.exit() {
            Some(Exit::Signal { number: libc::SIGKILL, .. }) if is_oom() => {
                "was ended by the kernel: the memory of the sandbox was used up".into()
            }
            Some(Exit::Signal { number, .. }) => format!("was ended by signal {number}"),
            Some(Exit::Code(code)) => format!("ended with exit code {code}"),
            None => "ended".into(),
        }
    }
}

impl Drop for Child {
    /// Where it is not ended in an orderly way, all of it goes all the same.
    fn drop(&mut self) {
        if !self.is_over {
            self.kill();
            self.sweep();
        }
    }
}
