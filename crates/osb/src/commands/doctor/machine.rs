//! The facts of this machine, gathered once.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use runtime_native::cgroup::Hierarchies;

/// Everything that the checks look at.
#[derive(Clone, Debug, Default)]
pub struct Machine {
    /// Whether this user is root.
    pub root: bool,
    /// This user's name, or number.
    pub user: String,
    /// Kernel version: major and minor.
    pub kernel: (u32, u32),
    /// The kernel's own words for it.
    pub release: String,
    /// What a try of a new user and mount namespace said: `Ok`, or the error.
    pub user_namespace: Attempt,
    /// What a try of an overlay in a user namespace said.
    pub overlay: Attempt,
    /// What a try of a sandbox's network said.
    pub network: Attempt,
    /// `kernel.unprivileged_userns_clone`, `user.max_user_namespaces` and AppArmor's switch, where they forbid.
    pub forbidden_by: Vec<String>,
    /// This user's line in `/etc/subuid`.
    pub subordinate_ids: Option<String>,
    /// Where `newuidmap` is.
    pub newuidmap: Option<PathBuf>,
    /// How cgroups are mounted here.
    pub cgroups: Cgroups,
    /// Whether `/dev/loop-control` can be opened.
    pub loop_devices: bool,
    /// Whether the kernel knows ext4.
    pub ext4: bool,
    /// Where `mkfs.ext4` is.
    pub mkfs: Option<PathBuf>,
    /// Whether seccomp filters can refuse calls.
    pub seccomp: bool,
    /// Whether Landlock is on.
    pub landlock: bool,
    /// Version of the machine's gVisor, where this user can use it.
    pub gvisor: Option<String>,
    /// Version of the machine's python3.
    pub python: Option<String>,
    /// `kernel.pid_max`.
    pub pid_max: u64,
    /// How many files a process may open, and may ask for.
    pub open_files: (u64, u64),
}

/// A thing that was tried.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Attempt {
    /// It worked.
    Worked,
    /// It failed, with the reason.
    Failed(String),
    /// It could not be tried, with the reason.
    #[default]
    NotTried,
}

/// How cgroups are mounted.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Cgroups {
    /// `v1`, `v2`, `hybrid` or `none`.
    pub layout: &'static str,
    /// Controllers that can limit a sandbox.
    pub controllers: Vec<String>,
    /// Why this user cannot make groups, if he cannot.
    pub unusable: Option<String>,
}

impl Machine {
    /// Looks at everything.
    pub fn look() -> Self {
        let root = rustix::process::geteuid().is_root();
        let release = rustix::system::uname().release().to_string_lossy().into_owned();
        let (mut kernel, user) = (release.split(['.', '-']).map_while(|part| part.parse().ok()), user_name());
        let limit = rustix::process::getrlimit(rustix::process::Resource::Nofile);
        Self {
            root,
            kernel: (kernel.next().unwrap_or(0), kernel.next().unwrap_or(0)),
            user_namespace: attempt(&["--user", "--map-root-user", "--mount", "--pid", "--fork", "true"]),
            overlay: try_overlay(),
            network: try_network(),
            forbidden_by: forbidden_by(),
            subordinate_ids: subordinate_ids(&user),
            newuidmap: find("newuidmap"),
            cgroups: Cgroups::look(root),
            loop_devices: fs::OpenOptions::new().read(true).write(true).open("/dev/loop-control").is_ok(),
            ext4: read("/proc/filesystems").lines().any(|line| line.trim().ends_with("ext4")),
            mkfs: find("mkfs.ext4"),
            seccomp: read("/proc/sys/kernel/seccomp/actions_avail").split_whitespace().any(|word| word == "errno"),
            landlock: read("/sys/kernel/security/lsm").split(',').any(|word| word.trim() == "landlock"),
            gvisor: runtime_native::gvisor::Runsc::find().ok().map(|runsc| runsc.version),
            python: python(),
            pid_max: number("/proc/sys/kernel/pid_max"),
            open_files: (limit.current.unwrap_or(u64::MAX), limit.maximum.unwrap_or(u64::MAX)),
            release,
            user,
        }
    }
}

