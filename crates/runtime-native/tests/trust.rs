//! Programs of a sandbox trust the authority of its plan, in the machine's image and in others, with nothing set by anybody.
//!
//! An authority is made here, and a server with a certificate of it runs in the sandbox. Every check has its opposite: the
//! same program in a sandbox without the authority refuses.

mod common;

use std::collections::BTreeMap;
use std::fs;
use std::os::fd::AsFd;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;
use std::time::{Duration, Instant};

use common::{Jailer, boot_with, plan};
use lifecycle::isolated::{Mount, MountKind, Record, SessionId, SessionSpec};
use protocol::execd::isolated::CreateSession;
use runtime_native::error::Kind;
use runtime_native::trust::{Authority, ENVIRONMENT};
use runtime_native::wire::{Plan, PlanLimits, Reply, Request};

/// A user id without an account and without sub-ids.
const UID: u32 = 12_345;
/// Layer with the server and the clients.
const TOOLS: &str = "00000000000000000000000000000000000000000000000000000000000000bb";
/// Layer of an image of a test's own.
const IMAGE: &str = "00000000000000000000000000000000000000000000000000000000000000cc";
const PATH: &str = "/usr/sbin:/usr/bin:/sbin:/bin";
const CLIENTS: [&str; 12] =
    ["apt", "chromium", "curl", "git", "go", "java", "node", "openssl", "pip", "python", "requests", "wget"];
/// Starts the server and waits for it.
const SERVE: &str = "cd /srv/trust; echo '127.0.0.1 origin.test' >>/etc/hosts; python3 server.py & \
                     until grep -q ':01BB 00000000:0000 0A' /proc/net/tcp; do sleep 0.02; done";

/// What the tests of this file share.
struct Made {
    directory: PathBuf,
    pem: String,
}

/// The authority, a certificate of it, and the clients that must be built.
fn made() -> &'static Made {
    static MADE: OnceLock<Made> = OnceLock::new();
    MADE.get_or_init(|| {
        let directory = Path::new(env!("CARGO_TARGET_TMPDIR")).join("trust");
        // What the last run left.
        let _ = fs::remove_dir_all(&directory);
        fs::create_dir_all(&directory).expect("a directory");
        let sources = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/trust");
        fs::write(directory.join("names"), "subjectAltName=DNS:origin.test,IP:127.0.0.1").expect("names");
        let key = "-newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes";
        let script = format!(
            "set -e
            openssl req -x509 {key} -keyout ca.key -subj '/CN=Sandbox test/O=osb egress' -days 2 -out ca.pem \
                -addext basicConstraints=critical,CA:TRUE,pathlen:0 -addext keyUsage=critical,keyCertSign,cRLSign
            openssl req {key} -keyout leaf.key -subj /CN=origin.test -out leaf.csr
            openssl x509 -req -in leaf.csr -CA ca.pem -CAkey ca.key -days 2 -extfile names -out leaf.pem
            javac -d . {sources}/Client.java
            CGO_ENABLED=0 go build -o client {sources}/client.go",
            sources = sources.display()
        );
        let mut command = Command::new("sh");
        command.args(["-c", &script]).current_dir(&directory);
        // Go's own library is compiled once.
        command.env("GOCACHE", Path::new(env!("CARGO_TARGET_TMPDIR")).join("go")).env("GOFLAGS", "");
        let output = command.output().expect("start a shell");
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        let pem = fs::read_to_string(directory.join("ca.pem")).expect("certificate");
        Made { directory, pem }
    })
}

fn trusting() -> Option<Authority> {
    Some(Authority { pem: made().pem.clone(), java_home: None })
}

/// A layer of the jailer's, owned by its user.
fn layer(jailer: &Jailer, name: &str, uid: Option<u32>, fill: impl FnOnce(&Path)) {
    let root = jailer.paths.layer(name);
    fs::create_dir_all(&root).expect("a layer");
    fill(&root);
    if let Some(uid) = uid {
        let status = Command::new("chown").args(["-Rh", &format!("{uid}:{uid}")]).arg(&root).status().expect("chown");
        assert!(status.success());
    }
}

