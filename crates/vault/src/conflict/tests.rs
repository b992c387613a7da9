use proptest::prelude::*;
use serde_json::{Value, json};

use crate::{Options, check};

use super::*;

fn binding(matches: &Value) -> Binding {
    let options = Options { allow_http: true, require_scoped_match: false, extra_ports: vec![8443] };
    let wire = json!({"name": "b", "match": matches, "auth": {"type": "passthrough"}});
    check::binding(&serde_json::from_value(wire).expect("on the wire"), "b", &options).expect("a binding")
}

#[track_caller]
fn check_pair(one: Value, other: Value, expected: bool) {
    let (one, other) = (binding(&one), binding(&other));
    assert_eq!(is_between(&one, &other), expected);
    assert_eq!(is_between(&other, &one), expected);
}

#[test]
fn what_could_be_meant_twice_conflicts() {
    let host = || json!({"hosts": ["a.test"]});
    check_pair(host(), host(), true);
    check_pair(host(), json!({"hosts": ["b.test"]}), false);
    check_pair(host(), json!({"hosts": ["*.test.test", "*.a.test"]}), false);
    check_pair(json!({"hosts": ["*.a.test"]}), json!({"hosts": ["*.b.a.test"]}), true);
    check_pair(host(), json!({"hosts": ["a.test"], "schemes": ["http"]}), false);
    check_pair(host(), json!({"hosts": ["a.test"], "schemes": ["http", "https"]}), true);
    check_pair(host(), json!({"hosts": ["a.test"], "ports": [8443]}), false);
    check_pair(host(), json!({"hosts": ["a.test"], "ports": [443, 8443]}), true);
    check_pair(host(), json!({"hosts": ["a.test"], "methods": ["OPTIONS", "HEAD"]}), false);
    let paths = |path: &str| json!({"hosts": ["a.test"], "paths": [path]});
    check_pair(paths("/v1/*"), paths("/v1/users/*"), true);
    check_pair(paths("/v1/*"), paths("/v2/*"), false);
    check_pair(paths("/v1"), paths("/v1/*"), false);
}

fn some(of: &'static [&'static str]) -> impl Strategy<Value = Vec<String>> {
    proptest::collection::vec(proptest::sample::select(of).prop_map(str::to_owned), 1..3)
}

proptest! {
    #[test]
    fn a_conflict_is_one_both_ways_and_a_request_shows_it(
        hosts in [some(&["a.test", "b.test", "*.test.test", "*.a.test", "*.b.a.test"]), some(&["a.test", "*.a.test"])],
        methods in [some(&["GET", "HEAD", "POST"]), some(&["GET", "HEAD", "POST"])],
        paths in [some(&["/*", "/a", "/a/*", "/b*"]), some(&["/a/b", "/a*", "/b"])],
    ) {
        let [one, other] = [0, 1].map(|at| {
            binding(&json!({"hosts": hosts[at], "methods": methods[at], "paths": paths[at]}))
        });
        prop_assert_eq!(is_between(&one, &other), is_between(&other, &one));
        let means = |binding: &Binding, host: &str, method: &str, path: &str| {
            let path = crate::path::Path::parse(path);
            binding.names_method(method) && binding.paths.iter().any(|own| own.matches(&path))
                && binding.hosts.iter().any(|own| own.matches(host))
        };
        let is_exact = |binding: &Binding, host: &str| binding.hosts.iter().any(|own| own.to_string() == host);
        let mut shown = false;
        for host in ["a.test", "b.test", "x.a.test", "x.b.a.test", "x.test.test"] {
            for method in ["GET", "HEAD", "POST"] {
                for path in ["/", "/a", "/a/", "/a/b", "/ab", "/b", "/bb"] {
                    shown |= means(&one, host, method, path) && means(&other, host, method, path)
                        && is_exact(&one, host) == is_exact(&other, host);
                }
            }
        }
        prop_assert_eq!(shown, is_between(&one, &other));
    }
}
