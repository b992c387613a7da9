//! Messages of the Jupyter protocol 5.3: made, signed, read, and what they mean for a cell.

use hmac::{Hmac, KeyInit, Mac};
use protocol::execd::output::StreamName;
use serde::Deserialize;
use serde_json::{Value, json};
use sha2::Sha256;

use crate::clock;
use crate::code::lines::{Forms, Line};
use crate::code::talk::Happening;
use crate::id;

/// Stands between the identities and the signed parts of a message.
const DELIMITER: &[u8] = b"<IDS|MSG>";
/// Version of the protocol.
const VERSION: &str = "5.3";
/// Signature, header, parent's header, metadata, content.
const PARTS: usize = 5;

/// A message of a kernel, as far as it is looked at.
#[derive(Debug, Default, PartialEq, Deserialize)]
pub struct Message {
    /// Its own header.
    #[serde(default)]
    pub header: Header,
    /// The header of what it answers.
    #[serde(default)]
    pub parent_header: Header,
    /// What it says.
    #[serde(default)]
    pub content: Value,
}

/// A header, as far as it is looked at.
#[derive(Debug, Default, PartialEq, Eq, Deserialize)]
pub struct Header {
    /// Number of the message.
    #[serde(default)]
    pub msg_id: String,
    /// What it is.
    #[serde(default)]
    pub msg_type: String,
}

/// Who speaks: every message of a connection carries the session, and a signature by the key.
pub struct Session {
    id: String,
    key: String,
}

impl Session {
    /// With a key that was told to the kernel.
    pub fn new(key: String) -> Self {
        Self { id: id::hex(), key }
    }

    /// The session's id.
    pub fn id(&self) -> &str {
        &self.id
    }

    /// The header of a new message, and its number.
    pub fn header(&self, kind: &str) -> (Value, String) {
        let number = id::hex();
        let header = json!({
            "msg_id": number, "session": self.id, "username": "execd", "date": clock::rfc3339_ms(clock::now_ms()),
            "msg_type": kind, "version": VERSION,
        });
        (header, number)
    }

    /// The parts of a message to a kernel.
    pub fn parts(&self, header: &Value, content: &Value) -> Vec<Vec<u8>> {
        let signed = [header.to_string(), "{}".into(), "{}".into(), content.to_string()].map(String::into_bytes);
        let mut parts = vec![DELIMITER.to_vec(), self.signature(signed.iter().map(Vec::as_slice))];
        parts.extend(signed);
        parts
    }

    fn mac<'a>(&self, parts: impl Iterator<Item = &'a [u8]>) -> Hmac<Sha256> {
        let mut mac = Hmac::<Sha256>::new_from_slice(self.key.as_bytes()).expect("HMAC takes keys of any length");
        parts.for_each(|part| mac.update(part));
        mac
    }

    fn signature<'a>(&self, parts: impl Iterator<Item = &'a [u8]>) -> Vec<u8> {
        let digest = self.mac(parts).finalize().into_bytes();
        digest.iter().map(|byte| format!("{byte:02x}")).collect::<String>().into_bytes()
    }

    /// Reads a message of a kernel; `None` for one that is malformed or not signed with our key.
    pub fn read(&self, parts: &[Vec<u8>]) -> Option<Message> {
        let at = parts.iter().position(|part| part == DELIMITER)?;
        let [signature, header, parent, metadata, content] = parts.get(at + 1..at + 1 + PARTS)? else { return None };
        let signed = [header, parent, metadata, content];
        let theirs: Vec<u8> = signature.chunks(2).map(hex_pair).collect::<Option<_>>()?;
        self.mac(signed.into_iter().map(Vec::as_slice)).verify_slice(&theirs).ok()?;
        Some(Message {
            header: serde_json::from_slice(header).ok()?,
            parent_header: serde_json::from_slice(parent).unwrap_or_default(),
            content: serde_json::from_slice(content).ok()?,
        })
    }
}

fn hex_pair(pair: &[u8]) -> Option<u8> {
    u8::from_str_radix(std::str::from_utf8(pair).ok().filter(|text| text.len() == 2)?, 16).ok()
}

