//! The egress process is killed again and again: nothing leaks meanwhile, nothing is forgotten afterwards.

mod common;

use std::net::IpAddr;
use std::time::Instant;

use common::{Inside, ORIGIN, OTHER, Proxy, World, allow, is_reset, read_some};
use hickory_proto::op::ResponseCode;

const KILLS: usize = 200;
/// Counts what leaves the machine, by who owns its socket: the egress process runs as nobody. What the kernel says by itself for
/// a socket that was closed (the last segments of a connection, resets, ICMP's "unreachable") has no owner and no content.
const WATCH: &str = "nft -f - <<'RULES'\n\
    table inet watch {\n\
      counter egress {}\n\
      counter others {}\n\
      chain out { type filter hook output priority 300\n\
        meta l4proto != { tcp, udp, icmp } accept\n\
        meta skuid 65534 counter name egress accept\n\
        tcp flags & syn == 0 meta length <= 60 accept\n\
        icmp type destination-unreachable accept\n\
        counter name others\n\
      }\n\
    }\n\
    RULES";

#[tokio::test]
async fn two_hundred_kills_lose_no_name_and_open_no_door() {
    let world = World::new();
    world.name("good.example", &[ORIGIN.into()]);
    world.name("late.example", &[ORIGIN.into()]);
    world.origin(ORIGIN, 80, "good");
    world.origin(OTHER, 80, "other");
    let mut proxy = Proxy::start(&world).await;
    let inside = Inside::new();
    let policy = allow(&["good.example", "*.many.example"]);
    proxy.attach(&inside, &policy).await;
    let address = inside.address("good.example");
    let mut slowest = std::time::Duration::ZERO;
    for kill in 0..KILLS {
        let mut open = inside.connect(address, 80).expect("connected");
        assert_eq!(read_some(&mut open).expect("a banner"), "good");
        let fresh = format!("n{kill}.many.example");
        world.name(&fresh, &[ORIGIN.into()]);
        let fresh_address = inside.address(&fresh);

        let killed = Instant::now();
        proxy.kill_and_restart(&world).await;
        assert!(is_reset(&read_some(&mut open).expect_err("its connections end with it, visibly")));
        proxy.attach(&inside, &policy).await;
        assert_eq!(inside.banner(address, 80).expect("reached by the address of before"), "good");
        slowest = slowest.max(killed.elapsed());
        assert_eq!(inside.address(&fresh), fresh_address);
        if kill % 20 == 0 {
            assert!(is_reset(&inside.banner(OTHER, 80).expect_err("still denied")));
            assert_eq!(inside.lookup("late.example").0, ResponseCode::NXDomain);
        }
    }
    println!("slowest way back: {slowest:?}");
    let stats = proxy.control.stats().await.expect("stats");
    assert_eq!(stats.sandboxes[0].names, KILLS + 1);
}

#[tokio::test]
async fn while_nobody_serves_nothing_leaves_and_what_waited_is_served_afterwards() {
    let world = World::new();
    world.name("good.example", &[ORIGIN.into()]);
    world.origin(ORIGIN, 80, "good");
    let mut proxy = Proxy::start(&world).await;
    let inside = Inside::new();
    let policy = allow(&["good.example"]);
    proxy.attach(&inside, &policy).await;
    let address = inside.address("good.example");
    proxy.child.kill().expect("it runs");
    proxy.child.wait().expect("it ends");
    // The sockets are kept: connections and questions queue, nothing answers them.
    let mut waits = inside.connect(address, 80).expect("the kernel queues it");
    let thief = inside.namespace.run(|| std::net::TcpListener::bind("127.0.0.1:1"));
    assert_eq!(thief.expect_err("the port is held").kind(), std::io::ErrorKind::AddrInUse);
    proxy.kill_and_restart(&world).await;
    proxy.attach(&inside, &policy).await;
    assert_eq!(read_some(&mut waits).expect("served after all"), "good");
}

