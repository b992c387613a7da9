use proptest::prelude::*;
use serde_json::{Value, json};

use super::*;
use crate::samples::{ANYWHERE, Names, credential, generous, vault};

fn bound(name: &str, host: &str) -> Value {
    json!({"name": name, "match": {"hosts": [host]}, "auth": {"type": "bearer", "credential": "token"}})
}

fn sample() -> Vault {
    vault(&[("token", "v1"), ("spare", "v1")], json!([bound("b", "b.test")]))
}

fn patch(vault: &Vault, change: Value) -> Result<Vault, Refused> {
    vault.patch(&serde_json::from_value(change).expect("on the wire"), &ANYWHERE, &generous())
}

#[track_caller]
fn refused(change: Value, begins: &str) {
    let refused = patch(&sample(), change).expect_err("it is wrong");
    assert_eq!(refused.status(), 400);
    assert!(refused.message.starts_with(begins), "{refused}");
}

#[test]
fn a_change_is_one_revision_also_when_it_is_empty() {
    let changed = patch(&sample(), json!({})).expect("nothing is wrong");
    assert_eq!(changed.revision(), 2);
    assert_eq!(changed.binding("b").map(|shown| shown.revision), Ok(2));
    assert_eq!(changed.credential("token").map(|shown| shown.revision), Ok(1));
}

#[test]
fn a_credential_has_the_revision_that_wrote_it() {
    let change = json!({"credentials": {"replace": [credential("token", "v2")], "add": [credential("new", "v")]}});
    let changed = patch(&patch(&sample(), json!({})).expect("right"), change).expect("right");
    let revisions: Vec<_> =
        changed.credentials().credentials.into_iter().map(|shown| (shown.name, shown.revision)).collect();
    assert_eq!(revisions, [("new".to_owned(), 3), ("spare".to_owned(), 1), ("token".to_owned(), 3)]);
}

#[test]
fn a_change_of_another_revision_is_stale() {
    for expected in [0, 2, -1] {
        let refused = patch(&sample(), json!({"expectedRevision": expected})).expect_err("it is stale");
        assert_eq!((refused.kind, refused.status()), (Kind::Stale, 409));
    }
    patch(&sample(), json!({"expectedRevision": 1})).expect("it is this one");
}

#[test]
fn what_is_deleted_makes_room_for_what_is_added() {
    let change = json!({"bindings": {"delete": ["b"], "add": [bound("c", "b.test")]}});
    let changed = patch(&sample(), change).expect("they never meet");
    assert_eq!(changed.hosts(), ["b.test"]);
    assert!(changed.binding("b").is_err() && changed.binding("c").is_ok());
}

#[test]
fn what_is_wrong_with_a_change_is_told() {
    refused(json!({"force": 1}), "force: ");
    refused(json!({"credentials": {"put": []}}), "credentials.put: ");
    refused(json!({"bindings": {"remove": []}}), "bindings.remove: ");
    refused(json!({"credentials": {"delete": ["none"]}}), "credentials.delete[0]: ");
    refused(json!({"credentials": {"replace": [credential("none", "v")]}}), "credentials.replace[0].name: ");
    refused(json!({"credentials": {"add": [credential("token", "v")]}}), "credentials.add[0].name: ");
    refused(json!({"credentials": {"add": [credential("new", "")]}}), "credentials.add[0].source.value: ");
    refused(json!({"bindings": {"replace": [bound("none", "c.test")]}}), "bindings.replace[0].name: ");
    refused(json!({"bindings": {"add": [bound("c", "10.0.0.1")]}}), "bindings.add[0].match.hosts[0]: ");
    for twice in [
        json!({"delete": ["spare", "spare"]}),
        json!({"delete": ["spare"], "add": [credential("spare", "v")]}),
        json!({"delete": ["spare"], "replace": [credential("spare", "v")]}),
        json!({"replace": [credential("spare", "v"), credential("spare", "v")]}),
        json!({"add": [credential("new", "v"), credential("new", "v")]}),
    ] {
        refused(json!({"credentials": twice}), "credentials.");
    }
    refused(json!({"credentials": {"delete": ["token"]}}), "binding \"b\": credential \"token\" does not exist");
    refused(json!({"bindings": {"add": [bound("c", "b.test")]}}), "binding \"c\": conflicts");
    refused(json!({"credentials": {"replace": [credential("token", "a\nb")]}}), "credential \"token\"");
}

#[test]
fn the_whole_vault_must_be_covered_after_a_change() {
    let change =
        serde_json::from_value(json!({"credentials": {"add": [credential("new", "v")]}})).expect("on the wire");
    let refused = sample().patch(&change, &Names(&[], &[]), &generous()).expect_err("b.test is not covered");
    assert_eq!(refused.kind, Kind::Uncovered);
}

fn names() -> impl Strategy<Value = Vec<String>> {
    proptest::collection::vec("[a-f]", 0..3)
}

proptest! {
    #[test]
    fn a_change_is_as_the_model(have in names(), delete in names(), replace in names(), add in names()) {
        let have: std::collections::BTreeSet<String> = have.into_iter().collect();
        let before: Vec<_> = have.iter().map(|name| (name.as_str(), "old")).collect();
        let before = vault(&before, json!([]));
        let named: Vec<_> = delete.iter().chain(&replace).chain(&add).collect();
        let is_right = named.iter().collect::<std::collections::BTreeSet<_>>().len() == named.len()
            && delete.iter().chain(&replace).all(|name| have.contains(name))
            && add.iter().all(|name| !have.contains(name));
        let wire = |names: &[String]| names.iter().map(|name| credential(name, "new")).collect::<Vec<_>>();
        let change = json!({"credentials": {"delete": &delete, "replace": wire(&replace), "add": wire(&add)}});
        match patch(&before, change) {
            Err(_) => prop_assert!(!is_right),
            Ok(after) => {
                prop_assert!(is_right);
                let mut expected: BTreeMap<String, i64> = have.iter().map(|name| (name.clone(), 1)).collect();
                expected.retain(|name, _| !delete.contains(name));
                expected.extend(replace.iter().chain(&add).map(|name| (name.clone(), 2)));
                let shown = after.credentials().credentials.into_iter().map(|shown| (shown.name, shown.revision));
                prop_assert_eq!(shown.collect::<BTreeMap<_, _>>(), expected);
            }
        }
        prop_assert_eq!(before.revision(), 1);
    }
}
