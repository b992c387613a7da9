//! Which limit is enforced by what: by cgroups where there are some for us, otherwise by the limits of each process.

use std::fs;

use super::{Jail, Mode};
use crate::cgroup::Hierarchies;
use crate::error::{Failure, Kind, Result};
use crate::wire::PlanLimits;

/// Share of the machine's memory that all sandboxes together may use, in percent.
const PARENT_MEMORY_PERCENT: u64 = 90;
/// Share of the machine's process numbers that all sandboxes together may use, in percent.
const PARENT_PIDS_PERCENT: u64 = 75;

/// The cgroups to use, with the group that bounds all sandboxes made; or why there are none.
pub fn cgroups(mode: Mode, parent: &str) -> Result<(Option<Hierarchies>, Option<Failure>)> {
    match mode {
        Mode::Root => of_the_machine(parent),
        Mode::User => match Hierarchies::delegated().and_then(|found| prepared(found, parent)) {
            Ok(found) => Ok((Some(found), None)),
            Err(failure) => Ok((None, Some(failure))),
        },
    }
}

/// Root's cgroups. In a container whose only group holds other programs too they serve without limits.
fn of_the_machine(parent: &str) -> Result<(Option<Hierarchies>, Option<Failure>)> {
    let mut found = Hierarchies::discover()?;
    if found.v2.is_none() && found.v1.is_empty() {
        return Ok((None, None));
    }
    match prepared(found.clone(), parent) {
        Err(failure) if failure.kind == Kind::Unsupported => {
            found.v2_controllers.clear();
            Ok((Some(prepared(found, parent)?), Some(failure)))
        }
        other => Ok((Some(other?), None)),
    }
}

fn prepared(mut cgroups: Hierarchies, parent: &str) -> Result<Hierarchies> {
    let limits = parent_limits(&cgroups);
    cgroups.prepare_parent(parent, &limits)?;
    Ok(cgroups)
}

fn parent_limits(cgroups: &Hierarchies) -> PlanLimits {
    let memory_bytes = rustix::system::sysinfo().totalram as u64 / 100 * PARENT_MEMORY_PERCENT;
    let pid_max = fs::read_to_string("/proc/sys/kernel/pid_max").ok().and_then(|text| text.trim().parse::<u64>().ok());
    PlanLimits {
        memory_bytes: cgroups.means("memory").map(|_| memory_bytes),
        pids: cgroups.means("pids").and(pid_max).map(|count| count / 100 * PARENT_PIDS_PERCENT),
        ..PlanLimits::default()
    }
}

impl Jail {
    /// What enforces a sandbox's limit on `cpu`, `memory` or `pids`; `None` where nothing does.
    pub fn means(&self, name: &str) -> Option<&'static str> {
        let by_group = self.cgroups.as_ref().and_then(|found| found.means(name));
        let by_process = match (self.mode, name) {
            (Mode::Root, _) => None,
            (Mode::User, "cpu") => Some("affinity"),
            (Mode::User, _) => Some("rlimit"),
        };
        by_group.or(by_process)
    }

    /// The part of the limits that cgroups enforce. For root all are tried, so that one that is not carried fails.
    pub fn by_group(&self, limits: &PlanLimits) -> PlanLimits {
        match (self.mode, &self.cgroups) {
            (Mode::Root, _) => limits.clone(),
            (Mode::User, Some(found)) => found.carried(limits),
            (Mode::User, None) => PlanLimits::default(),
        }
    }

    /// The part that only the limits of each process can enforce.
    pub fn by_process(&self, limits: &PlanLimits) -> PlanLimits {
        let by_group = self.by_group(limits);
        PlanLimits {
            cpu_millis: limits.cpu_millis.filter(|_| by_group.cpu_millis.is_none()),
            memory_bytes: limits.memory_bytes.filter(|_| by_group.memory_bytes.is_none()),
            pids: limits.pids.filter(|_| by_group.pids.is_none()),
            ..PlanLimits::default()
        }
    }
}
