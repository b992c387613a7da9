//! What goes through: streams that are read as fast as they come, and single messages there and back.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Barrier};
use std::time::{Duration, Instant};

use super::common::{ORIGIN, World};

/// Where an origin sends without end.
pub const SOURCE: u16 = 443;
/// Where an origin repeats what it hears.
pub const ECHO: u16 = 7;
/// Bytes of one read or write: what programs that move bulk use.
const CHUNK_BYTES: usize = 256 * 1024;
/// Bytes of a message there and back.
const MESSAGE_BYTES: usize = 64;
/// What is not counted, until windows have grown.
const WARM_UP: Duration = Duration::from_millis(300);
/// Between two messages, so that latency is that of a flow and not of a full core.
const PAUSE: Duration = Duration::from_micros(200);

/// Starts the two origins.
pub fn origins(world: &World) {
    world.serve(ORIGIN, SOURCE, |mut stream| {
        let chunk = vec![b'x'; CHUNK_BYTES];
        while stream.write_all(&chunk).is_ok() {}
    });
    world.serve(ORIGIN, ECHO, |mut stream| {
        let mut buffer = [0; MESSAGE_BYTES];
        // Fails only for what is no socket.
        let _ = stream.set_nodelay(true);
        while stream.read_exact(&mut buffer).is_ok() && stream.write_all(&buffer).is_ok() {}
    });
}

/// What came through in a time.
pub struct Came {
    /// Million bytes in a second.
    pub rate: f64,
    /// Million bytes.
    pub megabytes: f64,
    /// Processor seconds of the processes that were watched.
    pub cpu_seconds: f64,
}

/// Reads all connections at once for so long, each in a thread.
pub fn drain(streams: Vec<TcpStream>, length: Duration, watched: &[u32]) -> Came {
    let (bytes, ends) = (Arc::new(AtomicU64::new(0)), Arc::new(AtomicBool::new(false)));
    let begun = Arc::new(Barrier::new(streams.len() + 1));
    let readers: Vec<_> = streams
        .into_iter()
        .map(|mut stream| {
            let (bytes, ends, begun) = (bytes.clone(), ends.clone(), begun.clone());
            std::thread::spawn(move || {
                let mut buffer = vec![0; CHUNK_BYTES];
                stream.read_exact(&mut buffer[..1]).expect("an origin that sends without end");
                begun.wait();
                while !ends.load(Ordering::Relaxed) {
                    let length = stream.read(&mut buffer).expect("an origin that sends without end");
                    assert!(length > 0, "an origin that sends without end has ended");
                    bytes.fetch_add(length as u64, Ordering::Relaxed);
                }
            })
        })
        .collect();
    begun.wait();
    std::thread::sleep(WARM_UP);
    let (start, before, cpu) = (Instant::now(), bytes.load(Ordering::Relaxed), cpu_seconds(watched));
    std::thread::sleep(length);
    let megabytes = (bytes.load(Ordering::Relaxed) - before) as f64 / 1e6;
    let cpu_seconds = cpu_seconds(watched) - cpu;
    let rate = megabytes / start.elapsed().as_secs_f64();
    ends.store(true, Ordering::Relaxed);
    for reader in readers {
        reader.join().expect("a reader ends");
    }
    Came { rate, megabytes, cpu_seconds }
}

/// Milliseconds of messages there and back on one connection, for so long.
pub fn there_and_back(mut stream: TcpStream, length: Duration) -> Vec<f64> {
    stream.set_nodelay(true).expect("a socket");
    let (start, mut millis) = (Instant::now(), Vec::new());
    let mut buffer = [7; MESSAGE_BYTES];
    while start.elapsed() < WARM_UP + length {
        let sent = Instant::now();
        stream.write_all(&buffer).expect("sent");
        stream.read_exact(&mut buffer).expect("an echo");
        if sent - start > WARM_UP {
            millis.push(sent.elapsed().as_secs_f64() * 1e3);
        }
        std::thread::sleep(PAUSE);
    }
    millis
}

/// Processor seconds that these processes have used, in units of the kernel's clock (10 ms).
pub fn cpu_seconds(pids: &[u32]) -> f64 {
    let of = |pid: &u32| {
        let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).expect("it runs");
        let (_, after) = stat.rsplit_once(')').expect("a name");
        after.split_whitespace().skip(11).take(2).filter_map(|ticks| ticks.parse::<u64>().ok()).sum::<u64>()
    };
    pids.iter().map(of).sum::<u64>() as f64 / 100.0
}

/// Mebibytes of a line of the kernel's account of a process's memory.
pub fn memory(pid: u32, line: &str) -> f64 {
    let text = std::fs::read_to_string(format!("/proc/{pid}/smaps_rollup")).expect("it runs");
    let found = text.lines().find_map(|text| text.strip_prefix(line)?.strip_prefix(':'));
    let kib = found.and_then(|rest| rest.split_whitespace().next()?.parse::<f64>().ok()).expect("a number of KiB");
    kib / 1024.0
}

/// Processes below these, and these.
pub fn with_children(pid: u32) -> Vec<u32> {
    let children = std::fs::read_to_string(format!("/proc/{pid}/task/{pid}/children")).unwrap_or_default();
    std::iter::once(pid).chain(children.split_whitespace().filter_map(|child| child.parse().ok())).collect()
}
