//! Ranges of host ids: each sandbox has 65,536 of its own, recorded before use.
//!
//! A slot is claimed by making a symbolic link whose text is the sandbox's directory: one atomic step that either is or
//! is not there after a crash. All data directories of a machine claim in one place, since ids belong to the machine. A
//! slot is freed only when no process of the sandbox is left.

use std::fs;
use std::io::ErrorKind;
use std::path::Path;

use lifecycle::runtime::IdRange;
use lifecycle::spec::SandboxId;

use crate::error::{Context, Failure, Kind, Result};

#[cfg(test)]
mod tests;

/// First id of slot 0: above the ranges of `useradd` (/etc/subuid) and of systemd-nspawn (up to 0x6FFF_FFFF).
pub const FIRST_ID: u32 = 0x7000_0000;
/// Ids in each slot.
pub const SLOT_IDS: u32 = 0x1_0000;
/// Slots, the reserved one included; the last id stays below 0x7FFF_0000, short of the sign bit.
pub const SLOTS: u32 = 4095;
/// Slot 0 belongs to the server and to the egress process.
const FIRST_SLOT: u32 = 1;

/// A claimed range.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Slot(pub u32);

impl Slot {
    /// The ids of this slot.
    pub fn range(self) -> IdRange {
        IdRange { first: FIRST_ID + self.0 * SLOT_IDS, count: SLOT_IDS }
    }
}

/// Ranges that belong to somebody else on this machine.
#[derive(Clone, Debug, Default)]
pub struct Foreign(Vec<(u64, u64)>);

impl Foreign {
    /// Reads /etc/subuid and /etc/subgid.
    pub fn read() -> Self {
        let texts = ["/etc/subuid", "/etc/subgid"].map(|path| fs::read_to_string(path).unwrap_or_default());
        Self(texts.iter().flat_map(|text| Self::parse(text)).collect())
    }

    fn parse(text: &str) -> Vec<(u64, u64)> {
        let entry = |line: &str| {
            let mut fields = line.split(':').skip(1);
            let first: u64 = fields.next()?.trim().parse().ok()?;
            let count: u64 = fields.next()?.trim().parse().ok()?;
            Some((first, first + count))
        };
        text.lines().filter_map(entry).collect()
    }

    fn overlaps(&self, range: IdRange) -> bool {
        let (first, end) = (u64::from(range.first), u64::from(range.first) + u64::from(range.count));
        self.0.iter().any(|(from, to)| first < *to && *from < end)
    }
}

/// Claims a free slot for the sandbox with this directory, trying from `hint` on.
pub fn claim(slots: &Path, sandbox: &Path, hint: u32, foreign: &Foreign) -> Result<Slot> {
    let usable = SLOTS - FIRST_SLOT;
    for step in 0..usable {
        let slot = Slot(FIRST_SLOT + (hint.wrapping_add(step)) % usable);
        if foreign.overlaps(slot.range()) {
            continue;
        }
        match std::os::unix::fs::symlink(sandbox, slots.join(slot.0.to_string())) {
            Ok(()) => return Ok(slot),
            Err(error) if error.kind() == ErrorKind::AlreadyExists => {}
            Err(error) => return Err(error).op("claim an id range"),
        }
    }
    Err(Failure::new(Kind::Exhausted, format!("all {usable} id ranges are in use; delete a sandbox first")))
}

/// Every slot that is claimed for a sandbox beneath this directory of sandboxes.
pub fn claimed(slots: &Path, sandboxes: &Path) -> Result<Vec<(Slot, SandboxId)>> {
    let mut found = Vec::new();
    for entry in fs::read_dir(slots).op("list id ranges")? {
        let entry = entry.op("list id ranges")?;
        let slot = entry.file_name().to_str().and_then(|name| name.parse().ok());
        let owner = fs::read_link(entry.path()).ok();
        let owner = owner.filter(|path| path.parent() == Some(sandboxes));
        let owner = owner.and_then(|path| SandboxId::parse(path.file_name()?.to_str()?));
        if let (Some(slot), Some(owner)) = (slot, owner) {
            found.push((Slot(slot), owner));
        }
    }
    Ok(found)
}

/// Gives the slots of a sandbox back. `known` saves the search when the slot was recorded.
pub fn release(slots: &Path, sandbox: &Path, known: Option<Slot>) -> Result<()> {
    let owned = match known {
        Some(slot) => vec![slot],
        None => {
            let sandboxes = sandbox.parent().unwrap_or(Path::new("/"));
            let of_ours = |owner: &SandboxId| sandbox.file_name().is_some_and(|name| name == owner.as_str());
            claimed(slots, sandboxes)?.into_iter().filter(|(_, owner)| of_ours(owner)).map(|(slot, _)| slot).collect()
        }
    };
    for slot in owned {
        let path = slots.join(slot.0.to_string());
        if fs::read_link(&path).is_ok_and(|owner| owner == sandbox) {
            fs::remove_file(&path).op("release an id range")?;
        }
    }
    Ok(())
}
