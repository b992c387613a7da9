//! The rows of the attack list that the launcher holds, tried from inside a sandbox, as root on the host.
//!
//! System calls are made by Perl's `syscall`, which prints the error number; Perl is on every Debian.

mod common;

use std::fs;
use std::os::fd::AsFd;
use std::process::Command;
use std::time::{Duration, Instant};

use common::{Jailer, loops, plan};
use lifecycle::runtime::Exit;
use runtime_native::wire::{Plan, Request, Seen};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{Pid, PidfdFlags, pidfd_open};

/// Runs a script to its end and returns what it printed.
fn inside(script: &str) -> String {
    let jailer = Jailer::start();
    let (console, seen) = jailer.run(&plan(), script);
    assert!(matches!(seen, Seen::Ended { exit: Exit::Exited { code: 0 } }), "{seen:?}: {console}");
    console
}

/// The error numbers of system calls made inside, 0 for success.
fn errors(calls: &[&str]) -> Vec<i32> {
    let lines: Vec<String> = calls.iter().map(|call| format!("$!=0; syscall({call}); print $!+0, qq(\\n);")).collect();
    let console = inside(&format!("perl -e '$|=1; {}'", lines.join(" ")));
    console.lines().map(|line| line.parse().unwrap_or_else(|_| panic!("unexpected output: {console}"))).collect()
}

fn call(number: i64, arguments: &str) -> String {
    if arguments.is_empty() { number.to_string() } else { format!("{number}, {arguments}") }
}

#[test]
fn attack_01_fork_bomb_meets_the_process_limit() {
    let jailer = Jailer::start();
    let neighbour = plan();
    jailer.create(&neighbour, "exec sleep 1000").expect("neighbour");
    let mut bomb = plan();
    bomb.limits.pids = Some(64);
    let script = "perl -e 'my $n=0; while(1){ my $p=fork(); if(!defined $p){last} if($p==0){sleep 1000; exit} $n++ } print qq(forked $n\\n); exit 3'";
    let (console, seen) = jailer.run(&bomb, script);
    let forked: u64 = console.trim().strip_prefix("forked ").and_then(|count| count.parse().ok()).expect("count");
    assert!(forked < 64, "{console}");
    match seen {
        Seen::Ended { exit: Exit::Pids { code, detail } } => {
            assert_eq!(code, Some(3));
            assert!(detail.contains("64"), "{detail}");
        }
        other => panic!("{other:?}"),
    }
    assert_eq!(jailer.inspect(&neighbour.id), Seen::Running);
}

#[test]
fn attack_02_memory_bombs_stay_in_the_group() {
    let jailer = Jailer::start();
    for bomb in [
        "exec perl -e '$x = q(); while(1){ $x .= q(x) x 1048576 }'",
        "exec dd if=/dev/zero of=/dev/shm/fill bs=1M count=200",
        "exec perl -e 'my $f = syscall(319, my $n = qq(m), 0); open(my $h, q(>&=), $f); while(1){ syswrite($h, q(x) x 1048576) or last }'",
    ] {
        let mut plan = plan();
        plan.limits.memory_bytes = Some(64 << 20);
        let (console, seen) = jailer.run(&plan, bomb);
        let oom = matches!(&seen, Seen::Ended { exit: Exit::Oom { detail } } if detail.contains("67108864"));
        // /dev/shm has a size of its own, half of the memory: that write may end with "no space" instead.
        let full = console.contains("No space left") && matches!(seen, Seen::Ended { exit: Exit::Exited { code: 1 } });
        assert!(oom || full, "{bomb}: {seen:?} {console}");
    }
}

#[test]
fn attack_03_disk_and_inode_limits_hold() {
    let jailer = Jailer::start();
    let mut bytes = plan();
    bytes.limits.disk_bytes = Some(32 << 20);
    let receipt = jailer
        .create(&bytes, "dd if=/dev/zero of=/root/fill bs=1M; ls -l /root/fill; stat -f /; exit 7")
        .expect("create");
    assert_eq!(receipt.limits["disk"].by, "ext4 image");
    let seen = jailer.wait_end(&bytes.id);
    let console = jailer.console(&bytes.id);
    assert!(console.contains("No space left on device"), "{console}");
    assert!(matches!(&seen, Seen::Ended { exit: Exit::Disk { code: Some(7), .. } }), "{seen:?} {console}");

    let mut inodes = plan();
    inodes.limits.disk_bytes = Some(64 << 20);
    inodes.limits.disk_inodes = Some(1000);
    let script = "mkdir /root/d; exec perl -e 'my $i=0; while(open(my $h, q(>), qq(/root/d/$i))){ $i++ } print qq(made $i\n$!\n); exit 7'";
    let (console, seen) = jailer.run(&inodes, script);
    let made = console.lines().next().and_then(|line| line.strip_prefix("made ")?.parse::<u64>().ok());
    assert!(made.is_some_and(|made| made < 1000 + 4096) && console.contains("No space left"), "{console}");
    assert!(matches!(&seen, Seen::Ended { exit: Exit::Disk { .. } }), "{seen:?} {console}");
}

