//! The egress process as others on the machine see it.

mod common;

use std::net::IpAddr;

use common::{Inside, ORIGIN, OTHER, Proxy, World, allow, is_reset, policy, read_some};
use egress::policy::Source;
use protocol::egress::NetworkRule;
use serde_json::json;

fn status_line(pid: u32, field: &str) -> String {
    let text = std::fs::read_to_string(format!("/proc/{pid}/status")).expect("the process lives");
    let line = text.lines().find(|line| line.starts_with(field)).expect("a field of the status");
    line[field.len() + 1..].trim().to_owned()
}

fn descriptors(pid: u32) -> usize {
    std::fs::read_dir(format!("/proc/{pid}/fd")).expect("root may look").count()
}

#[tokio::test]
async fn it_has_no_rights_and_nobody_may_look_into_it() {
    let world = World::new();
    let proxy = Proxy::start(&world).await;
    let pid = proxy.child.id();
    assert_eq!(status_line(pid, "Uid:"), "65534\t65534\t65534\t65534");
    assert_eq!(status_line(pid, "Gid:"), "65534\t65534\t65534\t65534");
    assert_eq!(status_line(pid, "Groups:"), "");
    assert_eq!(status_line(pid, "CapEff:"), "0000000000000000");
    assert_eq!(status_line(pid, "CapPrm:"), "0000000000000000");
    assert_eq!(status_line(pid, "NoNewPrivs:"), "1");
    let limits = std::fs::read_to_string(format!("/proc/{pid}/limits")).expect("limits");
    let core = limits.lines().find(|line| line.starts_with("Max core file size")).expect("a limit");
    assert_eq!(core.split_whitespace().filter(|word| *word == "0").count(), 2, "{core}");
    // Files of a process that is not dumpable belong to root, whoever it runs as.
    let owner = std::os::unix::fs::MetadataExt::uid(&std::fs::metadata(format!("/proc/{pid}/mem")).expect("a file"));
    assert_eq!(owner, 0);
    let listening = world.outside.run(|| std::fs::read_to_string("/proc/thread-self/net/tcp").expect("sockets"));
    assert!(
        !listening.lines().any(|line| line.split_whitespace().nth(3) == Some("0A")),
        "it listens nowhere: {listening}"
    );
}

#[tokio::test]
async fn it_ends_when_nobody_holds_its_control() {
    let world = World::new();
    let mut proxy = Proxy::start(&world).await;
    proxy.let_go();
    let ended = tokio::task::spawn_blocking(move || proxy.child.wait().map(|status| status.success()));
    let ended = tokio::time::timeout(common::PATIENCE, ended).await.expect("in time");
    assert!(ended.expect("no panic").expect("waited for"));
}

#[tokio::test]
async fn connections_leave_no_descriptor_behind() {
    let world = World::new();
    world.name("good.example", &[ORIGIN.into()]);
    world.origin(ORIGIN, 80, "good");
    let proxy = Proxy::start(&world).await;
    let inside = Inside::new();
    let before = descriptors(proxy.child.id());
    for round in 0..3 {
        proxy.attach(&inside, &allow(&["good.example"])).await;
        let address: IpAddr = inside.address("good.example");
        for _ in 0..20 {
            assert_eq!(inside.banner(address, 80).expect("a banner"), "good");
            assert!(is_reset(&inside.banner(OTHER, 80).expect_err("denied")));
        }
        let mut open: Vec<_> = (0..20).map(|_| inside.connect(address, 80).expect("connected")).collect();
        read_some(&mut open[19]).expect("a banner");
        proxy.control.detach(&inside.id).await.expect("detached");
        // Pipes are kept for the next who needs one.
        assert!(descriptors(proxy.child.id()) <= before + 128, "round {round}");
    }
    let links = std::fs::read_dir(format!("/proc/{}/fd", proxy.child.id())).expect("root may look");
    let targets = links.filter_map(|link| std::fs::read_link(link.ok()?.path()).ok());
    let others = targets.filter(|target| !target.to_string_lossy().starts_with("pipe:")).count();
    // A reply socket may still be about to be closed; of the connections there were two hundred.
    assert!(others <= before + 4, "{others} sockets and files, {before} before");
}

#[tokio::test]
async fn an_operator_denies_what_users_allow_and_allows_what_they_forget() {
    let world = World::new();
    for name in ["mirror.example", "evil.example"] {
        world.name(name, &[ORIGIN.into()]);
    }
    world.origin(ORIGIN, 80, "hello");
    world.origin([10, 9, 0, 1], 80, "private");
    let proxy = Proxy::start(&world).await;
    let inside = Inside::new();
    let rule = |target: &str| NetworkRule { target: Some(target.to_owned()), ..NetworkRule::default() };
    let user = policy(json!({"egress": [
        {"action": "allow", "target": "evil.example"}, {"action": "allow", "target": "10.9.0.1"}]}));
    let source = Source {
        always_deny: vec![rule("evil.example"), rule("10.0.0.0/8")],
        always_allow: vec![rule("mirror.example")],
        ..user
    };
    proxy.attach(&inside, &source).await;
    assert_eq!(inside.banner(inside.address("mirror.example"), 80).expect("a banner"), "hello");
    assert!(inside.lookup("evil.example").1.is_empty());
    assert!(is_reset(&inside.banner([10, 9, 0, 1], 80).expect_err("denied by the operator")));
}
