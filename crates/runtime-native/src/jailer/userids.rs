//! The ids of an ordinary user's sandboxes: his own one, or his range of /etc/subuid through `newuidmap`.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use rustix::process::Pid;

use super::Mode;
use crate::error::{Context, Failure, Result};
use crate::init::Ids;

/// Ids that a sandbox needs beside root for users of images to exist.
const WANTED_IDS: u32 = 65_535;

/// What an ordinary user may map.
#[derive(Clone, Debug)]
pub struct UserIds {
    uid: u32,
    gid: u32,
    ranges: Option<Ranges>,
}

/// His ranges and the programs that map them.
#[derive(Clone, Debug)]
struct Ranges {
    uids: (u32, u32),
    gids: (u32, u32),
    newuidmap: PathBuf,
    newgidmap: PathBuf,
}

impl UserIds {
    /// Looks at /etc/subuid, /etc/subgid and for the mapping programs.
    pub fn discover(mode: Mode) -> Self {
        let uid = rustix::process::getuid().as_raw();
        let gid = rustix::process::getgid().as_raw();
        let ranges = match mode {
            Mode::Root => None,
            Mode::User => Ranges::discover(uid),
        };
        Self { uid, gid, ranges }
    }

    /// Which ids exist in his sandboxes.
    pub fn ids(&self) -> Ids {
        if self.ranges.is_some() { Ids::Range } else { Ids::Single }
    }

    /// Writes the id maps of a new sandbox.
    pub fn map(&self, pid: Pid) -> Result<()> {
        let process = format!("/proc/{}", pid.as_raw_nonzero());
        let Some(ranges) = &self.ranges else {
            fs::write(format!("{process}/setgroups"), "deny").op("forbid setgroups")?;
            fs::write(format!("{process}/uid_map"), format!("0 {} 1", self.uid)).op("write uid_map")?;
            return fs::write(format!("{process}/gid_map"), format!("0 {} 1", self.gid)).op("write gid_map");
        };
        run(&ranges.newuidmap, pid, self.uid, ranges.uids)?;
        run(&ranges.newgidmap, pid, self.gid, ranges.gids)
    }

    /// Removes a directory in which files of other ids of the range lie.
    pub fn remove_tree(&self, directory: &Path) -> Result<()> {
        use std::os::fd::AsFd;

        use crate::sys::{self, Cloned};
        let (go, ready) = rustix::pipe::pipe_with(rustix::pipe::PipeFlags::CLOEXEC).op("make a pipe")?;
        match sys::clone_namespaces(libc::CLONE_NEWUSER as u64).op("clone into a user namespace")? {
            Cloned::Parent(pid, child) => {
                drop(go);
                self.map(pid)?;
                drop(ready);
                let wait = rustix::process::WaitId::PidFd(child.as_fd());
                rustix::process::waitid(wait, rustix::process::WaitIdOptions::EXITED).op("wait for the removal")?;
            }
            Cloned::Child => {
                drop(ready);
                let mut nothing = [0u8; 1];
                // Returns when the maps are written.
                let _ = rustix::io::read(&go, &mut nothing);
                let zero = (rustix::thread::Uid::ROOT, rustix::thread::Gid::ROOT);
                let _ = rustix::thread::set_thread_res_gid(zero.1, zero.1, zero.1);
                let _ = rustix::thread::set_thread_res_uid(zero.0, zero.0, zero.0);
                std::process::exit(i32::from(fs::remove_dir_all(directory).is_err()));
            }
        }
        if directory.exists() {
            return Err(Failure::internal(format!("remove {}: files of its sandbox are left", directory.display())));
        }
        Ok(())
    }
}

impl Ranges {
    fn discover(uid: u32) -> Option<Self> {
        let passwd = fs::read_to_string("/etc/passwd").ok()?;
        let own = passwd.lines().find(|line| line.split(':').nth(2) == Some(&uid.to_string()));
        let name = own.and_then(|line| line.split(':').next()).map(str::to_owned);
        let range = |path: &str| {
            let text = fs::read_to_string(path).ok()?;
            text.lines().find_map(|line| {
                let mut fields = line.split(':');
                let owner = fields.next()?;
                let (first, count): (u32, u32) = (fields.next()?.parse().ok()?, fields.next()?.trim().parse().ok()?);
                let ours = Some(owner) == name.as_deref() || owner == uid.to_string();
                (ours && count >= WANTED_IDS).then_some((first, count.min(WANTED_IDS)))
            })
        };
        let program = |name: &str| {
            ["/usr/bin", "/bin"].map(|dir| Path::new(dir).join(name)).into_iter().find(|path| path.exists())
        };
        Some(Self {
            uids: range("/etc/subuid")?,
            gids: range("/etc/subgid")?,
            newuidmap: program("newuidmap")?,
            newgidmap: program("newgidmap")?,
        })
    }
}

fn run(program: &Path, pid: Pid, own: u32, range: (u32, u32)) -> Result<()> {
    let arguments = [pid.as_raw_nonzero().get() as u32, 0, own, 1, 1, range.0, range.1];
    let output = Command::new(program)
        .args(arguments.map(|number| number.to_string()))
        .stdin(Stdio::null())
        .output()
        .op(format!("run {}", program.display()))?;
    if output.status.success() {
        return Ok(());
    }
    let words = String::from_utf8_lossy(&output.stderr);
    Err(Failure::internal(format!("{}: {}", program.display(), words.trim())))
}
