//! Follows every process of a server and kills one right before or right after an effect that others can see.
//!
//! An effect is a system call that makes something durable or visible: a name in the data directory, a write to the
//! database or to a control group, a mount, a child, a signal. Equal effects have one [`Effect`]: ids and numbers in
//! their paths are left out, so that what one life of a sandbox taught can be armed in the next.
//!
//! The tracing itself is a program of its own (`tracer`): a process that is traced by its parent's process could not be
//! waited for by the test. It is told what to do line by line and tells line by line what happened ([`Tracer`] is the
//! test's side). No sandbox is traced: a process is let go once it executes anything but the server's program.

mod call;
mod effect;
pub mod follow;
mod memory;

use std::collections::BTreeMap;
use std::fmt;
use std::io::{BufRead as _, BufReader, Write as _};
use std::path::Path;
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};

/// How long the tracer may take to obey one line.
const OBEYED: Duration = Duration::from_secs(20);

/// A kind of effect: who, which call, on what. A line of text without line breaks.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Effect(pub String);

impl Effect {
    /// Which of the server's processes has it.
    #[must_use]
    pub fn role(&self) -> &str {
        self.0.split(' ').next().unwrap_or_default()
    }

    /// What it has in common with effects after which everybody is in the same state: other files that are made on the
    /// way, limits that are set, files of one directory that go, mounts of a PID 1 that has not begun.
    #[must_use]
    pub fn group(&self) -> String {
        let mut words = self.0.split(' ');
        let (role, call) = (words.next().unwrap_or_default(), words.next().unwrap_or_default());
        let (path, rest) = (words.next().unwrap_or_default(), words.next_back().unwrap_or_default());
        let parent = path.rsplit_once('/').map_or("", |(parent, _)| parent);
        match (role, call) {
            ("init", _) => role.to_owned(),
            (_, "chmod" | "chown") => format!("{role} ch {parent} {rest}"),
            (_, "create" | "sync" | "truncate") => format!("{role} {call} {parent} {rest}"),
            (_, "unlink") if !path.ends_with("ID") => format!("{role} {call} {parent} {rest}"),
            (_, "write") if !path.ends_with("cgroup.procs") && !path.ends_with("cgroup.freeze") => {
                format!("{role} {call} {parent}")
            }
            _ => self.0.clone(),
        }
    }
}

impl fmt::Display for Effect {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(&self.0)
    }
}

/// On which side of an effect its process is killed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Phase {
    /// The call is not made any more.
    Before,
    /// The call has succeeded, and nothing after it is done.
    After,
}

impl Phase {
    /// Both sides.
    pub const BOTH: [Self; 2] = [Self::Before, Self::After];

    fn name(self) -> &'static str {
        match self {
            Self::Before => "before",
            Self::After => "after",
        }
    }

    fn parse(text: &str) -> Option<Self> {
        Self::BOTH.into_iter().find(|phase| phase.name() == text)
    }
}

/// One place to kill at: the side of the n-th effect of a kind.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Place {
    /// The side.
    pub phase: Phase,
    /// Which of the equal effects since it was armed, from 1.
    pub occurrence: u32,
    /// The kind.
    pub effect: Effect,
}

impl fmt::Display for Place {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "{} {} {}", self.phase.name(), self.occurrence, self.effect)
    }
}

impl Place {
    fn parse(text: &str) -> Option<Self> {
        let mut words = text.splitn(3, ' ');
        let phase = Phase::parse(words.next()?)?;
        let occurrence = words.next()?.parse().ok()?;
        Some(Self { phase, occurrence, effect: Effect(words.next()?.to_owned()) })
    }
}

/// A kill that happened.
#[derive(Clone, Debug)]
pub struct Kill {
    /// Where.
    pub place: Place,
    /// Who died.
    pub pid: u32,
    /// When the test learned of it.
    pub at: Instant,
}

