//! Jupyter kernels, spoken to directly: no Jupyter program is needed, only the kernel.
//!
//! A kernel listens on five loopback ports that it is told in a file with a key of its own. execd connects to its
//! shell (requests and their answers), its control (interrupts) and what it publishes (output and results).
//! Every message is signed with the key, and one that is not is ignored. What the kernel's process itself prints
//! is no output of a cell; its last words are told when it dies.

mod message;
mod spec;
mod zmtp;

pub use message::{Message, Session, Turn, execute};
pub use spec::Spec;

use std::fs::{self, OpenOptions};
use std::io::{self, Write};
use std::net::{Ipv4Addr, TcpListener};
use std::os::fd::AsFd;
use std::os::unix::fs::{OpenOptionsExt, fchown};
use std::path::{Path, PathBuf};
use std::rc::Rc;
use std::time::Duration;

use serde_json::json;
use tokio::io::{AsyncWriteExt, BufReader};
use tokio::net::TcpStream;
use tokio::net::unix::pipe::Receiver as Pipe;
use tokio::sync::mpsc;
use tokio::time::{Instant, interval, sleep, sleep_until, timeout};

use super::child::Child;
use super::language::environment;
use super::lines::Line;
use super::talk::{Happening, read_pipe};
use crate::command::{make_plan, output_pipe};
use crate::daemon::Daemon;
use crate::environment::expand;
use crate::error::system_text;
use crate::id;
use crate::identity::Accounts;
use crate::spawn::{Extra, Stdio};
use zmtp::Kind;

/// Messages of a kernel that wait for the context. A kernel drops what it publishes while nobody reads, so this is
/// longer than for drivers; each may be as large as a frame.
const DEPTH: usize = 16;
/// Pieces of what a kernel's process prints that wait.
const PRINTED_DEPTH: usize = 2;
/// Between two attempts to connect, and two questions whether it is ready.
const TRY_EVERY: Duration = Duration::from_millis(100);
const ASK_EVERY: Duration = Duration::from_secs(1);
/// After a kernel's end, what it sent before is read for this long.
const DRAIN_LIMIT: Duration = Duration::from_secs(2);
/// Bytes of the last words of a kernel's process.
const MAX_LAST_WORDS: usize = 2000;

/// A message, or why nothing more can be read from that connection.
type Said = Result<Message, String>;

/// A living kernel, or one whose last words are still read.
pub struct Kernel {
    child: Child,
    session: Rc<Session>,
    shell: mpsc::Sender<Vec<u8>>,
    /// Where interrupts go; `None` where a signal does it.
    control: Option<mpsc::Sender<Vec<u8>>>,
    answers: mpsc::Receiver<Said>,
    published: mpsc::Receiver<Said>,
    printed: mpsc::Receiver<bytes::Bytes>,
    last_words: Vec<u8>,
    /// What it said that cannot be taken; it is killed for that.
    broken: Option<String>,
    turn: Turn,
    is_fresh: bool,
    drain_until: Option<Instant>,
    _file: ConnectionFile,
}

impl Kernel {
    /// Starts a kernel in `cwd` and waits until it answers.
    ///
    /// # Errors
    /// Why it cannot be used, to follow its name.
    pub async fn start(daemon: &Rc<Daemon>, spec: &Spec, cwd: &str) -> Result<Self, String> {
        let failed =
            |what: &'static str| move |error: io::Error| format!("cannot be started: {what}: {}", system_text(&error));
        let identity = daemon.user().map(|user| Accounts::load().identity(user.uid, Some(user.gid)));
        let ports = free_ports().map_err(failed("find free ports"))?;
        let key = id::hex();
        let session = Rc::new(Session::new(key.clone()));
        let owner = identity.as_ref().map(|identity| (identity.uid, identity.gid));
        let file = ConnectionFile::new(&ports, &key, owner).map_err(failed("write the connection file"))?;
        let mut env = environment(daemon);
        for (name, value) in &spec.env {
            let value = expand(value, |name| Some(env.get(name).map_or("", String::as_str))).unwrap_or_default();
            env.insert(name.clone(), value);
        }
        let place = |argument: &String| {
            let argument = argument.replace("{connection_file}", &file.0.to_string_lossy());
            argument.replace("{resource_dir}", &spec.directory.to_string_lossy())
        };
        let argv = spec.argv.iter().map(place).collect();
        let plan = make_plan(argv, None, env, cwd, identity).map_err(|error| error.message)?;
        let (stdout, stdout_writer) = output_pipe().map_err(|error| error.message)?;
        let (stderr, stderr_writer) = output_pipe().map_err(|error| error.message)?;
        let stdio = Stdio { fds: [daemon.null(), &stdout_writer, &stderr_writer].map(|fd| Some(fd.as_fd())) };
        let child = Child::start(daemon, &plan, &stdio, Extra::default())
            .map_err(|error| format!("cannot be started: {error}"))?;
        drop((stdout_writer, stderr_writer));
        let printed = printed_by(stdout, stderr);
        let connected = async {
            let shell = connect(ports[0], Kind::Dealer, &session).await?;
            let published = connect(ports[1], Kind::Sub, &session).await?;
            let control = match spec.interrupt_mode.as_deref() {
                Some("message") => Some(connect(ports[3], Kind::Dealer, &session).await?.0),
                _ => None,
            };
            Ok::<_, io::Error>((shell, published, control))
        };
        let connected = tokio::select! {
            connected = connected => connected.map_err(failed("connect")),
            () = child.wait() => Err(String::new()),
        };
        let mut last_words = Vec::new();
        let ((shell, answers), (_, published), control) = match connected {
            Ok(connected) => connected,
            Err(why) => return Err(failure(child, printed, &mut last_words, why).await),
        };
        let turn = Turn::default();
        let mut kernel = Self {
            child,
            session,
            shell,
            control,
            answers,
            published,
            printed,
            last_words,
            broken: None,
            turn,
            is_fresh: true,
            drain_until: None,
            _file: file,
        };
        if kernel.is_ready().await {
            return Ok(kernel);
        }
        Err(failure(kernel.child, kernel.printed, &mut kernel.last_words, String::new()).await)
    }

