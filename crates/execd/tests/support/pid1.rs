//! execd as PID 1 of a namespace, with the three descriptors that a runtime hands it.

use std::fs::File;
use std::io::{BufRead, BufReader, Write};
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::net::UnixListener;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::{Mutex, PoisonError};

use protocol::execd::boot::{BootConfig, BootUser, StatusLine};
use rustix::fs::{MemfdFlags, memfd_create};
use rustix::io::{FdFlags, fcntl_setfd};
use rustix::process::{Pid, Signal, kill_process};

use super::Target;

/// Descriptors are inheritable for a moment; only one boot at a time, so that no other child gets them.
static BOOTING: Mutex<()> = Mutex::new(());

/// A sandbox of namespaces around execd. It ends with the value.
pub struct Sandbox {
    child: Child,
    status: BufReader<File>,
    directory: tempfile::TempDir,
}

/// A configuration with the given main process.
pub fn config(entrypoint: &[&str]) -> BootConfig {
    BootConfig {
        sandbox_id: "sb-1".into(),
        token: Some("t0ken".into()),
        env: [("FROM_BOOT".to_owned(), "yes".to_owned())].into(),
        entrypoint: entrypoint.iter().map(|&word| word.to_owned()).collect(),
        cwd: None,
        user: None,
        grace_ms: 500,
        hooks: protocol::hooks::Hooks::default(),
        isolated: None,
    }
}

/// An ordinary user inside.
pub const NOBODY: BootUser = BootUser { uid: 65534, gid: 65534 };

impl Sandbox {
    /// Boots with fresh pid and mount namespaces.
    pub fn boot(config: &BootConfig) -> Self {
        Self::boot_in(config, "exec \"$EXECD\"")
    }

    /// Boots by a script that runs as PID 1 of the namespaces and ends with `exec`ing execd: `$EXECD` is its
    /// path, `$DIRECTORY` a scratch directory.
    pub fn boot_in(config: &BootConfig, script: &str) -> Self {
        let guard = BOOTING.lock().unwrap_or_else(PoisonError::into_inner);
        let directory = tempfile::tempdir().expect("a temporary directory");
        let listener = UnixListener::bind(directory.path().join("sock")).expect("a socket");
        let mut boot = File::from(memfd_create("boot", MemfdFlags::CLOEXEC).expect("a memory file"));
        boot.write_all(&serde_json::to_vec(config).expect("JSON")).expect("written");
        let (reader, writer) = rustix::pipe::pipe_with(rustix::pipe::PipeFlags::CLOEXEC).expect("a pipe");
        let handed: [OwnedFd; 3] = [listener.into(), boot.into(), writer];
        for fd in &handed {
            fcntl_setfd(fd, FdFlags::empty()).expect("inheritable");
        }
        let [listener, boot, writer] = handed.each_ref().map(AsRawFd::as_raw_fd);
        // First out of the way of each other, then to their places.
        let place = format!("exec 13<&{listener} 14<&{boot} 15>&{writer}; exec 3<&13 4<&14 5>&15 13<&- 14<&- 15>&-");
        let run = "exec unshare --pid --mount --mount-proc --fork --kill-child bash -c \"$SCRIPT\"";
        let child = Command::new("bash")
            .args(["-c", &format!("{place}; {run}")])
            .env("SCRIPT", format!("S=\"$SCRIPT\"; unset SCRIPT; {script}"))
            .env("EXECD", env!("CARGO_BIN_EXE_execd"))
            .env("DIRECTORY", directory.path())
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .spawn()
            .expect("unshare starts; these tests run as root");
        drop(handed);
        drop(guard);
        Self { child, status: BufReader::new(File::from(reader)), directory }
    }

    /// Boots and waits until the API answers and the main process was started.
    pub fn ready(config: &BootConfig) -> Self {
        let mut sandbox = Self::boot(config);
        assert_eq!(sandbox.next_status(), Some(StatusLine::Ready));
        sandbox
    }

    /// The next status line; `None` at the end.
    pub fn next_status(&mut self) -> Option<StatusLine> {
        let mut line = String::new();
        self.status.read_line(&mut line).expect("the status pipe");
        (!line.is_empty())
            .then(|| StatusLine::parse(line.trim_end()).unwrap_or_else(|| panic!("a status line: {line:?}")))
    }

    /// Where it listens.
    pub fn target(&self) -> Target {
        Target::Unix(self.directory.path().join("sock"), Some("t0ken".into()))
    }

    /// The pid of execd outside.
    pub fn pid(&self) -> i32 {
        let id = self.child.id();
        let children = std::fs::read_to_string(format!("/proc/{id}/task/{id}/children")).expect("unshare lives");
        children.split_ascii_whitespace().next().expect("execd lives").parse().expect("a pid")
    }

    /// Signals execd.
    pub fn signal(&self, signal: Signal) {
        kill_process(Pid::from_raw(self.pid()).expect("a pid"), signal).expect("execd lives");
    }

    /// What the main process wrote to its standard output, up to the end of the sandbox.
    pub fn console(&mut self) -> String {
        let mut text = String::new();
        let mut stdout = self.child.stdout.take().expect("stdout is piped");
        std::io::Read::read_to_string(&mut stdout, &mut text).expect("console text");
        text
    }

    /// The next line of the main process.
    pub fn console_line(&mut self) -> String {
        let stdout = self.child.stdout.as_mut().expect("stdout is piped");
        let mut line = Vec::new();
        let mut byte = [0];
        while std::io::Read::read(stdout, &mut byte).expect("console text") == 1 && byte[0] != b'\n' {
            line.push(byte[0]);
        }
        String::from_utf8(line).expect("UTF-8")
    }

    /// Waits for the end and returns the exit status of execd.
    pub fn wait(&mut self) -> ExitStatus {
        self.child.wait().expect("unshare ends")
    }
}

impl Drop for Sandbox {
    fn drop(&mut self) {
        let _ = self.child.kill(); // --kill-child takes the namespace with it
        let _ = self.child.wait();
    }
}
