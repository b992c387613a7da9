//! Reads what a shell's `export -p` prints.
//!
//! bash writes `declare -x NAME="value"` or `NAME=$'value'`, dash and busybox write `export NAME='value'`. All of
//! it is shell words again, so this reads words: plain letters, `\x`, `'...'`, `"..."` and `$'...'` in any mix.

/// The exported variables that have a value, in order.
///
/// # Errors
/// What cannot be a statement of `export -p`, by its first bytes.
pub fn parse(text: &[u8]) -> Result<Vec<(String, Vec<u8>)>, String> {
    let mut reader = Reader { text, at: 0 };
    let mut found = Vec::new();
    while reader.skip_blank_lines() {
        let start = reader.at;
        let statement = reader.statement().ok_or_else(|| unreadable(&text[start..]))?;
        found.extend(statement);
    }
    Ok(found)
}

fn unreadable(text: &[u8]) -> String {
    const SHOWN_BYTES: usize = 60;
    format!("not a statement of `export -p`: {:?}", String::from_utf8_lossy(&text[..text.len().min(SHOWN_BYTES)]))
}

struct Reader<'a> {
    text: &'a [u8],
    at: usize,
}

impl Reader<'_> {
    fn peek(&self) -> Option<u8> {
        self.text.get(self.at).copied()
    }

    fn next(&mut self) -> Option<u8> {
        let byte = self.peek()?;
        self.at += 1;
        Some(byte)
    }

    /// False at the end of the text.
    fn skip_blank_lines(&mut self) -> bool {
        while self.peek() == Some(b'\n') {
            self.at += 1;
        }
        self.peek().is_some()
    }

    /// One statement up to its newline. The outer `None` is a text that is none; the inner one a variable
    /// without a value of its own (not set, or an array, which no process inherits).
    fn statement(&mut self) -> Option<Option<(String, Vec<u8>)>> {
        let mut word = self.word()?;
        match word.as_slice() {
            b"export" => word = self.word()?,
            b"declare" => {
                let flags = self.word()?;
                if !flags.starts_with(b"-") {
                    return None;
                }
                if flags.contains(&b'a') || flags.contains(&b'A') {
                    return self.skip_line().then_some(None);
                }
                word = self.word()?;
            }
            _ => return None,
        }
        if !matches!(self.next(), None | Some(b'\n')) {
            return None;
        }
        let Some(equals) = word.iter().position(|byte| *byte == b'=') else {
            return Some(None);
        };
        let value = word.split_off(equals + 1);
        word.pop();
        let name = String::from_utf8(word).ok().filter(|name| is_name(name))?;
        Some(Some((name, value)))
    }

    /// The next word without its quotes; stops before a newline.
    fn word(&mut self) -> Option<Vec<u8>> {
        while self.peek() == Some(b' ') {
            self.at += 1;
        }
        let mut word = Vec::new();
        loop {
            match self.peek() {
                None | Some(b' ' | b'\n') => return Some(word),
                Some(b'\'') => {
                    self.at += 1;
                    self.single(&mut word)?;
                }
                Some(b'"') => {
                    self.at += 1;
                    self.double(&mut word)?;
                }
                Some(b'$') if self.text.get(self.at + 1) == Some(&b'\'') => {
                    self.at += 2;
                    self.ansi(&mut word)?;
                }
                Some(b'\\') => {
                    self.at += 1;
                    word.push(self.next()?);
                }
                Some(byte) => {
                    self.at += 1;
                    word.push(byte);
                }
            }
        }
    }

    fn single(&mut self, word: &mut Vec<u8>) -> Option<()> {
        loop {
            match self.next()? {
                b'\'' => return Some(()),
                byte => word.push(byte),
            }
        }
    }

    fn double(&mut self, word: &mut Vec<u8>) -> Option<()> {
        loop {
            match self.next()? {
                b'"' => return Some(()),
                b'\\' => match self.next()? {
                    b'\n' => {}
                    byte @ (b'"' | b'\\' | b'$' | b'`') => word.push(byte),
                    byte => word.extend([b'\\', byte]),
                },
                byte => word.push(byte),
            }
        }
    }

    fn ansi(&mut self, word: &mut Vec<u8>) -> Option<()> {
        loop {
            match self.next()? {
                b'\'' => return Some(()),
                b'\\' => self.escape(word)?,
                byte => word.push(byte),
            }
        }
    }

    fn escape(&mut self, word: &mut Vec<u8>) -> Option<()> {
        let byte = match self.next()? {
            b'a' => 0x07,
            b'b' => 0x08,
            b'e' | b'E' => 0x1b,
            b'f' => 0x0c,
            b'n' => b'\n',
            b'r' => b'\r',
            b't' => b'\t',
            b'v' => 0x0b,
            b'x' => self.number(16, 2)? as u8,
            b'0'..=b'7' => {
                self.at -= 1;
                (self.number(8, 3)? & 0xff) as u8
            }
            b'u' => return self.character(4, word),
            b'U' => return self.character(8, word),
            other => other,
        };
        word.push(byte);
        Some(())
    }

    fn character(&mut self, digits: usize, word: &mut Vec<u8>) -> Option<()> {
        let letter = char::from_u32(self.number(16, digits)?)?;
        word.extend_from_slice(letter.encode_utf8(&mut [0; 4]).as_bytes());
        Some(())
    }

    fn number(&mut self, radix: u32, digits: usize) -> Option<u32> {
        let mut value = None;
        for _ in 0..digits {
            let Some(digit) = self.peek().and_then(|byte| char::from(byte).to_digit(radix)) else {
                break;
            };
            self.at += 1;
            value = Some(value.unwrap_or(0) * radix + digit);
        }
        value
    }

    /// Passes over the rest of the statement, whose newlines in quotes do not end it.
    fn skip_line(&mut self) -> bool {
        loop {
            if self.word().is_none() {
                return false;
            }
            if matches!(self.next(), None | Some(b'\n')) {
                return true;
            }
        }
    }
}

/// Whether a shell can have a variable of this name.
pub fn is_name(name: &str) -> bool {
    !name.is_empty()
        && !name.starts_with(|letter: char| letter.is_ascii_digit())
        && name.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'_')
}

#[cfg(test)]
mod tests;