    /// Asks until it both answers and publishes: a subscription reaches it when it pleases. False when it ends.
    async fn is_ready(&mut self) -> bool {
        let (mut has_answered, mut has_published) = (false, false);
        let mut questions = interval(ASK_EVERY); // the first at once
        while !(has_answered && has_published) {
            tokio::select! {
                _ = questions.tick() => drop(self.request("kernel_info_request", &json!({})).await),
                answer = self.answers.recv() => match answer {
                    Some(_) => has_answered = true,
                    None => return false,
                },
                published = self.published.recv() => match published {
                    Some(_) => has_published = true,
                    None => return false,
                },
                Some(text) = self.printed.recv() => keep_last(&mut self.last_words, &text),
                () = self.child.wait() => return false,
            }
        }
        true
    }

    async fn request(&self, kind: &str, content: &serde_json::Value) -> String {
        let (header, number) = self.session.header(kind);
        let message = zmtp::encode(&self.session.parts(&header, content));
        let _ = self.shell.send(message).await; // a kernel that is gone tells so by its end
        number
    }

    /// Sends a cell; it must have answered all before.
    pub async fn say(&mut self, code: &str) {
        let number = self.request("execute_request", &execute(code)).await;
        self.turn = Turn::new(number);
    }

    /// Interrupts what it runs, in the way that it asks for.
    pub fn interrupt(&self) {
        match &self.control {
            None => self.child.interrupt(),
            Some(control) => {
                let (header, _) = self.session.header("interrupt_request");
                let message = zmtp::encode(&self.session.parts(&header, &json!({})));
                let _ = control.try_send(message); // a full queue holds one already
            }
        }
    }

    /// Whether its process has ended; [`Happening::Died`] follows then.
    pub fn has_ended(&self) -> bool {
        self.child.has_ended()
    }

    /// Kills it; [`Happening::Died`] follows.
    pub fn kill(&self) {
        self.child.kill();
    }

    /// Kills it with everything that it started, and waits for that.
    pub async fn end(self) {
        self.child.end().await;
    }

    /// The next thing that happens. It may be given up at any time: nothing is lost then.
    pub async fn next(&mut self) -> Happening {
        if std::mem::take(&mut self.is_fresh) {
            return Happening::Line(Line::Ready);
        }
        loop {
            if let Some(end) = self.turn.ended() {
                return end;
            }
            let drain_until = self.drain_until;
            let message = tokio::select! {
                // What was published before an answer is told before it.
                biased;
                Some(message) = self.published.recv() => message,
                Some(message) = self.answers.recv() => message,
                Some(text) = self.printed.recv() => {
                    keep_last(&mut self.last_words, &text);
                    continue;
                }
                () = self.child.wait(), if drain_until.is_none() => {
                    self.child.sweep();
                    self.drain_until = Some(Instant::now() + DRAIN_LIMIT);
                    continue;
                }
                () = sleep_until(drain_until.unwrap_or_else(Instant::now)), if drain_until.is_some() => {
                    return Happening::Died(self.end_words());
                }
                else => return Happening::Died(self.end_words()),
            };
            match message {
                Ok(message) => {
                    if let Some(happening) = self.turn.take(message) {
                        return happening;
                    }
                }
                Err(why) => {
                    self.broken.get_or_insert(why);
                    self.child.kill();
                }
            }
        }
    }

    /// How it ended, to follow its name.
    fn end_words(&self) -> String {
        match &self.broken {
            Some(why) => format!("was ended: {why}"),
            None => told(self.child.last_words(), &self.last_words),
        }
    }
}

