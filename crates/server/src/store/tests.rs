use std::collections::BTreeMap;

use jiff::Timestamp;
use lifecycle::runtime::{Exit, Receipt};
use lifecycle::spec::{Limits, SandboxId, SandboxSpec};
use lifecycle::state::State;

use super::{Error, Filter, Inserted, Once, Row, Store};
use crate::network::Credentials;

fn row(id: &str, second: i64, labels: &[(&str, &str)]) -> Row {
    let at = Timestamp::from_second(1_800_000_000 + second).expect("in range");
    Row {
        id: SandboxId::parse(id).expect("an id"),
        spec: SandboxSpec {
            image: "host".to_owned(),
            private_pull: false,
            platform: None,
            entrypoint: vec!["true".to_owned()],
            env: BTreeMap::new(),
            limits: Limits::default(),
            metadata: labels.iter().map(|(k, v)| ((*k).to_owned(), (*v).to_owned())).collect(),
            extensions: BTreeMap::new(),
            timeout_seconds: None,
            leased: false,
            hooks: protocol::hooks::Hooks::default(),
            network: lifecycle::spec::Network::None,
            policy: None,
            policy_revision: 0,
            credential_proxy: false,
            taping: lifecycle::spec::Taping::None,
            access: lifecycle::spec::Access::default(),
            volumes: Vec::new(),
            pool: None,
            template: None,
            origin: None,
        },
        state: State::Pending,
        reason: "ACCEPTED".to_owned(),
        message: String::new(),
        transition_at: at,
        created_at: at,
        expires_at: Some(at),
        exit: None,
        receipt: None,
        layers: vec!["ab".to_owned()],
        failure_code: None,
        credentials: None,
    }
}

#[tokio::test]
async fn a_row_reads_back_as_it_was_written() {
    let dir = tempfile::tempdir().expect("a directory");
    let store = Store::open(&dir.path().join("a/b.db")).await.expect("opens");
    let mut row = row("one", 0, &[("k", "v")]);
    store.insert(&row, None).await.expect("inserts");
    row.state = State::Failed;
    row.exit = Some(Exit::Oom { detail: "64 MiB".to_owned() });
    row.receipt = Some(Receipt::default());
    row.failure_code = Some("C".to_owned());
    store.transition(&row).await.expect("updates");
    assert_eq!(store.load().await.expect("loads"), vec![row.clone()]);
    assert_eq!(store.events(&row.id, 50).await.expect("events").len(), 2);
    store.forget(&row.id).await.expect("forgets");
    assert!(store.load().await.expect("loads").is_empty());
    assert!(store.events(&row.id, 50).await.expect("events").is_empty());
}

#[tokio::test]
async fn what_is_known_of_credentials_is_kept_with_the_row_and_forgotten_with_it() {
    let store = Store::in_memory().await.expect("opens");
    let mut row = row("one", 0, &[]);
    row.layers.clear();
    row.credentials = Some(Credentials { authority: "PEM".to_owned(), ..Credentials::default() });
    store.insert(&row, None).await.expect("inserts");
    assert_eq!(store.load().await.expect("loads"), vec![row.clone()]);
    let known = Credentials { revision: 3, in_doubt: true, ..row.credentials.clone().expect("known") };
    store.set_credentials(&row.id, &known).await.expect("updates");
    row.credentials = Some(known);
    assert_eq!(store.load().await.expect("loads"), vec![row.clone()]);
    store.transition(&row).await.expect("updates");
    // Lists do not show them.
    let listed = Row { credentials: None, ..row.clone() };
    assert_eq!(store.list(Filter::default(), 1, 20).await.expect("lists").rows, vec![listed]);
    store.forget(&row.id).await.expect("forgets");
    row.credentials = None;
    store.insert(&row, None).await.expect("inserts");
    assert_eq!(store.load().await.expect("loads"), vec![row]);
}

#[tokio::test]
async fn a_key_is_one_sandboxes_for_a_day() {
    let store = Store::in_memory().await.expect("opens");
    let once = |body: &str| Some(Once::new("key".to_owned(), body.as_bytes()));
    let hour = 3600;
    assert_eq!(store.insert(&row("one", 0, &[]), once("body")).await.expect("inserts"), Inserted::New);
    for (body, is_same) in [("body", true), ("other", false)] {
        let earlier = Inserted::Earlier { id: "one".to_owned(), is_same };
        assert_eq!(store.insert(&row("two", 23 * hour, &[]), once(body)).await.expect("looks"), earlier);
    }
    assert_eq!(store.load().await.expect("loads").len(), 1);
    assert_eq!(store.insert(&row("two", 25 * hour, &[]), once("other")).await.expect("inserts"), Inserted::New);
    // As if a million had come since.
    let last =
        "INSERT INTO creates (rowid, key, digest, sandbox_id, at) SELECT 1000000, 'last', '', '', at FROM creates";
    sqlx::query(last).execute(&store.writer).await.expect("inserts");
    let another = Some(Once::new("another".to_owned(), b"body"));
    assert_eq!(store.insert(&row("three", 26 * hour, &[]), another).await.expect("looks"), Inserted::Full);
    assert_eq!(store.load().await.expect("loads").len(), 2);
}

#[tokio::test]
async fn os_003_a_second_owner_of_the_file_is_refused() {
    let dir = tempfile::tempdir().expect("a directory");
    let path = dir.path().join("osb.db");
    let first = Store::open(&path).await.expect("opens");
    let second = Store::open(&path).await.expect_err("is taken");
    assert!(matches!(&second, Error::InUse(p) if *p == path), "{second}");
    first.close().await;
    drop(first);
    Store::open(&path).await.expect("is free again");
}

#[tokio::test]
async fn lists_filter_count_and_page_newest_first() {
    let store = Store::in_memory().await.expect("opens");
    for n in 0..5 {
        let label = if n % 2 == 0 { "even" } else { "odd" };
        store.insert(&row(&format!("s{n}"), n, &[("kind", label), ("a.b/c", "x")]), None).await.expect("inserts");
    }
    let ids = |page: &super::list::Page<Row>| page.rows.iter().map(|r| r.id.to_string()).collect::<Vec<_>>();
    let all = store.list(Filter::default(), 1, 2).await.expect("lists");
    assert_eq!((ids(&all), all.total), (vec!["s4".to_owned(), "s3".to_owned()], 5));
    let past = store.list(Filter::default(), 9, 2).await.expect("lists");
    assert_eq!((past.rows.len(), past.total), (0, 5));
    let even = Filter {
        metadata: vec![("kind".to_owned(), "even".to_owned()), ("a.b/c".to_owned(), "x".to_owned())],
        states: Some(vec![State::Pending, State::Running]),
    };
    let even = store.list(even, 1, 20).await.expect("lists");
    assert_eq!((ids(&even).len(), even.total), (3, 3));
    let none = Filter { states: Some(Vec::new()), ..Filter::default() };
    assert_eq!(store.list(none, 1, 20).await.expect("lists").total, 0);
}

#[tokio::test]
async fn events_of_one_sandbox_are_bounded() {
    let store = Store::in_memory().await.expect("opens");
    let row = row("one", 0, &[]);
    store.insert(&row, None).await.expect("inserts");
    for _ in 0..520 {
        store.transition(&row).await.expect("updates");
    }
    assert_eq!(store.events(&row.id, 1000).await.expect("events").len(), 500);
}