impl Cgroups {
    fn look(root: bool) -> Self {
        let mounts = read("/proc/self/mounts");
        let mut v1 = Vec::new();
        let mut v2 = None;
        for line in mounts.lines() {
            let words: Vec<_> = line.split(' ').collect();
            match words[..] {
                [_, at, "cgroup", options, ..] => v1.push((PathBuf::from(at), options.to_owned())),
                [_, at, "cgroup2", ..] => v2 = v2.or(Some(PathBuf::from(at))),
                _ => {}
            }
        }
        let unified = v2.as_deref().map(|at| read(at.join("cgroup.controllers"))).unwrap_or_default();
        let mut controllers: Vec<String> = unified.split_whitespace().map(str::to_owned).collect();
        for name in ["cpu", "memory", "pids", "freezer", "blkio"] {
            if v1.iter().any(|(_, options)| options.split(',').any(|option| option == name)) {
                controllers.push(name.to_owned());
            }
        }
        let layout = match (v1.is_empty(), &v2) {
            (false, Some(_)) => "hybrid",
            (false, None) => "v1",
            (true, Some(_)) => "v2",
            (true, None) => "none",
        };
        if root {
            let unusable = (layout == "none").then(|| "none is mounted".to_owned());
            return Self { layout, controllers, unusable };
        }
        match Hierarchies::delegated() {
            Ok(found) => {
                let controllers = found.v2_controllers.iter().map(|name| (*name).to_owned()).collect();
                Self { layout, controllers, unusable: None }
            }
            Err(failure) => Self { layout, controllers, unusable: Some(failure.message) },
        }
    }
}

/// Runs `unshare` with these words.
fn attempt(words: &[&str]) -> Attempt {
    let Some(unshare) = find("unshare") else { return Attempt::NotTried };
    match Command::new(unshare).args(words).stdin(Stdio::null()).output() {
        Ok(output) if output.status.success() => Attempt::Worked,
        Ok(output) => Attempt::Failed(String::from_utf8_lossy(&output.stderr).trim().to_owned()),
        Err(_) => Attempt::NotTried,
    }
}

/// Mounts an overlay on a tmpfs in a user namespace, as a sandbox's own root does.
/// Sets up a network as a sandbox has it, in namespaces that are gone afterwards.
fn try_network() -> Attempt {
    match runtime_native::probe::network() {
        Ok(()) => Attempt::Worked,
        Err(failure) => Attempt::Failed(failure.message),
    }
}

fn try_overlay() -> Attempt {
    let script = "mount -t tmpfs tmpfs /mnt && mkdir /mnt/l /mnt/u /mnt/w /mnt/m && \
        mount -t overlay overlay -o userxattr,lowerdir=/mnt/l,upperdir=/mnt/u,workdir=/mnt/w /mnt/m";
    attempt(&["--user", "--map-root-user", "--mount", "sh", "-c", script])
}

fn forbidden_by() -> Vec<String> {
    let zero = |name: &str| {
        let path = Path::new("/proc/sys").join(name.replace('.', "/"));
        fs::read_to_string(path).is_ok_and(|text| text.trim() == "0").then(|| format!("{name}=0"))
    };
    let restricted = "kernel.apparmor_restrict_unprivileged_userns";
    let apparmor = read("/proc/sys/kernel/apparmor_restrict_unprivileged_userns").trim() == "1";
    let names = ["kernel.unprivileged_userns_clone", "user.max_user_namespaces", "user.max_mnt_namespaces"];
    names.into_iter().filter_map(zero).chain(apparmor.then(|| format!("{restricted}=1"))).collect()
}

fn user_name() -> String {
    let uid = rustix::process::geteuid().as_raw();
    let passwd = read("/etc/passwd");
    let found = passwd.lines().find_map(|line| {
        let mut words = line.split(':');
        let name = words.next()?;
        (words.nth(1)? == uid.to_string()).then(|| name.to_owned())
    });
    found.unwrap_or_else(|| uid.to_string())
}

fn subordinate_ids(user: &str) -> Option<String> {
    let uid = rustix::process::geteuid().as_raw().to_string();
    let file = read("/etc/subuid");
    file.lines().find(|line| line.split(':').next().is_some_and(|name| name == user || name == uid)).map(str::to_owned)
}

fn python() -> Option<String> {
    let output = Command::new("/usr/bin/python3").arg("--version").stdin(Stdio::null()).output().ok()?;
    output.status.success().then(|| String::from_utf8_lossy(&output.stdout).trim().to_owned())
}

/// A program in the usual directories, also those that only root's PATH has.
fn find(name: &str) -> Option<PathBuf> {
    let path = std::env::var("PATH").unwrap_or_default();
    path.split(':')
        .chain(["/usr/local/sbin", "/usr/sbin", "/sbin", "/usr/bin", "/bin"])
        .filter(|dir| dir.starts_with('/'))
        .map(|dir| Path::new(dir).join(name))
        .find(|path| fs::metadata(path).is_ok_and(|meta| meta.is_file() && meta.permissions().mode() & 0o111 != 0))
}

/// A file of the kernel, empty where it is not.
fn read(path: impl AsRef<Path>) -> String {
    fs::read_to_string(path).unwrap_or_default()
}

fn number(path: &str) -> u64 {
    read(path).trim().parse().unwrap_or(0)
}
