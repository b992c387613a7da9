//! Reads a sandbox's volumes back from the kernel's list of its mounts.

use std::fs;

use lifecycle::runtime::AppliedMount;
use lifecycle::volume::{Source, Volume};

use super::Mode;
use crate::error::{Context, Failure, Result};
use crate::gvisor;
use crate::wire::{Kernel, Plan};

/// What the ids of files are outside.
pub fn ids(mode: Mode) -> &'static str {
    match mode {
        Mode::Root => "id-mapped",
        Mode::User => "shifted",
    }
}

/// The volumes as they are mounted.
///
/// # Errors
/// One is missing, or is less protected than it must be.
pub fn read(mode: Mode, plan: &Plan, process: &str) -> Result<Vec<AppliedMount>> {
    if plan.volumes.is_empty() {
        return Ok(Vec::new());
    }
    let table = fs::read_to_string(format!("{process}/mountinfo")).op("read back the sandbox's mounts")?;
    let mut sorted: Vec<&Volume> = plan.volumes.iter().collect();
    sorted.sort_by_key(|volume| volume.mount_path.split('/').count());
    let place = |volume: &Volume| match plan.kernel {
        Kernel::Host => volume.mount_path.clone(),
        Kernel::Gvisor => gvisor::volume_place(sorted.iter().position(|other| *other == volume).unwrap_or_default()),
    };
    plan.volumes.iter().map(|volume| applied(mode, volume, &place(volume), &table)).collect()
}

fn applied(mode: Mode, volume: &Volume, place: &str, table: &str) -> Result<AppliedMount> {
    let less = |what: &str| {
        Failure::internal(format!("the kernel applied less than was asked: volume \"{}\" {what}", volume.name))
    };
    // The last one there is the one that is seen.
    let line = table.lines().rev().find(|line| line.split(' ').nth(4).map(unescaped).as_deref() == Some(place));
    let line = line.ok_or_else(|| less("is not mounted"))?;
    let options = line.split(' ').nth(5).unwrap_or_default();
    let has = |flag: &str| options.split(',').any(|word| word == flag);
    if !has("nosuid") || !has("nodev") || (volume.read_only && !has("ro")) {
        return Err(less(&format!("is mounted with {options}")));
    }
    let file_system = line.split_once(" - ").and_then(|(_, rest)| rest.split(' ').next()).unwrap_or("unknown");
    Ok(AppliedMount {
        name: volume.name.clone(),
        kind: match volume.source {
            Source::Host { .. } => "host",
            Source::Named(_) => "named",
        }
        .to_owned(),
        mount_path: volume.mount_path.clone(),
        read_only: has("ro"),
        file_system: file_system.to_owned(),
        ids: ids(mode).to_owned(),
    })
}

/// A path of the table: the kernel writes blanks and backslashes as octal numbers.
fn unescaped(path: &str) -> String {
    [("\\040", " "), ("\\134", "\\")].iter().fold(path.to_owned(), |path, (from, to)| path.replace(from, to))
}
