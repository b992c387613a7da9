//! execd as PID 1: its descriptors, its signals, its orphans, its end. These tests run as root.

mod support;

use std::time::{Duration, Instant};

use protocol::execd::boot::StatusLine;
use rustix::process::Signal;
use serde_json::json;
use support::pid1::{NOBODY, Sandbox, config};
use support::terminal::{Terminal, create};

#[test]
fn a_sandbox_is_ready_runs_and_ends_with_its_main_process() {
    let mut sandbox = Sandbox::ready(&config(&["sh", "-c", "echo up $FROM_BOOT $OPENSANDBOX_ID; exit 42"]));
    assert_eq!(sandbox.next_status(), Some(StatusLine::Exited(42)));
    assert_eq!(sandbox.next_status(), None);
    assert_eq!(sandbox.wait().code(), Some(42));
    assert_eq!(sandbox.console(), "up yes sb-1\n");
}

#[test]
fn a_signal_is_reported_as_one() {
    let mut sandbox = Sandbox::ready(&config(&["sh", "-c", "kill -KILL $$"]));
    assert_eq!(sandbox.next_status(), Some(StatusLine::Signaled(9)));
    assert_eq!(sandbox.wait().code(), Some(137));
}

#[test]
fn ex_036_a_main_process_that_cannot_start_says_why() {
    let mut sandbox = Sandbox::boot(&config(&["/no/such/program"]));
    let Some(StatusLine::EntrypointFailed(why)) = sandbox.next_status() else { panic!("a failure is told") };
    assert!(why.contains("/no/such/program") && why.contains("no such file"), "{why}");
    assert_eq!(sandbox.wait().code(), Some(127));
    let mut bad = config(&["true"]);
    bad.cwd = Some("/proc/nowhere".into());
    let mut sandbox = Sandbox::boot(&bad);
    let Some(StatusLine::EntrypointFailed(why)) = sandbox.next_status() else { panic!("a failure is told") };
    assert!(why.contains("/proc/nowhere"), "{why}");
}

#[test]
fn a_sandbox_that_only_waits_needs_no_tail() {
    let idle = ["tail", "-f", "/dev/null"];
    let mut boot = config(&idle);
    boot.env.insert("PATH".into(), "/nowhere".into());
    let mut sandbox = Sandbox::ready(&boot);
    assert_eq!(sandbox.target().run(json!({"argv": ["/bin/echo", "it waits"]})).stdout(), "it waits\n");
    sandbox.signal(Signal::TERM);
    assert_eq!(sandbox.next_status(), Some(StatusLine::Signaled(15)));
    assert_eq!(sandbox.wait().code(), Some(143));
    // Anything else is a program that has to be there.
    let mut other = config(&["tail", "-f", "/dev/zero"]);
    other.env = boot.env;
    let told = Sandbox::boot(&other).next_status();
    assert!(matches!(&told, Some(StatusLine::EntrypointFailed(why)) if why.contains("tail")), "{told:?}");
}

#[test]
fn ex_036_a_missing_working_directory_is_made_for_its_user() {
    let directory = tempfile::tempdir().expect("a directory");
    std::fs::set_permissions(directory.path(), std::os::unix::fs::PermissionsExt::from_mode(0o755)).expect("chmod");
    let mut boot = config(&["sh", "-c", "pwd; touch mine; id -u; id -g; cat"]);
    boot.cwd = Some(directory.path().join("a/b").to_str().expect("UTF-8").into());
    boot.user = Some(NOBODY);
    let mut sandbox = Sandbox::ready(&boot);
    assert_eq!(sandbox.next_status(), Some(StatusLine::Exited(0)), "stdin is at its end");
    assert_eq!(sandbox.console(), format!("{}\n65534\n65534\n", boot.cwd.expect("set")));
}

#[test]
fn os_047_argv_of_the_main_process_is_unchanged() {
    let mut sandbox = Sandbox::ready(&config(&["printf", "[%s]", "a  b", "'\"$HOME", "-x", ""]));
    assert_eq!(sandbox.next_status(), Some(StatusLine::Exited(0)));
    assert_eq!(sandbox.console(), "[a  b]['\"$HOME][-x][]");
}

