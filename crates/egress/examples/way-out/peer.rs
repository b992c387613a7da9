//! Who does the comparable thing: nginx passing TCP on, mitmproxy putting a header into HTTPS.

use std::net::{SocketAddr, TcpStream};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use super::common::{ORIGIN, World};

/// How long a peer may take to listen: Python loads much.
const PATIENCE: Duration = Duration::from_secs(60);
/// Between two looks.
const LOOK: Duration = Duration::from_millis(20);

/// A peer in the machine's namespace, ended when dropped.
pub struct Peer {
    child: Child,
    /// Kept until it has ended.
    directory: tempfile::TempDir,
}

impl Peer {
    /// nginx, which passes what comes at each port of 127.0.0.1 on to the same port of the origin.
    pub fn nginx(world: &World, ports: &[u16]) -> Self {
        let directory = tempfile::tempdir().expect("a directory");
        let servers: String = ports
            .iter()
            .map(|port| format!("server {{ listen 127.0.0.1:{port}; proxy_pass {ORIGIN}:{port}; tcp_nodelay on; }}\n"))
            .collect();
        let text = format!(
            "load_module /usr/lib/nginx/modules/ngx_stream_module.so;\n\
             daemon off; user root; worker_processes 2; pid {root}/pid; error_log {root}/error.log;\n\
             events {{ worker_connections 4096; }}\n\
             stream {{ {servers} }}\n",
            root = directory.path().display()
        );
        std::fs::write(directory.path().join("nginx.conf"), text).expect("a file");
        let mut command = Command::new("nginx");
        command.arg("-c").arg(directory.path().join("nginx.conf")).args(["-e", "/dev/null"]);
        Self::start(world, command, directory, ports[0])
    }

    /// mitmproxy, which puts a header into every request and sends it to the origin; it listens at this port.
    pub fn mitmproxy(world: &World, program: &str, port: u16) -> Self {
        let directory = tempfile::tempdir().expect("a directory");
        let addon = "class Put:\n    def request(self, flow):\n        flow.request.headers['authorization'] = 'Bearer s3cr3t'\n\
                     \naddons = [Put()]\n";
        std::fs::write(directory.path().join("put.py"), addon).expect("a file");
        let mut command = Command::new(program);
        command.arg("--mode").arg(format!("reverse:https://{ORIGIN}:443")).args(["--listen-host", "127.0.0.1"]);
        command.args([
            "--listen-port",
            &port.to_string(),
            "--set",
            "ssl_insecure=true",
            "--set",
            "keep_host_header=true",
        ]);
        command.args(["--set", "flow_detail=0", "--set", "termlog_verbosity=error"]);
        command.arg("--set").arg(format!("confdir={}", directory.path().display()));
        command.arg("-s").arg(directory.path().join("put.py"));
        Self::start(world, command, directory, port)
    }

    fn start(world: &World, mut command: Command, directory: tempfile::TempDir, port: u16) -> Self {
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        let child = world.outside.run(|| command.spawn().expect("the peer is installed"));
        let mut peer = Self { child, directory };
        let start = Instant::now();
        while connect(world, ([127, 0, 0, 1], port).into()).is_err() {
            assert!(peer.child.try_wait().expect("a child").is_none(), "the peer ended");
            assert!(start.elapsed() < PATIENCE, "the peer did not listen within {PATIENCE:?}");
            std::thread::sleep(LOOK);
        }
        peer
    }

    /// Its first process.
    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Where it keeps its files.
    pub fn directory(&self) -> &Path {
        self.directory.path()
    }
}

impl Drop for Peer {
    fn drop(&mut self) {
        // nginx ends its workers on TERM; an error means that it has ended.
        let pid = rustix::process::Pid::from_child(&self.child);
        let _ = rustix::process::kill_process(pid, rustix::process::Signal::TERM);
        let _ = self.child.wait();
    }
}

/// A connection from the machine's namespace.
pub fn connect(world: &World, to: SocketAddr) -> std::io::Result<TcpStream> {
    world.outside.run(|| TcpStream::connect(to))
}
