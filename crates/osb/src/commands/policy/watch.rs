//! `osb policy watch`: what a sandbox tries to reach, as it happens.

use std::collections::HashSet;

use clap::Args;
use protocol::egress::NetworkEvent;

use super::target::written;
use crate::client::network::{Notice, Told};
use crate::client::stream::STREAM_BROKEN;
use crate::commands::signals::until_signal;
use crate::commands::watch::{again, printable};
use crate::commands::{Context, Outcome, to_value};
use crate::failure::Failure;
use crate::output::Format;

/// Suggestions that are remembered so that none is made twice; beyond, they are forgotten and begin anew.
const MAX_SUGGESTIONS: usize = 4096;

/// What to watch.
#[derive(Args, Debug)]
pub struct WatchArgs {
    /// The sandbox
    id: String,
    /// Only what the policy refused
    #[arg(long)]
    denied: bool,
    /// Go on behind the event that carried this cursor
    #[arg(long, value_name = "CURSOR")]
    cursor: Option<String>,
}

/// Writes events until the sandbox ends or a signal comes.
pub async fn run(ctx: &Context, args: &WatchArgs) -> Outcome {
    until_signal(follow(ctx, args)).await
}

async fn follow(ctx: &Context, args: &WatchArgs) -> Result<(), Failure> {
    let client = ctx.client()?;
    let mut cursor = args.cursor.clone();
    let mut stream = client.network_events(&args.id, cursor.as_deref()).await?;
    let mut suggested = HashSet::new();
    loop {
        let why = loop {
            match stream.next_told().await {
                Ok(Some(Told::Event(event))) => {
                    cursor = Some(event.cursor.clone());
                    if !args.denied || is_denied(&event) {
                        show(ctx, &args.id, &event, &mut suggested)?;
                    }
                }
                Ok(Some(Told::Notice(notice))) => {
                    notify(ctx, &notice)?;
                    if notice.kind == "ended" {
                        return Ok(());
                    }
                }
                Ok(None) => break "it ended".to_owned(),
                Err(failure) if failure.code == STREAM_BROKEN => break failure.message,
                Err(failure) => return Err(failure),
            }
        };
        ctx.printer.note(&format!("osb: the stream is lost ({why}); going on behind its last event"));
        stream = again(async || client.network_events(&args.id, cursor.as_deref()).await).await?;
    }
}

fn is_denied(event: &NetworkEvent) -> bool {
    event.action.as_deref() == Some("deny")
}

fn notify(ctx: &Context, notice: &Notice) -> Result<(), Failure> {
    if ctx.printer.format == Format::Json {
        return ctx.printer.line(&serde_json::to_string(notice).expect("a notice has only text keys"));
    }
    ctx.printer.note(&format!("osb: {}", notice.message));
    Ok(())
}

fn show(ctx: &Context, id: &str, event: &NetworkEvent, suggested: &mut HashSet<String>) -> Result<(), Failure> {
    match ctx.printer.format {
        Format::Json => ctx.printer.line(&serde_json::to_string(event).expect("an event has only text keys")),
        Format::Yaml => {
            ctx.printer.line("---")?;
            ctx.printer.document(&to_value(event), String::new)
        }
        Format::Table | Format::Raw => {
            ctx.printer.line(&line(event))?;
            match suggestion(id, event) {
                Some(command) if !suggested.contains(&command) => {
                    if suggested.len() >= MAX_SUGGESTIONS {
                        suggested.clear();
                    }
                    ctx.printer.line(&format!("          to permit it: {command}"))?;
                    suggested.insert(command);
                    Ok(())
                }
                _ => Ok(()),
            }
        }
    }
}

