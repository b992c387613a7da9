//! What a driver says: one JSON object per line.

use std::collections::BTreeMap;

use serde::Deserialize;
use serde_json::Value;

/// Bytes of a line; drivers leave out larger forms themselves.
pub const MAX_LINE_BYTES: usize = 24 * 1024 * 1024;

/// Results by media type, plain text under the name `text`.
pub type Forms = BTreeMap<String, Value>;

/// One line of a driver.
#[derive(Debug, PartialEq, Deserialize)]
#[serde(tag = "kind", rename_all = "lowercase")]
pub enum Line {
    /// It waits for the first cell.
    Ready,
    /// The value of a cell.
    Result {
        /// Number of the cell.
        count: i64,
        /// The value's forms.
        data: Forms,
    },
    /// Something shown in the middle of a cell.
    Display {
        /// Its forms.
        data: Forms,
    },
    /// The cell failed.
    Error {
        /// Kind of error.
        name: String,
        /// Its words.
        value: String,
        /// Lines for people.
        traceback: Vec<String>,
    },
    /// The cell has ended.
    End,
}

impl Line {
    /// Reads a line.
    ///
    /// # Errors
    /// What is wrong with it, for people.
    pub fn parse(line: &[u8]) -> Result<Self, String> {
        let mut line: Self = serde_json::from_slice(line).map_err(|error| error.to_string())?;
        if let Self::Result { data, .. } | Self::Display { data } = &mut line {
            // Clients take the text for a string.
            if let Some(text) = data.get_mut("text").filter(|text| !text.is_string()) {
                *text = Value::String(text.to_string());
            }
        }
        Ok(line)
    }
}

/// Cuts a byte stream into lines.
#[derive(Default)]
pub struct Cutter {
    pending: Vec<u8>,
    seen: usize,
}

impl Cutter {
    /// Takes the next bytes.
    ///
    /// # Errors
    /// A line is longer than [`MAX_LINE_BYTES`].
    pub fn feed(&mut self, data: &[u8]) -> Result<(), String> {
        self.pending.extend_from_slice(data);
        if self.pending.len() > MAX_LINE_BYTES && memchr::memchr(b'\n', &self.pending[self.seen..]).is_none() {
            return Err(format!("a line is longer than {MAX_LINE_BYTES} bytes"));
        }
        Ok(())
    }

    /// The next whole line.
    pub fn next(&mut self) -> Option<Vec<u8>> {
        let at = self.seen
            + memchr::memchr(b'\n', &self.pending[self.seen..]).or_else(|| {
                self.seen = self.pending.len();
                None
            })?;
        let mut line = std::mem::take(&mut self.pending);
        self.pending = line.split_off(at + 1);
        self.seen = 0;
        line.truncate(at);
        Some(line)
    }
}

#[cfg(test)]
mod tests {
    use super::{Cutter, Line};

    #[test]
    fn lines_are_cut_wherever_the_pieces_are() {
        let mut cutter = Cutter::default();
        cutter.feed(b"ab").expect("short");
        assert_eq!(cutter.next(), None);
        cutter.feed(b"c\n\nd\ne").expect("short");
        assert_eq!(std::iter::from_fn(|| cutter.next()).collect::<Vec<_>>(), [&b"abc"[..], b"", b"d"]);
        cutter.feed(b"\n").expect("short");
        assert_eq!(cutter.next(), Some(b"e".to_vec()));
    }

    #[test]
    fn the_text_of_a_result_is_a_string() {
        let line = Line::parse(br#"{"kind":"display","data":{"text":5,"application/json":{"a":1}}}"#).expect("a line");
        let Line::Display { data } = line else { panic!("{line:?}") };
        assert_eq!((&data["text"], &data["application/json"]["a"]), (&"5".into(), &1.into()));
    }

    #[test]
    fn fuzz_driver_lines() {
        let examples: [&[u8]; 4] = [
            br#"{"kind":"ready"}"#,
            br#"{"kind":"result","count":3,"data":{"text":"2","image/png":"AA=="}}"#,
            br#"{"kind":"error","name":"E","value":"v","traceback":["a","b"]}"#,
            b"{\"kind\":\"display\",\"data\":{\"text\":null}}\n{\"kind\":\"end\"}\n",
        ];
        fuzz::run_briefly("driver lines", &examples, |input| {
            let mut cutter = Cutter::default();
            let mut lines = Vec::new();
            for piece in input.chunks(7) {
                cutter.feed(piece).expect("short lines");
                lines.extend(std::iter::from_fn(|| cutter.next()));
            }
            let whole: Vec<&[u8]> = input.split(|byte| *byte == b'\n').collect();
            assert_eq!(lines, whole[..whole.len() - 1]);
            for line in whole {
                if let Ok(Line::Result { data, .. } | Line::Display { data }) = Line::parse(line) {
                    assert!(data.get("text").is_none_or(serde_json::Value::is_string));
                }
            }
        });
    }
}
