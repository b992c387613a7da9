//! Names of entries as lists of components that cannot lead anywhere else.

use crate::Limits;
use crate::error::Error;

/// Components of a relative path: none empty, none `.` or `..`.
pub type Components<'n> = [&'n [u8]];

/// Longest component that Linux file systems take, in bytes.
const MAX_COMPONENT_BYTES: usize = 255;

/// Splits a name.
///
/// # Errors
/// The name is absolute, leads upwards, or is over a limit.
pub fn parse<'n>(name: &'n [u8], limits: &Limits) -> Result<Vec<&'n [u8]>, Error> {
    let refuse = |reason: &str| Err(Error::refused(name, reason));
    if name.is_empty() {
        return refuse("it has no name");
    }
    if name.starts_with(b"/") {
        return refuse("its name is absolute");
    }
    if name.contains(&0) {
        return refuse("its name has a zero byte");
    }
    if name.len() > limits.path_bytes {
        return refuse("its name is too long");
    }
    let components: Vec<&[u8]> = name.split(|b| *b == b'/').filter(|c| !matches!(*c, b"" | b".")).collect();
    if components.contains(&b"..".as_slice()) {
        return refuse("its name goes upwards with ..");
    }
    if components.iter().any(|c| c.len() > MAX_COMPONENT_BYTES) {
        return refuse("a part of its name is too long");
    }
    if components.len() > limits.depth {
        return refuse("it lies too deep");
    }
    Ok(components)
}

/// The path again; `.` when there are no components.
pub fn join(components: &Components<'_>) -> Vec<u8> {
    match components {
        [] => b".".to_vec(),
        some => some.join(&b'/'),
    }
}
