//! The process as a whole: gives up what it does not need before it reads a byte of anybody, then serves.

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::process::ExitCode;
use std::sync::Arc;

use rustix::process::{DumpableBehavior, Resource, Rlimit};
use rustix::thread::{Gid, Uid};
use tokio::signal::unix::{SignalKind, signal};
use zeroize::Zeroizing;

use crate::control::{self, First};
use crate::limits::{DESCRIPTORS_PER_FLOW, DESCRIPTORS_RESERVED};
use crate::sandbox::Shared;
use crate::sealed::Memory;
use crate::secrets::Holdings;

/// Threads that move bytes. More than one, so that one sandbox's work on a core is not everybody's wait; few, because
/// each costs memory, and two cores move more than most networks carry.
const MAX_THREADS: usize = 4;
/// Stack of each; its deepest call is a message of DNS.
const THREAD_STACK_BYTES: usize = 512 * 1024;
/// Connections of the process when it may have hardly any descriptors.
const FEWEST_FLOWS: u64 = 16;

/// Runs the egress process: waits for [`Boot`] on the control socket, then serves requests until nobody holds its other
/// end. Must be called before any thread exists.
pub fn run(control: OwnedFd) -> ExitCode {
    match start(control) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            // There may be no log yet, and there is nobody else to tell.
            eprintln!("egress: {error}; it is started by `osb server`, not by hand");
            ExitCode::FAILURE
        }
    }
}

fn start(control: OwnedFd) -> io::Result<()> {
    let Some((bytes, fds)) = control::receive_blocking(control.as_fd())? else { return Ok(()) };
    let bytes = Zeroizing::new(bytes);
    let First { run_as, key, authorities } = serde_json::from_slice(&bytes)?;
    drop(bytes);
    give_up_rights(run_as)?;
    let memory = key.zip(fds.into_iter().next()).map(|(key, file)| Memory::from_parts(file, key, authorities));
    let secrets = Holdings::open(memory)?;
    let flows = allow_descriptors()?;
    let threads = std::thread::available_parallelism().map_or(1, usize::from).min(MAX_THREADS);
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(threads)
        .max_blocking_threads(1)
        .thread_stack_size(THREAD_STACK_BYTES)
        .thread_name("egress")
        .enable_all()
        .build()?;
    // The first random number of the crypto library takes it tens of milliseconds; whoever needs the second does not wait.
    let warm = runtime.spawn_blocking(|| aws_lc_rs::rand::fill(&mut [0]));
    runtime.block_on(async {
        let mut instance = [0; 8];
        getrandom::fill(&mut instance).map_err(|_| io::Error::other("the kernel gives no random bytes"))?;
        // JSON readers of other languages keep whole numbers up to 2^53.
        let instance = u64::from_ne_bytes(instance) >> 11;
        let served = control::serve(control, Arc::new(Shared::new(flows, secrets)?), instance);
        let mut terminate = signal(SignalKind::terminate())?;
        // At a terminal Ctrl-C reaches every process of the group; the supervisor decides what it means.
        let _interrupt = signal(SignalKind::interrupt())?;
        tokio::select! {
            ended = served => ended?,
            _ = terminate.recv() => {}
        }
        match warm.await {
            Ok(Ok(())) => Ok(()),
            _ => Err(io::Error::other("the crypto library gives no random bytes")),
        }
    })
}

/// No other user's process may look into this one, it leaves no image of its memory, and it gains nothing by exec.
fn give_up_rights(run_as: Option<u32>) -> io::Result<()> {
    if let Some(id) = run_as {
        let (uid, gid) = (Uid::from_raw(id), Gid::from_raw(id));
        rustix::thread::set_thread_groups(&[])?;
        rustix::thread::set_thread_res_gid(gid, gid, gid)?;
        rustix::thread::set_thread_res_uid(uid, uid, uid)?;
    }
    rustix::thread::set_no_new_privs(true)?;
    rustix::process::setrlimit(Resource::Core, Rlimit { current: Some(0), maximum: Some(0) })?;
    // After the change of identity, which would set it back.
    rustix::process::set_dumpable_behavior(DumpableBehavior::NotDumpable)?;
    Ok(())
}

/// Takes all descriptors that it may have; says for how many connections they are enough.
fn allow_descriptors() -> io::Result<usize> {
    let limit = rustix::process::getrlimit(Resource::Nofile);
    rustix::process::setrlimit(Resource::Nofile, Rlimit { current: limit.maximum, maximum: limit.maximum })?;
    let descriptors = limit.maximum.unwrap_or(1 << 20);
    let flows = descriptors.saturating_sub(DESCRIPTORS_RESERVED) / DESCRIPTORS_PER_FLOW;
    Ok(usize::try_from(flows.max(FEWEST_FLOWS)).unwrap_or(usize::MAX >> 4))
}