fn tools(root: &Path) {
    let sources = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/trust");
    let place = root.join("srv/trust");
    let served = place.join("www");
    for directory in ["repository.git/info", "simple/thing", "apt"] {
        fs::create_dir_all(served.join(directory)).expect("a directory");
    }
    for name in ["leaf.pem", "leaf.key", "client", "Client.class"] {
        fs::copy(made().directory.join(name), place.join(name)).expect("copy");
    }
    for name in ["server.py", "clients.sh"] {
        fs::copy(sources.join(name), place.join(name)).expect("copy");
    }
    let references = format!("{}\trefs/heads/main\n", "1".repeat(40));
    for (name, content) in [
        ("file", "content\n"),
        ("repository.git/HEAD", "ref: refs/heads/main\n"),
        ("repository.git/info/refs", &references),
        ("simple/thing/thing-1.0-py3-none-any.whl", ""),
        ("apt/Packages", ""),
    ] {
        fs::write(served.join(name), content).expect("a file");
    }
}

/// A plan of the machine's image with the tools.
fn host(jailer: &Jailer, uid: Option<u32>, authority: Option<Authority>) -> Plan {
    let Reply::Host { layer: skeleton, .. } = jailer.ask(&Request::HostImage, &[]).0 else { panic!("a host image") };
    layer(jailer, TOOLS, uid, tools);
    let limits = match uid {
        Some(_) => PlanLimits::default(),
        None => PlanLimits { memory_bytes: Some(1 << 30), pids: Some(512), ..PlanLimits::default() },
    };
    Plan { layers: vec![skeleton, TOOLS.to_owned()], limits, authority, ..plan() }
}

fn environment(plan: &Plan) -> BTreeMap<String, String> {
    let own = [("PATH", PATH), ("HOME", "/root"), ("LANG", "C.UTF-8")];
    let trusted = ENVIRONMENT.into_iter().filter(|_| plan.authority.is_some());
    own.into_iter().chain(trusted).map(|(name, value)| (name.to_owned(), value.to_owned())).collect()
}

/// Starts a script with the environment that a runtime would give it.
fn start(jailer: &Jailer, plan: &Plan, script: &[&str]) {
    let boot = boot_with(plan, script, environment(plan));
    match jailer.ask(&Request::Create(Box::new(plan.clone())), &[boot.as_fd()]).0 {
        Reply::Created { .. } => {}
        other => panic!("create: {other:?}"),
    }
}

fn run(jailer: &Jailer, plan: &Plan, script: &[&str]) -> String {
    start(jailer, plan, script);
    jailer.wait_end(&plan.id);
    let console = jailer.console(&plan.id);
    jailer.destroy(&plan.id, Duration::ZERO);
    console
}

fn shell(jailer: &Jailer, plan: &Plan, script: &str) -> String {
    run(jailer, plan, &["/bin/sh", "-c", script])
}

fn clients_of(uid: Option<u32>) {
    let jailer = uid.map_or_else(Jailer::start, Jailer::start_as_user);
    let check = |authority, clients: &str, expected: Vec<String>| {
        let script =
            format!("{SERVE}; {clients}; echo; for file in /tmp/said/*; do echo \"== $file\"; tail -c 500 $file; done");
        let console = shell(&jailer, &host(&jailer, uid, authority), &script);
        let (said, details) = console.split_once("\n\n").unwrap_or((&console, ""));
        let mut said: Vec<&str> = said.lines().collect();
        // One with roots of its own needs its variable.
        said.retain(|line| !line.starts_with("bare-node"));
        said.sort_unstable();
        assert_eq!(said, expected, "{details}");
    };
    let all = CLIENTS.iter().map(|name| format!("{name} yes"));
    let bare = CLIENTS.iter().filter(|name| **name != "node").map(|name| format!("bare-{name} yes"));
    let mut expected: Vec<String> = all.chain(bare).collect();
    expected.sort_unstable();
    check(trusting(), "sh clients.sh ''; env -i PATH=$PATH HOME=/root sh clients.sh bare-", expected);
    check(None, "sh clients.sh ''", CLIENTS.map(|name| format!("{name} no")).to_vec());
}

