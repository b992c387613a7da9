//! Every way in which a value may be written in an answer.

use base64::Engine;
use base64::engine::general_purpose::{STANDARD, STANDARD_NO_PAD, URL_SAFE_NO_PAD};
use zeroize::Zeroizing;

use crate::encode::{self, Bytes, Case, Dialect};

/// Shortest part of a value in base64 that is looked for: shorter ones are in anything.
const MIN_BASE64_CHARS: usize = 8;
/// Shortest password of a login that is looked for by itself.
const MIN_PASSWORD_BYTES: usize = 6;

/// How writers of JSON write: ours and most others'; PHP, with and without `/`; Go; Python; .NET; Gson.
const DIALECTS: [Dialect; 8] = [
    encode::PLAIN_JSON,
    Dialect { escapes_slash: true, ..encode::PLAIN_JSON },
    Dialect { escapes_slash: true, by_number: |letter| !letter.is_ascii(), case: Case::Lower },
    Dialect { escapes_slash: false, by_number: |letter| !letter.is_ascii(), case: Case::Lower },
    Dialect { escapes_slash: false, by_number: |letter| !letter.is_ascii(), case: Case::Upper },
    Dialect { escapes_slash: false, by_number: |letter| matches!(letter, '<' | '>' | '&'), case: Case::Lower },
    Dialect {
        escapes_slash: false,
        by_number: |letter| matches!(letter, '<' | '>' | '&' | '=' | '\''),
        case: Case::Lower,
    },
    Dialect { escapes_slash: false, by_number: is_numbered_by_dotnet, case: Case::Upper },
];

fn is_numbered_by_dotnet(letter: char) -> bool {
    !letter.is_ascii() || matches!(letter, '<' | '>' | '&' | '\'' | '"' | '+' | '`')
}

/// Every form of a value. Some are there twice.
pub(crate) fn of_value(value: &str) -> Vec<Bytes> {
    let bytes = value.as_bytes();
    let mut forms: Vec<Bytes> = vec![Zeroizing::new(bytes.to_vec())];
    for case in Case::BOTH {
        let mut hex = Zeroizing::new(Vec::with_capacity(bytes.len() * 2));
        bytes.iter().for_each(|byte| case.push(&mut hex, *byte));
        forms.push(hex);
        forms.push(encode::percent(bytes, encode::is_unreserved, case));
        // What JavaScript's `encodeURIComponent` and Python's `quote` keep.
        forms.push(encode::percent(bytes, |byte| encode::is_unreserved(byte) || b"!'()*".contains(&byte), case));
        forms.push(encode::percent(bytes, |byte| encode::is_unreserved(byte) || byte == b'/', case));
        forms.push(encode::form(bytes, encode::is_kept_in_forms, case));
        forms.push(encode::form(bytes, encode::is_unreserved, case));
    }
    forms.extend(DIALECTS.map(|dialect| encode::json(value, dialect)));
    for before in 0..3 {
        forms.extend(base64_within(bytes, before));
    }
    forms
}

/// The password in a login as `Basic` has it, `user:password` in base64, and the login itself.
pub(crate) fn of_login(value: &str) -> Vec<Bytes> {
    let decoded = STANDARD.decode(value).or_else(|_| STANDARD_NO_PAD.decode(value)).map(Zeroizing::new);
    let Some(login) = decoded.as_ref().ok().and_then(|login| std::str::from_utf8(login).ok()) else {
        return Vec::new();
    };
    let Some((_, password)) = login.split_once(':') else { return Vec::new() };
    let parts = [login, password].into_iter().filter(|part| part.len() >= MIN_PASSWORD_BYTES);
    parts.flat_map(of_value).collect()
}

/// What of a value in base64, in both alphabets, does not depend on what is around it, if `before` bytes of a group come
/// before it.
fn base64_within(value: &[u8], before: usize) -> Vec<Bytes> {
    const BITS: usize = 6;
    let mut padded = Zeroizing::new(Vec::with_capacity(before + value.len()));
    padded.extend_from_slice(&[0; 2][..before]);
    padded.extend_from_slice(value);
    let first = (before * 8).div_ceil(BITS);
    let end = padded.len() * 8 / BITS;
    if end < first + MIN_BASE64_CHARS {
        return Vec::new();
    }
    let inner = |text: String| Zeroizing::new(Zeroizing::new(text).as_bytes()[first..end].to_vec());
    vec![inner(STANDARD_NO_PAD.encode(&*padded)), inner(URL_SAFE_NO_PAD.encode(&*padded))]
}

#[cfg(test)]
mod tests;
