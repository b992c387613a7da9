//! The first process of a gVisor sandbox: it starts `runsc` and stays, as what everybody outside knows the sandbox by.
//!
//! It accepts connections to execd and hands them in, passes signals on, and ends as execd did. It reads nothing that
//! comes from inside but one byte, before anything of the user's runs.

use std::fs::File;
use std::io::{Read, Seek, SeekFrom};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::process::{Child, Command};
use std::time::{Duration, Instant};

use packets::send_bytes;
use rustix::event::{PollFd, PollFlags};
use rustix::io::Errno;
use rustix::net::{RecvFlags, SendFlags, SocketFlags, accept_with};

use super::cell::{BUNDLE, LOG, RUNSC, STATE, inside};
use super::{PLATFORM, sentry};
use crate::error::{Context, Failure, Result};
use crate::init::{self, KEPT};
use crate::jailer::birth;
use crate::sys::{self, ChildEnd, Signals};

/// What `runsc` calls the one thing that it runs here.
const CONTAINER: &str = "sandbox";
/// Bytes of its log that are told when it does not start.
const LOG_BYTES: u64 = 2048;
/// Signals that are passed on to execd, by number.
const PASSED: [libc::c_int; 6] =
    [libc::SIGTERM, libc::SIGINT, libc::SIGHUP, libc::SIGUSR1, libc::SIGUSR2, libc::SIGWINCH];

/// What the process was born with.
pub(crate) struct Keeper<'a> {
    /// Where connections to execd arrive.
    pub listener: OwnedFd,
    /// Where execd's configuration comes from.
    pub boot: OwnedFd,
    /// Where execd reports.
    pub status: OwnedFd,
    /// Where `runsc` and the main process write.
    pub console: OwnedFd,
    /// The filter of system calls, for this process.
    pub filter: &'a [libc::sock_filter],
    /// Counters of namespaces, to be set to zero.
    pub namespace_limits: Vec<OwnedFd>,
    /// How long execd may take to run.
    pub within: Duration,
}

/// Starts `runsc`, and ends as it does. Once execd runs, every descriptor is closed that is not needed any more; the
/// caller's are among them. Returns only a failure before that.
pub(crate) fn run(keeper: Keeper<'_>) -> Failure {
    let started = match start(&keeper) {
        Ok(started) => started,
        Err(failure) => return failure,
    };
    let needed = [keeper.listener.as_fd(), started.inlet.as_fd(), started.signals.as_fd()];
    sys::close_all_except(&[&[0, 1, 2], &needed.map(|fd| fd.as_raw_fd())[..]].concat());
    // No owner of a closed descriptor is ever dropped.
    std::process::exit(serve(&keeper.listener, &started))
}

/// `runsc` at work.
struct Started {
    runsc: Child,
    signals: Signals,
    /// Where execd is handed connections.
    inlet: OwnedFd,
}

fn start(keeper: &Keeper<'_>) -> Result<Started> {
    let deadline = Instant::now() + keeper.within;
    let signals = Signals::block(&[&PASSED[..], &[libc::SIGCHLD]].concat()).op("watch for signals")?;
    let (inlet, theirs) = packets::pair().op("make a socket pair")?;
    let null = File::open("/dev/null").op("open /dev/null")?;
    sys::install_descriptors(&[null.as_fd(), keeper.console.as_fd(), keeper.console.as_fd()])
        .op("arrange descriptors")?;
    init::limit_capabilities(KEPT.union(sentry::NEEDED))?;
    rustix::thread::set_no_new_privs(true).op("set no_new_privs")?;
    let console = || keeper.console.try_clone().op("copy the console");
    let runsc = Command::new(inside(RUNSC))
        .arg(format!("--root={}", inside(STATE).display()))
        .arg(format!("--log={}", inside(LOG).display()))
        .arg(format!("--platform={PLATFORM}"))
        // The network is the sandbox's, steered like any other. Its limits stand around it.
        .args(["--network=host", "--ignore-cgroups", "--overlay2=none", "run"])
        .arg(format!("--bundle={}", inside(BUNDLE).display()))
        .arg(CONTAINER)
        .env_clear()
        .stdin(theirs)
        .stdout(console()?)
        .stderr(console()?)
        .spawn()
        .op("start runsc")?;
    await_execd(&inlet, deadline)?;
    for limit in &keeper.namespace_limits {
        // It has all that it needs. The missing capabilities stand before this last wall.
        let _ = rustix::io::write(limit, b"0");
    }
    init::drop_privileges()?;
    sys::install_filter(keeper.filter).op("install the system-call filter")?;
    let first = [keeper.boot.as_fd(), keeper.status.as_fd()];
    send_bytes(inlet.as_fd(), b"0", &first, SendFlags::empty()).op("hand execd its descriptors")?;
    Ok(Started { runsc, signals, inlet })
}