#[test]
fn attack_04_inotify_instances_are_the_sandboxs_own() {
    let jailer = Jailer::start();
    let hog = plan();
    let script = "perl -e '$|=1; my $n=0; while(syscall(294, 0) >= 0){ $n++ } print qq(took $n\\n); sleep 1000'";
    jailer.create(&hog, script).expect("create");
    jailer.wait_console(&hog.id, "took");
    let (console, _) = jailer.run(&plan(), "perl -e 'my $fd = syscall(294, 0); print $fd >= 0 ? qq(fine) : qq(none)'");
    assert_eq!(console, "fine");
    rustix::fs::inotify::init(rustix::fs::inotify::CreateFlags::CLOEXEC).expect("the host keeps its own");
}

#[test]
fn attack_07_daemons_do_not_survive() {
    let jailer = Jailer::start();
    let plan = plan();
    let script = "(setsid sleep 4242 &) ; (sleep 4243 & ) ; echo started; exec sleep 4244";
    jailer.create(&plan, script).expect("create");
    jailer.wait_console(&plan.id, "started");
    jailer.destroy(&plan.id, Duration::ZERO);
    let left = Command::new("pgrep").args(["-f", "^sleep 424[234]$"]).output().expect("pgrep");
    assert!(left.stdout.is_empty(), "left: {}", String::from_utf8_lossy(&left.stdout));
}

#[test]
fn attack_08_a_busy_fork_bomb_ends_quickly() {
    let jailer = Jailer::start();
    let mut bomb = plan();
    bomb.limits.pids = Some(520);
    bomb.limits.memory_bytes = Some(1 << 30);
    bomb.limits.cpu_millis = Some(1000);
    let script = "perl -e '$|=1; for (1..512) { my $p=fork(); if(defined $p && $p==0){ while(1){} } } print qq(all\\n); sleep 1000'";
    jailer.create(&bomb, script).expect("create");
    jailer.wait_console(&bomb.id, "all");
    let started = Instant::now();
    jailer.destroy(&bomb.id, Duration::ZERO);
    let took = started.elapsed();
    println!("destroy of 512 busy processes took {took:?}");
    assert!(took < Duration::from_secs(2), "{took:?}");
}

