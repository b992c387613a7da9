use protocol::execd::isolated::{Bind, CreateSession, Mode, Overlay, UidMode, Workspace};

use super::{Means, MountKind, SessionId, admit};

fn overlay(path: &str, mode: Option<Mode>, persist: Option<bool>) -> Overlay {
    Overlay { path: path.into(), mode, persist }
}

fn asked(overlays: Vec<Overlay>) -> CreateSession {
    CreateSession { overlays: Some(overlays), ..CreateSession::default() }
}

fn refused(asked: CreateSession) -> (u16, String) {
    let refusal = admit(asked, &Means { other_ids: true, weaker: Vec::new() }).expect_err("refused");
    (refusal.status, refusal.message)
}

#[test]
fn a_workspace_comes_first_and_defaults_are_filled_in() {
    let workspace = Some(Workspace { path: "/w".into(), mode: None });
    let overlays = Some(vec![overlay("/a", Some(Mode::Ro), None), overlay("/b", None, Some(false))]);
    let (spec, echoed) =
        admit(CreateSession { workspace, overlays, ..CreateSession::default() }, &Means::default()).expect("admitted");
    let kinds: Vec<_> = spec.mounts.iter().map(|mount| (mount.path.as_str(), mount.kind)).collect();
    assert_eq!(kinds, [("/w", MountKind::Overlay), ("/a", MountKind::Ro), ("/b", MountKind::Ephemeral)]);
    assert!(spec.own_tmp && !spec.own_network);
    assert_eq!(echoed.idle_timeout_seconds, Some(0));
    assert!(echoed.workspace.is_none(), "shown for sessions of one mount only");
}

#[test]
fn each_mistake_is_refused_by_its_field() {
    for (request, field) in [
        (CreateSession::default(), "workspace"),
        (asked(vec![overlay("w", None, None)]), "overlays.path"),
        (asked(vec![overlay("/w/../x", None, None)]), "overlays.path"),
        (asked(vec![overlay("/", None, None)]), "overlays.path"),
        (asked(vec![overlay("/proc/1", None, None)]), "overlays.path"),
        (asked(vec![overlay("/w", None, None), overlay("/w", None, None)]), "overlays.path"),
        (asked(vec![overlay("/w", Some(Mode::Rw), Some(true))]), "overlays.persist"),
        (asked((0..17).map(|at| overlay(&format!("/w{at}"), None, None)).collect()), "overlays"),
        (
            CreateSession {
                binds: Some(vec![Bind { source: "/mnt/a".into(), dest: Some("/dev/a".into()), readonly: None }]),
                ..asked(vec![overlay("/w", None, None)])
            },
            "binds.dest",
        ),
        (CreateSession { gid: Some(1), ..asked(vec![overlay("/w", None, None)]) }, "gid"),
        (
            CreateSession { extra_writable: Some(vec!["x".into()]), ..asked(vec![overlay("/w", None, None)]) },
            "extra_writable",
        ),
    ] {
        let (status, message) = refused(request);
        assert_eq!((status, message.split(':').next()), (400, Some(field)), "{message}");
    }
}

#[test]
fn what_this_machine_cannot_do_is_unavailable() {
    let request = || asked(vec![overlay("/w", None, None)]);
    assert_eq!(refused(CreateSession { uid_mode: Some(UidMode::Userns), ..request() }).0, 503);
    let other = CreateSession { uid: Some(1000), ..request() };
    assert!(admit(other.clone(), &Means { other_ids: true, weaker: Vec::new() }).is_ok());
    assert_eq!(admit(other, &Means::default()).expect_err("one id").status, 503);
}

#[test]
fn ids_are_uuids() {
    assert!(SessionId::parse("0b0c7f1e-5a52-4f0e-9d6c-1f2e3d4c5b6a").is_some());
    for wrong in ["", "0B0C7F1E-5a52-4f0e-9d6c-1f2e3d4c5b6a", "../../../../../../../../../../../../../..", "x"] {
        assert!(SessionId::parse(wrong).is_none(), "{wrong}");
    }
}
