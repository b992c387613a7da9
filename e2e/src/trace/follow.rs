//! The tracing side: follows processes by `ptrace` and kills where it is told to.
//!
//! Each `follow` has a thread of its own, since the kernel ties what is traced to the thread that traces. It stops at
//! every call of every thread; what a call means is looked up at its entry, what came of it at its return.

use std::collections::{BTreeSet, HashMap};
use std::fs;
use std::io::{BufRead as _, Write as _};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, mpsc};

use anyhow::{Context as _, Result, bail};
use nix::errno::Errno;
use nix::libc;
use nix::sys::ptrace::{self, Options};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use rustix::process::WaitOptions;

use super::call::{self, Made};
use super::effect::Actor;
use super::{Effect, Phase, Place};

/// Serves commands from standard input until it ends.
///
/// # Errors
/// A command is none, or cannot be obeyed.
pub fn serve() -> Result<()> {
    let plan = Arc::new(Mutex::new(Plan::default()));
    for line in std::io::stdin().lock().lines() {
        let line = line?;
        let (word, rest) = line.split_once(' ').unwrap_or((&line, ""));
        match word {
            "follow" => follow(rest, &plan)?,
            "section" => lock(&plan).section = rest.to_owned(),
            "disarm" => lock(&plan).armed.clear(),
            "arm" => {
                let place = Place::parse(rest).with_context(|| format!("no place to kill at: {rest:?}"))?;
                lock(&plan).armed.push(Armed { place, left: None });
            }
            _ => bail!("unknown command {line:?}"),
        }
        say("obeyed");
    }
    Ok(())
}

/// What is shared by all that is followed.
#[derive(Default)]
struct Plan {
    section: String,
    armed: Vec<Armed>,
    /// With the section.
    seen: BTreeSet<(String, Effect)>,
}

/// A place that waits for its effect.
struct Armed {
    place: Place,
    /// Equal effects that are still let pass, once one was met.
    left: Option<u32>,
}

impl Plan {
    /// Whether the process is to be killed here; then it is armed no more.
    fn strikes(&mut self, phase: Phase, effect: &Effect) -> Option<Place> {
        let at = self.armed.iter().position(|armed| armed.place.phase == phase && armed.place.effect == *effect)?;
        let armed = &mut self.armed[at];
        let left = armed.left.unwrap_or(armed.place.occurrence).saturating_sub(1);
        armed.left = Some(left);
        (left == 0).then(|| self.armed.remove(at).place)
    }
}

fn follow(arguments: &str, plan: &Arc<Mutex<Plan>>) -> Result<()> {
    let mut words = arguments.splitn(3, ' ');
    let mut next = || words.next().with_context(|| format!("follow PID DATA PROGRAM, not {arguments:?}"));
    let root = Pid::from_raw(next()?.parse().context("a pid is a number")?);
    let (data, program) = (next()?.to_owned(), next()?.to_owned());
    let plan = Arc::clone(plan);
    let (begun, waiting) = mpsc::channel();
    std::thread::spawn(move || {
        let seized = ptrace::seize(root, options());
        let go_on = seized.is_ok();
        let _ = begun.send(seized.and_then(|()| kill(root, Signal::SIGCONT)));
        if go_on {
            let mut followed = Followed { data, program, plan, threads: HashMap::new(), processes: HashMap::new() };
            followed.processes.insert(root.as_raw(), "starting".to_owned());
            followed.run();
        }
    });
    waiting.recv().context("the tracing thread died")?.context("trace a process")
}

fn options() -> Options {
    Options::PTRACE_O_TRACESYSGOOD
        | Options::PTRACE_O_TRACEFORK
        | Options::PTRACE_O_TRACEVFORK
        | Options::PTRACE_O_TRACECLONE
        | Options::PTRACE_O_TRACEEXEC
}

/// One thread that is followed.
struct Thread {
    process: i32,
    /// Inside a call: its effect, if it has one.
    within: Option<Option<Effect>>,
}

/// A process and all that came of it.
struct Followed {
    data: String,
    program: String,
    plan: Arc<Mutex<Plan>>,
    threads: HashMap<i32, Thread>,
    /// Roles of processes.
    processes: HashMap<i32, String>,
}

impl Followed {
    /// Until the last of it has ended or was let go.
    fn run(&mut self) {
        let own = libc::__WALL | libc::__WNOTHREAD;
        loop {
            match rustix::process::wait(WaitOptions::from_bits_retain(own.cast_unsigned())) {
                Ok(Some((pid, status))) => self.changed(pid.as_raw_nonzero().get(), status.as_raw()),
                Ok(None) | Err(rustix::io::Errno::INTR) => {}
                Err(_) => return,
            }
        }
    }