#[test]
fn attack_09_the_machines_controls_are_out_of_reach() {
    let script = r#"
        for f in /proc/sys/kernel/core_pattern /proc/sys/vm/drop_caches /proc/sysrq-trigger /proc/sys/kernel/hostname; do
            (echo x > $f) 2>/dev/null && echo "wrote $f"
        done
        for f in /proc/kcore /proc/kmsg /proc/keys /proc/timer_list /proc/sched_debug; do
            [ -e $f ] && [ -n "$(head -c 16 $f 2>/dev/null)" ] && echo "read $f"
        done
        for f in /sys/firmware/*; do [ -e "$f" ] && echo "saw $f"; done
        touch /sys/x 2>/dev/null && echo "wrote /sys"
        [ -e /dev/kmsg ] && echo "has kmsg"
        echo done"#;
    assert_eq!(inside(script), "done\n");
}

#[test]
fn attack_10_execd_cannot_be_read_written_or_traced() {
    let script = r#"
        cat /proc/1/exe > /dev/null 2>&1 && echo "read exe"
        (echo x > /proc/1/exe) 2>/dev/null && echo "wrote exe"
        cat /proc/1/environ >/dev/null 2>&1 && echo "read environ"
        head -c 1 /proc/1/mem >/dev/null 2>&1 && echo "read mem"
        cat /proc/1/maps 2>/dev/null | grep -q . && echo "read maps"
        ls /proc/1/fd >/dev/null 2>&1 && echo "listed fds"
        perl -e '$!=0; syscall(101, 16, 1, 0, 0); print qq(attached\n) if $!==0'
        echo done"#;
    assert_eq!(inside(script), "done\n");
}

#[test]
fn attack_11_nothing_is_inherited() {
    let script = "ls /proc/self/fd | wc -l; readlink /proc/self/cwd; cat /proc/self/environ | tr '\\0' '\\n' | grep -v ^PATH= | grep -v ^PWD= | grep -v ^_=; true";
    let console = inside(script);
    // Standard input, output, error and the directory that ls itself reads.
    assert_eq!(console, "4\n/\n", "{console}");
}

#[test]
fn attack_12_an_image_cannot_steer_mounts_by_links() {
    let jailer = Jailer::start();
    for name in ["proc", "sys", "dev"] {
        let layer =
            format!("{:0>64}", format!("{name:x<4}").bytes().map(|byte| format!("{byte:x}")).collect::<String>());
        let root = jailer.paths.layer(&layer);
        fs::create_dir_all(root.join("etc")).expect("layer");
        std::os::unix::fs::symlink("/etc", root.join(name)).expect("link");
        let mut plan = plan();
        plan.layers = vec![layer];
        plan.host_programs = false;
        let failure = jailer.create(&plan, "true").expect_err("refused");
        assert!(failure.message.contains(&format!("/{name}")), "{failure}");
        assert_eq!(jailer.inspect(&plan.id), Seen::Absent);
    }
}

#[test]
fn attack_15_nothing_can_be_mounted() {
    let calls = [
        call(libc::SYS_mount, "my $a=qq(none), my $b=qq(/tmp), my $c=qq(tmpfs), 0, 0"),
        call(libc::SYS_umount2, "my $d=qq(/proc), 0"),
        call(libc::SYS_pivot_root, "my $e=qq(/), my $f=qq(/)"),
        call(libc::SYS_fsopen, "my $g=qq(tmpfs), 0"),
        call(libc::SYS_open_tree, "-100, my $h=qq(/), 1"),
        call(libc::SYS_move_mount, "-100, my $i=qq(/tmp), -100, my $j=qq(/tmp), 0"),
        call(libc::SYS_mount_setattr, "-100, my $k=qq(/), 0, 0, 0"),
    ];
    let calls: Vec<&str> = calls.iter().map(String::as_str).collect();
    assert_eq!(errors(&calls), vec![libc::EPERM; calls.len()]);
}

#[test]
fn attack_16_no_new_namespaces() {
    let newuser = libc::CLONE_NEWUSER.to_string();
    let clone = format!("{} | {}", libc::CLONE_NEWUSER, libc::SIGCHLD);
    let calls = [
        call(libc::SYS_unshare, &newuser),
        call(libc::SYS_unshare, &libc::CLONE_NEWNS.to_string()),
        call(libc::SYS_clone, &format!("{clone}, 0, 0, 0, 0")),
        call(libc::SYS_setns, "0, 0"),
        call(libc::SYS_clone3, "0, 0"),
    ];
    let calls: Vec<&str> = calls.iter().map(String::as_str).collect();
    assert_eq!(errors(&calls), [libc::EPERM, libc::EPERM, libc::EPERM, libc::EPERM, libc::ENOSYS]);
}

#[test]
fn attack_17_other_sandboxes_are_invisible() {
    let jailer = Jailer::start();
    let victim = plan();
    jailer.create(&victim, "exec sleep 987654").expect("create");
    let (console, _) =
        jailer.run(&plan(), "cat /proc/[0-9]*/cmdline | tr '\\0' ' ' | grep -c '98765[4]'; ls -d /proc/[0-9]* | wc -l");
    let lines: Vec<&str> = console.lines().collect();
    assert_eq!(lines[0], "0", "{console}");
    assert!(lines[1].parse::<u32>().expect("count") < 8, "{console}");
}

#[test]
fn attack_18_kernel_surface_is_closed() {
    let calls = [
        call(libc::SYS_keyctl, "0, 0, 0"),
        call(libc::SYS_add_key, "0, 0, 0, 0, 0"),
        call(libc::SYS_bpf, "0, 0, 0"),
        call(libc::SYS_perf_event_open, "0, 0, 0, 0, 0"),
        call(libc::SYS_userfaultfd, "0"),
        call(libc::SYS_io_uring_setup, "1, 0"),
        call(libc::SYS_open_by_handle_at, "0, 0, 0"),
        call(libc::SYS_kexec_load, "0, 0, 0, 0"),
        call(libc::SYS_init_module, "0, 0, 0"),
    ];
    let calls: Vec<&str> = calls.iter().map(String::as_str).collect();
    assert_eq!(errors(&calls), vec![libc::EPERM; calls.len()]);
}