/// Ends a kernel that cannot be used, and says why.
async fn failure(child: Child, mut printed: mpsc::Receiver<bytes::Bytes>, last: &mut Vec<u8>, why: String) -> String {
    let why = if why.is_empty() { format!("{} before it was ready", child.last_words()) } else { why };
    child.end().await;
    let rest = async {
        while let Some(text) = printed.recv().await {
            keep_last(last, &text);
        }
    };
    let _ = timeout(DRAIN_LIMIT, rest).await; // what came by then is told
    told(why, last)
}

fn told(why: String, words: &[u8]) -> String {
    match String::from_utf8_lossy(words).trim() {
        "" => why,
        words => format!("{why}; its last words: {words}"),
    }
}

fn keep_last(words: &mut Vec<u8>, text: &[u8]) {
    words.extend_from_slice(text);
    let beyond = words.len().saturating_sub(MAX_LAST_WORDS);
    words.drain(..beyond);
}

/// What the process itself prints.
fn printed_by(stdout: Pipe, stderr: Pipe) -> mpsc::Receiver<bytes::Bytes> {
    let (sender, printed) = mpsc::channel(PRINTED_DEPTH);
    for pipe in [stdout, stderr] {
        tokio::task::spawn_local(read_pipe(pipe, sender.clone()));
    }
    printed
}

/// Connects to a port of a kernel that is still starting; gives where to write and what it says.
async fn connect(
    port: u16,
    kind: Kind,
    session: &Rc<Session>,
) -> io::Result<(mpsc::Sender<Vec<u8>>, mpsc::Receiver<Said>)> {
    let mut stream = loop {
        match TcpStream::connect((Ipv4Addr::LOCALHOST, port)).await {
            Ok(stream) => break stream,
            Err(error) if error.kind() == io::ErrorKind::ConnectionRefused => sleep(TRY_EVERY).await,
            Err(error) => return Err(error),
        }
    };
    let _ = stream.set_nodelay(true); // only latency is at stake
    zmtp::greet(&mut stream, kind, session.id()).await?;
    let (reader, mut writer) = stream.into_split();
    let (outgoing, mut unsent) = mpsc::channel::<Vec<u8>>(DEPTH);
    let (sender, incoming) = mpsc::channel(DEPTH);
    tokio::task::spawn_local(async move {
        while let Some(message) = unsent.recv().await {
            if writer.write_all(&message).await.is_err() {
                return;
            }
        }
        writer.forget(); // dropping it would close our half, and with that end the reader's, too
    });
    let session = Rc::clone(session);
    tokio::task::spawn_local(async move {
        let mut reader = BufReader::new(reader);
        loop {
            let message = match zmtp::read(&mut reader).await {
                // Nobody but the kernel knows the key; others are not listened to.
                Ok(parts) => match session.read(&parts) {
                    Some(message) => Ok(message),
                    None => continue,
                },
                Err(error) if error.kind() == io::ErrorKind::InvalidData => Err(error.to_string()),
                Err(_) => return, // the end of its process tells
            };
            let is_end = message.is_err();
            if sender.send(message).await.is_err() || is_end {
                return;
            }
        }
    });
    Ok((outgoing, incoming))
}

/// Ports for shell, publishing, input, control and heartbeat.
fn free_ports() -> io::Result<[u16; 5]> {
    let mut ports = [0; 5];
    let mut taken = Vec::new();
    for port in &mut ports {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?;
        *port = listener.local_addr()?.port();
        taken.push(listener);
    }
    Ok(ports)
}

/// The file that tells a kernel its ports and key; only its user can read it, and it goes with the kernel.
struct ConnectionFile(PathBuf);

impl ConnectionFile {
    fn new(ports: &[u16; 5], key: &str, owner: Option<(u32, u32)>) -> io::Result<Self> {
        let [shell, published, stdin, control, heartbeat] = ports;
        let text = json!({
            "transport": "tcp", "ip": "127.0.0.1", "key": key, "signature_scheme": "hmac-sha256", "kernel_name": "",
            "shell_port": shell, "iopub_port": published, "stdin_port": stdin, "control_port": control,
            "hb_port": heartbeat,
        });
        let base = std::env::var_os("TMPDIR").map(PathBuf::from).filter(|base| base.is_dir());
        let base = base.unwrap_or_else(|| Path::new("/tmp").into());
        let path = base.join(format!("execd-kernel-{}.json", id::hex()));
        let mut file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(&path)?;
        let file_of = Self(path);
        file.write_all(text.to_string().as_bytes())?;
        if let Some((uid, gid)) = owner {
            fchown(&file, Some(uid), Some(gid))?;
        }
        Ok(file_of)
    }
}

impl Drop for ConnectionFile {
    fn drop(&mut self) {
        let _ = fs::remove_file(&self.0); // a kernel may have removed it itself
    }
}
