use std::io::Write as _;

use protocol::egress::NetworkPolicy;
use serde_json::{Value, json};

use super::*;

const VALUE: &str = "planted-secret-value";

/// One machine's memory, and whoever serves with it.
struct Machine(Memory);

impl Machine {
    fn new() -> Self {
        Self(Memory::new().expect("a memory file"))
    }

    /// Another process, which finds what the one before has sealed.
    fn process(&self) -> Holdings {
        let Memory { file, key, authorities } = &self.0;
        let file = file.try_clone().expect("a descriptor");
        let memory = Memory::from_parts(file, key.clone(), authorities.clone());
        Holdings::open(Some(memory)).expect("readable")
    }
}

fn policy(rules: Value) -> Policy {
    let user: NetworkPolicy = serde_json::from_value(json!({ "egress": rules })).expect("a policy");
    Policy::parse_user(&user, "networkPolicy").expect("a policy")
}

fn body(value: &Value) -> Secret {
    let mut secret = Secret::default();
    secret.write_all(value.to_string().as_bytes()).expect("memory");
    secret
}

fn token(value: &str) -> Value {
    json!({ "name": "token", "source": { "type": "inline", "value": value } })
}

fn filled() -> Value {
    json!({
        "credentials": [token(VALUE)],
        "bindings": [{
            "name": "api",
            "match": { "hosts": ["api.example.com", "*.example.org"] },
            "auth": { "type": "bearer", "credential": "token" },
        }],
    })
}

/// A desk with one sandbox that may have credentials, and its terms.
struct Desk {
    holdings: Holdings,
    policy: Policy,
}

impl Desk {
    fn new(machine: &Machine) -> Self {
        let rules = json!([{ "action": "allow", "target": "api.example.com" }, { "action": "allow", "target": "*.example.org" }]);
        Self { holdings: machine.process(), policy: policy(rules) }
    }

    fn terms(&self) -> Terms<'_> {
        Terms { options: vault::Options::default(), policy: &self.policy }
    }

    fn create(&self, operation: u64, request: &Value) -> Result<Shown, Refused> {
        self.holdings.create("s", Operation::numbered(operation), &body(request), &self.terms())
    }

    fn patch(&self, operation: u64, request: &Value) -> Result<Shown, Refused> {
        self.holdings.patch("s", Operation::numbered(operation), &body(request), &self.terms())
    }
}

fn revision(outcome: Result<Shown, Refused>) -> Result<i64, Refusal> {
    outcome.map(|shown| shown.state.revision).map_err(|refused| refused.refusal)
}

#[test]
fn an_authority_is_made_once_and_given_again_also_by_the_next_process() {
    let machine = Machine::new();
    let holdings = machine.process();
    let pem = holdings.authority("s").expect("made");
    assert_eq!(holdings.authority("s").expect("given again"), pem);
    assert_ne!(holdings.authority("other").expect("made"), pem);
    let next = machine.process();
    assert_eq!(next.authority("s").expect("found"), pem);
    assert_eq!(next.sandboxes(), ["other", "s"]);
}

#[test]
fn a_vault_is_filled_changed_shown_and_emptied() {
    let desk = Desk::new(&Machine::new());
    let pem = desk.holdings.authority("s").expect("made");
    let secrets = desk.holdings.attach("s", Some(&Expected { authority: pem, hosts: vec![] }));
    assert_eq!(revision(desk.holdings.show("s")), Err(Refusal::Absent));
    assert_eq!(revision(desk.patch(1, &json!({}))), Err(Refusal::Absent));
    let made = desk.create(2, &filled()).expect("filled");
    assert_eq!(made.state.revision, 1);
    let bound = |host: &str| Bound { host: host.into(), ports: vec![443] };
    assert_eq!(made.bound, [bound("*.example.org"), bound("api.example.com")]);
    assert!(matches!(secrets.state(), State::Holds { vault, .. } if vault.is_bound("api.example.com")));
    assert_eq!(revision(desk.create(3, &filled())), Err(Refusal::Conflict));
    assert_eq!(revision(desk.patch(4, &json!({ "expectedRevision": 7 }))), Err(Refusal::Conflict));
    assert_eq!(
        revision(desk.patch(5, &json!({ "expectedRevision": 1, "credentials": { "replace": [token("new")] } }))),
        Ok(2)
    );
    assert_eq!(revision(desk.holdings.show("s")), Ok(2));
    desk.holdings.delete("s", Operation::numbered(6)).expect("emptied");
    assert_eq!(
        desk.holdings.delete("s", Operation::numbered(7)).map_err(|refused| refused.refusal),
        Err(Refusal::Absent)
    );
    assert!(matches!(secrets.state(), State::Empty { .. }));
    assert_eq!(revision(desk.create(8, &filled())), Ok(1));
}