#[test]
fn every_client_trusts_the_authority_and_none_does_without() {
    clients_of(None);
}

#[test]
fn clients_of_an_ordinary_users_sandbox_trust_it_too() {
    clients_of(Some(UID));
}

#[test]
fn the_published_files_are_there_and_nobody_can_change_them() {
    let jailer = Jailer::start();
    let script = "cd /opt/opensandbox; stat -c '%a %u %n' *.pem; cmp mitmproxy-ca-cert.pem /srv/trust/ca.pem && echo ours
        for file in *.pem; do
            (echo x >>$file) 2>/dev/null && echo written; rm -f $file 2>/dev/null && echo removed
            mv $file x 2>/dev/null && echo moved; mv /tmp/none $file 2>/dev/null && echo replaced; chmod 666 $file 2>/dev/null && echo opened
            mount -o remount,rw,bind $file 2>/dev/null && echo remounted; umount $file 2>/dev/null && echo uncovered
        done
        mv merged-ca-certificates.pem /tmp 2>/dev/null && echo away
        grep -c BEGIN merged-ca-certificates.pem; cmp merged-ca-certificates.pem /etc/ssl/certs/ca-certificates.crt && echo merged
        echo NAME=value >.env && cat .env";
    let plan = host(&jailer, None, trusting());
    fs::copy(made().directory.join("ca.pem"), jailer.paths.layer(TOOLS).join("srv/trust/ca.pem")).expect("copy");
    let roots = fs::read_to_string("/etc/ssl/certs/ca-certificates.crt").expect("roots").matches("BEGIN").count();
    let expected = format!(
        "644 0 merged-ca-certificates.pem\n644 0 mitmproxy-ca-cert.pem\nours\n{}\nmerged\nNAME=value\n",
        roots + 1
    );
    assert_eq!(shell(&jailer, &plan, script), expected);
}

#[test]
fn bundles_that_are_made_anew_inside_still_have_it() {
    let jailer = Jailer::start();
    let plan = host(&jailer, None, trusting());
    let script = format!(
        "{SERVE}; mkdir -p /etc/ca-certificates/update.d; echo >/etc/ssl/certs/ca-certificates.crt
        update-ca-certificates --fresh >/tmp/said 2>&1 || cat /tmp/said
        env -i PATH=$PATH sh -c 'curl -fsS https://origin.test/file; openssl s_client -no-CAfile -no-CAstore \
            -CApath /etc/ssl/certs -verify_return_error -connect 127.0.0.1:443 </dev/null >/dev/null 2>&1 && echo found'"
    );
    assert_eq!(shell(&jailer, &plan, &script), "content\nfound\n");
}

