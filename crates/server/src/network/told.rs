//! Events of the egress process as clients see them, and how far a reader has come. Pure.

use std::fmt;
use std::net::IpAddr;

use egress::policy::{Action, Because, List};
use egress::verdicts::{End, Event, Reason, VaultChange, What};
use protocol::egress::{DecidingRule, NetworkEvent, NetworkRule};

/// How far a reader has come. Its text is a cursor; a number alone means that event of the process that serves now.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Position {
    /// The process; `None` before anything was read.
    instance: Option<u64>,
    /// Place among all events of that process.
    sequence: u64,
    /// Place among the events of the sandbox.
    number: u64,
}

/// What a reader finds next.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Told {
    /// The process that the reader knew is gone, and what it had not told with it.
    Restarted,
    /// So many events were not kept.
    Lost(u64),
    /// One event.
    Event(Box<NetworkEvent>),
}

impl Position {
    /// Of a cursor, or of a number.
    pub(super) fn parse(text: &str) -> Option<Self> {
        let mut parts = text.split('-');
        let number = parts.next()?.parse().ok()?;
        let Some(sequence) = parts.next() else { return Some(Self { number, ..Self::default() }) };
        let (sequence, instance) = (sequence.parse().ok()?, u64::from_str_radix(parts.next()?, 16).ok()?);
        parts.next().is_none().then_some(Self { instance: Some(instance), sequence, number })
    }

    /// After which event of its process the reader goes on.
    pub(super) fn sequence(&self) -> u64 {
        self.sequence
    }

    /// Goes on behind what the process says, and tells the new part of it, at most `limit` events. After [`Told::Restarted`]
    /// it must be asked again: it was asked for events of another process.
    pub(super) fn advance(&mut self, said: &egress::Events, limit: usize) -> Vec<Told> {
        if self.instance.is_some_and(|instance| instance != said.instance) {
            *self = Self { instance: Some(said.instance), ..Self::default() };
            return vec![Told::Restarted];
        }
        self.instance = Some(said.instance);
        let mut told = Vec::new();
        let mut events = said.events.iter().filter(|event| event.sequence > self.sequence).peekable();
        let mut taken = 0;
        let mut at = *self;
        while taken < limit
            && let Some(event) = events.next()
        {
            // A number alone was given: the events up to it are known.
            if self.sequence == 0 && event.number <= self.number {
                continue;
            }
            // One that is attached anew counts from 1 again.
            let before = if event.number > at.number { at.number } else { 0 };
            told.extend(lost(event.number - before - 1));
            at = Self { sequence: event.sequence, number: event.number, ..at };
            told.push(Told::Event(Box::new(shown(event, &at))));
            taken += 1;
        }
        if events.peek().is_none() && said.count > at.number {
            told.extend(lost(said.count - at.number));
            at.number = said.count;
        }
        *self = at;
        told
    }
}

impl fmt::Display for Position {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { instance, sequence, number } = self;
        match instance {
            Some(instance) => write!(f, "{number}-{sequence}-{instance:x}"),
            None => write!(f, "{number}"),
        }
    }
}

fn lost(count: u64) -> Option<Told> {
    (count > 0).then_some(Told::Lost(count))
}