#[test]
#[cfg(target_arch = "x86_64")]
fn attack_19_other_abis_are_killed_or_absent() {
    // x32 getpid, then an i386 system call made by int 0x80 from a program that writes itself.
    assert_eq!(errors(&["0x40000027"]), [libc::ENOSYS]);
    let dir = tempfile::tempdir().expect("temp dir");
    let source = dir.path().join("i386.c");
    fs::write(&source, "int main(){int r;__asm__ volatile(\"int $0x80\":\"=a\"(r):\"a\"(20));return r>0?42:1;}")
        .expect("source");
    let jailer = Jailer::start();
    let program = jailer.paths.layer(common::LAYER).join("i386");
    let built = Command::new("gcc").args(["-static", "-o"]).arg(&program).arg(&source).status().expect("gcc");
    assert!(built.success());
    let (console, seen) = jailer.run(&plan(), "/i386; echo code $?");
    assert!(console.contains("code 159"), "killed by SIGSYS: {console} {seen:?}");
}

#[test]
fn attack_20_only_ordinary_sockets_exist() {
    let families: Vec<String> = [libc::AF_ALG, libc::AF_PACKET, libc::AF_VSOCK]
        .iter()
        .map(|family| call(libc::SYS_socket, &format!("{family}, 3, 0")))
        .collect();
    let calls: Vec<&str> = families.iter().map(String::as_str).collect();
    assert_eq!(errors(&calls), [libc::EAFNOSUPPORT; 3]);
    let raw = call(libc::SYS_socket, "2, 3, 1");
    let netfilter = call(libc::SYS_socket, &format!("16, 3, {}", libc::NETLINK_NETFILTER));
    assert_eq!(errors(&[&raw, &netfilter]), [libc::EPERM, libc::EPROTONOSUPPORT]);
}

#[test]
fn attack_21_devices_cannot_be_made_or_opened() {
    let script = r#"
        mknod /tmp/disk b 254 0 2>/dev/null && echo "made a block device"
        mknod /tmp/mem c 1 1 2>/dev/null && echo "made mem"
        ls /dev | tr '\n' ' '"#;
    assert_eq!(inside(script), "fd full mqueue null ptmx pts random shm stderr stdin stdout tty urandom zero ");
}

#[test]
fn attack_22_setuid_bits_and_file_capabilities_are_inert() {
    let script = r#"
        grep -E 'NoNewPrivs' /proc/self/status
        cp /bin/sh /tmp/s && chmod 4755 /tmp/s
        perl -e '$( = 1000; $) = "1000 1000"; $< = $> = 1000; exec "/tmp/s", "-p", "-c", "id -u"'"#;
    assert_eq!(inside(script), "NoNewPrivs:\t1\n1000\n");
}

#[test]
fn attack_23_cgroups_are_a_read_only_view() {
    let script = r#"
        cut -d: -f3 /proc/self/cgroup | sort -u
        for f in $(find /sys/fs/cgroup -name cgroup.procs -o -name release_agent -o -name memory.limit_in_bytes -o -name memory.max); do
            (echo 0 > $f) 2>/dev/null && echo "wrote $f"
        done
        mkdir /sys/fs/cgroup/x 2>/dev/null && echo "made a group"
        cat /sys/fs/cgroup/memory/memory.limit_in_bytes /sys/fs/cgroup/memory.max 2>/dev/null; true"#;
    assert_eq!(inside(script), "/\n268435456\n");
}

#[test]
fn attack_24_abstract_and_host_sockets_are_not_there() {
    use std::os::linux::net::SocketAddrExt;
    let name = format!("osb-attack-24-{}", std::process::id());
    let address = std::os::unix::net::SocketAddr::from_abstract_name(&name).expect("address");
    let _listener = std::os::unix::net::UnixListener::bind_addr(&address).expect("listen");
    let script = format!(
        "perl -MSocket -e 'socket(S,1,1,0); print connect(S, pack(q(Sa*), 1, qq(\\0{name}))) ? qq(connected) : qq(refused)'; find / -xdev -type s 2>/dev/null | head"
    );
    assert_eq!(inside(&script), "refused");
}

#[test]
fn attack_25_ipc_is_the_sandboxs_own() {
    let made = Command::new("ipcmk").args(["-M", "64"]).output().expect("ipcmk");
    let text = String::from_utf8_lossy(&made.stdout);
    let id = text.rsplit(' ').next().expect("id").trim().to_owned();
    let console = inside("ipcs -m | grep -c 0x; ls /dev/mqueue | wc -l; ls /dev/shm | wc -l; true");
    assert!(Command::new("ipcrm").args(["-m", &id]).status().expect("ipcrm").success());
    assert_eq!(console, "0\n0\n0\n");
}

