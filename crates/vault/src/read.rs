//! From the bytes of a request to its fields, without a word of what the fields hold.

use serde::de::DeserializeOwned;

use crate::Refused;

/// Longest body of a request; the published limit.
pub const MAX_BODY_BYTES: usize = 1 << 20;

/// Reads a request. What is wrong is told by path and place; a value that has the wrong type may be a secret and is not quoted.
///
/// # Errors
/// When the body is too long, is no JSON, or has a field of the wrong type.
pub fn read<T: DeserializeOwned>(body: &[u8]) -> Result<T, Refused> {
    if body.len() > MAX_BODY_BYTES {
        return Err(Refused::field("body", format!("is longer than {MAX_BODY_BYTES} bytes")));
    }
    let mut json = serde_json::Deserializer::from_slice(body);
    let request = serde_path_to_error::deserialize(&mut json).map_err(|error| {
        let path = error.path().to_string();
        told(if path == "." { "body" } else { &path }, error.inner())
    })?;
    json.end().map_err(|error| told("body", &error))?;
    Ok(request)
}

fn told(field: &str, error: &serde_json::Error) -> Refused {
    let reason = match error.classify() {
        serde_json::error::Category::Data => "has the wrong type, or is there twice",
        serde_json::error::Category::Eof => "ends too early",
        serde_json::error::Category::Syntax | serde_json::error::Category::Io => "is no JSON",
    };
    Refused::field(field, format!("{reason} (line {}, column {})", error.line(), error.column()))
}

#[cfg(test)]
mod tests;