/// What an `execute_request` says.
pub fn execute(code: &str) -> Value {
    json!({
        "code": code, "silent": false, "store_history": true, "user_expressions": {}, "allow_stdin": false,
        "stop_on_error": true,
    })
}

/// One cell, as the messages about it come in.
#[derive(Default)]
pub struct Turn {
    /// Number of its request; empty between cells.
    request: String,
    has_reply: bool,
    is_idle: bool,
    has_error: bool,
    late: Option<(String, String, Vec<String>)>,
}

impl Turn {
    /// A cell that was just asked for.
    pub fn new(request: String) -> Self {
        Self { request, ..Self::default() }
    }

    /// What a message means. `None` for one that means nothing, or nothing yet.
    pub fn take(&mut self, message: Message) -> Option<Happening> {
        let is_ours = !self.request.is_empty() && message.parent_header.msg_id == self.request;
        let mut content = message.content;
        let text = |content: &mut Value, name: &str| match content.get_mut(name).map(Value::take) {
            Some(Value::String(text)) => text,
            _ => String::new(),
        };
        match message.header.msg_type.as_str() {
            "stream" => {
                let is_stderr = content.get("name").is_some_and(|name| name == "stderr");
                let stream = if is_stderr { StreamName::Stderr } else { StreamName::Stdout };
                let text = text(&mut content, "text");
                (!text.is_empty()).then(|| Happening::Text(stream, text.into_bytes()))
            }
            "display_data" | "update_display_data" => {
                Some(Happening::Line(Line::Display { data: forms(&mut content) }))
            }
            "execute_result" => {
                let count = content.get("execution_count").and_then(Value::as_i64).unwrap_or_default();
                Some(Happening::Line(Line::Result { count, data: forms(&mut content) }))
            }
            "error" if is_ours => {
                self.has_error = true;
                let (name, value, traceback) = error(&mut content);
                Some(Happening::Line(Line::Error { name, value, traceback }))
            }
            "execute_reply" if is_ours => {
                self.has_reply = true;
                if content.get("status").is_some_and(|status| status == "error" || status == "aborted") {
                    self.late = Some(error(&mut content));
                }
                self.end()
            }
            "status" if is_ours && content.get("execution_state").is_some_and(|state| state == "idle") => {
                self.is_idle = true;
                self.end()
            }
            _ => None,
        }
    }

    /// The end of the cell, when the kernel has both answered and published everything. A kernel that published
    /// no error for one that it answered has it told first; [`Turn::ended`] follows.
    fn end(&mut self) -> Option<Happening> {
        if !(self.has_reply && self.is_idle) {
            return None;
        }
        match self.late.take().filter(|_| !self.has_error) {
            Some((name, value, traceback)) => Some(Happening::Line(Line::Error { name, value, traceback })),
            None => self.ended(),
        }
    }

    /// The end, once everything else was told.
    pub fn ended(&mut self) -> Option<Happening> {
        let has_ended = !self.request.is_empty() && self.has_reply && self.is_idle && self.late.is_none();
        has_ended.then(|| {
            self.request.clear();
            Happening::Line(Line::End)
        })
    }
}

fn error(content: &mut Value) -> (String, String, Vec<String>) {
    let text = |name: &str| match content.get(name) {
        Some(Value::String(text)) => text.clone(),
        Some(Value::Null) | None => String::new(),
        Some(other) => other.to_string(),
    };
    let (mut name, value) = (text("ename"), text("evalue"));
    if name.is_empty() {
        name = if content.get("status").is_some_and(|status| status == "aborted") { "Aborted" } else { "Error" }.into();
    }
    let lines = content.get("traceback").and_then(Value::as_array).cloned().unwrap_or_default();
    (name, value, lines.iter().filter_map(Value::as_str).map(str::to_owned).collect())
}

