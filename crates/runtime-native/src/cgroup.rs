//! A thin writer for cgroups, version 1, version 2, and both at once.
//!
//! On a hybrid machine limits live in the version 1 hierarchies and each sandbox has a version 2 group beside them,
//! because only version 2 can kill and freeze a group as a whole and says when it is empty.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use crate::error::{Context, Result};
use crate::wire::PlanLimits;

mod delegated;
mod files;
mod group;
mod inner;

use files::{make, write};
use group::Carrier;
pub use group::{Applied, Counters, Freeze, Group};

#[cfg(test)]
mod tests;

/// The hierarchies that a sandbox has a group in, version 1. `cpuacct` has no limit but serves metrics.
const V1_CONTROLLERS: &[&str] = &["cpu", "cpuacct", "memory", "pids"];
/// The controllers of version 2 that carry limits.
const V2_CONTROLLERS: &[&str] = &["cpu", "memory", "pids"];

/// Where this machine mounts its cgroups.
#[derive(Clone, Debug, Default)]
pub struct Hierarchies {
    /// Version 1: controller to mount point.
    pub v1: BTreeMap<String, PathBuf>,
    /// Version 2: the group beneath which we may make groups; for root the mount point, for an ordinary user the group
    /// that was delegated to him.
    pub v2: Option<PathBuf>,
    /// Those of the limits' controllers that version 2 carries there.
    pub v2_controllers: Vec<&'static str>,
    /// The groups in which this process was when it looked, one in each hierarchy of use to us.
    pub own: Vec<PathBuf>,
}

impl Hierarchies {
    /// Reads this process's mount table.
    pub fn discover() -> Result<Self> {
        let table = fs::read_to_string("/proc/self/mountinfo").op("read mountinfo")?;
        let mut found = Self::parse(&table);
        found.own = found.groups_of(&fs::read_to_string("/proc/self/cgroup").op("read /proc/self/cgroup")?);
        found.v2_controllers = found.v2.as_deref().map(controllers_of).unwrap_or_default();
        Ok(found)
    }

    /// The groups of a `/proc/<pid>/cgroup`, as directories.
    fn groups_of(&self, table: &str) -> Vec<PathBuf> {
        let mut groups = Vec::new();
        for line in table.lines() {
            let mut fields = line.splitn(3, ':').skip(1);
            let (Some(controllers), Some(path)) = (fields.next(), fields.next()) else { continue };
            let mount_point = match controllers {
                "" => self.v2.as_ref(),
                some => some.split(',').find_map(|name| self.v1.get(name)),
            };
            groups.extend(mount_point.map(|mount_point| mount_point.join(path.trim_start_matches('/'))));
        }
        groups
    }

    /// Moves the calling process, which must have one thread, back to the version 1 groups in which it was when it looked,
    /// see [`Group::enter`].
    pub fn leave(&self) -> Result<()> {
        let is_v1 = |path: &&PathBuf| self.v2.as_ref().is_none_or(|v2| !path.starts_with(v2));
        self.own.iter().filter(is_v1).try_for_each(|path| write(&path.join("tasks"), "0"))
    }

    fn parse(table: &str) -> Self {
        let mut found = Self::default();
        for line in table.lines() {
            let Some((left, right)) = line.split_once(" - ") else { continue };
            let Some(mount_point) = left.split(' ').nth(4) else { continue };
            let mut fields = right.split(' ');
            let (kind, options) = (fields.next().unwrap_or(""), fields.nth(1).unwrap_or(""));
            match kind {
                "cgroup2" => found.v2 = Some(mount_point.into()),
                "cgroup" => {
                    for option in
                        options.split(',').filter(|option| V1_CONTROLLERS.contains(option) || *option == "freezer")
                    {
                        found.v1.insert(option.to_owned(), mount_point.into());
                    }
                }
                _ => {}
            }
        }
        found
    }