#[test]
fn commands_take_the_sandboxs_user_directory_and_environment() {
    let mut boot = config(&["sleep", "987"]);
    boot.user = Some(NOBODY);
    boot.cwd = Some("/usr".into());
    let sandbox = Sandbox::ready(&boot);
    let run = sandbox.target().shell("id -u; pwd; echo $FROM_BOOT $HOME $OPENSANDBOX_ID $EXECD_ENVS");
    assert_eq!(run.stdout(), "65534\n/usr\nyes /nonexistent sb-1 /opt/opensandbox/.env\n");
    let root = sandbox.target().run(json!({"command": "id -u; echo $HOME", "uid": 0}));
    assert_eq!(root.stdout(), "0\n/root\n");
}

#[test]
fn attack_7_orphans_are_reaped() {
    let sandbox = Sandbox::ready(&config(&["sleep", "987"]));
    let make = "for i in $(seq 100); do (setsid sh -c 'exit 3' &) ; done; for i in $(seq 20); do (sleep 0.05 &); done";
    assert_eq!(sandbox.target().shell(make).end(), "0");
    let zombies = "grep -l '^State:.Z' /proc/[0-9]*/status 2>/dev/null | wc -l";
    let begun = Instant::now();
    while sandbox.target().shell(&format!("pgrep -x sleep | wc -l; {zombies}")).stdout() != "1\n0\n" {
        assert!(begun.elapsed() < Duration::from_secs(10), "{}", sandbox.target().shell("ps ax").stdout());
    }
}

#[test]
fn term_reaches_the_main_process_and_the_rest_once_and_its_own_code_counts() {
    let main = "trap 'echo term; exit 7' TERM; echo up; while :; do sleep 0.02; done";
    let mut sandbox = Sandbox::ready(&config(&["bash", "-c", main]));
    assert_eq!(sandbox.console_line(), "up");
    sandbox.signal(Signal::TERM);
    assert_eq!(sandbox.next_status(), Some(StatusLine::Exited(7)));
    assert_eq!(sandbox.wait().code(), Some(7));
    assert_eq!(sandbox.console(), "term\n");
}

#[test]
fn what_ignores_term_is_killed_after_the_grace() {
    let mut sandbox = Sandbox::ready(&config(&["bash", "-c", "trap '' TERM; echo up; while :; do sleep 0.02; done"]));
    assert_eq!(sandbox.console_line(), "up");
    let begun = Instant::now();
    sandbox.signal(Signal::TERM);
    assert_eq!(sandbox.next_status(), Some(StatusLine::Signaled(9)));
    assert!(begun.elapsed() >= Duration::from_millis(500), "the grace was {:?}", begun.elapsed());
    assert!(begun.elapsed() < Duration::from_secs(5));
    assert_eq!(sandbox.wait().code(), Some(137));
}

#[test]
fn other_signals_are_forwarded_to_the_main_process() {
    let main = "trap 'echo usr1' USR1; trap 'echo hup; exit 3' HUP; echo up; while :; do sleep 0.02; done";
    let mut sandbox = Sandbox::ready(&config(&["bash", "-c", main]));
    assert_eq!(sandbox.console_line(), "up");
    sandbox.signal(Signal::USR1);
    assert_eq!(sandbox.console_line(), "usr1");
    sandbox.signal(Signal::HUP);
    assert_eq!(sandbox.next_status(), Some(StatusLine::Exited(3)));
}