pub(super) fn shown(event: &Event, at: &Position) -> NetworkEvent {
    let when = i64::try_from(event.at_ms).ok().and_then(|ms| jiff::Timestamp::from_millisecond(ms).ok());
    let common = NetworkEvent {
        cursor: at.to_string(),
        number: event.number,
        at: when.unwrap_or_default().to_string(),
        ..NetworkEvent::default()
    };
    match &event.what {
        What::Question { name, kind, reason } => {
            let name = name.trim_end_matches('.').to_owned();
            NetworkEvent {
                kind: "question".into(),
                action: Some("deny".into()),
                record_type: Some(kind.clone()),
                permit: if opens(reason) { vec![rule(&name, None)] } else { Vec::new() },
                name: Some(name),
                ..because(reason, common)
            }
        }
        What::Connection { flow, name, to, dialled, action, reason } => {
            let is_refused = *action == Action::Deny;
            // The address was refused where there is one, else the name, else what was connected to.
            let refused = match (dialled, name) {
                (Some(address), _) => address.to_string(),
                (None, Some(name)) => name.clone(),
                (None, None) => to.ip().to_string(),
            };
            let permit = if is_refused && opens(reason) { vec![rule(&refused, Some(to.port()))] } else { Vec::new() };
            NetworkEvent {
                kind: "connection".into(),
                action: Some(if is_refused { "deny" } else { "allow" }.into()),
                connection: Some(*flow),
                name: name.clone(),
                address: Some(to.ip().to_string()),
                port: Some(to.port()),
                dialled: dialled.as_ref().map(IpAddr::to_string),
                permit,
                ..because(reason, common)
            }
        }
        What::Closed { flow, name, to, presented, sent_bytes, received_bytes, end } => {
            let permit = match (end, presented) {
                (End::Refused { reason }, Some(presented)) if opens(reason) => vec![rule(presented, Some(to.port()))],
                _ => Vec::new(),
            };
            NetworkEvent {
                kind: "closed".into(),
                connection: Some(*flow),
                name: name.clone(),
                address: Some(to.ip().to_string()),
                port: Some(to.port()),
                presented: presented.clone(),
                sent_bytes: Some(*sent_bytes),
                received_bytes: Some(*received_bytes),
                permit,
                ..ended(end, common)
            }
        }
        What::Injected { flow, host, method, path, binding, revision, headers } => NetworkEvent {
            kind: "request".into(),
            action: Some("allow".into()),
            reason: "credential".into(),
            message: format!(
                "binding {binding} set {}",
                if headers.is_empty() { "values".into() } else { headers.join(", ") }
            ),
            connection: Some(*flow),
            name: Some(host.clone()),
            method: Some(method.clone()),
            path: Some(path.clone()),
            binding: Some(binding.clone()),
            revision: u64::try_from(*revision).ok(),
            ..common
        },
        What::Request { flow, host, method, status, reason } => NetworkEvent {
            kind: "request".into(),
            action: Some("deny".into()),
            connection: Some(*flow),
            name: Some(host.clone()),
            method: Some(method.clone()),
            status: Some(*status),
            ..because(reason, common)
        },
        What::NotRecorded { flow, host, port, message } => NetworkEvent {
            kind: "recording".into(),
            reason: "not-recorded".into(),
            message: message.clone(),
            connection: Some(*flow),
            name: Some(host.clone()),
            port: Some(*port),
            ..common
        },
        What::Replay { flow, host, port, method, path, status, message } => NetworkEvent {
            kind: "replay".into(),
            action: Some("deny".into()),
            reason: "not-in-recording".into(),
            message: message.clone(),
            connection: Some(*flow),
            name: Some(host.clone()),
            port: Some(*port),
            method: Some(method.clone()).filter(|method| !method.is_empty()),
            path: Some(path.clone()).filter(|path| !path.is_empty()),
            status: Some(*status).filter(|status| *status != 0),
            ..common
        },
        What::Vault { change, revision, credentials, bindings } => {
            let (word, message) = match change {
                VaultChange::Created => ("created", "the credential vault was made"),
                VaultChange::Patched => ("patched", "the credential vault was changed"),
                VaultChange::Deleted => ("deleted", "the credential vault was deleted"),
            };
            let message = match change {
                VaultChange::Deleted => message.to_owned(),
                _ => format!("{message}: revision {revision}, {credentials} credentials, {bindings} bindings"),
            };
            NetworkEvent { kind: "vault".into(), reason: word.into(), message, revision: Some(*revision), ..common }
        }
    }
}