    /// `cgroup v1`, `cgroup v2`, or `None` if this controller is nowhere.
    pub fn means(&self, controller: &str) -> Option<&'static str> {
        if self.v1.contains_key(controller) {
            Some("cgroup v1")
        } else if self.v2_controllers.contains(&controller) {
            Some("cgroup v2")
        } else {
            None
        }
    }

    /// Those of the limits that some hierarchy carries.
    pub fn carried(&self, limits: &PlanLimits) -> PlanLimits {
        PlanLimits {
            cpu_millis: limits.cpu_millis.filter(|_| self.means("cpu").is_some()),
            memory_bytes: limits.memory_bytes.filter(|_| self.means("memory").is_some()),
            pids: limits.pids.filter(|_| self.means("pids").is_some()),
            ..PlanLimits::default()
        }
    }

    /// Whether groups can be frozen.
    pub fn can_freeze(&self) -> bool {
        self.v2.is_some() || self.v1.contains_key("freezer")
    }

    /// The group of that name beneath `parent`.
    pub fn group(&self, parent: &str, name: &str) -> Group {
        let mut v1: Vec<(String, PathBuf)> = Vec::new();
        for (controller, mount_point) in &self.v1 {
            let path = mount_point.join(parent).join(name);
            let wanted = controller != "freezer" || self.v2.is_none();
            // Some machines mount two controllers together.
            if wanted && !v1.iter().any(|(_, known)| *known == path) {
                v1.push((controller.clone(), path));
            }
        }
        let v2 = self.v2.as_ref().map(|base| base.join(parent).join(name));
        let at = |controller: &str| self.v1.get(controller).map(|mount_point| mount_point.join(parent).join(name));
        let carrier = |controller: &str| match at(controller) {
            Some(path) => Some(Carrier::V1(path)),
            None => v2.clone().filter(|_| self.v2_controllers.contains(&controller)).map(Carrier::V2),
        };
        Group {
            cpu: carrier("cpu"),
            memory: carrier("memory"),
            pids: carrier("pids"),
            freezer: at("freezer").filter(|_| v2.is_none()),
            v1: v1.into_iter().map(|(_, path)| path).collect(),
            v2,
        }
    }

    /// Makes the group that bounds all sandboxes together, and passes controllers down to it.
    ///
    /// # Errors
    /// A group cannot be made or limited, or the version 2 group that we stand in holds processes of others.
    pub fn prepare_parent(&mut self, parent: &str, limits: &PlanLimits) -> Result<()> {
        if let (Some(base), false) = (self.v2.clone(), self.v2_controllers.is_empty()) {
            inner::pass_down(&base, &self.v2_controllers)?;
            // What was moved out of the way includes this process.
            for own in self.own.iter_mut().filter(|own| **own == base && base.join(inner::LEAF).exists()) {
                own.push(inner::LEAF);
            }
            make(&base.join(parent))?;
            inner::enable(&base.join(parent), &self.v2_controllers).op(format!("pass controllers to {parent}"))?;
        }
        let group = self.group(parent, "");
        group.create()?;
        group.limit(limits)
    }

    /// Removes the parent group in every hierarchy where nothing is in it.
    pub fn release_parent(&self, parent: &str) {
        for root in self.v1.values().chain(self.v2.as_ref()) {
            // A group with children is busy and stays; one that is not there needs nothing.
            let _ = fs::remove_dir(root.join(parent));
        }
        if let Some(base) = &self.v2 {
            inner::give_back(base, &self.v2_controllers);
        }
    }

    /// Names of the groups beneath `parent`, in any hierarchy.
    pub fn children(&self, parent: &str) -> Vec<String> {
        let roots = self.v1.values().chain(self.v2.as_ref());
        let mut names: Vec<String> = roots
            .filter_map(|root| fs::read_dir(root.join(parent)).ok())
            .flatten()
            .filter_map(|entry| entry.ok())
            .filter(|entry| entry.file_type().is_ok_and(|kind| kind.is_dir()))
            .filter_map(|entry| entry.file_name().into_string().ok())
            .collect();
        names.sort_unstable();
        names.dedup();
        names
    }
}

/// Those of the limits' controllers that a version 2 group has.
fn controllers_of(group: &Path) -> Vec<&'static str> {
    let text = fs::read_to_string(group.join("cgroup.controllers")).unwrap_or_default();
    V2_CONTROLLERS.iter().copied().filter(|name| text.split_whitespace().any(|word| word == *name)).collect()
}
