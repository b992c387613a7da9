//! Resource limits: parsed, bounded, and compared with what the runtime can enforce.

use std::collections::BTreeMap;

use super::Refusal;
use crate::quantity;
use crate::runtime::Capabilities;
use crate::spec::Limits;

/// Least memory in bytes that a sandbox can live in: execd, a shell and the kernel's own part.
pub const MIN_MEMORY_BYTES: u64 = 16 << 20;
/// Least disk in bytes: room for `/etc`, the spool and a file system's own tables.
pub const MIN_DISK_BYTES: u64 = 16 << 20;
/// Most disk in bytes: a sparse image of the default file system stays well below its own limit.
pub const MAX_DISK_BYTES: u64 = 4 << 40;
/// Fewest inodes: the directories that every sandbox has.
pub const MIN_INODES: u64 = 256;
/// Fewest processes: execd, the main process and a command with its shell.
pub const MIN_PIDS: u64 = 8;
/// Most processes: the kernel's own ceiling for one machine.
pub const MAX_PIDS: u64 = 4_194_304;
/// Least cpu, in thousandths: the kernel's smallest quota is 1 ms in a period of 100 ms.
pub const MIN_CPU_MILLIS: u64 = 10;

/// Parses the map of the request.
pub(super) fn parse(asked: &BTreeMap<String, String>, runtime: &Capabilities) -> Result<Limits, Refusal> {
    let mut limits = Limits::default();
    for (key, text) in asked {
        let field = format!("resourceLimits.{key}");
        match key.as_str() {
            "cpu" => {
                let millis = quantity::cpu_millis(text)
                    .ok_or_else(|| bad(&field, text, "a number of cores (\"0.5\") or thousandths (\"500m\")"))?;
                at_least(&field, millis, MIN_CPU_MILLIS, "thousandths of a core")?;
                if !runtime.fractional_cpu && millis % 1000 != 0 && enforceable(runtime, "cpu") {
                    return Err(Refusal::unsupported(
                        field,
                        "only whole cores can be enforced here (no cpu cgroup is delegated to this user); use \"1\", or see `osb doctor`",
                    ));
                }
                limits.cpu_millis = Some(millis);
            }
            "memory" => {
                let bytes = amount(&field, text)?;
                at_least(&field, bytes, MIN_MEMORY_BYTES, "bytes")?;
                limits.memory_bytes = Some(bytes);
            }
            "disk" => {
                let bytes = amount(&field, text)?;
                at_least(&field, bytes, MIN_DISK_BYTES, "bytes")?;
                at_most(&field, bytes, MAX_DISK_BYTES, "bytes")?;
                limits.disk_bytes = Some(bytes);
            }
            "inodes" => {
                let count = quantity::count(text).ok_or_else(|| bad(&field, text, "a positive integer"))?;
                at_least(&field, count, MIN_INODES, "inodes")?;
                limits.disk_inodes = Some(count);
            }
            "pids" => {
                let count = quantity::count(text).ok_or_else(|| bad(&field, text, "a positive integer"))?;
                at_least(&field, count, MIN_PIDS, "processes")?;
                at_most(&field, count, MAX_PIDS, "processes")?;
                limits.pids = Some(count);
            }
            "gpu" => return Err(gpu(field, text)),
            _ => {
                return Err(Refusal::bad(field, "is an unknown limit; known are cpu, memory, pids, disk and inodes"));
            }
        }
        if !enforceable(runtime, key) {
            return Err(Refusal::unsupported(
                format!("resourceLimits.{key}"),
                format!(
                    "cannot be enforced by the {} runtime on this machine; leave it out, or see `osb doctor` for what is missing",
                    runtime.runtime
                ),
            ));
        }
    }
    Ok(limits)
}

fn gpu(field: String, text: &str) -> Refusal {
    let well_formed = text == "all" || quantity::count(text).is_some();
    if well_formed {
        Refusal::unsupported(field, "the native runtime hands out no GPUs; leave it out")
    } else {
        bad(&field, text, "a positive integer or \"all\"")
    }
}

fn enforceable(runtime: &Capabilities, key: &str) -> bool {
    runtime.limits.get(key).is_some_and(|by| by != "none")
}

fn amount(field: &str, text: &str) -> Result<u64, Refusal> {
    quantity::bytes(text).ok_or_else(|| bad(field, text, "an integer with an optional unit (\"512Mi\", \"2Gi\")"))
}

fn bad(field: &str, text: &str, form: &str) -> Refusal {
    let shown: String = text.chars().take(40).collect();
    Refusal::bad(field, format!("\"{shown}\" is not {form}"))
}

fn at_least(field: &str, value: u64, least: u64, unit: &str) -> Result<(), Refusal> {
    if value >= least {
        Ok(())
    } else {
        Err(Refusal::bad(field, format!("{value} is too little; the least is {least} {unit}")))
    }
}

fn at_most(field: &str, value: u64, most: u64, unit: &str) -> Result<(), Refusal> {
    if value <= most {
        Ok(())
    } else {
        Err(Refusal::bad(field, format!("{value} is too much; the most is {most} {unit}")))
    }
}