/// Waits for execd's first word; by then the kernel in user space and its own filter are in force.
fn await_execd(inlet: &OwnedFd, deadline: Instant) -> Result<()> {
    birth::wait(&mut [PollFd::new(inlet, PollFlags::IN)], deadline)?;
    let mut byte = [0u8];
    match rustix::net::recv(inlet, &mut byte[..], RecvFlags::DONTWAIT) {
        Ok((1.., _)) => Ok(()),
        _ => Err(Failure::internal(format!("runsc did not start execd: {}", last_words()))),
    }
}

/// The end of the log.
fn last_words() -> String {
    let read = || -> std::io::Result<String> {
        let mut log = File::open(inside(LOG))?;
        let length = log.seek(SeekFrom::End(0))?;
        log.seek(SeekFrom::Start(length.saturating_sub(LOG_BYTES)))?;
        let mut bytes = Vec::new();
        log.take(LOG_BYTES).read_to_end(&mut bytes)?;
        Ok(String::from_utf8_lossy(&bytes).trim().to_owned())
    };
    read().unwrap_or_else(|_| "it says nothing".to_owned())
}

/// Hands connections and signals in until `runsc` ends; its exit code.
fn serve(listener: &OwnedFd, started: &Started) -> i32 {
    let Started { runsc, signals, inlet } = started;
    let mut connection: Option<OwnedFd> = None;
    loop {
        {
            let mut fds = vec![PollFd::new(signals, PollFlags::IN)];
            fds.push(match &connection {
                // What execd does not take yet waits here, and the next in the queue of the listener.
                Some(_) => PollFd::new(inlet, PollFlags::OUT),
                None => PollFd::new(listener, PollFlags::IN),
            });
            // Interrupted at most; the next round looks again.
            let _ = rustix::event::poll(&mut fds, None);
        }
        while let Some(signal) = signals.next() {
            if PASSED.contains(&signal) {
                // Whoever does not hear it is killed after the grace.
                let _ = hand(inlet, signal, None);
            }
        }
        while let Some((pid, end)) = sys::wait_any_ended() {
            if pid.as_raw_nonzero().get().unsigned_abs() == runsc.id() {
                return code_of(end);
            }
        }
        if connection.is_none() {
            connection = accept_with(listener, SocketFlags::CLOEXEC).ok();
        }
        if let Some(waiting) = connection.take()
            && hand(inlet, 0, Some(waiting.as_fd())) == Err(Errno::AGAIN)
        {
            connection = Some(waiting);
        }
    }
}

/// Sends execd one packet: a connection, or the number of a signal.
fn hand(inlet: &OwnedFd, signal: libc::c_int, connection: Option<BorrowedFd<'_>>) -> std::result::Result<(), Errno> {
    let fds: Vec<BorrowedFd<'_>> = connection.into_iter().collect();
    send_bytes(inlet.as_fd(), &[signal.to_le_bytes()[0]], &fds, SendFlags::DONTWAIT)
}

fn code_of(end: ChildEnd) -> i32 {
    end.code.or(end.signal.map(|signal| 128 + signal)).unwrap_or(1)
}
