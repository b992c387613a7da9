//! `NativeRuntime` on top of a real jailer: the way the server goes.

mod common;
#[path = "runtime/warm.rs"]
mod warm;

use std::collections::BTreeMap;
use std::process::Command;
use std::time::Duration;

use common::Jailer;
use lifecycle::runtime::{Create, Created, ErrorKind, ExecdAddress, Exit, Observed, Runtime, RuntimeError};
use lifecycle::spec::{Limits, Network, SandboxId, SandboxSpec};
use runtime_native::{Client, NativeRuntime, Settings};

async fn connect(jailer: &Jailer) -> NativeRuntime {
    connect_by(client(jailer), jailer).await
}

fn client(jailer: &Jailer) -> Client {
    Client::new(jailer.socket()).expect("watch the socket")
}

async fn connect_by(client: Client, jailer: &Jailer) -> NativeRuntime {
    let settings = Settings {
        data_dir: jailer.paths.root().to_owned(),
        images_dir: jailer.paths.root().join("images"),
        plain_http_hosts: Vec::new(),
        grace: Duration::from_secs(1),
        lease: None,
    };
    NativeRuntime::connect(client, settings).await.expect("connect")
}

fn spec(image: &str, entrypoint: &[&str]) -> SandboxSpec {
    SandboxSpec {
        image: image.to_owned(),
        private_pull: false,
        platform: None,
        entrypoint: entrypoint.iter().map(|word| (*word).to_owned()).collect(),
        env: BTreeMap::from([("GREETING".to_owned(), "hello".to_owned())]),
        limits: Limits { memory_bytes: Some(256 << 20), ..Limits::default() },
        metadata: BTreeMap::new(),
        extensions: BTreeMap::new(),
        timeout_seconds: None,
        leased: false,
        hooks: protocol::hooks::Hooks::default(),
        network: Network::None,
        policy: None,
        policy_revision: 0,
        credential_proxy: false,
        taping: lifecycle::spec::Taping::None,
        access: Default::default(),
        volumes: Vec::new(),
        pool: None,
        template: None,
        origin: None,
    }
}

fn id(text: &str) -> SandboxId {
    SandboxId::parse(&format!("{text}-{}", std::process::id())).expect("valid id")
}

async fn create(runtime: &NativeRuntime, id: &SandboxId, spec: &SandboxSpec) -> Result<Created, RuntimeError> {
    let early = std::sync::Mutex::new(None);
    let listening = |listeners| *early.lock().expect("not poisoned") = Some(listeners);
    let request =
        Create { id, spec, token: "token", authority: None, pull_auth: None, progress: &|_| {}, listening: &listening };
    let created = runtime.create(request).await?;
    let early = early.into_inner().expect("not poisoned");
    assert!(early.is_none() || created.listeners.is_none(), "sockets came twice");
    Ok(Created { listeners: created.listeners.or(early), ..created })
}

#[tokio::test]
async fn the_sockets_of_a_network_come_with_the_sandbox() {
    let jailer = Jailer::start();
    let runtime = connect(&jailer).await;
    assert_eq!(runtime.capabilities().network, "egress");
    let network = runtime.network().expect("a network");
    let id = id("steered");
    let reachable = common::ranges(&["203.0.113.0/24"]);
    let spec = SandboxSpec { network: Network::Steered { reachable }, ..spec("host", &["sleep", "1000"]) };
    let created = create(&runtime, &id, &spec).await.expect("create");
    assert_eq!(created.receipt.network, "egress");
    let listeners = created.listeners.expect("sockets");
    network.steer(&id, &common::ranges(&["192.0.2.0/24", "2001:db8::/32"])).await.expect("steer");
    assert_eq!(network.listen(&id).await.expect_err("held").kind, ErrorKind::Held);
    // A server that was killed and asks again finds the sandbox; whoever has the sockets keeps them.
    assert!(create(&runtime, &id, &spec).await.expect("create again").listeners.is_none());
    drop(listeners);
    assert!(create(&runtime, &id, &spec).await.expect("create again").listeners.is_some());
    drop(network.listen(&id).await.expect("listen"));
    runtime.destroy(&id, Duration::ZERO).await.expect("destroy");
    assert_eq!(network.listen(&id).await.expect_err("gone").kind, ErrorKind::NotFound);
}