#[test]
fn sandboxes_that_were_paused_and_isolated_sessions_trust_it() {
    let jailer = Jailer::start();
    let plan = host(&jailer, None, trusting());
    let ask = "env -i PATH=/usr/bin:/bin curl -fsS https://origin.test/file 2>&1; \
               cmp /opt/opensandbox/merged-ca-certificates.pem /etc/ssl/certs/ca-certificates.crt && echo same";
    let script = format!(
        "{SERVE}; mkdir /w; echo serving; until [ -e /w/asked ]; do sleep 0.02; done; cat /w/said; {ask}; \
         echo end; exec sleep 1000"
    );
    start(&jailer, &plan, &["/bin/sh", "-c", &script]);
    jailer.wait_console(&plan.id, "serving\n");
    jailer.pause(&plan.id);
    jailer.resume(&plan.id);
    let asked = format!("{{ {ask}; }} >/w/said; : >/w/asked; exec sleep 1000");
    let boot = boot_with(&plan, &["/bin/sh", "-c", &asked], environment(&plan));
    let id = SessionId::parse("00000000-0000-4000-8000-000000000001").expect("a UUID");
    let record = Record { id, created_ms: 1, asked: CreateSession::default() };
    let mounts = vec![Mount { path: "/w".to_owned(), kind: MountKind::Rw }];
    let spec = SessionSpec { mounts, own_tmp: true, ..SessionSpec::default() };
    let request = Request::StartSession { sandbox: plan.id.clone(), record: Box::new(record), spec: Box::new(spec) };
    let answer = jailer.ask(&request, &[boot.as_fd()]).0;
    assert!(matches!(answer, Reply::Done), "{answer:?}");
    let console = jailer.wait_console(&plan.id, "end\n");
    assert_eq!(console, "serving\ncontent\nsame\ncontent\nsame\nend\n");
}

/// Roots of an image, with a certificate that is not ours.
fn roots() -> String {
    let machine = fs::read_to_string("/etc/ssl/certs/ca-certificates.crt").expect("roots");
    let end = machine.find("-----END CERTIFICATE-----").expect("a root");
    format!("{}-----END CERTIFICATE-----", &machine[..end])
}

/// A plan of an image that has a shell, the server and Go's client, and what `fill` makes.
fn image(jailer: &Jailer, uid: Option<u32>, authority: Option<Authority>, fill: impl FnOnce(&Path)) -> Plan {
    layer(jailer, IMAGE, uid, |root| {
        fs::create_dir_all(root.join("srv/trust")).expect("a directory");
        fs::copy("/bin/busybox", root.join("srv/trust/busybox")).expect("copy busybox");
        for name in ["leaf.pem", "leaf.key", "client"] {
            fs::copy(made().directory.join(name), root.join("srv/trust").join(name)).expect("copy");
        }
        fill(root);
    });
    Plan { layers: vec![IMAGE.to_owned()], host_programs: false, limits: PlanLimits::default(), authority, ..plan() }
}

/// What a shell says in that image.
fn busybox(jailer: &Jailer, plan: &Plan, script: &str) -> String {
    let script = format!("cd /srv/trust; b() {{ /srv/trust/busybox \"$@\"; }}; {script}");
    run(jailer, plan, &["/srv/trust/busybox", "sh", "-c", &script])
}

fn put(root: &Path, path: &str, content: &str) {
    let path = root.join(path);
    fs::create_dir_all(path.parent().expect("a parent")).expect("a directory");
    fs::write(path, content).expect("a file");
}

fn put_link(root: &Path, path: &str, target: &str) {
    let path = root.join(path);
    fs::create_dir_all(path.parent().expect("a parent")).expect("a directory");
    symlink(target, path).expect("a link");
}

fn alpine(root: &Path) {
    put(root, "etc/ssl/certs/ca-certificates.crt", &roots());
    put_link(root, "etc/ssl/cert.pem", "certs/ca-certificates.crt");
    fs::create_dir_all(root.join("usr/local/share")).expect("a directory");
}

fn red_hat(root: &Path) {
    put(root, "etc/pki/ca-trust/extracted/pem/tls-ca-bundle.pem", &roots());
    put_link(root, "etc/pki/tls/certs/ca-bundle.crt", "/etc/pki/ca-trust/extracted/pem/tls-ca-bundle.pem");
    put_link(root, "etc/pki/tls/cert.pem", "/etc/pki/ca-trust/extracted/pem/tls-ca-bundle.pem");
    put_link(root, "etc/ssl/certs", "../pki/tls/certs");
    fs::create_dir_all(root.join("etc/pki/ca-trust/source/anchors")).expect("a directory");
}

