//! Stands in for execd in this crate's tests: answers every request with 200, runs the main process, reports its end.

use std::fs::File;
use std::io::{Read, Write};
use std::os::unix::net::UnixListener;
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::process::Command;

use protocol::execd::boot::{BootConfig, CONFIG_FD, LISTENER_FD, STATUS_FD, StatusLine};
use runtime_native::sys;

fn main() {
    let listener = UnixListener::from(sys::inherited(LISTENER_FD));
    let mut text = String::new();
    File::from(sys::inherited(CONFIG_FD)).read_to_string(&mut text).expect("boot configuration");
    let config: BootConfig = serde_json::from_str(&text).expect("boot configuration");
    let mut status = File::from(sys::inherited(STATUS_FD));
    rustix::io::fcntl_setfd(&status, rustix::io::FdFlags::CLOEXEC).expect("status pipe");
    rustix::io::fcntl_setfd(&listener, rustix::io::FdFlags::CLOEXEC).expect("listener");
    listener.set_nonblocking(false).expect("listener");
    let mut report = |line: StatusLine| writeln!(status, "{line}").expect("status pipe");

    let mut command = Command::new(&config.entrypoint[0]);
    command.args(&config.entrypoint[1..]).env_clear().envs(&config.env);
    if let Some(user) = config.user {
        command.uid(user.uid).gid(user.gid);
    }
    let mut child = match command.spawn() {
        Ok(child) => child,
        Err(error) => {
            report(StatusLine::EntrypointFailed(error.to_string()));
            std::process::exit(127);
        }
    };
    report(StatusLine::Ready);
    std::thread::spawn(move || {
        for stream in listener.incoming() {
            let mut stream = stream.expect("connection");
            let mut buffer = [0u8; 4096];
            let _ = stream.read(&mut buffer);
            let _ = stream.write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\nConnection: close\r\n\r\n");
        }
    });
    let ended = child.wait().expect("main process");
    match (ended.code(), ended.signal()) {
        (Some(code), _) => {
            report(StatusLine::Exited(code));
            std::process::exit(code)
        }
        (None, signal) => {
            let signal = signal.unwrap_or(0);
            report(StatusLine::Signaled(signal));
            std::process::exit(128 + signal)
        }
    }
}