fn ended(end: &End, event: NetworkEvent) -> NetworkEvent {
    let (reason, message, denied) = match end {
        End::Done => ("done", "both sides were done".to_owned(), false),
        End::Broken { message } => ("broken", message.clone(), false),
        End::Refused { reason } => {
            return NetworkEvent { action: Some("deny".into()), ..because(reason, event) };
        }
        End::PolicyChanged { revision } => {
            ("policy-changed", format!("revision {revision} of the policy cut it"), true)
        }
        End::VaultChanged => ("vault-changed", "the credential vault became another".to_owned(), false),
        End::Idle => ("idle", "nothing moved for too long".to_owned(), false),
        End::Detached => ("detached", "the sandbox ended, or its network is served anew".to_owned(), false),
    };
    let action = denied.then(|| "deny".to_owned());
    NetworkEvent { reason: reason.into(), message, action, ..event }
}

/// The event with its reason.
fn because(reason: &Reason, event: NetworkEvent) -> NetworkEvent {
    let (word, message) = match reason {
        Reason::Policy { because } => (word(because), because.to_string()),
        Reason::Local => ("local", "the sandbox itself was meant; that does not leave it".into()),
        Reason::UnknownName => ("unknown-name", "the address stands for names, and none has this one".into()),
        Reason::BadName => ("bad-name", "it is no name".into()),
        Reason::OtherHost { presented } => {
            ("other-host", format!("the connection is for another name, and its first bytes are for {presented}"))
        }
        Reason::BadHead { message } => ("bad-head", message.clone()),
        Reason::Unresolved { message } => ("unresolved", message.clone()),
        Reason::Unreachable { message } => ("unreachable", message.clone()),
        Reason::Vault { message } => ("vault", message.clone()),
        Reason::NotInRecording => ("not-in-recording", "not in the recording that answers the sandbox".into()),
        Reason::Limit { what } => ("limit", what.clone()),
    };
    let rule = match reason {
        Reason::Policy { because: Because::Rule { list, index } } => {
            let list = match list {
                List::AlwaysDeny => "always_deny",
                List::AlwaysAllow => "always_allow",
                List::User => "user",
            };
            Some(DecidingRule { list: list.into(), index: *index })
        }
        _ => None,
    };
    NetworkEvent { reason: word.into(), message, rule, ..event }
}

fn word(because: &Because) -> &'static str {
    match because {
        Because::Rule { .. } => "rule",
        Because::Default => "default",
        Because::NotPublic { .. } => "not-public",
        Because::EncryptedDns => "encrypted-dns",
    }
}

/// Whether a rule of the sandbox's own policy beats this refusal. The operator's denials are beaten by none.
fn opens(reason: &Reason) -> bool {
    match reason {
        Reason::Policy { because: Because::Rule { list, .. } } => *list == List::User,
        Reason::Policy { .. } => true,
        _ => false,
    }
}