#[tokio::test]
async fn sockets_of_a_sandbox_reach_its_ports_and_no_others() {
    let jailer = Jailer::start();
    let runtime = connect(&jailer).await;
    let means = runtime.sockets().expect("sockets");
    let outside = std::net::TcpListener::bind("127.0.0.1:0").expect("a port of the machine");
    let port = outside.local_addr().expect("bound").port();
    let script = "use IO::Socket::INET; my $l = IO::Socket::INET->new(LocalAddr => '127.0.0.1', LocalPort => 8000, \
                  Listen => 5) or die; while (my $c = $l->accept) { print $c qq(inside\\n); }";
    let (id, spec) = (id("sockets"), spec("host", &["perl", "-e", script]));
    create(&runtime, &id, &spec).await.expect("create");
    let answer = async |port: u16| -> std::io::Result<String> {
        let socket = means.sockets(&id).await.expect("sockets").pop().expect("one of them");
        let socket = tokio::net::TcpSocket::from_std_stream(socket.into());
        let mut stream = socket.connect(([127, 0, 0, 1], port).into()).await?;
        let mut text = String::new();
        tokio::io::AsyncReadExt::read_to_string(&mut stream, &mut text).await?;
        Ok(text)
    };
    let deadline = std::time::Instant::now() + Duration::from_secs(10);
    let text = loop {
        match answer(8000).await {
            // Nothing says when the program listens.
            Err(_) if std::time::Instant::now() < deadline => tokio::task::yield_now().await,
            text => break text.expect("an answer"),
        }
    };
    assert_eq!(text, "inside\n");
    let refused = answer(port).await.expect_err("a port of the machine is none of the sandbox");
    assert_eq!(refused.kind(), std::io::ErrorKind::ConnectionRefused);
    runtime.destroy(&id, Duration::ZERO).await.expect("destroy");
    assert_eq!(means.sockets(&id).await.expect_err("gone").kind, ErrorKind::NotFound);
}

#[tokio::test]
async fn the_host_image_runs_and_its_end_is_announced() {
    let jailer = Jailer::start();
    let runtime = connect(&jailer).await;
    assert_eq!(runtime.capabilities().mode, "root");
    let id = id("host");
    create(
        &runtime,
        &id,
        &spec("host", &["sh", "-c", "echo $GREETING; pwd; test -w /usr/local/lib && echo writable; exit 5"]),
    )
    .await
    .expect("create");
    assert_eq!(runtime.next_end().await, id);
    assert_eq!(runtime.observe(&id).await.expect("observe"), Observed::Ended(Exit::Exited { code: 5 }));
    let console = String::from_utf8(runtime.console(&id, 1000).await.expect("console")).expect("text");
    assert!(console.starts_with("hello\n") && console.ends_with("writable\n"), "{console}");
    runtime.destroy(&id, Duration::ZERO).await.expect("destroy");
    assert_eq!(runtime.observe(&id).await.expect("observe"), Observed::Absent);
    assert!(runtime.list().await.expect("list").is_empty());
}

#[tokio::test]
async fn an_authority_is_named_to_every_process_whatever_the_caller_says() {
    let jailer = Jailer::start();
    let runtime = connect(&jailer).await;
    let roots = std::fs::read_to_string("/etc/ssl/certs/ca-certificates.crt").expect("roots");
    let end = "-----END CERTIFICATE-----";
    let pem = format!("{}{end}\n", roots.split_once(end).expect("a root").0);
    let mut spec = spec("host", &["sh", "-c", "echo $SSL_CERT_FILE $NODE_EXTRA_CA_CERTS $GREETING"]);
    spec.env.insert("SSL_CERT_FILE".to_owned(), "/mine".to_owned());
    for (authority, said) in [
        (
            Some(pem.as_str()),
            "/opt/opensandbox/merged-ca-certificates.pem /opt/opensandbox/mitmproxy-ca-cert.pem hello\n",
        ),
        (None, "/mine hello\n"),
    ] {
        let id = id("authority");
        let (progress, listening) = (&|_| {}, &|_| {});
        let request = Create { id: &id, spec: &spec, token: "token", authority, pull_auth: None, progress, listening };
        runtime.create(request).await.expect("create");
        assert_eq!(runtime.next_end().await, id);
        assert_eq!(String::from_utf8_lossy(&runtime.console(&id, 1000).await.expect("console")), said);
        runtime.destroy(&id, Duration::ZERO).await.expect("destroy");
    }
}

