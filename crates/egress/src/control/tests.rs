use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;

use super::packet::Socket;
use super::*;
use crate::sandbox::Shared;
use crate::secrets::Holdings;

fn shared() -> Shared {
    Shared::new(16, Holdings::open(None).expect("no memory to read")).expect("routes")
}

/// Sends any bytes with any descriptors to a desk; its reply.
async fn ask(bytes: &serde_json::Value, more: usize) -> Reply {
    let (ours, theirs) = pair().expect("a pair");
    let desk = tokio::spawn(serve(theirs, Arc::new(shared()), 1));
    let (answer, reply_to) = pair().expect("a pair");
    let files: Vec<OwnedFd> = (0..more).map(|_| tempfile::tempfile().expect("a file").into()).collect();
    let fds: Vec<_> = [reply_to.as_fd()].into_iter().chain(files.iter().map(AsFd::as_fd)).collect();
    let socket = Socket::new(ours).expect("a socket");
    socket.send(bytes, &fds).await.expect("sent");
    let (reply, _) = Socket::new(answer).expect("a socket").receive().await.expect("received").expect("a reply");
    drop(socket);
    desk.await.expect("no panic").expect("an orderly end");
    serde_json::from_slice(&reply).expect("a reply")
}

#[tokio::test]
async fn requests_that_are_none_are_answered_and_end_nothing() {
    for request in [
        serde_json::json!({"do": "dance"}),
        serde_json::json!([]),
        serde_json::json!({"do": "attach", "sandbox": "s", "revision": 1}),
        serde_json::json!({"do": "attach", "sandbox": "", "revision": 1}),
        serde_json::json!({"do": "configure", "settings": {"resolvers": [], "synthetic": "28.0.0.0/24", "limits": {}}}),
    ] {
        assert!(matches!(ask(&request, 0).await, Reply::Failed(Failure::Malformed { .. })), "{request}");
    }
}

#[tokio::test]
async fn files_in_place_of_sockets_are_refused() {
    let request = serde_json::json!({"do": "attach", "sandbox": "s", "revision": 1});
    // An empty policy file is no policy; that is found first.
    assert!(matches!(ask(&request, 6).await, Reply::Failed(Failure::Malformed { .. })));
    assert!(matches!(ask(&request, 3).await, Reply::Failed(Failure::Malformed { .. })));
}

#[tokio::test]
async fn a_sandbox_that_is_not_attached_is_not_found_and_its_detach_is_done() {
    let of = |what: &str| serde_json::json!({"do": what, "sandbox": "s", "after": 0});
    assert_eq!(
        ask(&of("verdicts"), 0).await,
        Reply::Events(Events { instance: 1, count: 0, events: vec![] }),
        "what is kept of those that are gone"
    );
    assert_eq!(ask(&of("listeners"), 0).await, Reply::Failed(Failure::NotAttached));
    assert_eq!(ask(&of("detach"), 0).await, Reply::Done);
}
