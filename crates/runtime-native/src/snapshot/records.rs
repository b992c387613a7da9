//! Which snapshots there are, as files: `snapshots/<id>.json`. A record is written before its layer gets its name and goes
//! before its layer does, so a record without its layer is one of a snapshot that was never finished.

use std::collections::BTreeSet;
use std::fs::{self, File};
use std::io::ErrorKind;
use std::path::PathBuf;

use lifecycle::snapshot::{SnapshotId, Taken};
use lifecycle::spec::SandboxId;
use rustix::fs::{FlockOperation, flock};

use crate::error::{Context, Failure, Result};
use crate::paths::Paths;
use crate::state;
use crate::wire::Plan;

/// End of a record's name.
const SUFFIX: &str = ".json";
/// Held while layers get or lose their names for snapshots.
const LOCK: &str = "lock";

/// The directory of records.
pub(crate) struct Records<'a> {
    paths: &'a Paths,
    directory: PathBuf,
}

impl<'a> Records<'a> {
    /// The records of a data directory.
    pub fn of(paths: &'a Paths) -> Self {
        Self { paths, directory: paths.snapshots() }
    }

    /// Waits until no other worker makes or removes a snapshot's layer.
    pub fn lock(&self) -> Result<File> {
        let lock = File::create(self.directory.join(LOCK)).op("open the lock of the snapshots")?;
        flock(&lock, FlockOperation::LockExclusive).op("lock the snapshots")?;
        Ok(lock)
    }

    /// The snapshot with this id, if it is wholly there.
    pub fn get(&self, id: &SnapshotId) -> Result<Option<Taken>> {
        let taken: Option<Taken> = state::load(&self.directory, &name(id))?;
        Ok(taken.filter(|taken| self.is_whole(taken)))
    }

    fn is_whole(&self, taken: &Taken) -> bool {
        taken.standing.layers.last().is_some_and(|layer| self.paths.layer(layer).is_dir())
    }

    /// Writes a record, durably.
    pub fn put(&self, id: &SnapshotId, taken: &Taken) -> Result<()> {
        state::store(&self.directory, &name(id), taken)?;
        let sync = File::open(self.directory.join(name(id))).and_then(|file| file.sync_all());
        sync.and_then(|()| File::open(&self.directory)?.sync_all()).op("flush the record of a snapshot")
    }

    /// Removes a record.
    pub fn forget(&self, id: &SnapshotId) -> Result<()> {
        match fs::remove_file(self.directory.join(name(id))) {
            Err(error) if error.kind() != ErrorKind::NotFound => Err(error).op("remove the record of a snapshot"),
            _ => Ok(()),
        }
    }

    /// Every record, those without a layer too.
    pub fn all(&self) -> Result<Vec<(SnapshotId, Taken)>> {
        let mut found = Vec::new();
        for entry in fs::read_dir(&self.directory).op("list the snapshots")? {
            let entry = entry.op("list the snapshots")?.file_name();
            let id = entry.to_str().and_then(|name| name.strip_suffix(SUFFIX)).and_then(SnapshotId::parse);
            let Some(id) = id else { continue };
            match state::load::<Taken>(&self.directory, &name(&id))? {
                Some(taken) => found.push((id, taken)),
                // Nobody knows any more which layers it needs.
                None if self.directory.join(name(&id)).exists() => {
                    let message = format!("the record of snapshot {id} is damaged; remove the snapshot");
                    return Err(Failure::internal(message));
                }
                None => {}
            }
        }
        Ok(found)
    }

    /// Every snapshot that is wholly there.
    pub fn whole(&self) -> Result<Vec<(SnapshotId, Taken)>> {
        Ok(self.all()?.into_iter().filter(|(_, taken)| self.is_whole(taken)).collect())
    }

    /// Layers that snapshots or sandboxes stand on.
    pub fn layers_in_use(&self) -> Result<BTreeSet<String>> {
        let mut layers: BTreeSet<String> =
            self.all()?.into_iter().flat_map(|(_, taken)| taken.standing.layers).collect();
        for entry in fs::read_dir(self.paths.sandboxes()).op("list sandboxes")? {
            let entry = entry.op("list sandboxes")?;
            if entry.file_name().to_str().and_then(SandboxId::parse).is_none() {
                continue;
            }
            // One whose plan cannot be read might stand on anything.
            match state::load::<Plan>(&entry.path(), state::PLAN)? {
                Some(plan) => layers.extend(plan.layers),
                None if entry.path().join(state::PLAN).exists() => {
                    return Err(Failure::internal(format!("the plan of {} is damaged", entry.path().display())));
                }
                None => {}
            }
        }
        Ok(layers)
    }
}

fn name(id: &SnapshotId) -> String {
    format!("{id}{SUFFIX}")
}
