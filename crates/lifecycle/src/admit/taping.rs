//! Recordings: whether what a sandbox fetches is recorded, or comes from a recording.

use std::collections::BTreeMap;

use protocol::recording::{RECORD_EXTENSION, REPLAY_EXTENSION};

use super::{NO_NETWORK, Refusal};
use crate::runtime::Capabilities;
use crate::spec::Taping;

/// Longest id of a recording.
const MAX_ID_BYTES: usize = 64;

/// Takes what is asked for out of the extensions.
pub(super) fn asked(extensions: &mut BTreeMap<String, String>, runtime: &Capabilities) -> Result<Taping, Refusal> {
    let (record, replay) = (extensions.remove(RECORD_EXTENSION), extensions.remove(REPLAY_EXTENSION));
    let (name, taping) = match (record, replay) {
        (None, None) => return Ok(Taping::None),
        (Some(_), Some(_)) => {
            let problem =
                format!("a sandbox that is answered from a recording fetches nothing; leave {RECORD_EXTENSION} out");
            return Err(Refusal::bad(field(REPLAY_EXTENSION), problem));
        }
        (Some(word), None) if word == "on" => (RECORD_EXTENSION, Taping::Record),
        (Some(word), None) => {
            let problem = format!("\"{}\" must be \"on\"; leave it out to record nothing", shown(&word));
            return Err(Refusal::bad(field(RECORD_EXTENSION), problem));
        }
        (None, Some(recording)) if is_id(&recording) => (REPLAY_EXTENSION, Taping::Replay { recording }),
        (None, Some(word)) => {
            let problem = format!("\"{}\" is no id of a recording; GET /v1/recordings lists them", shown(&word));
            return Err(Refusal::bad(field(REPLAY_EXTENSION), problem));
        }
    };
    if runtime.network == NO_NETWORK {
        let problem = "sandboxes have no way out on this machine, so nothing can be recorded or served; `osb doctor` says \
                       what is missing; leave it out";
        return Err(Refusal::unsupported(field(name), problem));
    }
    Ok(taping)
}

fn field(name: &str) -> String {
    format!("extensions.{name}")
}

fn is_id(text: &str) -> bool {
    let is_plain = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'-';
    !text.is_empty() && text.len() <= MAX_ID_BYTES && text.bytes().all(is_plain)
}

/// As much of a wrong value as is repeated.
fn shown(text: &str) -> String {
    text.chars().take(MAX_ID_BYTES).collect()
}
