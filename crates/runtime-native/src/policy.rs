//! The jailer's own judgement of a plan: a captured server must not be able to ask for more than a sandbox.

use lifecycle::spec::{MAX_REACHABLE, Network};
use protocol::network::Cidr;

use crate::disk;
use crate::error::{Failure, Kind, Result};
use crate::gvisor;
use crate::paths::Paths;
use crate::trust;
use crate::wire::{Kernel, Plan, PlanLimits};

#[cfg(test)]
mod tests;

/// Most layers of an image: Docker's own limit.
pub const MAX_LAYERS: usize = 127;
/// Least memory that execd and a shell can start in.
pub const MIN_MEMORY_BYTES: u64 = 8 << 20;
/// Most memory that a limit may name: the address space of the machine.
const MAX_MEMORY_BYTES: u64 = 1 << 46;
/// Least cpu share the scheduler can keep: one millisecond of its 100 ms period.
const MIN_CPU_MILLIS: u64 = 10;
/// Most cpu share: more cores than any machine has.
const MAX_CPU_MILLIS: u64 = 4_096_000;
/// Fewest processes: execd, a shell, a command and their helper threads.
const MIN_PIDS: u64 = 8;
/// Most processes: the kernel's own ceiling.
const MAX_PIDS: u64 = 4_194_304;
/// Fewest inodes: the disk's own directories need about a dozen.
const MIN_INODES: u64 = 64;
/// Longest wait for execd in milliseconds: the longest hook before the main process, and two minutes.
const MAX_START_DEADLINE_MS: u64 = 10_800_000 + 120_000;
/// Longest grace in milliseconds.
pub const MAX_GRACE_MS: u64 = 600_000;
/// Longest text of an image's USER.
const MAX_USER_BYTES: usize = 256;

/// Refuses a plan that is not one of a sandbox.
pub fn check(plan: &Plan, paths: &Paths) -> Result<()> {
    if plan.layers.is_empty() || plan.layers.len() > MAX_LAYERS {
        return refuse(format!("a plan needs 1 to {MAX_LAYERS} layers, this one has {}", plan.layers.len()));
    }
    for layer in &plan.layers {
        check_layer(layer)?;
        if !paths.layer(layer).is_dir() {
            return Err(Failure::new(Kind::Image, format!("layer {layer} is not unpacked; pull the image again")));
        }
    }
    if plan.user.as_ref().is_some_and(|user| user.len() > MAX_USER_BYTES) {
        return refuse(format!("the image's USER is longer than {MAX_USER_BYTES} bytes"));
    }
    if plan.start_deadline_ms > MAX_START_DEADLINE_MS || plan.grace_ms > MAX_GRACE_MS {
        return refuse("a deadline of the plan is too long".to_owned());
    }
    if let Network::Steered { reachable } = &plan.network {
        check_reachable(reachable)?;
    }
    if let Some(authority) = &plan.authority {
        trust::check(authority)?;
    }
    check_limits(&plan.limits)
}

/// Refuses a plan for another kernel than the operator chose, and limits in which that kernel does not start.
pub fn check_kernel(plan: &Plan, chosen: Kernel) -> Result<()> {
    if plan.kernel != chosen {
        return refuse("the plan is for another kernel than this server's sandboxes have".to_owned());
    }
    if plan.kernel == Kernel::Host {
        return Ok(());
    }
    let rows = [
        ("memory", plan.limits.memory_bytes, gvisor::MIN_MEMORY_BYTES, "bytes"),
        ("pids", plan.limits.pids, gvisor::MIN_PIDS, "processes"),
    ];
    for (name, value, least, unit) in rows {
        if let Some(value) = value.filter(|value| *value < least) {
            let message = format!("resourceLimits.{name}: gVisor itself needs {least} {unit}, {value} are too few");
            return Err(Failure::new(Kind::Unsupported, message));
        }
    }
    Ok(())
}

/// Accepts as many ranges as the kernel takes in one piece.
pub fn check_reachable(reachable: &[Cidr]) -> Result<()> {
    if reachable.len() <= MAX_REACHABLE {
        return Ok(());
    }
    let message = format!("a sandbox may reach {MAX_REACHABLE} ranges of addresses at most, not {}", reachable.len());
    Err(Failure::new(Kind::Invalid, message))
}

/// Accepts 64 lower-case hex digits.
pub fn check_layer(layer: &str) -> Result<()> {
    let hex = layer.len() == 64 && layer.bytes().all(|byte| byte.is_ascii_digit() || (b'a'..=b'f').contains(&byte));
    if hex { Ok(()) } else { refuse("a layer is named by 64 hex digits".to_owned()) }
}

fn check_limits(limits: &PlanLimits) -> Result<()> {
    let rows = [
        ("cpu", limits.cpu_millis, MIN_CPU_MILLIS, MAX_CPU_MILLIS, "thousandths of a core"),
        ("memory", limits.memory_bytes, MIN_MEMORY_BYTES, MAX_MEMORY_BYTES, "bytes"),
        ("pids", limits.pids, MIN_PIDS, MAX_PIDS, "processes"),
        ("disk", limits.disk_bytes, disk::MIN_BYTES, disk::MAX_BYTES, "bytes"),
        ("inodes", limits.disk_inodes, MIN_INODES, u64::from(u32::MAX), "inodes"),
    ];
    for (name, value, least, most, unit) in rows {
        if let Some(value) = value.filter(|value| !(least..=most).contains(value)) {
            let message = format!("resourceLimits.{name}: {value} is outside {least} to {most} {unit}");
            return Err(Failure::new(Kind::Unsupported, message));
        }
    }
    Ok(())
}

fn refuse(why: String) -> Result<()> {
    Err(Failure::new(Kind::Refused, why))
}
