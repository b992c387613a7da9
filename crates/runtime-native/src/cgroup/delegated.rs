//! The version 2 group that an ordinary user may use: the one he was started in, where its files are his.
//!
//! That is what systemd gives with `Delegate=yes`. Version 1 hierarchies are never delegated: their files would give
//! the machine away.

use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::fs;
use std::path::Path;

use rustix::fs::{Access, access};

use super::{Hierarchies, controllers_of, inner};
use crate::error::{Context, Failure, Kind, Result};

/// What must be writable in a group before it counts as delegated.
const DELEGATED: &[&str] = &["", "cgroup.procs", "cgroup.subtree_control"];

impl Hierarchies {
    /// What was delegated to this process's user. Changes nothing.
    ///
    /// # Errors
    /// Says why there is no such group, or why it cannot be used.
    pub fn delegated() -> Result<Self> {
        let missing = |why: String| Failure::new(Kind::Unsupported, why);
        let mut found = Self::discover()?;
        found.v1 = BTreeMap::new();
        found.own = found.groups_of(&fs::read_to_string("/proc/self/cgroup").op("read /proc/self/cgroup")?);
        let Some(own) = found.own.first() else { return Err(missing("cgroup v2 is not mounted".to_owned())) };
        if own.components().any(|part| part.as_os_str() == OsStr::new("..")) {
            return Err(missing("the own group lies outside of what is mounted".to_owned()));
        }
        // A jailer that was started again finds itself where its predecessor went.
        let is_leaf = own.file_name() == Some(OsStr::new(inner::LEAF));
        let base = if is_leaf { own.parent().unwrap_or(own) } else { own }.to_owned();
        if let Some(file) = DELEGATED.iter().find(|file| !may_write(&base.join(file))) {
            return Err(missing(format!("{} is not this user's to write", base.join(file).display())));
        }
        inner::only_ours(&base)?;
        found.v2_controllers = controllers_of(&base);
        found.v2 = Some(base);
        Ok(found)
    }
}

fn may_write(path: &Path) -> bool {
    access(path, Access::WRITE_OK).is_ok()
}