#[test]
fn a_change_that_is_put_again_is_made_once_also_by_the_next_process() {
    let machine = Machine::new();
    let mut desk = Desk::new(&machine);
    desk.holdings.authority("s").expect("made");
    assert_eq!(revision(desk.create(1, &filled())), Ok(1));
    desk.holdings = machine.process();
    assert_eq!(revision(desk.create(1, &filled())), Ok(1));
    let add = json!({ "credentials": { "add": [{ "name": "more", "source": { "value": "v" } }] } });
    assert_eq!(revision(desk.patch(2, &add)), Ok(2));
    assert_eq!(revision(desk.patch(2, &add)), Ok(2));
    desk.holdings = machine.process();
    assert_eq!(revision(desk.patch(2, &add)), Ok(2));
    assert_eq!(revision(desk.patch(3, &add)), Err(Refusal::Invalid), "the name is taken");
    desk.holdings.delete("s", Operation::numbered(4)).expect("emptied");
    desk.holdings.delete("s", Operation::numbered(4)).expect("it was");
    desk.holdings = machine.process();
    desk.holdings.delete("s", Operation::numbered(4)).expect("it was");
}

#[test]
fn hosts_that_the_policy_does_not_open_are_not_bound_and_nothing_changes() {
    let mut desk = Desk::new(&Machine::new());
    desk.holdings.authority("s").expect("made");
    desk.policy = policy(json!([{ "action": "allow", "target": "api.example.com", "ports": [80] }]));
    let refused = desk.create(1, &filled()).expect_err("not covered");
    assert_eq!(refused.refusal, Refusal::Invalid);
    assert!(refused.message.contains("api.example.com"), "{}", refused.message);
    assert_eq!(revision(desk.holdings.show("s")), Err(Refusal::Absent));
    let user: NetworkPolicy = serde_json::from_value(json!({ "defaultAction": "allow" })).expect("a policy");
    desk.policy = Policy::parse_user(&user, "networkPolicy").expect("a policy");
    let made = desk.create(2, &filled()).expect("covered by default");
    assert_eq!(made.warnings.len(), 2, "{:?}", made.warnings);
    let bound = &made.bound[1];
    assert_eq!(check_covers(&desk.policy, bound), Ok(()));
    let why = check_covers(&policy(json!([])), bound).expect_err("not covered");
    assert!(why.starts_with("credential vault policy validation: "), "{why}");
}

#[test]
fn errors_echo_no_value() {
    let desk = Desk::new(&Machine::new());
    desk.holdings.authority("s").expect("made");
    for request in [
        json!({ "credentials": VALUE }),
        json!({ "credentials": [VALUE] }),
        json!({ "credentials": [{ "name": "token", "source": VALUE }] }),
        json!({ "credentials": [{ "name": "token", "source": { "type": VALUE, "value": VALUE } }] }),
        json!({ "credentials": [{ "name": "token", "source": { "value": "" } }], "bindings": [] }),
        json!({ "credentials": [token(VALUE), token(VALUE)], "bindings": [] }),
    ] {
        let refused = desk.create(1, &request).expect_err("wrong");
        assert_eq!(refused.refusal, Refusal::Invalid);
        assert!(!refused.message.contains(VALUE), "{request}: {}", refused.message);
    }
}

#[test]
fn what_a_process_without_its_memory_does_not_find_is_lost_and_its_hosts_closed() {
    let desk = Desk::new(&Machine::new());
    let pem = desk.holdings.authority("s").expect("made");
    let hosts = desk.create(1, &filled()).expect("filled").bound.into_iter().map(|bound| bound.host).collect();
    let expected = Expected { authority: pem, hosts };
    let desk = Desk::new(&Machine::new());
    assert_eq!(revision(desk.holdings.show("s")), Err(Refusal::NotReady), "nobody has said yet what it should have");
    assert_eq!(
        desk.holdings.delete("s", Operation::numbered(1)).map_err(|refused| refused.refusal),
        Err(Refusal::NotReady)
    );
    let secrets = desk.holdings.attach("s", Some(&expected));
    assert!(matches!(secrets.state(), State::Lost { hosts } if vault::is_any(&*hosts, "x.example.org")));
    assert_eq!(secrets.revision(), None);
    let shown = desk.holdings.show("s").expect_err("lost");
    assert_eq!(shown.refusal, Refusal::Lost);
    assert!(shown.message.starts_with("credential vault not found"), "{}", shown.message);
    assert_eq!(revision(desk.patch(1, &json!({}))), Err(Refusal::Lost));
    assert_eq!(revision(desk.create(2, &filled())), Err(Refusal::NotReady));
    desk.holdings.delete("s", Operation::numbered(3)).expect("forgotten");
    assert!(matches!(secrets.state(), State::Lost { hosts } if hosts.is_empty()));
    assert_eq!(revision(desk.holdings.show("s")), Err(Refusal::Absent));
}

