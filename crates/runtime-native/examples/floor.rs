//! The least that this kernel can do for one sandbox: what every launcher of the bench is compared with.
//!
//! Each run makes the groups (cpu, memory, pids and the version 2 tree where they exist) with limits, clones into
//! the namespaces that a sandbox has (user and network included), mounts an overlay with the options of the
//! runtime, pivots into it, installs a system-call filter and executes a static program that ends at once. The time
//! of a run is from the first group to the reaping; removing groups and directories is not part of it, but is part
//! of the wall time.
//!
//! `floor RUNS [WORKERS]` prints `{"micros": [...], "wall_micros": N}`. Needs root. It is no sandbox: ids are
//! mapped to themselves.

use std::fs;
use std::io::{Error, ErrorKind, Read as _, Write as _};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitCode, Stdio};
use std::time::{Duration, Instant};

use runtime_native::sys::{self, Cloned};
use rustix::fs::{CWD, Mode, OFlags};
use rustix::mount::{
    FsMountFlags, FsOpenFlags, MountAttrFlags, MountPropagationFlags, MoveMountFlags, UnmountFlags, fsconfig_create,
    fsconfig_set_flag, fsconfig_set_string, fsmount, fsopen, mount_change, move_mount, unmount,
};
use rustix::process::{Pid, WaitOptions, waitpid};

/// Namespaces of a sandbox: user, mount, pid, ipc, uts, net, cgroup.
const NAMESPACES: u64 = 0x1000_0000 | 0x2_0000 | 0x2000_0000 | 0x800_0000 | 0x400_0000 | 0x4000_0000 | 0x200_0000;
/// Where hierarchies are mounted; the last is the version 2 tree of a hybrid machine, or of a pure one.
const HIERARCHIES: &[&str] = &["cpu", "memory", "pids", "unified"];
/// Limits of each run; files that a hierarchy does not have are passed over.
const LIMITS: &[(&str, &str)] = &[
    ("cpu.cfs_quota_us", "100000"),
    ("memory.limit_in_bytes", "536870912"),
    ("pids.max", "512"),
    ("memory.max", "536870912"),
];
/// Runs before the first that counts.
const WARM_UP: usize = 5;
/// The kernel empties a group a moment after the reaping; this bounds the wait for it.
const REMOVAL: Duration = Duration::from_secs(5);

fn main() -> ExitCode {
    let mut words = std::env::args().skip(1);
    let runs = words.next().and_then(|word| word.parse().ok());
    let workers = words.next().map_or(Some(1), |word| word.parse::<usize>().ok());
    let outcome = match (runs, workers) {
        (Some(runs), Some(1)) => run(runs),
        (Some(runs), Some(workers)) if workers > 1 => share(runs, workers),
        _ => Err(Error::other("usage: floor RUNS [WORKERS]")),
    };
    match outcome {
        Ok(text) => {
            println!("{text}");
            ExitCode::SUCCESS
        }
        Err(error) => {
            eprintln!("floor: {error}");
            ExitCode::FAILURE
        }
    }
}

/// Divides the runs among processes, because each must be single-threaded.
fn share(runs: usize, workers: usize) -> Result<String, Error> {
    let program = std::env::current_exe()?;
    let start = Instant::now();
    let spawn = |_| Command::new(&program).arg((runs / workers).to_string()).stdout(Stdio::piped()).spawn();
    let children = (0..workers).map(spawn).collect::<Result<Vec<Child>, Error>>()?;
    let mut micros: Vec<u64> = Vec::new();
    for child in children {
        let output = child.wait_with_output()?;
        let answer: serde_json::Value = serde_json::from_slice(&output.stdout)?;
        let part = answer["micros"].as_array().ok_or_else(|| Error::other("a worker failed"))?;
        micros.extend(part.iter().filter_map(serde_json::Value::as_u64));
    }
    Ok(answer(&micros, start))
}

fn run(runs: usize) -> Result<String, Error> {
    let place = Place::make()?;
    for _ in 0..WARM_UP {
        place.sandbox()?;
    }
    let start = Instant::now();
    let micros = (0..runs).map(|_| place.sandbox()).collect::<Result<Vec<u64>, Error>>()?;
    Ok(answer(&micros, start))
}