/// One event for people.
fn line(event: &NetworkEvent) -> String {
    let time = event.at.split_once('T').map_or("", |(_, time)| time.get(..8).unwrap_or(time));
    let word = match (event.kind.as_str(), event.action.as_deref()) {
        ("vault", _) => return format!("{time}  vault   {}", printable(&event.message)),
        ("recording", _) => "missed",
        (_, Some("deny")) => "deny",
        ("closed", _) => "closed",
        _ => "allow",
    };
    let what = event.name.as_deref().or(event.address.as_deref()).unwrap_or_default();
    let what = printable(what);
    let asked = match (&event.kind[..], &event.method, &event.path) {
        ("replay", Some(method), Some(path)) => format!("  {} {}", printable(method), printable(path)),
        _ => String::new(),
    };
    let what = match (&event.port, &event.record_type) {
        (Some(port), _) if what.contains(':') => format!("[{what}]:{port}"),
        (Some(port), _) => format!("{what}:{port}"),
        (None, Some(kind)) => format!("{what} ({kind})"),
        (None, None) => what,
    };
    let dialled = match (&event.name, &event.dialled) {
        (Some(_), Some(address)) => format!(" at {}", printable(address)),
        _ => String::new(),
    };
    let bytes = match (event.sent_bytes, event.received_bytes) {
        (Some(sent), Some(received)) => format!("  {sent} bytes sent, {received} received"),
        _ => String::new(),
    };
    format!("{time}  {word:<6}  {what}{dialled}{asked}  {}{bytes}", printable(&event.message))
}

/// The command that would have permitted what was refused.
fn suggestion(id: &str, event: &NetworkEvent) -> Option<String> {
    if event.permit.is_empty() || !is_denied(event) {
        return None;
    }
    let targets: Vec<String> = event.permit.iter().map(|rule| quoted(&printable(&written(rule)))).collect();
    Some(format!("osb policy allow {id} {}", targets.join(" ")))
}

/// A word that a shell takes as it is: names come from the sandbox.
fn quoted(word: &str) -> String {
    let is_plain = |c: char| c.is_ascii_alphanumeric() || "-_.:,/".contains(c);
    if !word.is_empty() && word.chars().all(is_plain) {
        return word.to_owned();
    }
    format!("'{}'", word.replace('\'', "'\\''"))
}

#[cfg(test)]
mod tests {
    use protocol::egress::NetworkRule;

    use super::*;

    fn refused(name: &str, permit: &str) -> NetworkEvent {
        NetworkEvent {
            at: "2026-11-30T18:00:05.123Z".into(),
            kind: "connection".into(),
            action: Some("deny".into()),
            message: "the default action".into(),
            name: Some(name.into()),
            port: Some(443),
            permit: vec![NetworkRule { target: Some(permit.into()), ports: Some(vec![443]), ..NetworkRule::default() }],
            ..NetworkEvent::default()
        }
    }

    #[test]
    fn a_refusal_is_one_line_and_the_command_that_permits_it() {
        let event = refused("pkg.test", "pkg.test");
        assert_eq!(line(&event), "18:00:05  deny    pkg.test:443  the default action");
        assert_eq!(suggestion("ID", &event).as_deref(), Some("osb policy allow ID pkg.test:443"));
        let operators = NetworkEvent { permit: vec![], ..event };
        assert_eq!(suggestion("ID", &operators), None);
    }

    #[test]
    fn a_change_of_the_vault_is_one_line() {
        let event = NetworkEvent {
            at: "2026-11-30T18:00:05.123Z".into(),
            kind: "vault".into(),
            message: "the credential vault was deleted".into(),
            ..NetworkEvent::default()
        };
        assert_eq!(line(&event), "18:00:05  vault   the credential vault was deleted");
    }

    #[test]
    fn what_a_sandbox_asks_for_never_becomes_a_command_of_the_shell() {
        let event = refused("a\u{1b}[2J", "$(reboot)'");
        assert_eq!(line(&event), "18:00:05  deny    a\\u{1b}[2J:443  the default action");
        assert_eq!(suggestion("ID", &event).as_deref(), Some("osb policy allow ID '$(reboot)'\\'':443'"));
        assert_eq!(
            suggestion("ID", &refused("x", "2001:db8::1")).as_deref(),
            Some("osb policy allow ID '[2001:db8::1]:443'")
        );
    }
}