/// Two machines in turn, of which the second has nothing of the first but the secret of authorities.
fn before_and_after() -> (Machine, Machine) {
    let machine = || Machine(Memory::new().expect("a memory file").for_authorities([3; 32]));
    (machine(), machine())
}

#[test]
fn where_authorities_can_be_made_again_a_lost_vault_is_filled_again() {
    let (before, after) = before_and_after();
    let desk = Desk::new(&before);
    let pem = desk.holdings.authority("s").expect("made");
    let hosts = desk.create(1, &filled()).expect("filled").bound.into_iter().map(|bound| bound.host).collect();
    let expected = Expected { authority: pem.clone(), hosts };
    let mut desk = Desk::new(&after);
    let secrets = desk.holdings.attach("s", Some(&expected));
    assert!(matches!(secrets.state(), State::Lost { hosts } if hosts.len() == 2));
    assert_eq!(revision(desk.holdings.show("s")), Err(Refusal::Lost));
    assert_eq!(revision(desk.create(2, &filled())), Ok(1));
    assert!(matches!(secrets.state(), State::Holds { authority, .. } if authority.pem() == pem));
    desk.holdings = after.process();
    assert_eq!(revision(desk.holdings.show("s")), Ok(1));

    let desk = Desk::new(&before_and_after().1);
    let secrets = desk.holdings.attach("s", Some(&expected));
    desk.holdings.delete("s", Operation::numbered(3)).expect("given up");
    assert!(matches!(secrets.state(), State::Empty { authority } if authority.pem() == pem));
    assert_eq!(revision(desk.create(4, &filled())), Ok(1));
}

#[test]
fn where_authorities_can_be_made_again_a_sandbox_without_a_vault_loses_nothing() {
    let (before, after) = before_and_after();
    let pem = before.process().authority("s").expect("made");
    let expected = Expected { authority: pem.clone(), hosts: vec![] };
    let desk = Desk::new(&after);
    let secrets = desk.holdings.attach("s", Some(&expected));
    assert!(matches!(secrets.state(), State::Empty { authority } if authority.pem() == pem));
    assert_eq!(revision(desk.create(1, &filled())), Ok(1));
    assert!(matches!(
        after.process().attach("other", Some(&expected)).state(),
        State::Lost { hosts } if hosts.is_empty()
    ));
}

#[test]
fn an_authority_that_the_sandbox_does_not_trust_is_none() {
    let holdings = Machine::new().process();
    holdings.authority("s").expect("made");
    let expected = Expected { authority: "another".into(), hosts: vec!["api.example.com".into()] };
    assert!(matches!(holdings.attach("s", Some(&expected)).state(), State::Lost { .. }));
    // Made again from its beginning, the sandbox gets a new one.
    let pem = holdings.authority("s").expect("made");
    assert!(matches!(
        holdings.attach("s", Some(&Expected { authority: pem, hosts: vec![] })).state(),
        State::Empty { .. }
    ));
}

#[test]
fn what_is_forgotten_is_forgotten_by_the_next_process_and_one_that_asked_for_nothing_has_nothing() {
    let machine = Machine::new();
    let desk = Desk::new(&machine);
    desk.holdings.authority("s").expect("made");
    desk.create(1, &filled()).expect("filled");
    desk.holdings.forget("s").expect("forgotten");
    desk.holdings.forget("s").expect("nothing to do");
    assert!(desk.holdings.sandboxes().is_empty());
    assert!(machine.process().sandboxes().is_empty());
    assert!(matches!(desk.holdings.attach("plain", None).state(), State::None));
    assert_eq!(
        revision(desk.holdings.create("plain", Operation::numbered(1), &body(&filled()), &desk.terms())),
        Err(Refusal::NotReady)
    );
}

#[test]
fn bindings_may_have_to_name_methods_and_paths() {
    let desk = Desk::new(&Machine::new());
    desk.holdings.authority("s").expect("made");
    let options = vault::Options { require_scoped_match: true, ..vault::Options::default() };
    let terms = Terms { options, policy: &desk.policy };
    assert_eq!(
        revision(desk.holdings.create("s", Operation::numbered(1), &body(&filled()), &terms)),
        Err(Refusal::Invalid)
    );
    let mut scoped = filled();
    scoped["bindings"][0]["match"]["methods"] = json!(["GET"]);
    scoped["bindings"][0]["match"]["paths"] = json!(["/v1/*"]);
    assert_eq!(revision(desk.holdings.create("s", Operation::numbered(2), &body(&scoped), &terms)), Ok(1));
}
