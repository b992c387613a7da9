//! What the facts of a machine mean for sandboxes, and what to do about it. Pure.

use super::Check;
use super::machine::{Attempt, Machine};

/// First kernel with `user.*` attributes on tmpfs, which directories in a tmpfs upper need.
const TMPFS_XATTR: (u32, u32) = (6, 6);
/// First kernel with id-mapped mounts.
const IDMAPPED_MOUNTS: (u32, u32) = (5, 12);
/// First kernel with overlay mounts in a user namespace.
const OVERLAY_IN_USERNS: (u32, u32) = (5, 11);
/// Below this many process ids a few fork bombs take them all.
const COMFORTABLE_PID_MAX: u64 = 131_072;
/// Below this many open files a server holds only a few hundred sandboxes and streams.
const COMFORTABLE_OPEN_FILES: u64 = 16_384;

/// Every check, in the order of importance.
pub fn all(machine: &Machine) -> Vec<Check> {
    let mut checks = vec![kernel(machine), user_namespaces(machine), overlay(machine), seccomp(machine)];
    if machine.root {
        checks.push(idmapped_mounts(machine));
    } else {
        checks.push(subordinate_ids(machine));
    }
    checks.extend([
        network(machine),
        cgroups(machine),
        disk_limits(machine),
        tmpfs(machine),
        landlock(machine),
        pid_max(machine),
        open_files(machine),
        python(machine),
        gvisor(machine),
    ]);
    checks
}

fn kernel(machine: &Machine) -> Check {
    if machine.kernel >= OVERLAY_IN_USERNS {
        Check::ok("kernel", machine.release.clone())
    } else {
        Check::missing("kernel", machine.release.clone())
            .remedy("install a kernel of 5.11 or later; 6.1 or later is best")
    }
}

fn user_namespaces(machine: &Machine) -> Check {
    let name = "user namespaces";
    let remedy = if machine.forbidden_by.is_empty() {
        "if this is a container, give it --privileged or run osb on the machine itself".to_owned()
    } else {
        let set = |switch: &String| match switch.split_once('=') {
            Some((key, "1")) => format!("sysctl -w {key}=0"),
            Some((key, _)) if key.contains("max_") => format!("sysctl -w {key}=65536"),
            Some((key, _)) => format!("sysctl -w {key}=1"),
            None => String::new(),
        };
        format!("as root: {}", machine.forbidden_by.iter().map(set).collect::<Vec<_>>().join(" && "))
    };
    match &machine.user_namespace {
        Attempt::Worked => Check::ok(name, "a new one was made"),
        Attempt::Failed(why) => Check::missing(name, why.clone()).remedy(remedy),
        Attempt::NotTried if machine.forbidden_by.is_empty() => {
            Check::ok(name, "not tried: there is no `unshare` program").remedy("apt-get install -y util-linux")
        }
        Attempt::NotTried => Check::missing(name, machine.forbidden_by.join(", ")).remedy(remedy),
    }
}

fn overlay(machine: &Machine) -> Check {
    let name = "overlay in a user namespace";
    match &machine.overlay {
        Attempt::Worked => Check::ok(name, "one was mounted"),
        Attempt::NotTried => Check::ok(name, "not tried"),
        Attempt::Failed(why) => {
            Check::missing(name, why.clone()).remedy("as root: modprobe overlay (kernel 5.11 or later)")
        }
    }
}

fn seccomp(machine: &Machine) -> Check {
    if machine.seccomp {
        Check::ok("seccomp filters", "available")
    } else {
        Check::missing("seccomp filters", "the kernel has none").remedy("use a kernel with CONFIG_SECCOMP_FILTER")
    }
}

fn idmapped_mounts(machine: &Machine) -> Check {
    let name = "id-mapped mounts";
    if machine.kernel >= IDMAPPED_MOUNTS {
        Check::ok(name, "the kernel has them; whether the data directory's filesystem does is seen at the first create")
    } else {
        Check::missing(name, "need kernel 5.12").remedy("install a later kernel")
    }
}

fn subordinate_ids(machine: &Machine) -> Check {
    let name = "subordinate ids";
    let user = &machine.user;
    match (&machine.subordinate_ids, &machine.newuidmap) {
        (Some(line), Some(_)) => Check::ok(name, line.clone()),
        (None, _) => Check::weaker(name, format!("{user} has none in /etc/subuid: a sandbox has one user only"))
            .remedy(format!(
                "as root: apt-get install -y uidmap && usermod --add-subuids 100000-165535 --add-subgids 100000-165535 {user}"
            )),
        (Some(_), None) => Check::weaker(name, "there is no newuidmap: a sandbox has one user only")
            .remedy("as root: apt-get install -y uidmap"),
    }
}

