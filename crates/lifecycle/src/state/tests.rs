use super::{Effect, EndCause, Event, PauseCause, State, Step, reason, step};
use crate::runtime::Exit;

fn facts() -> Vec<Event> {
    let why = || "why".to_owned();
    vec![
        Event::Created,
        Event::CreateFailed { code: "C".to_owned(), message: why() },
        Event::Paused(PauseCause::Asked),
        Event::Paused(PauseCause::Idle),
        Event::PauseCalledOff,
        Event::PauseFailed { message: why() },
        Event::PauseRefused { message: why() },
        Event::Resumed,
        Event::ResumeFailed { message: why() },
        Event::Ended(Exit::Exited { code: 0 }),
        Event::Ended(Exit::Signaled { signal: 9 }),
        Event::Destroyed,
        Event::DestroyFailed { message: why() },
    ]
}

#[track_caller]
fn check(state: State, event: Event, expected: (State, Effect)) {
    let got = step(state, &event).unwrap_or_else(|e| panic!("{state} {event:?}: {e}"));
    assert_eq!(got, Step { state: expected.0, effect: expected.1 }, "{state} {event:?}");
}

#[test]
fn the_table_of_transitions() {
    use State::{Failed, Paused, Pausing, Pending, Resuming, Running, Stopping, Terminated};
    let failed = || Event::CreateFailed { code: "C".to_owned(), message: "m".to_owned() };
    let zero = || Event::Ended(Exit::Exited { code: 0 });
    let three = || Event::Ended(Exit::Exited { code: 3 });
    let message = || "m".to_owned();

    check(Pending, Event::Created, (Running, Effect::None));
    check(Pending, failed(), (Failed, Effect::Clean));
    for cause in [PauseCause::Asked, PauseCause::Idle] {
        check(Running, Event::PauseRequested(cause), (Pausing, Effect::Pause));
        check(Pausing, Event::Paused(cause), (Paused, Effect::None));
    }
    check(Pausing, Event::PauseCalledOff, (Running, Effect::None));
    check(Pausing, Event::PauseFailed { message: message() }, (Running, Effect::None));
    check(Pausing, Event::PauseRefused { message: message() }, (Running, Effect::None));
    check(Paused, Event::ResumeRequested, (Resuming, Effect::Resume));
    check(Resuming, Event::Resumed, (Running, Effect::None));
    check(Resuming, Event::ResumeFailed { message: message() }, (Paused, Effect::None));
    for live in [Pending, Running, Pausing, Paused, Resuming] {
        check(live, zero(), (Terminated, Effect::Clean));
        check(live, three(), (Failed, Effect::Clean));
    }
    for state in [Pending, Running, Pausing, Paused, Resuming, Terminated, Failed] {
        check(state, Event::EndRequested(EndCause::Deleted), (Stopping, Effect::Destroy));
        check(state, Event::EndRequested(EndCause::Expired), (Stopping, Effect::Destroy));
    }
    check(Stopping, Event::EndRequested(EndCause::Deleted), (Stopping, Effect::None));
    check(Stopping, Event::Destroyed, (Stopping, Effect::Forget));
    check(Stopping, Event::DestroyFailed { message: message() }, (Stopping, Effect::Destroy));
}

#[test]
fn facts_are_never_rejected_and_never_raise_the_dead() {
    for state in State::ALL {
        for fact in facts() {
            let next = step(state, &fact).expect("facts are accepted everywhere").state;
            if !state.is_live() {
                assert_eq!(next, state, "{state} {fact:?}");
            }
            if state == State::Stopping {
                assert_eq!(next, State::Stopping, "{fact:?}");
            }
        }
    }
}

#[test]
fn pause_needs_running_and_resume_needs_paused() {
    for state in State::ALL {
        assert_eq!(step(state, &Event::PauseRequested(PauseCause::Asked)).is_ok(), state == State::Running, "{state}");
        assert_eq!(step(state, &Event::ResumeRequested).is_ok(), state == State::Paused, "{state}");
    }
    let why = step(State::Paused, &Event::PauseRequested(PauseCause::Asked)).expect_err("already paused");
    assert!(why.message.contains("Paused") && why.message.contains("must be Running"), "{why}");
}

#[test]
fn a_failed_create_reads_without_its_family() {
    let event = Event::CreateFailed {
        code: "SANDBOX::SANDBOX_IMAGE_PULL_FAILED".to_owned(),
        message: "no such image".to_owned(),
    };
    assert_eq!(super::reason(&event), ("IMAGE_PULL_FAILED".to_owned(), "no such image".to_owned()));
}

#[test]
fn states_read_back_in_any_case() {
    for state in State::ALL {
        assert_eq!(state.to_string().to_lowercase().parse(), Ok(state));
    }
    assert_eq!("Gone".parse::<State>(), Err(()));
}

#[test]
fn the_reason_word_remembers_why_a_sandbox_is_paused() {
    for cause in [PauseCause::Asked, PauseCause::Idle] {
        for event in [Event::PauseRequested(cause), Event::Paused(cause)] {
            assert_eq!(PauseCause::of(&reason(&event).0), cause, "{event:?}");
        }
    }
    let failed = Event::ResumeFailed { message: String::new() };
    assert_eq!(PauseCause::of(&reason(&failed).0), PauseCause::Asked, "what cannot be woken is not tried again");
}
