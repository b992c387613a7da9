//! TCP that nobody looks into: how much passes, what it costs, how long a message takes, and whether a neighbour minds.

use std::io::Write as _;
use std::net::{SocketAddr, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use egress::Settings;
use egress::limits::{Limits, Rate};
use hickory_proto::rr::RecordType;

use super::common::{Inside, ORIGIN, Proxy, World, allow, client_hello, question};
use super::load::{ECHO, SOURCE, drain, origins, there_and_back, with_children};
use super::peer::{Peer, connect};
use super::{Options, Sample};

const HOST: &str = "origin.example";
/// Connections at once; the last number is the most that a sandbox may have.
const FLOWS: [usize; 3] = [1, 64, egress::limits::FLOWS];
/// How fast they may come: not what is measured here.
const NEW_FLOWS: Rate = Rate { per_second: 10_000, burst: 10_000 };
/// Connections of the greedy sandbox that are read as fast as they come; the rest stands still.
const GREEDY_READERS: usize = 4;
/// Between two of its questions: five times what a sandbox may ask.
const FLOOD_PAUSE: Duration = Duration::from_millis(1);

/// What a program says first.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Hello {
    /// Nothing.
    None,
    /// The beginning of TLS.
    Tls,
}

/// Streams with one flow and many, and messages there and back.
pub async fn throughput(options: &Options, hello: Hello) -> Vec<Sample> {
    let world = World::new();
    world.name(HOST, &[ORIGIN.into()]);
    origins(&world);
    let limits = Limits { new_flows: NEW_FLOWS, ..Limits::default() };
    let settings = Settings { limits, ..Settings::default() };
    let proxy = Proxy::start_program(&world, &options.program, settings).await;
    let inside = Inside::new();
    proxy.attach(&inside, &allow(&[HOST])).await;
    let nginx = Peer::nginx(&world, &[SOURCE, ECHO]);
    let egress = |port| inside.connect(inside.address(HOST), port).expect("connected");
    let peer = |port| connect(&world, ([127, 0, 0, 1], port).into()).expect("connected");
    let direct = |port| connect(&world, SocketAddr::new(ORIGIN.into(), port)).expect("connected");
    let workers = with_children(nginx.pid());
    let subjects = [
        Subject { who: "osb", open: &egress, watched: vec![proxy.child.id()] },
        Subject { who: "nginx stream", open: &peer, watched: workers },
        Subject { who: "direct", open: &direct, watched: Vec::new() },
    ];
    let mut samples = Vec::new();
    for flows in FLOWS {
        for Subject { who, open, watched } in &subjects {
            let streams = (0..flows).map(|_| greeted(open(SOURCE), hello)).collect();
            let came = drain(streams, options.length, watched);
            samples.push(Sample { what: format!("rate {flows}"), who, values: vec![came.rate] });
            if !watched.is_empty() {
                let per_cpu = came.megabytes / came.cpu_seconds.max(0.01);
                samples.push(Sample { what: format!("per cpu {flows}"), who, values: vec![per_cpu] });
            }
        }
    }
    if hello == Hello::None {
        for Subject { who, open, .. } in &subjects {
            let values = there_and_back(open(ECHO), options.length);
            samples.push(Sample { what: "latency".to_owned(), who, values });
        }
    }
    samples
}

/// Somebody by whom the origin is reached.
struct Subject<'a> {
    who: &'static str,
    /// A connection to a port of the origin.
    open: &'a dyn Fn(u16) -> TcpStream,
    /// Processes that pass bytes on.
    watched: Vec<u32>,
}

fn greeted(mut stream: TcpStream, hello: Hello) -> TcpStream {
    if hello == Hello::Tls {
        stream.write_all(&client_hello(HOST)).expect("sent");
    }
    stream
}

/// Messages of one sandbox alone, and beside one that takes all that it may have.
pub async fn fairness(options: &Options) -> Vec<Sample> {
    let world = World::new();
    world.name(HOST, &[ORIGIN.into()]);
    origins(&world);
    let proxy = Proxy::start_program(&world, &options.program, Settings::default()).await;
    let (greedy, modest) = (Inside::new(), Inside::new());
    for inside in [&greedy, &modest] {
        proxy.attach(inside, &allow(&[HOST])).await;
    }
    let open = || modest.connect(modest.address(HOST), ECHO).expect("connected");
    let direct = || connect(&world, SocketAddr::new(ORIGIN.into(), ECHO)).expect("connected");
    let sample = |what: &str, who, values| Sample { what: what.to_owned(), who, values };
    let mut samples = vec![
        sample("alone", "osb", there_and_back(open(), options.length)),
        sample("alone", "direct", there_and_back(direct(), options.length)),
    ];
    let ends = Arc::new(AtomicBool::new(false));
    // More than it may have: the rest waits in its own queue, and its new connections come as fast as they may.
    let mut all: Vec<_> = (0..300).map(|_| greedy.connect(greedy.address(HOST), SOURCE).expect("queued")).collect();
    let readers: Vec<_> = all.drain(..GREEDY_READERS).map(|stream| read_slowly(stream, ends.clone())).collect();
    let flood = greedy.namespace.run(|| std::net::UdpSocket::bind("0.0.0.0:0").expect("a socket"));
    flood.connect("10.0.0.53:53").expect("connected");
    let asker = std::thread::spawn({
        let (ends, text) = (ends.clone(), question(HOST, RecordType::A));
        move || {
            while !ends.load(Ordering::Relaxed) {
                // Its own buffer is full at some time.
                let _ = flood.send(&text);
                std::thread::sleep(FLOOD_PAUSE);
            }
        }
    });
    samples.push(sample("beside", "osb", there_and_back(open(), options.length)));
    samples.push(sample("beside", "direct", there_and_back(direct(), options.length)));
    ends.store(true, Ordering::Relaxed);
    for thread in readers.into_iter().chain([asker]) {
        thread.join().expect("it ends");
    }
    samples
}

/// Takes what a sandbox with half a core could take of one connection.
fn read_slowly(mut stream: TcpStream, ends: Arc<AtomicBool>) -> std::thread::JoinHandle<()> {
    std::thread::spawn(move || {
        let mut buffer = vec![0; 64 * 1024];
        while !ends.load(Ordering::Relaxed) {
            if std::io::Read::read(&mut stream, &mut buffer).is_err() {
                return;
            }
            std::thread::sleep(Duration::from_micros(500));
        }
    })
}
