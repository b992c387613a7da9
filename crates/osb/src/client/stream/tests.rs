use super::*;

/// The events of a stream that arrives in pieces of this size.
fn events(stream: &str, piece: usize) -> Result<Vec<Event>, Failure> {
    let mut lines = Lines::default();
    let mut events = Vec::new();
    for bytes in stream.as_bytes().chunks(piece) {
        lines.push(bytes)?;
        while let Some(event) = lines.next_event()? {
            events.push(event);
        }
    }
    events.extend(lines.finish_as(parse)?);
    Ok(events)
}

const BARE: &str = concat!(
    r#"{"type":"init","text":"abc","timestamp":1}"#,
    "\n\n",
    r#"{"type":"ping","text":"pong","timestamp":1}"#,
    "\n\n",
    r#"{"type":"stdout","text":"Grüße\n","timestamp":1}"#,
    "\n\n",
    r#"{"type":"stderr","text":"half","timestamp":1}"#,
    "\n\n",
    r#"{"type":"error","error":{"ename":"CommandExecError","evalue":"3","traceback":["exit status 3"]},"timestamp":1}"#,
    "\n\n",
);

#[test]
fn events_are_the_same_however_the_bytes_arrive() {
    let failed = StreamError {
        ename: "CommandExecError".into(),
        evalue: "3".into(),
        traceback: Some(vec!["exit status 3".into()]),
    };
    let expected = vec![
        Event::Init("abc".into()),
        Event::Other,
        Event::Stdout("Grüße\n".into()),
        Event::Stderr("half".into()),
        Event::Failed(failed),
    ];
    for piece in 1..=BARE.len() {
        assert_eq!(events(BARE, piece).expect("events"), expected, "pieces of {piece}");
    }
}

#[test]
fn data_frames_and_comments_are_understood() {
    let stream = ": hello\r\nevent: x\r\ndata: {\"type\":\"stdout\",\"text\":\"a\"}\r\n\r\ndata:{\"type\":\"execution_complete\",\"execution_time\":5}";
    assert_eq!(events(stream, 7).expect("events"), vec![Event::Stdout("a".into()), Event::Complete(5)]);
}

#[test]
fn a_bare_failure_is_a_fault() {
    let stream = "{\"code\":\"RUNTIME_ERROR\",\"message\":\"no\"}\n\n";
    assert_eq!(events(stream, 99).expect("events"), vec![Event::Fault("RUNTIME_ERROR".into(), "no".into())]);
}

#[test]
fn what_is_no_event_is_refused() {
    assert!(events("<html>", 99).is_err());
    assert!(events("{\"type\":", 99).is_err());
}

#[test]
fn an_event_without_end_is_refused() {
    let mut lines = Lines::default();
    let piece = vec![b'x'; 1024 * 1024];
    let refused = (0..100).any(|_| lines.push(&piece).is_err() || lines.next_event().is_err());
    assert!(refused);
}
