//! Environments and what is expanded from them: the env file, `$NAME` and `~` in paths.

use std::collections::BTreeMap;

use crate::error::{ApiError, Result};

/// Names and values.
pub type Environment = BTreeMap<String, String>;

/// Where `EXECD_ENVS` points when nothing else is said.
pub const DEFAULT_ENV_FILE: &str = "/opt/opensandbox/.env";
/// Search path of a sandbox whose image sets none.
pub const DEFAULT_PATH: &str = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";

/// Names that never reach a child: what opens or configures execd is nobody else's business.
pub const PRIVATE_NAMES: [&str; 6] = [
    "EXECD_ACCESS_TOKEN",
    "JUPYTER_TOKEN",
    "EXECD_ISOLATION_CONFIG",
    "OPENSANDBOX_LIFECYCLE",
    "EXECD_LIFECYCLE_CONFIG",
    "EXECD_RUNTIME_INIT",
];
/// Names that commands see and what lives longer than a command does not.
const COMMANDS_ONLY: [&str; 2] = ["JUPYTER_HOST", "EXECD_ENVS"];

/// The variables that what lives longer than a command may see.
pub fn without_private(mut env: Environment) -> Environment {
    for name in PRIVATE_NAMES.iter().chain(&COMMANDS_ONLY) {
        env.remove(*name);
    }
    env
}

/// Replaces `$NAME` and `${NAME}` by `value(name)`, and `$$` by one dollar sign. Any other `$` stays.
///
/// # Errors
/// The first name for which `value` has nothing.
pub fn expand<'a>(text: &str, value: impl Fn(&str) -> Option<&'a str>) -> std::result::Result<String, String> {
    let mut out = String::with_capacity(text.len());
    let mut rest = text;
    while let Some(dollar) = rest.find('$') {
        out.push_str(&rest[..dollar]);
        rest = &rest[dollar + 1..];
        if let Some(after) = rest.strip_prefix('$') {
            out.push('$');
            rest = after;
            continue;
        }
        let (name, after) = match rest.strip_prefix('{') {
            Some(inner) => match inner.split_once('}') {
                Some(parts) => parts,
                None => ("", rest),
            },
            None => {
                let end = rest.find(|c: char| !(c.is_ascii_alphanumeric() || c == '_')).unwrap_or(rest.len());
                let end = if rest.starts_with(|c: char| c.is_ascii_digit()) { 0 } else { end };
                rest.split_at(end)
            }
        };
        if name.is_empty() {
            out.push('$');
            continue;
        }
        out.push_str(value(name).ok_or_else(|| name.to_owned())?);
        rest = after;
    }
    out.push_str(rest);
    Ok(out)
}

/// What paths of requests are expanded with; shared with worker threads.
pub struct Paths {
    /// Variables.
    pub env: Environment,
    /// Where relative paths begin.
    pub cwd: String,
}

impl Paths {
    /// Expands a path of a request.
    ///
    /// # Errors
    /// See [`expand_path`].
    pub fn expand(&self, path: &str) -> Result<String> {
        expand_path(path, &self.env, &self.cwd)
    }
}

/// Expands a path of a request: variables, then a leading `~`, then made absolute against `cwd` and
/// cleaned of `.`, `..` and doubled slashes by its text, as the published daemon does.
///
/// # Errors
/// 400 for an empty path, a NUL byte or an undefined variable.
pub fn expand_path(path: &str, env: &Environment, cwd: &str) -> Result<String> {
    if path.is_empty() {
        return Err(ApiError::file("the path is empty"));
    }
    if path.contains('\0') {
        return Err(ApiError::file(format!("{path:?}: a path holds no NUL byte")));
    }
    let path = expand(path, |name| env.get(name).map(String::as_str)).map_err(|name| {
        ApiError::file(format!(
            "{path}: variable {name:?} is not set in the sandbox; write $$ for a literal dollar sign"
        ))
    })?;
    let home = env.get("HOME").map_or("/", String::as_str);
    let path = match path.strip_prefix('~') {
        Some("") => home.to_owned(),
        Some(rest) if rest.starts_with(['/', '\\']) => format!("{home}/{}", &rest[1..]),
        _ => path,
    };
    let absolute = if path.starts_with('/') { path } else { format!("{cwd}/{path}") };
    Ok(clean(&absolute))
}

fn clean(path: &str) -> String {
    let mut parts: Vec<&str> = Vec::new();
    for part in path.split('/') {
        match part {
            "" | "." => {}
            ".." => {
                parts.pop();
            }
            part => parts.push(part),
        }
    }
    format!("/{}", parts.join("/"))
}

/// Adds the entries of an env file to `env`; malformed ones are passed over, the last of a name wins.
///
/// `NAME='...'` is literal and may span lines; `NAME="..."` knows `\n \r \t \\ \"` and then expands
/// variables; an unquoted value is trimmed and expanded. Undefined variables are empty.
pub fn apply_env_file(text: &str, env: &mut Environment) {
    let mut position = 0;
    while position < text.len() {
        let line_start = position;
        let line_end = text[position..].find('\n').map_or(text.len(), |at| position + at);
        position = line_end + 1;
        let line = &text[line_start..line_end];
        let Some((name, value)) = line.split_once('=') else {
            continue;
        };
        if !is_name(name.trim()) {
            continue;
        }
        let value = value.trim_start();
        let value_start = line_end - value.len();
        let value = match value.chars().next() {
            Some(quote @ ('\'' | '"')) => {
                let Some((raw, end)) = quoted(&text[value_start + 1..], quote) else {
                    continue;
                };
                let after = value_start + 1 + end;
                let after_end = text[after..].find('\n').map_or(text.len(), |at| after + at);
                if !text[after..after_end].trim().is_empty() {
                    continue;
                }
                position = after_end + 1;
                if quote == '"' { expand_or_empty(&unescape(raw), env) } else { raw.to_owned() }
            }
            _ => expand_or_empty(value.trim(), env),
        };
        // No program can be given such a value: one entry must not keep all commands from starting.
        if !value.contains('\0') {
            env.insert(name.trim().to_owned(), value);
        }
    }
}

fn is_name(name: &str) -> bool {
    !name.is_empty() && !name.starts_with('#') && !name.contains(|c: char| c.is_whitespace() || c == '\0')
}

/// The text up to the closing quote and the offset behind it; a backslash hides a double quote.
fn quoted(text: &str, quote: char) -> Option<(&str, usize)> {
    let mut escaped = false;
    for (at, letter) in text.char_indices() {
        if letter == quote && !escaped {
            return Some((&text[..at], at + 1));
        }
        escaped = quote == '"' && letter == '\\' && !escaped;
    }
    None
}

fn unescape(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    let mut letters = text.chars();
    while let Some(letter) = letters.next() {
        if letter != '\\' {
            out.push(letter);
            continue;
        }
        match letters.next() {
            Some('n') => out.push('\n'),
            Some('r') => out.push('\r'),
            Some('t') => out.push('\t'),
            Some(plain @ ('\\' | '"')) => out.push(plain),
            Some(other) => out.extend(['\\', other]),
            None => out.push('\\'),
        }
    }
    out
}

fn expand_or_empty(text: &str, env: &Environment) -> String {
    let lookup = |name: &str| Some(env.get(name).map_or("", String::as_str));
    expand(text, lookup).unwrap_or_default()
}

#[cfg(test)]
mod tests;
