//! A sandbox with a steered network: what reaches the sockets outside, and what reaches nobody.
//!
//! This process stands in for whoever decides about what leaves. Inside, Perl asks; it is on every Debian.

mod common;

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream, UdpSocket};
use std::os::fd::AsFd;
use std::process::Command;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use common::{Census, DEADLINE, Jailer, plan, ranges};
use lifecycle::isolated::{Mount, MountKind, Record, SessionId, SessionSpec};
use lifecycle::runtime::{Exit, Listeners};
use lifecycle::spec::{MAX_REACHABLE, Network, SandboxId};
use protocol::execd::isolated::CreateSession;
use runtime_native::error::Kind;
use runtime_native::state::{self, State};
use runtime_native::wire::{Plan, PlanLimits, Reply, Request, Seen};
use rustix::event::{PollFd, PollFlags, Timespec, poll};

/// A user id without an account and without sub-ids.
const UID: u32 = 12_345;
/// Where the sandboxes of these tests may ask for connections.
const REACHABLE: &[&str] = &["203.0.113.0/24", "198.18.0.0/15", "2001:db8::/32"];

/// `t HOST PORT` prints what a TCP connection brought, `u HOST PORT` what a datagram brought and from whom, or the
/// error's number.
const ASK: &str = r#"
use strict; use Socket qw(:all); use IO::Socket::IP; $| = 1; $SIG{PIPE} = "IGNORE";
sub t { my ($h, $p) = @_;
  my $s = IO::Socket::IP->new(PeerHost => $h, PeerService => $p, Type => SOCK_STREAM);
  print "tcp $h $p: ", ($s ? scalar(<$s>) // "nothing\n" : ($!+0) . "\n"); $s }
sub u { my ($h, $p) = @_;
  my ($e, $a) = getaddrinfo($h, $p, { flags => AI_NUMERICHOST, socktype => SOCK_DGRAM }); die $e if $e;
  socket(my $s, $a->{family}, SOCK_DGRAM, 0) or die; my $got = "";
  my $from = send($s, "question", 0, $a->{addr}) ? recv($s, $got, 100, 0) : undef;
  my ($no, $host, $port) = $from ? getnameinfo($from, NI_NUMERICHOST | NI_NUMERICSERV) : ();
  print "udp $h $p: ", ($from ? "$got from $host $port" : $!+0), "\n" }
sub b { my ($type, $h, $p) = @_;
  my ($e, $a) = getaddrinfo($h, $p, { flags => AI_NUMERICHOST | AI_PASSIVE, socktype => $type }); die $e if $e;
  socket(my $s, $a->{family}, $type, 0) or die;
  setsockopt($s, SOL_SOCKET, SO_REUSEADDR, 1); setsockopt($s, SOL_SOCKET, 15, 1);
  my $done = bind($s, $a->{addr}); print "bind $h $p: ", ($done ? "done" : $!+0), "\n"; $s }
"#;

/// A script that runs lines of Perl after [`ASK`].
fn perl(lines: &str) -> String {
    format!("exec perl - <<'END'\n{ASK}\n{lines}\nEND\n")
}

fn steered(reachable: &[&str]) -> Plan {
    Plan { network: Network::Steered { reachable: ranges(reachable) }, ..plan() }
}

/// Serves a sandbox's sockets: a connection gets told what it asked for, a question is answered to its sender.
struct Outside {
    sockets: Option<(TcpListener, TcpListener, UdpSocket, UdpSocket)>,
    threads: Vec<JoinHandle<()>>,
}

impl Outside {
    fn serve(listeners: Listeners) -> Self {
        let tcp = |fd| {
            let socket = TcpListener::from(fd);
            socket.set_nonblocking(false).expect("blocking");
            socket
        };
        let udp = |fd| {
            let socket = UdpSocket::from(fd);
            socket.set_nonblocking(false).expect("blocking");
            socket
        };
        let sockets = (tcp(listeners.tcp4), tcp(listeners.tcp6), udp(listeners.udp4), udp(listeners.udp6));
        let mut threads = Vec::new();
        for socket in [&sockets.0, &sockets.1].map(|socket| socket.try_clone().expect("duplicate")) {
            threads.push(std::thread::spawn(move || {
                while let Ok((mut stream, _)) = socket.accept() {
                    let asked = stream.local_addr().expect("the asked address");
                    let _ = writeln!(stream, "{} {}", asked.ip(), asked.port());
                }
            }));
        }
        for socket in [&sockets.2, &sockets.3].map(|socket| socket.try_clone().expect("duplicate")) {
            threads.push(std::thread::spawn(move || {
                let mut buffer = [0; 512];
                loop {
                    // The standard library takes it for impossible that nobody sent, which is how a shut socket answers.
                    let received = rustix::net::recvfrom(&socket, &mut buffer, rustix::net::RecvFlags::empty());
                    let Ok((length, _, Some(sender))) = received else { return };
                    assert_eq!(&buffer[..length], b"question");
                    let flags = rustix::net::SendFlags::empty();
                    rustix::net::sendto(&socket, b"answer", flags, &sender).expect("answer");
                }
            }));
        }
        Self { sockets: Some(sockets), threads }
    }
}

impl Drop for Outside {
    /// Ends the threads, so that no copy of a socket is left.
    fn drop(&mut self) {
        let Some((tcp4, tcp6, udp4, udp6)) = self.sockets.take() else { return };
        for socket in [tcp4.as_fd(), tcp6.as_fd(), udp4.as_fd(), udp6.as_fd()] {
            // An error only says that a datagram socket has no peer; its reader wakes all the same.
            let _ = rustix::net::shutdown(socket, rustix::net::Shutdown::Both);
        }
        for thread in self.threads.drain(..) {
            thread.join().expect("the outside");
        }
    }
}

/// What lines of Perl print in a sandbox that is served from outside.
fn inside(jailer: &Jailer, plan: &Plan, lines: &str) -> Vec<String> {
    let (receipt, listeners) =
        jailer.create_steered(plan, &perl(lines)).unwrap_or_else(|failure| panic!("create: {failure}"));
    assert_eq!(receipt.network, "egress");
    let outside = Outside::serve(listeners);
    let seen = jailer.wait_end(&plan.id);
    let console = jailer.console(&plan.id);
    assert!(matches!(seen, Seen::Ended { exit: Exit::Exited { code: 0 } }), "{seen:?}: {console}");
    drop(outside);
    console.lines().map(str::to_owned).collect()
}

/// Both kinds of jailer, with a plan that both can carry out.
fn for_root_and_for_a_user(check: impl Fn(&Jailer, Plan)) {
    check(&Jailer::start(), steered(REACHABLE));
    let plan = Plan { limits: PlanLimits::default(), ..steered(REACHABLE) };
    check(&Jailer::start_as_user(UID), plan);
}

#[test]
fn connections_arrive_with_the_address_that_was_asked_for() {
    for_root_and_for_a_user(|jailer, plan| {
        let asked = [
            ("203.0.113.9", 443),
            ("203.0.113.255", 22),
            ("198.19.255.255", 65_535),
            ("203.0.113.9", 1),
            ("2001:db8::5", 443),
            ("2001:db8:ffff:ffff:ffff:ffff:ffff:ffff", 80),
            // Names may be asked of anybody, by TCP too.
            ("10.0.0.53", 53),
            ("192.0.2.1", 53),
            ("2001:4860:4860::8888", 53),
        ];
        let lines: String = asked.iter().map(|(host, port)| format!("t('{host}', {port});")).collect();
        let expected = asked.map(|(host, port)| format!("tcp {host} {port}: {host} {port}"));
        assert_eq!(inside(jailer, &plan, &lines), expected);
    });
}

#[test]
fn what_cannot_be_reached_is_refused_at_once() {
    for_root_and_for_a_user(|jailer, plan| {
        let lines = "my $from = time;
            t('192.0.2.1', 443); t('203.0.114.0', 443); t('198.20.0.0', 80); t('2001:db9::', 443); t('10.0.0.53', 54);
            t('169.254.169.254', 80); t('224.0.0.1', 80); t('::ffff:192.0.2.1', 443);
            u('203.0.113.9', 443); u('2001:db8::5', 443); u('192.0.2.1', 123); u('203.0.113.9', 1); u('239.1.1.1', 5353);
            for my $kind ([AF_INET, 1, '203.0.113.9'], [AF_INET6, 58, '2001:db8::5'], [AF_INET, 1, '127.0.0.1'], [AF_INET6, 58, '::1']) {
                socket(my $s, $kind->[0], SOCK_DGRAM, $kind->[1]) or die \"$!\";
                my ($e, $a) = getaddrinfo($kind->[2], 0, { flags => AI_NUMERICHOST, socktype => SOCK_DGRAM }); die $e if $e;
                my $echo = pack 'CCnnn', ($kind->[1] == 1 ? 8 : 128), 0, 0, 1, 1;
                connect($s, $a->{addr}) or die; my $got;
                print 'ping: ', (send($s, $echo, 0) && defined recv($s, $got, 100, 0) ? 'answered' : $!+0), qq(\\n);
            }
            print 'took long', qq(\\n) if time - $from > 2;";
        let refused = |host: &str, port: u16| format!("tcp {host} {port}: {}", libc::ECONNREFUSED);
        let not_sent = |host: &str, port: u16| format!("udp {host} {port}: {}", libc::EPERM);
        let expected = [
            refused("192.0.2.1", 443),
            refused("203.0.114.0", 443),
            refused("198.20.0.0", 80),
            refused("2001:db9::", 443),
            refused("10.0.0.53", 54),
            refused("169.254.169.254", 80),
            format!("tcp 224.0.0.1 80: {}", libc::ENETUNREACH),
            refused("::ffff:192.0.2.1", 443),
            not_sent("203.0.113.9", 443),
            not_sent("2001:db8::5", 443),
            not_sent("192.0.2.1", 123),
            not_sent("203.0.113.9", 1),
            not_sent("239.1.1.1", 5353),
            format!("ping: {}", libc::EPERM),
            // The kernel tells a ping over IPv6 by the next call.
            format!("ping: {}", libc::EACCES),
            "ping: answered".to_owned(),
            "ping: answered".to_owned(),
        ];
        assert_eq!(inside(jailer, &plan, lines), expected);
    });
}

#[test]
fn questions_for_names_are_answered_by_whom_they_asked() {
    for_root_and_for_a_user(|jailer, plan| {
        let asked = ["10.0.0.53", "203.0.113.9", "8.8.8.8", "255.255.255.254", "2001:db8::5", "2001:4860:4860::8888"];
        let lines: String = asked.iter().map(|host| format!("u('{host}', 53);")).collect();
        let lines = format!("{lines} open(my $f, '<', '/etc/resolv.conf'); print <$f>;");
        let mut expected = asked.map(|host| format!("udp {host} 53: answer from {host} 53")).to_vec();
        expected.extend(["nameserver 10.0.0.53".to_owned(), "options timeout:1 attempts:5".to_owned()]);
        assert_eq!(inside(jailer, &plan, &lines), expected);
    });
}

#[test]
fn local_programs_talk_to_each_other_and_nothing_is_tracked() {
    for_root_and_for_a_user(|jailer, plan| {
        let lines = "my $count = 0;
            for my $host ('127.0.0.1', '127.1.2.3', '10.0.0.2', '::1', 'fd00::2') {
                my $l = IO::Socket::IP->new(LocalHost => $host, LocalPort => 53, Listen => 5) or die $@;
                my $c = IO::Socket::IP->new(PeerHost => $host, PeerPort => 53) or die \"$host: $@\";
                my $a = $l->accept; print $a \"hello\\n\"; close $a; $count++ if <$c> eq \"hello\\n\";
                my $d = IO::Socket::IP->new(LocalHost => $host, LocalPort => 53, Type => SOCK_DGRAM) or die $@;
                my $e = IO::Socket::IP->new(PeerHost => $host, PeerPort => 53, Type => SOCK_DGRAM) or die $@;
                send $e, 'hi', 0; recv $d, my $got, 10, 0; $count++ if $got eq 'hi';
            }
            print \"$count\\n\";
            t('203.0.113.9', 443); u('8.8.8.8', 53); t('192.0.2.1', 443);
            open(my $f, '<', '/proc/sys/net/netfilter/nf_conntrack_count'); print 'tracked ', ($f ? <$f> : qq(0\\n));";
        let expected = [
            "10".to_owned(),
            "tcp 203.0.113.9 443: 203.0.113.9 443".to_owned(),
            "udp 8.8.8.8 53: answer from 8.8.8.8 53".to_owned(),
            format!("tcp 192.0.2.1 443: {}", libc::ECONNREFUSED),
            "tracked 0".to_owned(),
        ];
        assert_eq!(inside(jailer, &plan, lines), expected);
    });
}

#[test]
fn our_port_can_be_neither_asked_nor_taken() {
    for_root_and_for_a_user(|jailer, plan| {
        let every = "for my $h ('127.0.0.1', '0.0.0.0', '10.0.0.2', '203.0.113.9', '::1', '::', 'fd00::2') {
            b(SOCK_STREAM, $h, 1); b(SOCK_DGRAM, $h, 1) }
            t('127.0.0.1', 1); t('10.0.0.2', 1); t('::1', 1); t('fd00::2', 1);
            u('127.0.0.1', 1); u('10.0.0.2', 1); u('::1', 1); u('fd00::2', 1);";
        let lines = format!(
            "{every} print qq(go\\n); sleep 0.05 until -s '/tmp/closed'; {every} print qq(end\\n); sleep 1000;"
        )
        .replace("sleep 0.05", "select(undef, undef, undef, 0.05)");
        let script = format!("(read line </tmp/fifo; echo yes >/tmp/closed) & {}", perl(&lines));
        let script = format!("mkfifo /tmp/fifo; {script}");
        let (_, listeners) = jailer.create_steered(&plan, &script).expect("create");
        jailer.wait_console(&plan.id, "go\n");
        // All copies of our sockets are gone, as after a crash.
        drop(listeners);
        let root = format!("/proc/{}/root", init(jailer, &plan.id));
        std::fs::write(format!("{root}/tmp/fifo"), "closed\n").expect("tell the sandbox");
        let console = jailer.wait_console(&plan.id, "end\n");
        let (before, after) = console.split_once("go\n").expect("two parts");
        assert_eq!(before, after.strip_suffix("end\n").expect("an end"));
        let binds = before.lines().filter(|line| line.starts_with("bind ")).collect::<Vec<_>>();
        assert_eq!(binds.len(), 14);
        assert!(binds.iter().all(|line| line.ends_with(&format!(": {}", libc::EACCES))), "{before}");
        let asked = before.lines().filter(|line| !line.starts_with("bind ")).collect::<Vec<_>>();
        for line in &asked {
            let error = if line.starts_with("tcp") { libc::ECONNREFUSED } else { libc::EPERM };
            assert!(line.ends_with(&format!(": {error}")), "{line}");
        }
        assert_eq!(asked.len(), 8);
    });
}

#[test]
fn nobody_inside_gets_what_was_meant_for_us() {
    let jailer = Jailer::start();
    let plan = steered(REACHABLE);
    // A server on every address, at the port that is asked for outside, before and after our sockets are closed.
    let lines = "open(my $f, '>', '/tmp/closed');
        my $l = IO::Socket::IP->new(LocalHost => '0.0.0.0', LocalPort => 8443, Listen => 5, ReuseAddr => 1) or die $@;
        my $n = b(SOCK_STREAM, '203.0.113.9', 8443); listen($n, 5);
        my $d = b(SOCK_DGRAM, '8.8.8.8', 53); my $e = b(SOCK_DGRAM, '0.0.0.0', 53);
        my $s = t('203.0.113.9', 8443); u('8.8.8.8', 53); print qq(go\\n);
        select(undef, undef, undef, 0.02) until -s '/tmp/closed';
        t('203.0.113.9', 8443); u('8.8.8.8', 53);
        my $m = IO::Socket::IP->new(LocalHost => '0.0.0.0', LocalPort => 443, Listen => 5, ReuseAddr => 1); print $m ? qq(bound\\n) : qq($!\\n);
        print qq(end\\n); sleep 1000;"
        .replace("u('8.8.8.8', 53);\n", "$SIG{ALRM} = sub { print qq(nothing\\n); die }; alarm 1; eval { u('8.8.8.8', 53) }; alarm 0;\n");
    let (_, listeners) = jailer.create_steered(&plan, &perl(&lines)).expect("create");
    let outside = Outside::serve(listeners);
    let console = jailer.wait_console(&plan.id, "go\n");
    assert!(
        console.contains("tcp 203.0.113.9 8443: 203.0.113.9 8443\nudp 8.8.8.8 53: answer from 8.8.8.8 53"),
        "{console}"
    );
    drop(outside);
    std::fs::write(format!("/proc/{}/root/tmp/closed", init(&jailer, &plan.id)), "yes").expect("tell the sandbox");
    let console = jailer.wait_console(&plan.id, "end\n");
    let after = console.split_once("go\n").expect("two parts").1;
    assert_eq!(after, format!("tcp 203.0.113.9 8443: {}\nnothing\nbound\nend\n", libc::ECONNREFUSED));
}

/// The number of a sandbox's first process.
fn init(jailer: &Jailer, id: &SandboxId) -> i32 {
    let known = state::load::<State>(&jailer.paths.sandbox(id), state::STATE).expect("readable").expect("a state");
    known.init.pid
}

#[test]
fn the_sockets_can_be_made_anew_only_when_nobody_holds_them() {
    for_root_and_for_a_user(|jailer, plan| {
        let lines = "my $s = IO::Socket::IP->new(PeerHost => '203.0.113.9', PeerPort => 7) or die;
            print $s \"first\\n\"; print scalar <$s>; t('203.0.113.9', 443); t('2001:db8::5', 443); u('8.8.8.8', 53);";
        let (_, listeners) = jailer.create_steered(&plan, &perl(lines)).expect("create");
        let tcp4 = TcpListener::from(listeners.tcp4);
        tcp4.set_nonblocking(false).expect("blocking");
        let (mut kept, _) = tcp4.accept().expect("a connection");
        // One of four is enough.
        drop((listeners.tcp6, listeners.udp4, listeners.udp6));
        assert_eq!(jailer.listen(&plan.id).expect_err("held").kind, Kind::Held);
        drop(tcp4);
        let again = jailer.listen(&plan.id).expect("listen");
        assert_eq!(jailer.listen(&plan.id).expect_err("held").kind, Kind::Held);
        let outside = Outside::serve(again);
        // The connection that was accepted by the old ones goes on.
        let mut line = [0; 6];
        kept.read_exact(&mut line).expect("what the sandbox said");
        kept.write_all(b"kept\n").expect("tell the sandbox");
        jailer.wait_end(&plan.id);
        let expected = "kept\ntcp 203.0.113.9 443: 203.0.113.9 443\ntcp 2001:db8::5 443: 2001:db8::5 443\n\
                        udp 8.8.8.8 53: answer from 8.8.8.8 53\n";
        assert_eq!((&line, jailer.console(&plan.id).as_str()), (b"first\n", expected));
        drop(outside);
    });
}

#[test]
fn whoever_closed_the_sockets_gets_them_anew_at_once() {
    let jailer = Jailer::start();
    for _ in 0..10 {
        let plan = steered(REACHABLE);
        drop(jailer.create_steered(&plan, "exec sleep 1000").expect("create"));
        for _ in 0..20 {
            drop(jailer.listen(&plan.id).expect("listen"));
        }
        jailer.destroy(&plan.id, Duration::ZERO);
    }
}

#[test]
fn what_may_be_reached_changes_for_new_connections() {
    for_root_and_for_a_user(|jailer, plan| {
        let lines = "my $s = IO::Socket::IP->new(PeerHost => '203.0.113.9', PeerPort => 7) or die; print scalar <$s>;
            t('192.0.2.1', 443); print qq(go\\n); scalar <$s>;
            t('203.0.113.9', 443); t('2001:db8::5', 443); t('192.0.2.1', 443);
            print $s qq(still\\n); print scalar <$s>;";
        let (_, listeners) = jailer.create_steered(&plan, &perl(lines)).expect("create");
        let tcp4 = TcpListener::from(listeners.tcp4);
        tcp4.set_nonblocking(false).expect("blocking");
        let (mut stream, _) = tcp4.accept().expect("a connection");
        stream.write_all(b"hello\n").expect("tell the sandbox");
        jailer.wait_console(&plan.id, "go\n");
        jailer.steer(&plan.id, &["192.0.2.0/24"]).expect("steer");
        stream.write_all(b"steered\n").expect("tell the sandbox");
        tcp4.accept().expect("a connection").0.write_all(b"now\n").expect("tell the sandbox");
        let mut line = [0; 6];
        stream.read_exact(&mut line).expect("what the sandbox said");
        assert_eq!(&line, b"still\n");
        drop(stream);
        jailer.wait_end(&plan.id);
        let refused = libc::ECONNREFUSED;
        let expected = format!(
            "hello\ntcp 192.0.2.1 443: {refused}\ngo\ntcp 203.0.113.9 443: {refused}\ntcp 2001:db8::5 443: {refused}\n\
             tcp 192.0.2.1 443: now\n"
        );
        assert_eq!(jailer.console(&plan.id), expected);
    });
}

#[test]
fn a_change_leaves_no_moment_without_what_stays() {
    let jailer = Jailer::start();
    let plan = steered(REACHABLE);
    let lines = "open(my $f, '>', '/tmp/closed'); my ($done, $refused) = (0, 0);
        until (-s '/tmp/closed') {
            my $s = IO::Socket::IP->new(PeerHost => '203.0.113.9', PeerPort => 443);
            if ($s) { scalar <$s>; $done++; print qq(go\\n) if $done == 1 } else { $refused++ }
        }
        print $done > 0 ? qq(refused $refused\\n) : qq(none\\n); print qq(end\\n); sleep 1000";
    let (_, listeners) = jailer.create_steered(&plan, &perl(lines)).expect("create");
    let outside = Outside::serve(listeners);
    jailer.wait_console(&plan.id, "go\n");
    let many: Vec<String> = (0..500).map(|n| format!("198.51.{}.{}", n / 250, n % 250 * 2 % 250)).collect();
    let mut many: Vec<&str> = many.iter().map(String::as_str).collect();
    many.push("203.0.113.0/25");
    let mut times = Vec::new();
    for round in 0..200 {
        let started = Instant::now();
        match round % 2 {
            0 => jailer.steer(&plan.id, &["203.0.113.8/29", "2001:db8::/64"]).expect("steer"),
            _ => jailer.steer(&plan.id, &many).expect("steer"),
        }
        times.push(started.elapsed());
    }
    times.sort();
    println!("steer: p50 {:?}, max {:?}", times[times.len() / 2], times[times.len() - 1]);
    std::fs::write(format!("/proc/{}/root/tmp/closed", init(&jailer, &plan.id)), "yes").expect("tell the sandbox");
    let console = jailer.wait_console(&plan.id, "end\n");
    assert_eq!(console, "go\nrefused 0\nend\n");
    drop(outside);
}

#[test]
fn a_sandbox_without_a_network_has_nothing_to_change() {
    let jailer = Jailer::start();
    let plan = plan();
    let receipt = jailer.create(&plan, "exec sleep 1000").expect("create");
    assert_eq!(receipt.network, "none");
    assert_eq!(jailer.listen(&plan.id).expect_err("no network").kind, Kind::Invalid);
    assert_eq!(jailer.steer(&plan.id, REACHABLE).expect_err("no network").kind, Kind::Invalid);
    let nobody = SandboxId::parse("nobody").expect("an id");
    assert_eq!(jailer.listen(&nobody).expect_err("no sandbox").kind, Kind::NotFound);
    assert_eq!(jailer.steer(&nobody, REACHABLE).expect_err("no sandbox").kind, Kind::NotFound);
}

#[test]
fn as_many_ranges_as_are_allowed_are_loaded_and_one_more_is_refused() {
    let jailer = Jailer::start();
    let range = |n: usize| {
        if n.is_multiple_of(2) { format!("203.{}.{}.0/25", n / 256, n % 256) } else { format!("2001:db8:{n:x}::/48") }
    };
    let texts: Vec<String> = (0..=MAX_REACHABLE).map(range).collect();
    let texts: Vec<&str> = texts.iter().map(String::as_str).collect();
    let last = MAX_REACHABLE - 1;
    let lines =
        format!("t('203.3.254.127', 80); t('203.3.254.128', 80); t('2001:db8:{last:x}::1', 80); t('203.0.0.1', 80)");
    let printed = inside(&jailer, &steered(&texts[..MAX_REACHABLE]), &lines);
    assert_eq!(
        printed,
        [
            "tcp 203.3.254.127 80: 203.3.254.127 80".to_owned(),
            format!("tcp 203.3.254.128 80: {}", libc::ECONNREFUSED),
            format!("tcp 2001:db8:{last:x}::1 80: 2001:db8:{last:x}::1 80"),
            "tcp 203.0.0.1 80: 203.0.0.1 80".to_owned(),
        ]
    );
    let failure = jailer.create_steered(&steered(&texts), "true").expect_err("too many");
    assert_eq!(failure.kind, Kind::Invalid, "{failure}");
}

/// The rules as the system's own program reads them.
fn ruleset(jailer: &Jailer, id: &SandboxId) -> serde_json::Value {
    let net = format!("--net=/proc/{}/ns/net", init(jailer, id));
    let output =
        Command::new("nsenter").args([&net, "nft", "-j", "list", "ruleset"]).output().expect("nsenter and nft");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    serde_json::from_slice(&output.stdout).expect("JSON")
}

#[test]
fn the_rules_are_what_the_systems_program_reads() {
    let jailer = Jailer::start();
    let plan = steered(&["203.0.113.0/24", "203.0.114.0/24", "192.0.2.1", "2001:db8::/32"]);
    let (_, listeners) = jailer.create_steered(&plan, "exec sleep 1000").expect("create");
    let rules = ruleset(&jailer, &plan.id);
    let all = rules["nftables"].as_array().expect("a list");
    let of = |kind: &str| all.iter().filter_map(|one| one.get(kind)).cloned().collect::<Vec<_>>();
    assert_eq!(of("table").len(), 1);
    assert!(
        all.iter()
            .filter_map(|one| one.as_object())
            .flatten()
            .all(|(_, one)| one.get("table").is_none_or(|t| t == "osb"))
    );
    let chains: Vec<String> = of("chain")
        .iter()
        .map(|chain| {
            format!("{} {} {} {}", chain["name"], chain["hook"], chain["prio"], chain["policy"]).replace('"', "")
        })
        .collect();
    assert_eq!(chains, ["local null null null", "leaving output 0 drop", "arriving prerouting -150 accept"]);
    let elements: Vec<String> = of("set").iter().map(|set| set["elem"].to_string().replace('"', "")).collect();
    assert_eq!(elements, ["[192.0.2.1,{range:[203.0.113.0,203.0.114.255]}]", "[{prefix:{addr:2001:db8::,len:32}}]",]);
    let text = serde_json::to_string(&of("rule")).expect("text");
    assert!(!text.contains("\"ct\"") && !text.contains("redirect") && !text.contains("dnat"), "{text}");
    assert_eq!(of("rule").len(), 21, "{text}");
    drop(listeners);
}

#[test]
fn an_isolated_session_shares_the_network_or_has_its_own() {
    let jailer = Jailer::start();
    let plan = steered(REACHABLE);
    let wait = "mkdir /w; echo made; until [ -e /w/done1 ] && [ -e /w/done2 ]; do sleep 0.02; done; cat /w/out1 /w/out2; echo end; exec sleep 1000";
    let (_, listeners) = jailer.create_steered(&plan, wait).expect("create");
    let outside = Outside::serve(listeners);
    jailer.wait_console(&plan.id, "made\n");
    for (number, own_network) in [(1, false), (2, true)] {
        let mounts = vec![Mount { path: "/w".to_owned(), kind: MountKind::Rw }];
        let spec = SessionSpec { mounts, own_tmp: true, own_network, ..SessionSpec::default() };
        let lines = format!(
            "t('203.0.113.9', 443); t('192.0.2.1', 443); b(SOCK_STREAM, '127.0.0.1', 1); open(my $f, '>', '/w/done{number}'); sleep 1000;"
        );
        let script = format!("exec >/w/out{number} 2>&1; {}", perl(&lines));
        let boot = common::boot(&plan, &script);
        let id = SessionId::parse(&format!("00000000-0000-4000-8000-{number:012}")).expect("a UUID");
        let record = Record { id, created_ms: 1, asked: CreateSession::default() };
        let request =
            Request::StartSession { sandbox: plan.id.clone(), record: Box::new(record), spec: Box::new(spec) };
        let reply = jailer.ask(&request, &[boot.as_fd()]).0;
        assert!(matches!(reply, Reply::Done), "{reply:?}");
    }
    let console = jailer.wait_console(&plan.id, "end\n");
    let (refused, unreachable, denied) = (libc::ECONNREFUSED, libc::ENETUNREACH, libc::EACCES);
    let expected = format!(
        "made\ntcp 203.0.113.9 443: 203.0.113.9 443\ntcp 192.0.2.1 443: {refused}\nbind 127.0.0.1 1: {denied}\n\
         tcp 203.0.113.9 443: {unreachable}\ntcp 192.0.2.1 443: {unreachable}\nbind 127.0.0.1 1: {denied}\nend\n"
    );
    assert_eq!(console, expected);
    drop(outside);
}

#[test]
fn nothing_is_left_after_the_end() {
    let jailer = Jailer::start();
    let before = Census::take_when_quiet(&jailer);
    let plan = steered(REACHABLE);
    let lines = "my $s = IO::Socket::IP->new(PeerHost => '203.0.113.9', PeerPort => 7) or die; sleep 1000;";
    let (_, listeners) = jailer.create_steered(&plan, &perl(lines)).expect("create");
    let tcp4 = TcpListener::from(listeners.tcp4);
    tcp4.set_nonblocking(false).expect("blocking");
    let (stream, _) = tcp4.accept().expect("a connection");
    jailer.destroy(&plan.id, Duration::ZERO);
    ends(stream);
    assert_eq!(jailer.inspect(&plan.id), Seen::Absent);
    assert_eq!(jailer.listen(&plan.id).expect_err("gone").kind, Kind::NotFound);
    assert!(!jailer.paths.sandbox(&plan.id).exists());
    assert_eq!(Census::take_when_quiet(&jailer), before);
}

/// Waits for the end of a connection, in order or not.
fn ends(mut stream: TcpStream) {
    let timeout = Timespec { tv_sec: DEADLINE.as_secs() as i64, tv_nsec: 0 };
    let count = poll(&mut [PollFd::new(&stream, PollFlags::IN)], Some(&timeout)).expect("poll");
    assert!(count > 0, "the connection outlives its sandbox");
    assert!(!matches!(stream.read(&mut [0; 1]), Ok(1)), "nothing was sent");
}
