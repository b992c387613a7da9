use serde_json::json;

use super::super::{Rules, admit};
use super::{body, native};
use crate::snapshot::{Origin, SnapshotId, Standing};

fn rules() -> Rules {
    let standing = Standing {
        layers: vec!["a".to_owned(), "b".to_owned()],
        host_programs: true,
        env: Vec::new(),
        working_dir: None,
        user: None,
    };
    let origin = Origin { id: SnapshotId::parse("one").expect("an id"), image: "host".to_owned(), standing };
    Rules { origin: Some(origin), ..Rules::default() }
}

#[test]
fn a_snapshot_takes_the_place_of_an_image_and_of_the_main_process() {
    let restored = json!({"image": null, "entrypoint": null, "snapshotId": "one", "env": {"A": "1"}});
    let spec = admit(body(restored), &native(), &rules()).expect("admitted").spec;
    assert_eq!((spec.origin, spec.image.as_str()), (rules().origin, "host"));
    assert_eq!(spec.entrypoint, ["tail", "-f", "/dev/null"]);
    assert_eq!(spec.env.len(), 1, "nothing of the source's");
    let named = json!({"image": {"uri": " "}, "entrypoint": ["true"], "snapshotId": "one"});
    assert_eq!(admit(body(named), &native(), &rules()).expect("admitted").spec.entrypoint, ["true"]);
}

#[test]
fn what_was_looked_up_counts_for_the_request_that_names_it_only() {
    let image = admit(body(json!({})), &native(), &rules()).expect("admitted").spec;
    assert_eq!(image.origin, None);
    let other = admit(body(json!({"image": null, "snapshotId": "two"})), &native(), &rules()).expect_err("refused");
    assert_eq!((other.status, other.field.as_str()), (400, "snapshotId"));
    let both = admit(body(json!({"snapshotId": "one"})), &native(), &rules()).expect_err("refused");
    assert_eq!((both.status, both.field.as_str()), (422, "snapshotId"));
}
