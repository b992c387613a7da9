//! The one owner of `wait`: reaps every child and orphan, and says whether a pid may be signalled.
//!
//! Invariant: a pid is signalled only while it is registered, and it is unregistered before it is reaped.
//! An unreaped leader, dead or alive, keeps its number, so a process group is never mistaken for another.
//! All of it runs on one thread, so nothing happens between the look and the signal.
//!
//! ```text
//! registered --leader ends--> published (exit is known) --reaped--> forgotten
//!                                  |  held: a cancellation still needs the group
//!                                  +--release--> reaped --> forgotten
//! ```

use std::cell::{Cell, RefCell};
use std::collections::HashMap;
use std::rc::Rc;

use rustix::process::{
    Pid, Signal, WaitId, WaitIdOptions, WaitIdStatus, WaitOptions, kill_process_group, waitid, waitpid,
};
use tokio::sync::watch;

use crate::procfs;
use crate::spawn;

/// How a process ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Exit {
    /// By itself, with this code.
    Code(i32),
    /// By this signal; `dumped` says that a core was written.
    Signal { number: i32, dumped: bool },
}

struct Child {
    exit: watch::Sender<Option<Exit>>,
    holds: Cell<u32>,
}

/// The table of children.
#[derive(Default)]
pub struct Reaper {
    children: RefCell<HashMap<Pid, Child>>,
    holds: Cell<u32>,
}

/// A started process and the group that it leads.
pub struct Process {
    pid: Pid,
    exit: watch::Receiver<Option<Exit>>,
    reaper: Rc<Reaper>,
}

impl Reaper {
    /// Starts to watch a child that was just spawned on this thread.
    pub fn register(self: &Rc<Self>, pid: Pid) -> Process {
        let (sender, exit) = watch::channel(None);
        self.children.borrow_mut().insert(pid, Child { exit: sender, holds: Cell::new(0) });
        Process { pid, exit, reaper: Rc::clone(self) }
    }

    /// Reaps at every SIGCHLD that `died` reports, until execd ends.
    pub async fn run(self: Rc<Self>, mut died: tokio::signal::unix::Signal) {
        loop {
            self.sweep();
            if died.recv().await.is_none() {
                return;
            }
        }
    }

    /// Publishes and reaps everything that has ended.
    pub fn sweep(&self) {
        if self.holds.get() > 0 {
            // A held zombie would be found first, again and again: ask for each child by name instead.
            // Orphans wait for the end of the hold.
            let pids: Vec<Pid> = self.children.borrow().keys().copied().collect();
            pids.into_iter().for_each(|pid| self.look_at(pid));
            return;
        }
        while let Some(pid) = spawn::peek_exited() {
            if self.children.borrow().contains_key(&pid) {
                self.look_at(pid);
            } else {
                let _ = waitpid(Some(pid), WaitOptions::NOHANG); // an orphan: nobody asks how it ended
            }
        }
    }

    fn look_at(&self, pid: Pid) {
        let options = WaitIdOptions::EXITED | WaitIdOptions::NOHANG | WaitIdOptions::NOWAIT;
        let Ok(Some(status)) = waitid(WaitId::Pid(pid), options) else {
            return;
        };
        let held = {
            let children = self.children.borrow();
            let Some(child) = children.get(&pid) else {
                return;
            };
            child.exit.send_if_modified(|exit| match exit {
                Some(_) => false,
                None => {
                    *exit = Some(exit_of(&status));
                    true
                }
            });
            child.holds.get() > 0
        };
        if !held {
            self.children.borrow_mut().remove(&pid);
            let _ = waitpid(Some(pid), WaitOptions::NOHANG); // it has ended, as `waitid` just said
        }
    }

    fn hold(&self, pid: Pid, by: i32) -> bool {
        let children = self.children.borrow();
        let Some(child) = children.get(&pid) else {
            return false;
        };
        child.holds.set(child.holds.get().saturating_add_signed(by));
        self.holds.set(self.holds.get().saturating_add_signed(by));
        true
    }

    /// Pids of the leaders that are registered now.
    pub fn leaders(&self) -> Vec<Pid> {
        self.children.borrow().keys().copied().collect()
    }
}

/// Keeps a leader's number taken, so that its group can be signalled after the leader's end.
pub struct Hold<'a> {
    process: &'a Process,
}

impl Drop for Hold<'_> {
    fn drop(&mut self) {
        self.process.reaper.hold(self.process.pid, -1);
        self.process.reaper.sweep();
    }
}

impl Process {
    /// How it ended; `None` while it runs.
    pub fn exit(&self) -> Option<Exit> {
        *self.exit.borrow()
    }

    /// Whether it has ended, by the kernel's word: also when nobody has been told yet.
    pub fn has_ended(&self) -> bool {
        self.reaper.look_at(self.pid);
        self.exit().is_some()
    }

    /// Waits for the end of the process itself, not of what it left in the background.
    pub async fn wait(&self) -> Exit {
        let mut exit = self.exit.clone();
        match exit.wait_for(Option::is_some).await.map(|exit| *exit) {
            Ok(Some(exit)) => exit,
            // The sender goes only after it has published, so this is not reached; say nothing false.
            _ => std::future::pending().await,
        }
    }

    /// Signals the whole group; false when the process is gone and nothing was signalled.
    pub fn signal_group(&self, signal: Signal) -> bool {
        self.reaper.children.borrow().contains_key(&self.pid) && kill_process_group(self.pid, signal).is_ok()
    }

    /// Holds the number of the group; `None` when the process has already been reaped.
    pub fn hold(&self) -> Option<Hold<'_>> {
        self.reaper.hold(self.pid, 1).then_some(Hold { process: self })
    }

    /// Whether a member of the group still runs. Meaningful under a [`Hold`].
    pub fn group_lives(&self) -> bool {
        procfs::group_lives(self.pid)
    }

    /// The leader's pid, which is the group's number too.
    pub fn pid(&self) -> Pid {
        self.pid
    }
}

fn exit_of(status: &WaitIdStatus) -> Exit {
    match (status.exit_status(), status.terminating_signal()) {
        (Some(code), _) => Exit::Code(code),
        (None, Some(number)) => Exit::Signal { number, dumped: status.dumped() },
        (None, None) => Exit::Signal { number: 0, dumped: status.dumped() },
    }
}