/// The forms of a result: plain text under its published name, and always as a string.
fn forms(content: &mut Value) -> Forms {
    let Some(Value::Object(data)) = content.get_mut("data").map(Value::take) else { return Forms::new() };
    let rename = |(form, data): (String, Value)| match (form.as_str(), data) {
        // A form of a kernel that has our own name for it is read like it; what follows in order, the real one, wins.
        ("text" | "text/plain", Value::String(text)) => ("text".to_owned(), Value::String(text)),
        ("text" | "text/plain", other) => ("text".to_owned(), Value::String(other.to_string())),
        (_, data) => (form, data),
    };
    data.into_iter().map(rename).collect()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::{Message, Session, Turn, execute};
    use crate::code::lines::Line;
    use crate::code::talk::Happening;

    #[test]
    fn a_message_is_read_back_and_a_forged_one_is_not() {
        let session = Session::new("key".into());
        let (header, number) = session.header("execute_request");
        let mut parts = session.parts(&header, &execute("1"));
        parts.insert(0, b"topic".to_vec());
        let message = session.read(&parts).expect("signed with our key");
        assert_eq!((message.header.msg_id, message.content["code"].as_str()), (number, Some("1")));
        assert_eq!(Session::new("other".into()).read(&parts), None);
        let last = parts.len() - 1;
        parts[last][0] = b' ';
        assert_eq!(session.read(&parts), None);
    }

    fn message(kind: &str, content: serde_json::Value) -> Message {
        let value = json!({ "header": { "msg_type": kind }, "parent_header": { "msg_id": "1" }, "content": content });
        serde_json::from_value(value).expect("a message")
    }

    #[test]
    fn a_cell_ends_when_the_kernel_has_answered_and_is_idle() {
        let mut turn = Turn::new("1".into());
        assert!(turn.take(message("status", json!({ "execution_state": "idle" }))).is_none());
        let end = turn.take(message("execute_reply", json!({ "status": "ok" })));
        assert!(matches!(end, Some(Happening::Line(Line::End))));
        let mut turn = Turn::new("1".into());
        assert!(turn.take(message("execute_reply", json!({ "status": "error", "ename": "E" }))).is_none());
        let error = turn.take(message("status", json!({ "execution_state": "idle" })));
        assert!(matches!(error, Some(Happening::Line(Line::Error { name, .. })) if name == "E"));
        assert!(matches!(turn.ended(), Some(Happening::Line(Line::End))));
        assert!(turn.ended().is_none());
    }

    #[test]
    fn a_text_is_always_a_text() {
        let mut turn = Turn::new("1".into());
        let told = |turn: &mut Turn, data| match turn.take(message("display_data", json!({ "data": data }))) {
            Some(Happening::Line(Line::Display { data })) => data["text"].clone(),
            other => panic!("{other:?}"),
        };
        assert_eq!(told(&mut turn, json!({ "text/plain": ["a"] })), r#"["a"]"#);
        assert_eq!(told(&mut turn, json!({ "text": 1 })), "1");
        assert_eq!(told(&mut turn, json!({ "text": 1, "text/plain": "b" })), "b");
    }

    #[test]
    fn fuzz_kernel_messages() {
        let session = Session::new("k".into());
        let examples: [&[u8]; 4] = [
            br#"{"header":{"msg_type":"stream"},"parent_header":{"msg_id":"1"},"content":{"name":"stdout","text":"a"}}"#,
            br#"{"header":{"msg_type":"execute_result"},"content":{"execution_count":1,"data":{"text/plain":["a"]}}}"#,
            br#"{"header":{"msg_type":"execute_reply"},"parent_header":{"msg_id":"1"},"content":{"status":"error"}}"#,
            b"topic\n<IDS|MSG>\nab\n{}\n{}\n{}\n{}",
        ];
        fuzz::run("kernel messages", &examples, |input| {
            let parts: Vec<Vec<u8>> = input.split(|byte| *byte == b'\n').map(<[u8]>::to_vec).collect();
            let _ = session.read(&parts);
            let mut turn = Turn::new("1".into());
            for part in &parts {
                let Ok(message) = serde_json::from_slice::<Message>(part) else { continue };
                if let Some(Happening::Line(Line::Result { data, .. } | Line::Display { data })) = turn.take(message) {
                    assert!(data.get("text").is_none_or(serde_json::Value::is_string));
                }
            }
        });
    }
}
