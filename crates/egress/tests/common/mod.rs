//! A small internet of three network namespaces, each with nothing but what a test puts there:
//!
//! ```text
//!  inside (a sandbox: lo only)     outside (the machine)          internet
//!  10.0.0.2, everything is    ◀──  egress process            ┌──  origins at public and private
//!  steered to port 1 by nft        8.0.0.2 ══════ veth ══════┘    addresses, a resolver at 8.0.0.1
//! ```
//!
//! Needs root, and the programs `ip`, `nft` and `unshare`.

#![allow(dead_code, reason = "each test file uses its part")]

pub mod web;

use std::collections::HashMap;
use std::io::{Read, Write};
use std::net::{IpAddr, Ipv4Addr, SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::os::fd::{AsFd, OwnedFd};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use egress::policy::Source;
use egress::{Beside, Boot, Control, Listeners, Memory, Settings};
use hickory_proto::op::{Message, MessageType, OpCode, Query, ResponseCode};
use hickory_proto::rr::rdata::{A, AAAA, TXT};
use hickory_proto::rr::{Name as DnsName, RData, Record, RecordType};
use rustix::thread::LinkNameSpaceType;

/// No step of a test takes longer.
pub const PATIENCE: Duration = Duration::from_secs(10);
/// Where the resolver of the internet is.
pub const RESOLVER: SocketAddr = SocketAddr::new(IpAddr::V4(Ipv4Addr::new(8, 0, 0, 1)), 53);
/// A public address of an origin.
pub const ORIGIN: Ipv4Addr = Ipv4Addr::new(93, 184, 216, 34);
/// Another one.
pub const OTHER: Ipv4Addr = Ipv4Addr::new(93, 184, 216, 35);
/// The machine's own address.
pub const MACHINE: Ipv4Addr = Ipv4Addr::new(8, 0, 0, 2);

/// A network namespace.
#[derive(Clone)]
pub struct Namespace(Arc<OwnedFd>);

impl Namespace {
    pub fn new() -> Self {
        let mut holder = Command::new("unshare")
            .args(["-n", "sh", "-c", "ip link set lo up && echo ready && read -r _"])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .expect("unshare runs");
        let mut ready = [0; 6];
        holder
            .stdout
            .as_mut()
            .expect("a pipe")
            .read_exact(&mut ready)
            .expect("a namespace can be made: root is needed");
        let file = std::fs::File::open(format!("/proc/{}/ns/net", holder.id())).expect("the namespace");
        drop(holder.stdin.take());
        holder.wait().expect("it ends");
        Self(Arc::new(file.into()))
    }

    /// Does something in it.
    pub fn run<T: Send>(&self, what: impl FnOnce() -> T + Send) -> T {
        std::thread::scope(|scope| {
            let inside = scope.spawn(|| {
                self.enter();
                what()
            });
            inside.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
        })
    }

    /// Does something in it beside the test, which does not wait.
    pub fn spawn(&self, what: impl FnOnce() + Send + 'static) {
        let namespace = self.clone();
        std::thread::spawn(move || {
            namespace.enter();
            what();
        });
    }

    pub fn shell(&self, script: &str) {
        let status = self.run(|| Command::new("sh").args(["-ec", script]).status().expect("sh runs"));
        assert!(status.success(), "{script}");
    }

    fn enter(&self) {
        rustix::thread::move_into_link_name_space(self.0.as_fd(), Some(LinkNameSpaceType::Network))
            .expect("a thread may move");
    }

    fn path(&self) -> String {
        use std::os::fd::AsRawFd;
        format!("/proc/{}/fd/{}", std::process::id(), self.0.as_raw_fd())
    }
}

/// What the resolver of the internet answers.
pub type Zone = Arc<Mutex<HashMap<String, Vec<IpAddr>>>>;

/// The machine and what surrounds it.
pub struct World {
    pub outside: Namespace,
    pub internet: Namespace,
    pub zone: Zone,
    /// Questions that reached the resolver.
    pub asked: Arc<Mutex<Vec<String>>>,
}

impl World {
    pub fn new() -> Self {
        let (outside, internet) = (Namespace::new(), Namespace::new());
        outside.shell(&format!(
            "ip link add h0 type veth peer name w0\n\
             ip link set w0 netns {}\n\
             ip addr add {MACHINE}/24 dev h0\n\
             ip -6 addr add 2a00::2/64 dev h0 nodad\n\
             ip link set h0 up",
            internet.path(),
        ));
        internet.shell(&format!(
            "ip addr add 8.0.0.1/24 dev w0\n\
             ip -6 addr add 2a00::1/64 dev w0 nodad\n\
             ip -6 addr add 2a01::1/128 dev lo nodad\n\
             for a in {ORIGIN} {OTHER} 10.9.0.1 169.254.169.254 168.63.129.16 100.64.0.1; do ip addr add $a/32 dev lo; done\n\
             ip link set w0 up"
        ));
        outside.shell("ip route add default via 8.0.0.1\nip -6 route add default via 2a00::1");
        let (zone, asked) = (Zone::default(), Arc::default());
        let socket = internet.run(|| UdpSocket::bind("0.0.0.0:53").expect("the resolver's port"));
        let (answers, questions) = (zone.clone(), Arc::clone(&asked));
        std::thread::spawn(move || resolver(&socket, &answers, &questions));
        Self { outside, internet, zone, asked }
    }

    pub fn name(&self, name: &str, addresses: &[IpAddr]) {
        self.zone.lock().expect("a lock").insert(name.to_owned(), addresses.to_vec());
    }

    /// An origin that says its name first, then repeats what it hears.
    pub fn origin(&self, address: impl Into<IpAddr>, port: u16, banner: &'static str) {
        self.serve(address, port, move |mut stream| {
            if stream.write_all(banner.as_bytes()).is_err() {
                return;
            }
            let mut reader = stream.try_clone().expect("a duplicate");
            // Ends when either side does.
            let _ = std::io::copy(&mut reader, &mut stream);
        });
    }

    pub fn serve(&self, address: impl Into<IpAddr>, port: u16, serve: impl Fn(TcpStream) + Clone + Send + 'static) {
        let address = SocketAddr::new(address.into(), port);
        let listener = self.internet.run(|| TcpListener::bind(address).expect("an origin's address"));
        std::thread::spawn(move || {
            while let Ok((stream, _)) = listener.accept() {
                let serve = serve.clone();
                std::thread::spawn(move || serve(stream));
            }
        });
    }
}

fn resolver(socket: &UdpSocket, zone: &Zone, asked: &Mutex<Vec<String>>) {
    let mut buffer = [0; 4096];
    while let Ok((length, from)) = socket.recv_from(&mut buffer) {
        let Ok(question) = Message::from_vec(&buffer[..length]) else { continue };
        let query = question.queries[0].clone();
        let name = query.name().to_ascii().trim_end_matches('.').to_owned();
        asked.lock().expect("a lock").push(name.clone());
        let mut reply = Message::response(question.metadata.id, OpCode::Query);
        reply.add_query(query.clone());
        match zone.lock().expect("a lock").get(&name) {
            None => reply.metadata.response_code = ResponseCode::NXDomain,
            Some(addresses) => {
                let record = |data| Record::from_rdata(query.name().clone(), 0, data);
                for address in addresses {
                    match (address, query.query_type()) {
                        (IpAddr::V4(v4), RecordType::A) => drop(reply.add_answer(record(RData::A(A(*v4))))),
                        (IpAddr::V6(v6), RecordType::AAAA) => drop(reply.add_answer(record(RData::AAAA(AAAA(*v6))))),
                        _ => {}
                    }
                }
                if query.query_type() == RecordType::TXT {
                    reply.add_answer(record(RData::TXT(TXT::new(vec!["text".to_owned()]))));
                }
            }
        }
        let _ = socket.send_to(&reply.to_vec().expect("a reply"), from);
    }
}

/// A sandbox's namespace, with steering and sockets. Answers of the sockets go to a local address and must be tracked all
/// the same: they carry the address that the program asked only once conntrack has put it back.
pub struct Inside {
    pub namespace: Namespace,
    pub id: String,
    pub listeners: Listeners,
    pub names: std::fs::File,
}

impl Inside {
    pub fn new() -> Self {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let namespace = Namespace::new();
        namespace.shell(
            "sysctl -qw net.ipv4.ip_unprivileged_port_start=2\n\
             ip addr add 10.0.0.2/32 dev lo\n\
             ip -6 addr add fd00::2/128 dev lo nodad\n\
             ip route add default dev lo\n\
             ip -6 route add default dev lo\n\
             nft -f - <<'RULES'\n\
             table inet osb {\n\
               chain untracked { type filter hook output priority raw\n\
                 meta l4proto { tcp, udp } th sport 1 accept\n\
                 fib daddr type local notrack\n\
               }\n\
               chain steer { type nat hook output priority -100\n\
                 fib daddr type local return\n\
                 udp dport 53 redirect to :1\n\
                 meta l4proto tcp redirect to :1\n\
               }\n\
               chain rest { type filter hook output priority 0\n\
                 fib daddr type local accept\n\
                 ct status dnat accept\n\
                 reject\n\
               }\n\
             }\n\
             RULES",
        );
        let listeners = namespace.run(|| {
            Listeners::from_array([
                TcpListener::bind("127.0.0.1:1").expect("tcp4").into(),
                TcpListener::bind("[::1]:1").expect("tcp6").into(),
                UdpSocket::bind("127.0.0.1:1").expect("udp4").into(),
                UdpSocket::bind("[::1]:1").expect("udp6").into(),
            ])
        });
        let id = format!("sandbox-{}", COUNT.fetch_add(1, Ordering::Relaxed));
        Self { namespace, id, listeners, names: tempfile::tempfile().expect("a names file") }
    }

    /// Asks for a name as a program would; the code, and the addresses.
    pub fn lookup(&self, name: &str) -> (ResponseCode, Vec<Ipv4Addr>) {
        let answer = self.ask(name, RecordType::A);
        let address = |record: &Record| match &record.data {
            RData::A(a) => Some(a.0),
            _ => None,
        };
        (answer.metadata.response_code, answer.answers.iter().filter_map(address).collect())
    }

    pub fn ask(&self, name: &str, kind: RecordType) -> Message {
        let question = question(name, kind);
        let answer = self.ask_bytes(&question).expect("an answer");
        Message::from_vec(&answer).expect("a message")
    }

    /// Sends any bytes to the resolver that `resolv.conf` names.
    pub fn ask_bytes(&self, bytes: &[u8]) -> std::io::Result<Vec<u8>> {
        let socket = self.namespace.run(|| UdpSocket::bind("0.0.0.0:0"))?;
        socket.set_read_timeout(Some(PATIENCE))?;
        socket.connect("10.0.0.53:53")?;
        socket.send(bytes)?;
        let mut buffer = vec![0; 4096];
        let length = socket.recv(&mut buffer)?;
        buffer.truncate(length);
        Ok(buffer)
    }

    /// The address of an allowed name.
    #[track_caller]
    pub fn address(&self, name: &str) -> IpAddr {
        match &self.lookup(name) {
            (ResponseCode::NoError, addresses) if addresses.len() == 1 => addresses[0].into(),
            other => panic!("{name}: {other:?}"),
        }
    }

    pub fn connect(&self, to: impl Into<IpAddr>, port: u16) -> std::io::Result<TcpStream> {
        let to = SocketAddr::new(to.into(), port);
        let stream = self.namespace.run(|| TcpStream::connect_timeout(&to, PATIENCE))?;
        stream.set_read_timeout(Some(PATIENCE))?;
        stream.set_write_timeout(Some(PATIENCE))?;
        Ok(stream)
    }

    /// Connects and reads what the origin says first.
    pub fn banner(&self, to: impl Into<IpAddr>, port: u16) -> std::io::Result<String> {
        let mut stream = self.connect(to, port)?;
        read_some(&mut stream)
    }
}

pub fn read_some(stream: &mut TcpStream) -> std::io::Result<String> {
    let mut buffer = [0; 256];
    let length = stream.read(&mut buffer)?;
    Ok(String::from_utf8_lossy(&buffer[..length]).into_owned())
}

pub fn question(name: &str, kind: RecordType) -> Vec<u8> {
    let mut message = Message::new(7, MessageType::Query, OpCode::Query);
    message.metadata.recursion_desired = true;
    message.add_query(Query::query(DnsName::from_ascii(format!("{name}.")).expect("a name"), kind));
    message.to_vec().expect("a question")
}

/// The egress process alone, where cargo built it for a test.
const PROGRAM: Option<&str> = option_env!("CARGO_BIN_EXE_egress-proxy");

/// An egress process.
pub struct Proxy {
    pub child: Child,
    pub control: Control,
    /// What it was started by.
    program: Vec<String>,
    /// What outlives the process, as with its supervisor.
    memory: Memory,
    settings: Settings,
    socket: Option<OwnedFd>,
}

impl Proxy {
    /// Must be called within a runtime.
    pub async fn start(world: &World) -> Self {
        Self::start_with(world, Settings::default()).await
    }

    pub async fn start_with(world: &World, settings: Settings) -> Self {
        let program = PROGRAM.expect("cargo builds it for tests").to_owned();
        Self::start_program(world, &[program], settings).await
    }

    /// Starts another program that does the same, with its arguments.
    pub async fn start_program(world: &World, program: &[String], settings: Settings) -> Self {
        let memory = Memory::new().expect("a memory file");
        let (socket, child) = spawn(world, program, &memory);
        let control = Control::new(socket.try_clone().expect("a duplicate")).expect("a control");
        let settings = Settings { resolvers: vec![RESOLVER], ..settings };
        control.configure(settings.clone()).await.expect("configured");
        Self { child, control, program: program.to_vec(), memory, settings, socket: Some(socket) }
    }

    /// Kills it and starts another, which knows nothing.
    pub async fn kill_and_restart(&mut self, world: &World) {
        self.child.kill().expect("it runs");
        self.child.wait().expect("it ends");
        let (socket, child) = spawn(world, &self.program, &self.memory);
        self.control.replace(socket.try_clone().expect("a duplicate")).expect("a control");
        (self.socket, self.child) = (Some(socket), child);
        self.control.configure(self.settings.clone()).await.expect("configured");
    }

    /// What the next process finds is gone, as with the end of the supervisor.
    pub fn lose_memory(&mut self) {
        self.memory = Memory::new().expect("a memory file");
    }

    /// Closes its control, as the end of server and supervisor would.
    pub fn let_go(&mut self) {
        self.socket = None;
        let (unconnected, _) = egress::pair().expect("a pair");
        self.control.replace(unconnected).expect("a control");
    }

    pub async fn attach(&self, inside: &Inside, policy: &Source) {
        self.control
            .attach(&inside.id, &inside.listeners, inside.names.as_fd(), 1, policy, Beside::default())
            .await
            .expect("attached");
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        // Both fail only when it has ended already.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn spawn(world: &World, program: &[String], memory: &Memory) -> (OwnedFd, Child) {
    let (ours, theirs) = egress::pair().expect("a pair");
    let child = world
        .outside
        .run(|| Command::new(&program[0]).args(&program[1..]).stdin(Stdio::from(theirs)).spawn().expect("it starts"));
    // Nobody: no namespace, file or process of the test is its to touch.
    egress::boot(ours.as_fd(), &Boot { run_as: Some(65534) }, Some(memory)).expect("it listens");
    (ours, child)
}

/// A user's policy from JSON.
pub fn policy(user: serde_json::Value) -> Source {
    Source { user: Some(serde_json::from_value(user).expect("a policy")), ..Source::default() }
}

pub fn allow(targets: &[&str]) -> Source {
    let rules: Vec<_> = targets.iter().map(|target| serde_json::json!({"action": "allow", "target": target})).collect();
    policy(serde_json::json!({"egress": rules}))
}

/// Whether a read or write failed because the connection was reset.
pub fn is_reset(error: &std::io::Error) -> bool {
    matches!(error.kind(), std::io::ErrorKind::ConnectionReset | std::io::ErrorKind::BrokenPipe)
}

/// A TLS ClientHello that asks for this name, and nothing else of TLS.
pub fn client_hello(name: &str) -> Vec<u8> {
    let vector = |width: usize, body: &[u8]| -> Vec<u8> {
        [&u32::try_from(body.len()).expect("short").to_be_bytes()[4 - width..], body].concat()
    };
    let entry = [&[0][..], &vector(2, name.as_bytes())].concat();
    let extension = [&[0, 0][..], &vector(2, &vector(2, &entry))].concat();
    let fixed = [&[3, 3][..], &[7; 32]].concat();
    let rest = [vector(1, &[]), vector(2, &[0x13, 1]), vector(1, &[0]), vector(2, &extension)].concat();
    let message = [&[1][..], &vector(3, &[fixed, rest].concat())].concat();
    [&[22, 3, 1][..], &vector(2, &message)].concat()
}