fn distroless(root: &Path) {
    put(root, "etc/ssl/certs/ca-certificates.crt", &roots());
}

fn temurin(root: &Path) {
    distroless(root);
    put(root, "opt/java/openjdk/lib/security/cacerts", "unreadable");
    put(root, "usr/local/jdk/jre/lib/security/cacerts", "unreadable");
}

fn empty(_: &Path) {}

fn images_of(uid: Option<u32>) {
    type Image = (&'static str, fn(&Path), &'static str);
    let images: [Image; 5] = [
        (
            "alpine",
            alpine,
            "/etc/ssl/certs/ca-certificates.crt /etc/ssl/cert.pem /usr/local/share/ca-certificates/opensandbox.crt",
        ),
        (
            "red hat",
            red_hat,
            "/etc/pki/tls/certs/ca-bundle.crt /etc/pki/tls/cert.pem /etc/pki/ca-trust/source/anchors/opensandbox.pem",
        ),
        ("distroless", distroless, "/etc/ssl/certs/ca-certificates.crt /etc/ssl/certs/opensandbox.pem"),
        ("temurin", temurin, "/etc/ssl/certs/ca-certificates.crt"),
        ("empty", empty, "/etc/ssl/certs/ca-certificates.crt"),
    ];
    for (name, fill, files) in images {
        let jailer = uid.map_or_else(Jailer::start, Jailer::start_as_user);
        let ask = "./client serve & b sleep 0.1; until ./client 2>/tmp/said || b grep -q certificate /tmp/said; do b sleep 0.05; done
            ./client 2>/dev/null && echo trusted; b env -i ./client 2>/dev/null && echo bare";
        let last = made().pem.lines().nth(1).expect("PEM");
        let script = format!(
            "b mkdir -p /tmp; {ask}; for file in {files}; do b grep -q '{last}' $file || echo \"$file lacks it\"; done
            for store in /opt/java/openjdk/lib/security/cacerts /usr/local/jdk/jre/lib/security/cacerts; do
                b head -c 4 $store 2>/dev/null | b od -A n -t x1
            done"
        );
        let authority =
            Authority { java_home: Some("/usr/local/jdk/".to_owned()), ..trusting().expect("an authority") };
        let plan = image(&jailer, uid, Some(authority), fill);
        let console = busybox(&jailer, &plan, &script);
        let java = if name == "temurin" { " fe ed fe ed\n fe ed fe ed\n" } else { "" };
        assert_eq!(console, format!("serving\ntrusted\nbare\n{java}"), "{name}");
        if name == "alpine" {
            let plan = Plan { authority: None, id: common::plan().id, ..plan };
            assert_eq!(busybox(&jailer, &plan, &format!("b mkdir -p /tmp; {ask}")), "serving\n");
        }
    }
}

#[test]
fn images_of_every_kind_trust_it() {
    images_of(None);
}

#[test]
fn images_of_every_kind_trust_it_in_an_ordinary_users_sandbox() {
    images_of(Some(UID));
}

#[test]
fn what_cannot_be_written_is_covered() {
    let jailer = Jailer::start();
    let plan = image(&jailer, None, trusting(), |root| {
        put(root, "etc/ssl/certs/ca-certificates.crt", &roots());
        put(root, "usr/java/jdk/lib/security/cacerts", "unreadable");
        // Nobody in the sandbox has this number, so not even its root may write them.
        for file in ["etc/ssl/certs/ca-certificates.crt", "usr/java/jdk/lib/security/cacerts"] {
            std::os::unix::fs::chown(root.join(file), Some(500_000), Some(500_000)).expect("chown");
        }
    });
    let script =
        "bundle=/etc/ssl/certs/ca-certificates.crt; b grep -c BEGIN $bundle; (: >>$bundle) 2>/dev/null || echo closed
        b head -c 4 /usr/java/jdk/lib/security/cacerts | b od -A n -t x1";
    assert_eq!(busybox(&jailer, &plan, script), "2\nclosed\n fe ed fe ed\n");
}