    fn changed(&mut self, thread: i32, status: i32) {
        const STOPPED: i32 = 0x7f;
        if status & 0xff != STOPPED {
            self.threads.remove(&thread);
            self.processes.remove(&thread);
            return;
        }
        self.meet(thread);
        let (signal, event) = (status >> 8 & 0xff, status >> 16);
        let mut delivered = None;
        let outcome = match (event, signal) {
            (0, signal) if signal == libc::SIGTRAP | 0x80 => self.at_call(thread),
            (0, signal) => {
                delivered = Signal::try_from(signal).ok();
                Ok(Then::GoOn)
            }
            (libc::PTRACE_EVENT_EXEC, _) => Ok(self.executes(thread)),
            _ => Ok(Then::GoOn),
        };
        let pid = Pid::from_raw(thread);
        let resumed = match outcome {
            Ok(Then::GoOn) => ptrace::syscall(pid, delivered),
            Ok(Then::LetGo) => ptrace::detach(pid, None),
            Ok(Then::Dies) | Err(Errno::ESRCH) => Ok(()),
            Err(errno) => Err(errno),
        };
        match resumed {
            // It was killed meanwhile, which the next wait tells.
            Ok(()) | Err(Errno::ESRCH) => {}
            Err(errno) => say(&format!("thread {thread}: {errno}")),
        }
    }

    /// Learns of a thread at its first stop.
    fn meet(&mut self, thread: i32) {
        if self.threads.contains_key(&thread) {
            return;
        }
        let status = fs::read_to_string(format!("/proc/{thread}/status")).unwrap_or_default();
        let number = |name: &str| {
            let rest = status.lines().find_map(|line| line.strip_prefix(name));
            rest.and_then(|rest| rest.trim().parse::<i32>().ok())
        };
        let process = number("Tgid:").unwrap_or(thread);
        if !self.processes.contains_key(&process) {
            let parent = number("PPid:").and_then(|parent| self.processes.get(&parent));
            let role = match parent.map(String::as_str) {
                Some("jailer") => "worker".to_owned(),
                // PID 1 before it executes execd, and what makes it.
                Some("worker") => "init".to_owned(),
                Some(other) => format!("{other}-child"),
                // Its parent was killed; by then only workers have children that count.
                None => "init".to_owned(),
            };
            self.processes.insert(process, role);
        }
        self.threads.insert(thread, Thread { process, within: None });
    }

    fn executes(&mut self, thread: i32) -> Then {
        let program = fs::read_link(format!("/proc/{thread}/exe")).unwrap_or_default();
        if program.to_str() != Some(&*self.program) {
            self.threads.remove(&thread);
            self.processes.remove(&thread);
            return Then::LetGo;
        }
        let line = fs::read(format!("/proc/{thread}/cmdline")).unwrap_or_default();
        let role = line.split(|byte| *byte == 0).nth(1).unwrap_or_default();
        let role = match &*String::from_utf8_lossy(role) {
            "server" => "supervisor".to_owned(),
            "api-server" => "api".to_owned(),
            other => other.to_owned(),
        };
        self.processes.insert(thread, role);
        // An exec comes from within a call and leaves every other thread behind.
        self.threads.retain(|number, known| known.process != thread || *number == thread);
        self.threads.insert(thread, Thread { process: thread, within: Some(None) });
        Then::GoOn
    }

    fn at_call(&mut self, number: i32) -> nix::Result<Then> {
        let pid = Pid::from_raw(number);
        let Some(thread) = self.threads.get_mut(&number) else { return Ok(Then::GoOn) };
        let process = thread.process;
        let (phase, effect) = match thread.within.take() {
            Some(None) => return Ok(Then::GoOn),
            Some(Some(effect)) if call::succeeded(pid)? => (Phase::After, effect),
            Some(Some(_)) => return Ok(Then::GoOn),
            None => {
                thread.within = Some(None);
                let Some(made) = Made::by(pid)? else { return Ok(Then::GoOn) };
                let role = self.processes.get(&process).map_or("unknown", String::as_str);
                let section = lock(&self.plan).section.clone();
                let actor = Actor { thread: number, role, data: &self.data, section: &section };
                let Some(effect) = actor.effect(&made) else { return Ok(Then::GoOn) };
                thread.within = Some(Some(effect.clone()));
                (Phase::Before, effect)
            }
        };
        let mut plan = lock(&self.plan);
        // Told only when it succeeded: a call that fails has no effect.
        let section = plan.section.clone();
        if phase == Phase::After && plan.seen.insert((section, effect.clone())) {
            say(&format!("effect {} {effect}", plan.section));
        }
        let Some(place) = plan.strikes(phase, &effect) else { return Ok(Then::GoOn) };
        kill(Pid::from_raw(process), Signal::SIGKILL)?;
        say(&format!("killed {process} {place}"));
        Ok(Then::Dies)
    }
}

/// What becomes of a stopped thread.
enum Then {
    GoOn,
    LetGo,
    Dies,
}

/// One line to whoever commands; a closed output means that it is gone, and the end of the input follows.
fn say(line: &str) {
    let _ = writeln!(std::io::stdout().lock(), "{line}");
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