/// What the tracer has told so far.
#[derive(Default)]
struct Told {
    /// Answered commands.
    obeyed: usize,
    /// Every kind seen, with the sections it was seen in, in order.
    effects: BTreeMap<Effect, Vec<String>>,
    kills: Vec<Kill>,
    ended: bool,
}

/// The running tracer; its processes go on untraced when it is dropped.
pub struct Tracer {
    child: Child,
    commands: ChildStdin,
    sent: usize,
    told: Arc<(Mutex<Told>, Condvar)>,
}

impl Tracer {
    /// Starts the tracer.
    ///
    /// # Errors
    /// It cannot be started.
    pub fn start(program: &Path) -> Result<Self> {
        let mut child = Command::new(program)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .with_context(|| format!("start {}", program.display()))?;
        let commands = child.stdin.take().context("the tracer's input was not taken")?;
        let lines = BufReader::new(child.stdout.take().context("the tracer's output was not taken")?).lines();
        let told = Arc::new((Mutex::new(Told::default()), Condvar::new()));
        let listener = Arc::clone(&told);
        // Ends with the tracer's output, which ends with the tracer.
        std::thread::spawn(move || {
            for line in lines.map_while(Result::ok) {
                lock(&listener.0).take_in(&line);
                listener.1.notify_all();
            }
            lock(&listener.0).ended = true;
            listener.1.notify_all();
        });
        Ok(Self { child, commands, sent: 0, told })
    }

    /// Follows a process that has stopped itself, lets it go on, and all that comes of it.
    ///
    /// # Errors
    /// It cannot be traced.
    pub fn follow(&mut self, pid: u32, data: &Path, program: &Path) -> Result<()> {
        self.command(&format!("follow {pid} {} {}", data.display(), program.display()))
    }

    /// Names what the clients do now: effects of processes that serve many requests are told apart by it.
    ///
    /// # Errors
    /// The tracer is gone.
    pub fn section(&mut self, name: &str) -> Result<()> {
        self.command(&format!("section {name}"))
    }

    /// Kills once at each of these places, and at no other any more.
    ///
    /// # Errors
    /// The tracer is gone.
    pub fn arm<'a>(&mut self, places: impl IntoIterator<Item = &'a Place>) -> Result<()> {
        self.command("disarm")?;
        places.into_iter().try_for_each(|place| self.command(&format!("arm {place}")))
    }

    /// Every kind of effect seen, with the sections in which it was seen, in order.
    #[must_use]
    pub fn effects(&self) -> BTreeMap<Effect, Vec<String>> {
        lock(&self.told.0).effects.clone()
    }

    /// The kills so far, in order.
    #[must_use]
    pub fn kills(&self) -> Vec<Kill> {
        lock(&self.told.0).kills.clone()
    }

    fn command(&mut self, line: &str) -> Result<()> {
        writeln!(self.commands, "{line}").context("command the tracer")?;
        self.sent += 1;
        let (told, changed) = &*self.told;
        let waiting = |told: &mut Told| told.obeyed < self.sent && !told.ended;
        let (told, waited) =
            changed.wait_timeout_while(lock(told), OBEYED, waiting).unwrap_or_else(PoisonError::into_inner);
        if waited.timed_out() || told.ended {
            bail!("the tracer did not obey {line:?}");
        }
        Ok(())
    }
}

impl Drop for Tracer {
    fn drop(&mut self) {
        // The kernel lets go of everything that a dead tracer traced.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Told {
    fn take_in(&mut self, line: &str) {
        let (word, rest) = line.split_once(' ').unwrap_or((line, ""));
        match word {
            "obeyed" => self.obeyed += 1,
            "effect" => {
                if let Some((section, effect)) = rest.split_once(' ') {
                    self.effects.entry(Effect(effect.to_owned())).or_default().push(section.to_owned());
                }
            }
            "killed" => {
                if let Some((pid, place)) = rest.split_once(' ')
                    && let (Ok(pid), Some(place)) = (pid.parse(), Place::parse(place))
                {
                    self.kills.push(Kill { place, pid, at: Instant::now() });
                }
            }
            _ => eprintln!("tracer: {line}"),
        }
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