fn answer(micros: &[u64], start: Instant) -> String {
    let wall = start.elapsed().as_micros() as u64;
    serde_json::json!({ "micros": micros, "wall_micros": wall }).to_string()
}

/// A directory with one layer that holds the program, removed at the end.
struct Place {
    path: PathBuf,
    program: OwnedFd,
    group: String,
}

impl Place {
    fn make() -> Result<Self, Error> {
        let name = format!("osb-floor-{}", std::process::id());
        let path = std::env::temp_dir().join(&name);
        fs::create_dir_all(path.join("layer"))?;
        fs::write(path.join("layer/true"), smallest_program())?;
        std::os::unix::fs::chown(&path, Some(0), Some(0))?;
        fs::set_permissions(path.join("layer/true"), std::os::unix::fs::PermissionsExt::from_mode(0o755))?;
        let program = rustix::fs::open(path.join("layer/true"), OFlags::PATH | OFlags::CLOEXEC, Mode::empty())?;
        Ok(Self { path, program, group: name })
    }

    /// One run; its time in microseconds.
    fn sandbox(&self) -> Result<u64, Error> {
        let start = Instant::now();
        let groups = self.groups()?;
        let run = self.path.join("run");
        fs::create_dir(&run)?;
        for part in ["upper", "work", "root"] {
            fs::create_dir(run.join(part))?;
        }
        let (mut ours, theirs) = UnixStream::pair()?;
        match sys::clone_namespaces(NAMESPACES)? {
            Cloned::Child => {
                drop(ours);
                let error = self.child(theirs, &run);
                eprintln!("floor: inside: {error}");
                std::process::exit(1);
            }
            Cloned::Parent(pid, _pidfd) => {
                drop(theirs);
                for kind in ["uid_map", "gid_map"] {
                    fs::write(format!("/proc/{}/{kind}", pid.as_raw_nonzero()), "0 0 65536\n")?;
                }
                for group in &groups {
                    fs::write(group.join("cgroup.procs"), pid.as_raw_nonzero().to_string())?;
                }
                ours.write_all(b"g")?;
                reap(pid)?;
            }
        }
        let micros = start.elapsed().as_micros() as u64;
        fs::remove_dir_all(&run)?;
        groups.iter().try_for_each(|group| remove_group(group))?;
        Ok(micros)
    }

    fn groups(&self) -> Result<Vec<PathBuf>, Error> {
        let root = Path::new("/sys/fs/cgroup");
        let pure = root.join("cgroup.controllers").exists();
        let mounted: Vec<PathBuf> = if pure {
            vec![root.to_owned()]
        } else {
            HIERARCHIES.iter().map(|name| root.join(name)).filter(|path| path.join("cgroup.procs").exists()).collect()
        };
        let groups: Vec<PathBuf> = mounted.iter().map(|path| path.join(&self.group)).collect();
        for group in &groups {
            fs::create_dir(group)?;
            for (file, value) in LIMITS {
                if group.join(file).exists() {
                    fs::write(group.join(file), value)?;
                }
            }
        }
        Ok(groups)
    }

    /// Never returns but with the reason.
    fn child(&self, mut control: UnixStream, run: &Path) -> Error {
        match self.enter(&mut control, run) {
            Ok(()) => sys::exec_descriptor(self.program.as_fd(), c"true").into(),
            Err(error) => error,
        }
    }

    fn enter(&self, control: &mut UnixStream, run: &Path) -> Result<(), Error> {
        control.read_exact(&mut [0])?;
        sys::bring_loopback_up()?;
        mount_change("/", MountPropagationFlags::PRIVATE | MountPropagationFlags::REC)?;
        let overlay = fsopen("overlay", FsOpenFlags::FSOPEN_CLOEXEC)?;
        fsconfig_set_string(&overlay, "lowerdir", self.path.join("layer"))?;
        fsconfig_set_string(&overlay, "upperdir", run.join("upper"))?;
        fsconfig_set_string(&overlay, "workdir", run.join("work"))?;
        for (key, value) in [("redirect_dir", "nofollow"), ("metacopy", "off"), ("index", "off"), ("xino", "off")] {
            fsconfig_set_string(&overlay, key, value)?;
        }
        fsconfig_set_flag(&overlay, "userxattr")?;
        fsconfig_set_flag(&overlay, "volatile")?;
        fsconfig_create(&overlay)?;
        let attributes = MountAttrFlags::MOUNT_ATTR_NOSUID | MountAttrFlags::MOUNT_ATTR_NODEV;
        let root = fsmount(&overlay, FsMountFlags::FSMOUNT_CLOEXEC, attributes)?;
        move_mount(&root, "", CWD, run.join("root"), MoveMountFlags::MOVE_MOUNT_F_EMPTY_PATH)?;
        rustix::process::chdir(run.join("root"))?;
        rustix::process::pivot_root(".", ".")?;
        unmount(".", UnmountFlags::DETACH)?;
        rustix::thread::set_no_new_privs(true)?;
        sys::install_filter(&filter())?;
        Ok(())
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        // What a failed run left; nothing can be done about an error here.
        let _ = fs::remove_dir_all(&self.path);
    }
}

