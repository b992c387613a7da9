//! Credentials outlive the process that holds them: it is killed again and again in the middle of changes, and what its
//! successor finds is what was last confirmed, or the change that was under way.

mod common;

use std::os::fd::AsFd as _;
use std::os::unix::fs::FileExt as _;
use std::time::Duration;

use common::{Inside, ORIGIN, Proxy, World, allow};
use egress::verdicts::{VaultChange, What};
use egress::{Beside, Control, ControlError, Demands, Expected, Failure, Operation, Refusal, Secret, Shown};
use serde_json::{Value, json};

const KILLS: u32 = 60;
const VALUE: &str = "planted-secret-value";

fn body(value: &Value) -> Secret {
    use std::io::Write as _;
    let mut secret = Secret::default();
    secret.write_all(value.to_string().as_bytes()).expect("memory");
    secret
}

fn operation() -> Operation {
    Operation::new().expect("random bytes")
}

fn credential(name: &str) -> Value {
    json!({ "name": name, "source": { "type": "inline", "value": format!("{VALUE}-{name}") } })
}

fn request(names: &[&str]) -> Value {
    let credentials: Vec<Value> = names.iter().map(|name| credential(name)).collect();
    let binding = json!({
        "name": "api",
        "match": { "hosts": ["good.example"] },
        "auth": { "type": "bearer", "credential": names[0] },
    });
    json!({ "credentials": credentials, "bindings": [binding] })
}

async fn create(control: &Control, sandbox: &str, names: &[&str]) -> Result<Shown, ControlError> {
    control.create_vault(sandbox, operation(), &body(&request(names)), Demands::default()).await
}

fn names(shown: &Shown) -> Vec<String> {
    shown.state.credentials.iter().map(|one| one.name.clone()).collect()
}

async fn attach(proxy: &Proxy, inside: &Inside, authority: &str, hosts: &[&str]) {
    let hosts = hosts.iter().map(|&host| host.to_owned()).collect();
    let expected = Expected { authority: authority.to_owned(), hosts };
    let (names, policy) = (inside.names.as_fd(), allow(&["good.example"]));
    let attached =
        proxy.control.attach(&inside.id, &inside.listeners, names, 1, &policy, Beside::credentials(&expected)).await;
    attached.expect("attached");
}

fn refusal<T: std::fmt::Debug>(outcome: Result<T, ControlError>) -> Refusal {
    match outcome.expect_err("refused") {
        ControlError::Failed(Failure::Vault { refusal, .. }) => refusal,
        other => panic!("{other:?}"),
    }
}

#[tokio::test]
async fn a_process_killed_at_any_moment_leaves_a_confirmed_state_or_its_successor() {
    let world = World::new();
    let mut proxy = Proxy::start(&world).await;
    let inside = Inside::new();
    let authority = proxy.control.authority(&inside.id).await.expect("made");
    attach(&proxy, &inside, &authority, &[]).await;
    let mut confirmed = create(&proxy.control, &inside.id, &["first"]).await.expect("filled").state.revision;
    for kill in 0..KILLS {
        // One change after the other, until one is cut short.
        let (control, id) = (proxy.control.clone(), inside.id.clone());
        let changes = tokio::spawn(async move {
            for number in 0.. {
                let name = format!("k{kill}-{number}");
                let change = match number % 2 {
                    0 => json!({ "credentials": { "add": [credential(&name)] } }),
                    _ => json!({ "credentials": { "delete": [format!("k{kill}-{}", number - 1)] } }),
                };
                match control.patch_vault(&id, operation(), &body(&change), Demands::default()).await {
                    Ok(shown) => confirmed = shown.state.revision,
                    // Put again to a process to which the sandbox is not attached yet.
                    Err(ControlError::Failed(Failure::NotAttached)) => break,
                    Err(error) => panic!("{error:?}"),
                }
            }
            confirmed
        });
        tokio::time::sleep(Duration::from_micros(u64::from(kill) * 317 % 9_000)).await;
        proxy.kill_and_restart(&world).await;
        confirmed = changes.await.expect("no panic");
        let found = proxy.control.vault(&inside.id).await.expect("found again");
        let revision = found.state.revision;
        assert!(revision == confirmed || revision == confirmed + 1, "{revision} after {confirmed}, kill {kill}");
        let even = names(&found).len();
        assert!((1..=2 + kill as usize).contains(&even), "{found:?}");
        confirmed = revision;
        attach(&proxy, &inside, &authority, &["good.example"]).await;
        assert_eq!(proxy.control.authority(&inside.id).await.expect("the same"), authority);
    }
    assert!(confirmed > i64::from(KILLS), "changes were made between kills: {confirmed}");
    println!("{confirmed} changes over {KILLS} kills");
}