#[test]
fn hostile_images_are_neither_followed_nor_waited_for() {
    let jailer = Jailer::start();
    let outside = tempfile::tempdir().expect("temp dir");
    let victim = outside.path().join("bundle.pem");
    fs::write(&victim, roots()).expect("a file");
    let up = format!("{}{}", "../".repeat(30), victim.display());
    let plan = image(&jailer, None, trusting(), |root| {
        put_link(root, "etc/ssl/certs/ca-certificates.crt", &up);
        put_link(root, "etc/ssl/ca-bundle.pem", "ca-bundle.pem");
        put_link(root, "etc/pki/tls/certs/ca-bundle.crt", &victim.display().to_string());
        put_link(root, "usr/local/share", outside.path().to_str().expect("a path"));
        put_link(root, "opt/java", "/proc/self/root");
        put_link(root, "usr/java", "/opt/opensandbox");
        fs::create_dir_all(root.join("etc/pki/ca-trust/extracted/pem/tls-ca-bundle.pem")).expect("a directory");
        for fifo in
            ["etc/ssl/cert.pem", "usr/lib/jvm/a/lib/security/cacerts", "opt/opensandbox/merged-ca-certificates.pem"]
        {
            fs::create_dir_all(root.join(fifo).parent().expect("a parent")).expect("a directory");
            let made = Command::new("mkfifo").arg(root.join(fifo)).status().expect("mkfifo");
            assert!(made.success());
        }
        put(root, "etc/pki/java/cacerts", "");
        let large = fs::File::options().write(true).open(root.join("etc/pki/java/cacerts")).expect("a file");
        large.set_len(1 << 40).expect("a sparse file");
        put_link(root, "opt/opensandbox/mitmproxy-ca-cert.pem", &victim.display().to_string());
        for number in 0..200 {
            fs::create_dir(root.join(format!("usr/lib/jvm/{number}"))).expect("a directory");
        }
    });
    let started = Instant::now();
    let console =
        busybox(&jailer, &plan, "b ls /opt/opensandbox; b grep -c BEGIN /opt/opensandbox/mitmproxy-ca-cert.pem");
    assert!(started.elapsed() < Duration::from_secs(5), "{:?}", started.elapsed());
    assert_eq!(console, "merged-ca-certificates.pem\nmitmproxy-ca-cert.pem\n1\n");
    assert_eq!(fs::read_to_string(&victim).expect("the victim"), roots());
    assert_eq!(fs::read_dir(outside.path()).expect("the directory").count(), 1);
}

#[test]
fn an_image_in_which_the_published_files_cannot_be_is_told() {
    let jailer = Jailer::start();
    let plan = image(&jailer, None, trusting(), |root| put_link(root, "opt", "/nowhere"));
    let boot = boot_with(&plan, &["/srv/trust/busybox", "true"], BTreeMap::new());
    match jailer.ask(&Request::Create(Box::new(plan)), &[boot.as_fd()]).0 {
        Reply::Failed(failure) => assert!(failure.kind == Kind::Image && failure.message.contains("opt"), "{failure}"),
        other => panic!("{other:?}"),
    }
}

#[test]
fn what_is_not_one_certificate_is_refused() {
    let jailer = Jailer::start();
    let key = fs::read_to_string(made().directory.join("ca.key")).expect("key");
    for pem in [format!("{0}{0}", made().pem), format!("{}{key}", made().pem), key, "x".repeat(1 << 16)] {
        let plan = Plan { authority: Some(Authority { pem, java_home: None }), ..plan() };
        let failure = jailer.create(&plan, "true").expect_err("refused");
        assert_eq!(failure.kind, Kind::Refused, "{failure}");
    }
}
