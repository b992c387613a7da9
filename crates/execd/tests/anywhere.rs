//! The same short list in roots of every kind: what is in an image is its maker's business, not execd's.

mod support;

use protocol::execd::boot::{BootConfig, BootUser, StatusLine};
use serde_json::json;
use support::files::{MULTIPART, multipart};
use support::pid1::{NOBODY, Sandbox, config};
use support::{Connection, Target};

/// A Debian root: the machine's own programs.
const DEBIAN: &str = "mkdir $R/usr $R/tmp; chmod 1777 $R/tmp; mount --rbind /usr $R/usr
    for link in bin sbin lib lib64; do ln -s usr/$link $R/$link; done";
/// What Alpine has: one program by many names, sh and no bash, no libc to load.
const BUSYBOX: &str = "mkdir $R/bin $R/tmp; chmod 1777 $R/tmp; cp $(command -v busybox) $R/bin/busybox
    chroot $R /bin/busybox --install -s /bin";
/// One static program and nothing else.
const DISTROLESS: &str = "cp $(command -v busybox) $R/cat";
/// Not even that; execd is its own main process.
const EMPTY: &str = "true";

/// What a root has that the list depends on.
#[derive(Clone, Copy)]
struct Root {
    name: &'static str,
    make: &'static str,
    shell: Option<&'static str>,
    /// Prints its input.
    cat: Option<&'static str>,
    /// A directory that everybody may write, or that nobody may.
    writable: Option<&'static str>,
}

const ROOTS: [Root; 4] = [
    Root { name: "debian", make: DEBIAN, shell: Some("bash"), cat: Some("/usr/bin/cat"), writable: Some("/tmp") },
    Root { name: "busybox", make: BUSYBOX, shell: Some("sh"), cat: Some("/bin/cat"), writable: Some("/tmp") },
    Root { name: "distroless", make: DISTROLESS, shell: None, cat: Some("/cat"), writable: Some("/data") },
    Root { name: "empty", make: EMPTY, shell: None, cat: None, writable: Some("/data") },
];

/// Boots in a root; `after` changes it once it is made.
fn boot(root: &Root, user: Option<BootUser>, after: &str) -> Sandbox {
    let script = format!(
        "set -e; R=$DIRECTORY/root; mkdir $R; mount -t tmpfs none $R; cp $EXECD $R/execd; mkdir $R/proc
         mount -t proc none $R/proc; {}; {after}; exec chroot $R /execd",
        root.make
    );
    // The only program that every root has: a daemon of its own, which nobody asks anything.
    let mut sandbox =
        Sandbox::boot_in(&BootConfig { user, ..config(&["/execd", "--host", "127.0.0.1", "--port", "0"]) }, &script);
    assert_eq!(sandbox.next_status(), Some(StatusLine::Ready), "{}", root.name);
    sandbox
}

/// The short list.
fn check(root: &Root, target: &Target) {
    let name = root.name;
    target.get("/ping").ok();
    if let Some(cat) = root.cat {
        let run = target.run(json!({"argv": [cat, "/proc/self/comm"]}));
        assert_eq!((run.stdout().as_str(), run.end().as_str()), ("cat\n", "0"), "{name}");
    }
    let run = target.shell("echo $0");
    match root.shell {
        Some(shell) => assert_eq!(run.stdout(), format!("{shell}\n"), "{name}"),
        None => assert!(run.end().contains("no shell"), "{name}: {}", run.end()),
    }
    assert!(target.run(json!({"argv": ["/no/such/program"]})).end().contains("no such file"), "{name}");
    assert!(!target.get("/directories/list?path=/").ok().json().as_array().expect("a list").is_empty(), "{name}");
    let Some(writable) = root.writable else {
        let body = multipart(&[(json!({"path": "/f"}), b"x")]);
        let refused = Connection::open(target).request("POST", "/files/upload", &[MULTIPART], &body);
        refused.refuses(400, "INVALID_FILE", "read-only");
        return;
    };
    let file = format!("{writable}/w/f");
    let body = multipart(&[(json!({"path": file, "mode": 640}), b"text\n")]);
    Connection::open(target).request("POST", "/files/upload", &[MULTIPART], &body).ok();
    assert_eq!(target.get(&format!("/files/download?path={file}")).ok().text(), "text\n", "{name}");
    let found = target.get(&format!("/files/search?path={writable}/w&pattern=*")).ok().json();
    assert_eq!(found[0]["path"], json!(file), "{name}");
    let archive = target.get(&format!("/v1/archive?path={writable}/w")).ok().body;
    let put = format!("/v1/archive?path={writable}/copy");
    Connection::open(target).request("PUT", &put, &[], &archive).ok();
    assert_eq!(target.get(&format!("/files/download?path={writable}/copy/f")).ok().text(), "text\n", "{name}");
    // Under another identity, which the account files of the root need not know.
    let own = format!("/v1/filesystem/4242/4242/files/download?path={file}");
    target.get(&own).refuses(400, "INVALID_FILE", "denied");
    target.delete(&format!("/directories?path={writable}/w&path={writable}/copy")).ok();
    if let Some(shell) = root.shell {
        let background = target.run(json!({"command": "echo $0 kept", "background": true})).id();
        while target.get(&format!("/command/status/{background}")).ok().json()["running"] == true {}
        let kept = target.get(&format!("/command/{background}/logs")).ok().text();
        assert_eq!(kept, format!("{shell} kept\n"), "{name}");
    }
}

#[test]
fn os_047_every_kind_of_root_will_do() {
    for root in &ROOTS {
        check(root, &boot(root, None, "true").target());
    }
}

#[test]
fn commands_of_an_ordinary_user_run_in_every_kind_of_root() {
    for root in &ROOTS {
        let sandbox = boot(root, Some(NOBODY), "true");
        check(root, &sandbox.target());
        if let Some(cat) = root.cat {
            let status = sandbox.target().run(json!({"argv": [cat, "/proc/self/status"]})).stdout();
            assert!(status.contains("Uid:\t65534\t65534"), "{}: {status}", root.name);
        }
    }
}

#[test]
fn os_046_a_read_only_root_refuses_writes_and_runs_all_the_same() {
    for root in &ROOTS {
        let root = Root { writable: None, ..*root };
        check(&root, &boot(&root, None, "mount -o remount,ro $R").target());
    }
}

#[test]
fn os_046_a_root_without_tmp_keeps_logs_and_uploads() {
    for root in &ROOTS {
        let root = Root { writable: Some("/elsewhere"), ..*root };
        check(&root, &boot(&root, None, "rm -rf $R/tmp").target());
    }
}