#[tokio::test]
async fn creates_and_deletes_under_kills_are_whole_too() {
    let world = World::new();
    let mut proxy = Proxy::start(&world).await;
    let inside = Inside::new();
    let authority = proxy.control.authority(&inside.id).await.expect("made");
    attach(&proxy, &inside, &authority, &[]).await;
    for kill in 0..KILLS {
        let (control, id) = (proxy.control.clone(), inside.id.clone());
        let is_there = control.vault(&id).await.is_ok();
        let change = tokio::spawn(async move {
            let mut is_there = is_there;
            loop {
                let outcome = match is_there {
                    true => control.delete_vault(&id, operation()).await,
                    false => create(&control, &id, &["one", "two"]).await.map(|_| ()),
                };
                match outcome {
                    Ok(()) => is_there = !is_there,
                    Err(ControlError::Failed(Failure::NotAttached)) => return is_there,
                    Err(error) => panic!("{error:?}, with a vault: {is_there}"),
                }
            }
        });
        tokio::time::sleep(Duration::from_micros(u64::from(kill) * 211 % 7_000)).await;
        proxy.kill_and_restart(&world).await;
        let was_there = change.await.expect("no panic");
        match proxy.control.vault(&inside.id).await {
            Ok(found) => assert_eq!((found.state.revision, names(&found)), (1, vec!["one".into(), "two".into()])),
            Err(error) => assert_eq!(refusal::<()>(Err(error)), Refusal::Absent, "kill {kill}, {was_there}"),
        }
        attach(&proxy, &inside, &authority, &["good.example"]).await;
    }
}

#[tokio::test]
async fn a_change_whose_answer_nobody_heard_is_made_once() {
    let world = World::new();
    let mut proxy = Proxy::start(&world).await;
    let inside = Inside::new();
    let authority = proxy.control.authority(&inside.id).await.expect("made");
    attach(&proxy, &inside, &authority, &[]).await;
    let operation = operation();
    let create = async |proxy: &Proxy| {
        proxy.control.create_vault(&inside.id, operation, &body(&request(&["first"])), Demands::default()).await
    };
    assert_eq!(create(&proxy).await.expect("filled").state.revision, 1);
    proxy.kill_and_restart(&world).await;
    attach(&proxy, &inside, &authority, &["good.example"]).await;
    assert_eq!(create(&proxy).await.expect("it was").state.revision, 1);
}

#[tokio::test]
async fn what_is_changed_is_told_without_any_value() {
    let world = World::new();
    world.name("good.example", &[ORIGIN.into()]);
    let proxy = Proxy::start(&world).await;
    let inside = Inside::new();
    let authority = proxy.control.authority(&inside.id).await.expect("made");
    attach(&proxy, &inside, &authority, &[]).await;
    create(&proxy.control, &inside.id, &["first"]).await.expect("filled");
    assert_eq!(refusal(create(&proxy.control, &inside.id, &["first"]).await), Refusal::Conflict);
    let patch = json!({ "credentials": { "add": [credential("second")] } });
    proxy.control.patch_vault(&inside.id, operation(), &body(&patch), Demands::default()).await.expect("changed");
    proxy.control.delete_vault(&inside.id, operation()).await.expect("emptied");
    let events = proxy.control.verdicts(&inside.id, 0).await.expect("events");
    let told: Vec<What> = events.events.into_iter().map(|event| event.what).collect();
    let vault = |change, revision, credentials, bindings| What::Vault { change, revision, credentials, bindings };
    assert_eq!(
        told,
        [
            vault(VaultChange::Created, 1, 1, 1),
            vault(VaultChange::Patched, 2, 2, 1),
            vault(VaultChange::Deleted, 0, 0, 0)
        ]
    );
}

