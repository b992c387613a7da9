//! Ways of writing a text within another one: percent-encoding, forms and JSON strings.

use zeroize::Zeroizing;

/// Bytes that may be secret.
pub(crate) type Bytes = Zeroizing<Vec<u8>>;

/// How hexadecimal digits are written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Case {
    Upper,
    Lower,
}

impl Case {
    pub(crate) const BOTH: [Self; 2] = [Self::Upper, Self::Lower];

    fn digit(self, value: u8) -> u8 {
        match (self, value) {
            (_, 0..=9) => b'0' + value,
            (Self::Upper, _) => b'A' + value - 10,
            (Self::Lower, _) => b'a' + value - 10,
        }
    }

    pub(crate) fn push(self, into: &mut Vec<u8>, byte: u8) {
        into.extend([self.digit(byte >> 4), self.digit(byte & 0xf)]);
    }
}

/// Letters, digits, `-`, `.`, `_` and `~` (RFC 3986).
pub(crate) fn is_unreserved(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'.' | b'_' | b'~')
}

/// What is left as it is in forms (WHATWG URL, 5.2).
pub(crate) fn is_kept_in_forms(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || matches!(byte, b'*' | b'-' | b'.' | b'_')
}

/// Writes `%41` for everything that is not kept.
pub(crate) fn percent(text: &[u8], is_kept: impl Fn(u8) -> bool, case: Case) -> Bytes {
    // Room for the longest form from the beginning: a buffer that grows leaves copies behind.
    let mut written = Zeroizing::new(Vec::with_capacity(text.len() * 3));
    for &byte in text {
        if is_kept(byte) {
            written.push(byte);
        } else {
            written.push(b'%');
            case.push(&mut written, byte);
        }
    }
    written
}

/// The same with `+` for a space.
pub(crate) fn form(text: &[u8], is_kept: impl Fn(u8) -> bool, case: Case) -> Bytes {
    let mut written = Zeroizing::new(Vec::with_capacity(text.len() * 3));
    for &byte in text {
        match byte {
            b' ' => written.push(b'+'),
            _ if is_kept(byte) => written.push(byte),
            _ => {
                written.push(b'%');
                case.push(&mut written, byte);
            }
        }
    }
    written
}

/// How a writer of JSON writes what it need not escape.
#[derive(Clone, Copy)]
pub(crate) struct Dialect {
    /// Whether it writes `\/`.
    pub escapes_slash: bool,
    /// What it writes as `\u0000`.
    pub by_number: fn(char) -> bool,
    /// The digits.
    pub case: Case,
}

/// What is escaped that must be, and nothing else.
pub(crate) const PLAIN_JSON: Dialect = Dialect { escapes_slash: false, by_number: |_| false, case: Case::Lower };

/// The text within the quotes of a JSON string.
pub(crate) fn json(text: &str, dialect: Dialect) -> Bytes {
    let mut written = Zeroizing::new(Vec::with_capacity(text.len() * 6));
    for letter in text.chars() {
        let short = match letter {
            '"' | '\\' => Some(letter),
            '\n' => Some('n'),
            '\r' => Some('r'),
            '\t' => Some('t'),
            '\u{8}' => Some('b'),
            '\u{c}' => Some('f'),
            '/' if dialect.escapes_slash => Some('/'),
            _ => None,
        };
        if (dialect.by_number)(letter) || (letter < ' ' && short.is_none()) {
            for unit in letter.encode_utf16(&mut [0; 2]) {
                written.extend(b"\\u");
                let [high, low] = unit.to_be_bytes();
                dialect.case.push(&mut written, high);
                dialect.case.push(&mut written, low);
            }
        } else if let Some(short) = short {
            written.push(b'\\');
            written.extend(short.encode_utf8(&mut [0; 4]).as_bytes());
        } else {
            written.extend(letter.encode_utf8(&mut [0; 4]).as_bytes());
        }
    }
    written
}

#[cfg(test)]
mod tests;