fn reap(pid: Pid) -> Result<(), Error> {
    let status = waitpid(Some(pid), WaitOptions::empty())?.map(|(_, status)| status);
    match status.and_then(|status| status.exit_status()) {
        Some(0) => Ok(()),
        _ => Err(Error::other("the program inside did not end with 0")),
    }
}

fn remove_group(group: &Path) -> Result<(), Error> {
    let deadline = Instant::now() + REMOVAL;
    loop {
        match fs::remove_dir(group) {
            // The reaped process leaves its groups a moment later, and there is no event for version 1.
            Err(error) if error.kind() == ErrorKind::ResourceBusy && Instant::now() < deadline => {
                std::thread::yield_now()
            }
            other => return other,
        }
    }
}

/// Allows everything in as many steps as an allow-list takes to find a common call.
fn filter() -> Vec<libc::sock_filter> {
    const LOAD: u16 = 0x20;
    const JUMP_IF_EQUAL: u16 = 0x15;
    const RETURN: u16 = 0x06;
    /// A number that no architecture uses.
    const NO_CALL: u32 = 0x3FFF_FFFF;
    /// Comparisons on the way to a verdict in a list of 300 calls that is searched by halves.
    const STEPS: usize = 9;
    let step = |code, k| libc::sock_filter { code, jt: 0, jf: 0, k };
    let mut program = vec![step(LOAD, 0)];
    program.extend(std::iter::repeat_n(step(JUMP_IF_EQUAL, NO_CALL), STEPS));
    program.push(step(RETURN, libc::SECCOMP_RET_ALLOW));
    program
}

/// A static program that ends at once with 0.
fn smallest_program() -> Vec<u8> {
    /// Where the kernel maps the file.
    const BASE: u64 = 0x40_0000;
    /// ELF header and one program header.
    const HEADERS: u64 = 64 + 56;
    #[cfg(target_arch = "x86_64")]
    // xor edi, edi; mov eax, 60; syscall
    const CODE: &[u8] = &[0x31, 0xFF, 0xB8, 60, 0, 0, 0, 0x0F, 0x05];
    #[cfg(target_arch = "aarch64")]
    // mov x0, #0; mov x8, #93; svc #0
    const CODE: &[u8] = &[0x00, 0x00, 0x80, 0xD2, 0xA8, 0x0B, 0x80, 0xD2, 0x01, 0x00, 0x00, 0xD4];
    const MACHINE: u16 = if cfg!(target_arch = "x86_64") { 62 } else { 183 };
    let size = HEADERS + CODE.len() as u64;
    let mut elf = vec![0x7F, b'E', b'L', b'F', 2, 1, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0];
    let mut half = |value: u16| elf.extend(value.to_le_bytes());
    half(2);
    half(MACHINE);
    elf.extend(1u32.to_le_bytes());
    for word in [BASE + HEADERS, 64, 0] {
        elf.extend(word.to_le_bytes());
    }
    elf.extend(0u32.to_le_bytes());
    for value in [64u16, 56, 1, 0, 0, 0] {
        elf.extend(value.to_le_bytes());
    }
    // PT_LOAD, readable and executable.
    elf.extend(1u32.to_le_bytes());
    elf.extend(5u32.to_le_bytes());
    for word in [0, BASE, BASE, size, size, 0x1000] {
        elf.extend(word.to_le_bytes());
    }
    elf.extend(CODE);
    elf
}