#[tokio::test]
async fn without_its_memory_the_vault_is_lost_and_said_to_be() {
    let world = World::new();
    let mut proxy = Proxy::start(&world).await;
    let inside = Inside::new();
    let authority = proxy.control.authority(&inside.id).await.expect("made");
    attach(&proxy, &inside, &authority, &[]).await;
    create(&proxy.control, &inside.id, &["first"]).await.expect("filled");
    assert_eq!(proxy.control.stats().await.expect("stats").sandboxes[0].vault_revision, Some(1));
    proxy.lose_memory();
    proxy.kill_and_restart(&world).await;
    attach(&proxy, &inside, &authority, &["good.example"]).await;
    assert_eq!(refusal(proxy.control.vault(&inside.id).await), Refusal::Lost);
    assert_eq!(refusal(create(&proxy.control, &inside.id, &["first"]).await), Refusal::NotReady);
    assert_eq!(proxy.control.stats().await.expect("stats").sandboxes[0].vault_revision, None);
    proxy.control.delete_vault(&inside.id, operation()).await.expect("given up");
    assert_eq!(refusal(proxy.control.vault(&inside.id).await), Refusal::Absent);
    proxy.control.forget(&inside.id).await.expect("forgotten");
    assert!(proxy.control.stats().await.expect("stats").kept.is_empty());
}

#[tokio::test]
async fn the_memory_file_does_not_tell_a_value_nor_an_authoritys_key() {
    let world = World::new();
    let proxy = Proxy::start(&world).await;
    let inside = Inside::new();
    let authority = proxy.control.authority(&inside.id).await.expect("made");
    attach(&proxy, &inside, &authority, &[]).await;
    create(&proxy.control, &inside.id, &["first"]).await.expect("filled");
    let found: Vec<Vec<u8>> = memory_files(proxy.child.id());
    assert!(found.iter().any(|bytes| bytes.len() > 1000), "the sealed memory is found");
    for bytes in &found {
        for planted in [VALUE, "BEGIN CERTIFICATE", "good.example", "credentials"] {
            assert!(!holds(bytes, planted.as_bytes()), "{planted}");
        }
    }
}

fn holds(haystack: &[u8], needle: &[u8]) -> bool {
    let starts = haystack.iter().enumerate().filter(|(_, byte)| **byte == needle[0]);
    starts.into_iter().any(|(at, _)| haystack[at..].starts_with(needle))
}

/// What is in the sealed memory file of a process, without its holes. Files of requests may be there for a moment, too.
fn memory_files(pid: u32) -> Vec<Vec<u8>> {
    let links = std::fs::read_dir(format!("/proc/{pid}/fd")).expect("root may look");
    let mut found = Vec::new();
    for link in links.filter_map(Result::ok) {
        let Ok(target) = std::fs::read_link(link.path()) else { continue };
        if target.to_string_lossy().starts_with("/memfd:sealed") {
            let file = std::fs::File::open(link.path()).expect("root may open it");
            found.push(data(&file));
        }
    }
    found
}

/// The parts of a file that are there.
fn data(file: &std::fs::File) -> Vec<u8> {
    use rustix::fs::{SeekFrom, seek};
    let mut bytes = Vec::new();
    let mut at = 0;
    while let Ok(start) = seek(file, SeekFrom::Data(at)) {
        let end = seek(file, SeekFrom::Hole(start)).expect("an end");
        let mut part = vec![0; usize::try_from(end - start).expect("small")];
        file.read_exact_at(&mut part, start).expect("readable");
        bytes.extend(part);
        at = end;
    }
    bytes
}