#[test]
fn attack_34_no_token_no_answer_and_children_inherit_nothing() {
    let sandbox = Sandbox::ready(&config(&["sleep", "987"]));
    let support::Target::Unix(path, _) = sandbox.target() else { panic!("a unix socket") };
    for token in [None, Some("wrong".to_owned()), Some("t0ke".to_owned()), Some("t0ken2".to_owned())] {
        let stranger = support::Target::Unix(path.clone(), token);
        for route in ["/ping", "/metrics", "/files/download?path=/etc/passwd", "/proxy/80/", "/nope"] {
            stranger.get(route).refuses(401, "UNAUTHORIZED", "X-EXECD-ACCESS-TOKEN");
        }
    }
    let run = sandbox
        .target()
        .run(json!({"command": "ls /proc/self/fd; cat /proc/1/environ /proc/1/cmdline | tr '\\0' ' '", "uid": 65534}));
    assert!(run.stdout().starts_with("0\n1\n2\n3\n"), "{}", run.stdout());
    assert!(!run.stdout().contains("t0ken"));
    let main = sandbox.target().shell("ls -l /proc/$(pgrep -x sleep)/fd | wc -l");
    assert_eq!(main.stdout(), "4\n", "a total and three descriptors");
}

#[test]
fn os_042_a_reused_number_is_never_signalled() {
    let sandbox = Sandbox::ready(&config(&["sleep", "987"]));
    let target = sandbox.target();
    // Numbers of this namespace come round quickly (per namespace since Linux 6.14).
    assert_eq!(target.shell("echo 400 > /proc/sys/kernel/pid_max").end(), "0");
    // After the first round they begin at 300.
    let number = |run: &support::Run| run.stdout().trim().parse::<u32>().expect("a pid");
    let run = (0..1000).map(|_| target.shell("echo $$")).find(|run| number(run) >= 300).expect("a number from 300 on");
    let (id, wanted) = (run.id(), number(&run));
    for _ in 0..5000 {
        let mut connection = support::Connection::open(&target);
        connection.send("POST", "/command", &[], br#"{"command":"echo $$; exec sleep 987"}"#);
        connection.head();
        let mut seen = Vec::new();
        let run = loop {
            seen.extend_from_slice(&connection.chunk().expect("events"));
            let run = support::Run::parse(&seen);
            if !run.stdout().is_empty() {
                break run;
            }
        };
        if number(&run) != wanted {
            target.delete(&format!("/command?id={}", run.id())).ok();
            continue;
        }
        target.delete(&format!("/command?id={id}")).refuses(400, "RUNTIME_ERROR", "already ended");
        assert_eq!(target.get(&format!("/command/status/{}", run.id())).json()["running"], true, "the newcomer lives");
        return;
    }
    panic!("the number {wanted} did not come back");
}

/// A root of the machine's programs with a `/tmp` of its own.
const CHROOT: &str = "
    set -e
    R=$DIRECTORY/root; mkdir $R; mount -t tmpfs none $R
    mkdir $R/{usr,etc,proc,dev,tmp,root}; chmod 1777 $R/tmp
    mount --rbind /usr $R/usr; mount --rbind /dev $R/dev; mount -t proc none $R/proc
    for link in bin sbin lib lib64; do ln -s usr/$link $R/$link; done
    cp /etc/passwd /etc/group $R/etc; cp $EXECD $R/execd";

fn in_chroot(prelude: &str) -> Sandbox {
    let mut sandbox =
        Sandbox::boot_in(&config(&["/usr/bin/sleep", "987"]), &format!("{CHROOT}; {prelude}; exec chroot $R /execd"));
    assert_eq!(sandbox.next_status(), Some(StatusLine::Ready));
    sandbox
}

#[test]
fn os_046_a_deleted_tmp_is_no_loss() {
    let sandbox = in_chroot("true");
    let target = sandbox.target();
    let background = |text: &str| target.run(json!({"command": format!("echo {text}"), "background": true})).id();
    let finished = |id: &str| {
        while target.get(&format!("/command/status/{id}")).ok().json()["running"] == true {}
    };
    let before = background("before");
    finished(&before);
    assert_eq!(target.shell("ls /tmp; rm -rf /tmp; ls -d /tmp").stdout(), "opensandbox-execd\n");
    assert_eq!(target.shell("echo fine").stdout(), "fine\n");
    let after = background("after");
    finished(&after);
    assert_eq!(target.get(&format!("/command/{after}/logs")).ok().text(), "after\n");
    assert_eq!(target.get(&format!("/command/{before}/logs")).ok().text(), "before\n");
    let body = "--B\r\nContent-Disposition: form-data; name=\"metadata\"; filename=\"m\"\r\n\r\n{\"path\":\"/tmp/new/file\"}\r\n\
        --B\r\nContent-Disposition: form-data; name=\"file\"; filename=\"f\"\r\n\r\nhello\r\n--B--\r\n";
    let upload = support::Connection::open(&target).request(
        "POST",
        "/files/upload",
        &[("Content-Type", "multipart/form-data; boundary=B")],
        body.as_bytes(),
    );
    assert_eq!(upload.status, 200, "{}", upload.text());
    assert_eq!(target.get("/files/download?path=/tmp/new/file").ok().text(), "hello");
    let terminal = create(&target, &json!({"command": "tty; echo still here"}));
    let (seen, exit) = Terminal::attach(&target, &terminal, "").until_exit();
    assert!(seen.text().starts_with("/dev/pts/") && seen.text().ends_with("still here\r\n"), "{}", seen.text());
    assert_eq!(exit["exit_code"], 0);
}

#[test]
fn os_046_a_read_only_root_still_keeps_output() {
    let sandbox = in_chroot("mount -o remount,ro $R; mount -t tmpfs -o ro none $R/dev/shm");
    let target = sandbox.target();
    assert_ne!(target.shell("touch /tmp/x").end(), "0");
    let id = target.run(json!({"command": "echo kept", "background": true})).id();
    while target.get(&format!("/command/status/{id}")).ok().json()["running"] == true {}
    assert_eq!(target.get(&format!("/command/{id}/logs")).ok().text(), "kept\n");
    sessions_work(&target);
}

fn new_session(target: &support::Target) -> String {
    target.post("/session", &json!({})).ok().json()["session_id"].as_str().expect("an id").to_owned()
}

fn in_session(target: &support::Target, id: &str, command: &str) -> support::Run {
    let response = target.post(&format!("/session/{id}/run"), &json!({ "command": command })).ok();
    support::Run::parse(&response.body)
}

/// Sessions in whatever shell there is.
fn sessions_work(target: &support::Target) {
    let id = new_session(target);
    assert_eq!(in_session(target, &id, "export A='one\ntwo'; cd /usr; (exit 3)").end(), "3");
    assert_eq!(in_session(target, &id, "exec 3>/dev/null; set -x; B=\"$A\"; export B").end(), "0");
    let run = in_session(target, &id, "echo \"$0 $PWD $B\"");
    let shell = in_session(target, &id, "echo $0").stdout();
    assert_eq!((run.stdout(), run.end()), (format!("{shell} /usr onetwo"), "0".to_owned()));
}

#[test]
fn os_047_without_bash_sh_is_used_and_without_any_shell_that_is_said() {
    let sandbox = in_chroot("mount --bind /etc/passwd $R/usr/bin/bash");
    let target = sandbox.target();
    assert_eq!(target.shell("echo $0").stdout(), format!("{}\n", "sh"));
    sessions_work(&target);
    let sandbox = in_chroot(
        "for shell in bash dash sh; do mount --bind /etc/passwd $R/usr/bin/$(basename $(readlink -f /usr/bin/$shell)); done",
    );
    let target = sandbox.target();
    let run = target.shell("echo $0");
    assert!(run.end().contains("no shell"), "{}", run.end());
    let run = in_session(&target, &new_session(&target), "echo $0");
    assert!(run.end().contains("no shell"), "{}", run.end());
    assert_eq!(target.run(json!({"argv": ["printf", "works"]})).stdout(), "works");
}

#[test]
fn a_missing_dev_null_is_no_obstacle() {
    let sandbox = in_chroot("umount -l $R/dev");
    let target = sandbox.target();
    assert_eq!(target.run(json!({"argv": ["cat"]})).end(), "0");
}