#[test]
fn attack_36_a_killed_monitor_loses_no_exit_and_leaks_nothing() {
    let jailer = Jailer::start();
    let before = loops(&jailer.paths);
    let plan = plan();
    jailer.create(&plan, "echo up; while :; do echo still; sleep 0.01; done").expect("create");
    let (monitor, init) = processes(&jailer, &plan);
    rustix::process::kill_process(monitor, rustix::process::Signal::KILL).expect("kill the monitor");
    wait_gone(monitor);
    assert_eq!(jailer.inspect(&plan.id), Seen::Running, "the sandbox lives on");
    rustix::process::kill_process(init, rustix::process::Signal::KILL).expect("kill PID 1");
    assert_eq!(jailer.wait_end(&plan.id), Seen::Ended { exit: Exit::Signaled { signal: 9 } });
    jailer.destroy(&plan.id, Duration::ZERO);
    assert_eq!(jailer.inspect(&plan.id), Seen::Absent);
    assert!(jailer.list().is_empty());
    assert!(loops(&jailer.paths) <= before + 8, "only the stock is left");
}

#[test]
fn attack_36_a_monitor_is_replaced_after_the_jailer_was() {
    let mut jailer = Jailer::start();
    let plan = plan();
    jailer.create(&plan, "i=0; while :; do echo tick $i; i=$((i+1)); sleep 0.01; done").expect("create");
    let (monitor, init) = processes(&jailer, &plan);
    let monitor_end = pidfd_open(monitor, PidfdFlags::empty()).expect("monitor");
    jailer.restart();
    assert_eq!(jailer.inspect(&plan.id), Seen::Running);
    rustix::process::kill_process(monitor, rustix::process::Signal::KILL).expect("kill the monitor");
    await_end(&monitor_end);
    let ticks = jailer.console(&plan.id).lines().count();
    jailer.wait_console(&plan.id, &format!("tick {}", ticks + 5));
    rustix::process::kill_process(init, rustix::process::Signal::KILL).expect("kill PID 1");
    let seen = jailer.wait_end(&plan.id);
    // Before Linux 6.15 the kernel does not tell a stranger how a process ended.
    let known = Seen::Ended { exit: Exit::Signaled { signal: 9 } };
    assert!(seen == known || matches!(seen, Seen::Ended { exit: Exit::Unknown { .. } }), "{seen:?}");
    jailer.destroy(&plan.id, Duration::ZERO);
    assert_eq!(jailer.inspect(&plan.id), Seen::Absent);
}

#[test]
fn attack_36_a_create_that_is_cut_off_anywhere_can_be_destroyed() {
    let mut jailer = Jailer::start();
    for round in 0..20u64 {
        let plan = plan();
        let boot = common::boot(&plan, "exec sleep 1000");
        let reply = jailer.send(&Request::Create(Box::new(plan.clone())), &[boot.as_fd()]);
        // The points in time are spread over the length of a create; there is no event to wait for on purpose.
        let timeout = Timespec { tv_sec: 0, tv_nsec: (round * 700_000) as _ };
        let _ = poll(&mut [PollFd::new(&reply, PollFlags::IN)], Some(&timeout));
        if let Some((monitor, _)) = try_processes(&jailer, &plan) {
            let _ = rustix::process::kill_process(monitor, rustix::process::Signal::KILL);
        }
        if round % 4 == 3 {
            jailer.restart();
        }
        jailer.destroy(&plan.id, Duration::ZERO);
        assert_eq!(jailer.inspect(&plan.id), Seen::Absent, "round {round}");
    }
    assert!(jailer.list().is_empty());
}

fn processes(jailer: &Jailer, plan: &Plan) -> (Pid, Pid) {
    let (monitor, init) = try_processes(jailer, plan).expect("monitor.json");
    (monitor, init.expect("state.json"))
}

fn try_processes(jailer: &Jailer, plan: &Plan) -> Option<(Pid, Option<Pid>)> {
    let directory = jailer.paths.sandbox(&plan.id);
    let pid = |file: &str, field: &str| {
        let text = fs::read(directory.join(file)).ok()?;
        let value: serde_json::Value = serde_json::from_slice(&text).ok()?;
        Pid::from_raw(i32::try_from(value[field]["pid"].as_i64()?).ok()?)
    };
    Some((pid("monitor.json", "monitor")?, pid("state.json", "init")))
}

fn wait_gone(pid: Pid) {
    if let Ok(process) = pidfd_open(pid, PidfdFlags::empty()) {
        await_end(&process);
    }
}

fn await_end(process: &std::os::fd::OwnedFd) {
    let timeout = Timespec { tv_sec: 10, tv_nsec: 0 };
    assert_eq!(poll(&mut [PollFd::new(process, PollFlags::IN)], Some(&timeout)), Ok(1), "the process did not end");
}