#[tokio::test]
async fn a_new_server_takes_the_sockets_back_and_finds_the_same_process() {
    let world = World::new();
    world.name("good.example", &[ORIGIN.into()]);
    world.origin(ORIGIN, 80, "good");
    let mut proxy = Proxy::start(&world).await;
    let inside = Inside::new();
    proxy.attach(&inside, &allow(&["good.example"])).await;
    let before = proxy.control.stats().await.expect("stats");
    let Inside { namespace, id, listeners, names } = inside;
    drop(listeners);
    let inside = Inside { listeners: proxy.control.listeners(&id).await.expect("the sockets"), namespace, id, names };
    let after = proxy.control.stats().await.expect("stats");
    assert_eq!((before.instance, after.sandboxes[0].revision), (after.instance, 1));
    // Good enough to start over with.
    proxy.kill_and_restart(&world).await;
    assert_ne!(proxy.control.stats().await.expect("stats").instance, before.instance);
    proxy.attach(&inside, &allow(&["good.example"])).await;
    let address: IpAddr = inside.address("good.example");
    assert_eq!(inside.banner(address, 80).expect("a banner"), "good");
}

/// Packets that left the machine: of the egress process, and of anybody else.
fn left(world: &World) -> (u64, u64) {
    let counted = |name: &str| {
        let command = ["-j", "list", "counter", "inet", "watch", name];
        let listed = world.outside.run(|| std::process::Command::new("nft").args(command).output().expect("nft runs"));
        let listed: serde_json::Value = serde_json::from_slice(&listed.stdout).expect("JSON");
        listed["nftables"][1]["counter"]["packets"].as_u64().expect("a counter")
    };
    (counted("egress"), counted("others"))
}

#[tokio::test]
async fn attack_31_every_packet_is_of_the_egress_process_and_none_leaves_between_two() {
    let world = World::new();
    world.name("good.example", &[ORIGIN.into()]);
    world.origin(ORIGIN, 80, "good");
    world.origin(OTHER, 80, "other");
    world.outside.shell(WATCH);
    let mut proxy = Proxy::start(&world).await;
    let inside = Inside::new();
    let policy = allow(&["good.example"]);
    proxy.attach(&inside, &policy).await;
    let address = inside.address("good.example");
    // Programs of the sandbox try all the time, by every way that there is.
    let stop = std::sync::Arc::new(std::sync::atomic::AtomicBool::new(false));
    let stopped = stop.clone();
    inside.namespace.spawn(move || {
        let datagrams = std::net::UdpSocket::bind("0.0.0.0:0").expect("a socket");
        while !stopped.load(std::sync::atomic::Ordering::Relaxed) {
            for to in [address, OTHER.into()] {
                let to = std::net::SocketAddr::new(to, 80);
                // Whether it succeeds is not the question here.
                let _ = std::net::TcpStream::connect_timeout(&to, std::time::Duration::from_millis(20));
            }
            for to in [std::net::SocketAddr::from((OTHER, 443)), std::net::SocketAddr::from(([8, 8, 8, 8], 53))] {
                let _ = datagrams.send_to(b"anything", to);
            }
            std::thread::sleep(std::time::Duration::from_millis(1));
        }
    });
    for _ in 0..40 {
        assert_eq!(inside.banner(address, 80).expect("a banner"), "good");
        proxy.child.kill().expect("it runs");
        proxy.child.wait().expect("it ends");
        let before = left(&world);
        std::thread::sleep(std::time::Duration::from_millis(50));
        assert_eq!(left(&world), before, "nobody is there, and nothing leaves");
        proxy.kill_and_restart(&world).await;
        proxy.attach(&inside, &policy).await;
    }
    stop.store(true, std::sync::atomic::Ordering::Relaxed);
    let (of_egress, of_others) = left(&world);
    assert!(of_egress > 400, "{of_egress}");
    assert_eq!(of_others, 0, "only the egress process sends");
}