fn network(machine: &Machine) -> Check {
    let name = "network of sandboxes";
    match &machine.network {
        Attempt::Worked => Check::ok(name, "one was set up; policies decide what leaves"),
        Attempt::NotTried => Check::ok(name, "not tried"),
        Attempt::Failed(why) => Check::weaker(name, format!("{why}: nothing leaves sandboxes"))
            .remedy("as root: modprobe -a nf_tables nft_tproxy nft_reject_inet (kernel with IPv6 and tproxy)"),
    }
}

fn cgroups(machine: &Machine) -> Check {
    let name = "cgroups";
    let cgroups = &machine.cgroups;
    let found = format!("{}: {}", cgroups.layout, cgroups.controllers.join(" "));
    let absent: Vec<_> = ["cpu", "memory", "pids"]
        .into_iter()
        .filter(|name| !cgroups.controllers.iter().any(|have| have == name))
        .collect();
    if let Some(why) = &cgroups.unusable {
        let check = Check::weaker(name, format!("{found}; {why}, so memory and cpu limits are coarse"));
        return if machine.root {
            check.remedy("mount a cgroup filesystem: mount -t cgroup2 none /sys/fs/cgroup")
        } else {
            check.remedy(
                "start it as `systemd-run --user --scope -p Delegate=yes osb ...`, which hands it a cgroup v2 group of its own; or run it as root",
            )
        };
    }
    if absent.is_empty() {
        Check::ok(name, found)
    } else {
        Check::weaker(name, format!("{found}; without {}", absent.join(", ")))
            .remedy("boot with cgroup_enable=memory, or enable the controllers in cgroup.subtree_control")
    }
}

fn disk_limits(machine: &Machine) -> Check {
    let name = "disk limits";
    if !machine.root {
        return Check::weaker(name, "as an ordinary user by tmpfs only, charged to memory")
            .remedy("run osb as root for limits on disk");
    }
    if machine.mkfs.is_none() {
        return Check::weaker(name, "no mkfs.ext4: by tmpfs only, charged to memory")
            .remedy("apt-get install -y e2fsprogs");
    }
    if !machine.loop_devices || !machine.ext4 {
        return Check::weaker(name, "no loop devices or no ext4: by tmpfs only, charged to memory")
            .remedy("modprobe loop && modprobe ext4");
    }
    Check::ok(name, "an ext4 image for each sandbox; project quota is not used")
}

fn tmpfs(machine: &Machine) -> Check {
    let name = "attributes on tmpfs";
    if machine.kernel >= TMPFS_XATTR {
        Check::ok(name, "available")
    } else {
        Check::weaker(name, "need kernel 6.6: a sandbox on tmpfs cannot replace a directory of its image")
            .remedy("install a kernel of 6.6 or later, for example from Debian backports")
    }
}

fn landlock(machine: &Machine) -> Check {
    if machine.landlock {
        Check::ok("landlock", "on")
    } else {
        Check::weaker("landlock", "off: one layer of protection less")
            .remedy("boot with lsm=landlock,... where the kernel has it")
    }
}

fn pid_max(machine: &Machine) -> Check {
    let found = machine.pid_max.to_string();
    if machine.pid_max >= COMFORTABLE_PID_MAX {
        Check::ok("process ids", found)
    } else {
        Check::weaker("process ids", format!("{found} for the whole machine"))
            .remedy("as root, for many sandboxes: sysctl -w kernel.pid_max=4194304")
    }
}

fn open_files(machine: &Machine) -> Check {
    let (soft, hard) = machine.open_files;
    let found = format!("{soft}, at most {hard}");
    if hard >= COMFORTABLE_OPEN_FILES {
        Check::ok("open files", found)
    } else {
        Check::weaker("open files", found)
            .remedy("for many sandboxes: LimitNOFILE=1048576 in the service, or ulimit -n")
    }
}

fn python(machine: &Machine) -> Check {
    match &machine.python {
        Some(version) => Check::ok("python3 in the host image", version.clone()),
        None => {
            Check::weaker("python3 in the host image", "there is none").remedy("as root: apt-get install -y python3")
        }
    }
}

fn gvisor(machine: &Machine) -> Check {
    let name = "gvisor";
    match &machine.gvisor {
        Some(version) => Check::ok(name, format!("runsc {version}, for servers with secure_runtime.type = \"gvisor\"")),
        // Nobody is worse off who did not ask for it, and who did is refused at the server's start.
        None => Check::ok(name, "no runsc; for secure_runtime.type = \"gvisor\", as root: apt-get install -y runsc"),
    }
}