fn rule(target: &str, port: Option<u16>) -> NetworkRule {
    NetworkRule {
        action: Some("allow".into()),
        target: Some(target.to_owned()),
        ports: port.map(|port| vec![port.into()]),
        ..NetworkRule::default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn event(sequence: u64, number: u64) -> Event {
        let reason = Reason::Policy { because: Because::Default };
        let what = What::Question { name: "a.example.".into(), kind: "A".into(), reason };
        Event { sequence, number, sandbox: "s".into(), at_ms: 0, what }
    }

    fn said(instance: u64, count: u64, events: &[(u64, u64)]) -> egress::Events {
        let events = events.iter().map(|(sequence, number)| event(*sequence, *number)).collect();
        egress::Events { instance, count, events }
    }

    /// Numbers of events, negative for what was lost, 0 for a restart.
    fn numbers(told: &[Told]) -> Vec<i64> {
        let number = |told: &Told| match told {
            Told::Restarted => 0,
            Told::Lost(count) => -i64::try_from(*count).expect("few"),
            Told::Event(event) => i64::try_from(event.number).expect("few"),
        };
        told.iter().map(number).collect()
    }

    #[test]
    fn a_reader_goes_on_behind_its_cursor() {
        let mut position = Position::default();
        assert_eq!(numbers(&position.advance(&said(7, 3, &[(10, 1), (12, 2), (15, 3)]), 2)), [1, 2]);
        let mut again = Position::parse(&position.to_string()).expect("a cursor");
        assert_eq!(again, position);
        assert_eq!(numbers(&again.advance(&said(7, 3, &[(15, 3)]), 9)), [3]);
        assert_eq!(numbers(&again.advance(&said(7, 3, &[]), 9)), [0; 0]);
    }

    #[test]
    fn what_was_not_kept_is_counted_once() {
        let mut position = Position::default();
        assert_eq!(numbers(&position.advance(&said(7, 9, &[(20, 4), (22, 6)]), 9)), [-3, 4, -1, 6, -3]);
        assert_eq!(numbers(&position.advance(&said(7, 10, &[(30, 10)]), 9)), [10]);
    }

    #[test]
    fn more_packets_that_follow_are_not_lost() {
        let mut position = Position::default();
        assert_eq!(numbers(&position.advance(&said(7, 0, &[(1, 1)]), 9)), [1]);
        assert_eq!(numbers(&position.advance(&said(7, 2, &[(2, 2)]), 9)), [2]);
    }

    #[test]
    fn another_process_is_told_and_read_from_its_beginning() {
        let mut position = Position::parse("5-50-7").expect("a cursor");
        assert_eq!(numbers(&position.advance(&said(8, 60, &[(60, 9)]), 9)), [0]);
        assert_eq!(position.sequence(), 0);
        assert_eq!(numbers(&position.advance(&said(8, 2, &[(1, 1), (60, 2)]), 9)), [1, 2]);
    }

    #[test]
    fn a_sandbox_that_is_attached_anew_counts_from_one() {
        let mut position = Position::parse("5-50-7").expect("a cursor");
        assert_eq!(numbers(&position.advance(&said(7, 2, &[(51, 6), (60, 1), (61, 2)]), 9)), [6, 1, 2]);
    }

    #[test]
    fn a_number_alone_is_an_event_of_this_process() {
        let mut position = Position::parse("2").expect("a number");
        assert_eq!(numbers(&position.advance(&said(7, 3, &[(10, 1), (12, 2), (15, 3)]), 9)), [3]);
        for text in ["", "x", "1-2", "1-2-x", "1-2-3-4", "-1"] {
            assert_eq!(Position::parse(text), None, "{text}");
        }
    }

    #[test]
    fn refusals_name_the_rule_that_would_permit_them_and_the_operators_do_not() {
        let connection = |name: Option<&str>, dialled: Option<&str>, because| {
            let what = What::Connection {
                flow: 1,
                name: name.map(str::to_owned),
                to: "28.64.0.1:443".parse().expect("an address"),
                dialled: dialled.map(|text| text.parse().expect("an address")),
                action: Action::Deny,
                reason: Reason::Policy { because },
            };
            shown(&Event { what, ..event(1, 1) }, &Position::default()).permit
        };
        let private = Because::NotPublic { kind: egress::guard::Kind::Private };
        assert_eq!(connection(Some("a.test"), None, Because::Default), [rule("a.test", Some(443))]);
        assert_eq!(connection(Some("a.test"), Some("10.0.0.1"), private.clone()), [rule("10.0.0.1", Some(443))]);
        assert_eq!(connection(None, Some("10.0.0.1"), private), [rule("10.0.0.1", Some(443))]);
        assert_eq!(connection(None, None, Because::Rule { list: List::AlwaysDeny, index: 0 }), []);
        let asked = shown(&event(1, 1), &Position::default());
        assert_eq!((asked.name.as_deref(), asked.permit), (Some("a.example"), vec![rule("a.example", None)]));
    }
}