#[tokio::test]
async fn requests_survive_the_jailer() {
    let mut jailer = Jailer::start();
    let client = client(&jailer);
    let runtime = connect_by(client.clone(), &jailer).await;
    let id = id("survive");
    create(&runtime, &id, &spec("host", &["sleep", "1000"])).await.expect("create");
    jailer.restart();
    let asked = runtime.observe(&id);
    client.replace(jailer.socket()).expect("watch the socket");
    assert_eq!(asked.await.expect("observe"), Observed::Running);
    let ExecdAddress::Unix(socket) = runtime.execd(&id) else { panic!("a path") };
    std::os::unix::net::UnixStream::connect(socket).expect("execd still answers");
    runtime.pause().expect("can pause").pause(&id).await.expect("pause");
    assert_eq!(runtime.observe(&id).await.expect("observe"), Observed::Paused);
    runtime.destroy(&id, Duration::from_secs(1)).await.expect("destroy");
}

#[tokio::test]
async fn an_imported_root_file_system_is_unpacked_by_the_jailer_and_runs() {
    let jailer = Jailer::start();
    let runtime = connect(&jailer).await;
    let dir = tempfile::tempdir().expect("temp dir");
    let root = dir.path().join("root");
    std::fs::create_dir_all(root.join("bin")).expect("root");
    let source = dir.path().join("hello.c");
    std::fs::write(
        &source,
        "#include <stdio.h>\n#include <unistd.h>\nint main(){printf(\"from the image as %d\\n\",getuid());return 0;}",
    )
    .expect("source");
    let built =
        Command::new("gcc").args(["-static", "-o"]).arg(root.join("bin/hello")).arg(&source).status().expect("gcc");
    assert!(built.success());
    let archive = dir.path().join("root.tar.gz");
    let packed = Command::new("tar").arg("-C").arg(&root).arg("-czf").arg(&archive).arg(".").status().expect("tar");
    assert!(packed.success());
    let image = runtime.images().import(&archive, Some("hello:1"), &|_| {}).await.expect("import");
    assert_eq!(image.layers.len(), 1);

    let id = id("imported");
    create(&runtime, &id, &spec("hello:1", &["/bin/hello"])).await.expect("create");
    assert_eq!(runtime.next_end().await, id);
    assert_eq!(runtime.console(&id, 1000).await.expect("console"), b"from the image as 0\n");
    runtime.destroy(&id, Duration::ZERO).await.expect("destroy");
}

#[tokio::test]
async fn what_cannot_be_done_is_refused_by_its_kind() {
    let jailer = Jailer::start();
    let runtime = connect(&jailer).await;
    let missing =
        create(&runtime, &id("missing"), &spec("127.0.0.1:1/nothing:1", &["true"])).await.expect_err("no registry");
    assert_eq!(missing.kind, ErrorKind::Image, "{missing}");
    let entrypoint =
        create(&runtime, &id("entry"), &spec("host", &["/no/such/program"])).await.expect_err("no program");
    assert_eq!(entrypoint.kind, ErrorKind::Entrypoint, "{entrypoint}");
    let mut little = spec("host", &["true"]);
    little.limits.memory_bytes = Some(1 << 20);
    let little = create(&runtime, &id("little"), &little).await.expect_err("too little memory");
    assert_eq!(little.kind, ErrorKind::Unsupported);
    assert!(little.message.contains("resourceLimits.memory"), "{little}");
    assert!(runtime.list().await.expect("list").is_empty());
}
