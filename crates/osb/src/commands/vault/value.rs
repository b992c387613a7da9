//! Where a secret value comes from: never an argument, which everybody on the machine can read.

use std::io::{IsTerminal as _, Read as _, Write as _};
use std::path::PathBuf;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use rustix::termios::{LocalModes, OptionalActions, Termios, tcgetattr, tcsetattr};
use secrecy::{ExposeSecret as _, SecretString};

use crate::failure::Failure;

/// Longest value, in bytes; the server takes no longer one.
const MAX_VALUE: u64 = 16 * 1024;

/// Where a value comes from.
pub enum Source {
    /// This variable of the environment.
    Variable(String),
    /// This file; `-` is standard input.
    File(PathBuf),
    /// A person, who is asked with these words.
    Prompt(String),
}

impl Source {
    /// The value.
    ///
    /// # Errors
    /// When it is not there, is empty, or nobody can be asked.
    pub fn read(&self) -> Result<SecretString, Failure> {
        let (value, from) = match self {
            Self::Variable(name) => match std::env::var(name) {
                Ok(value) => (value, format!("the variable {name}")),
                Err(std::env::VarError::NotPresent) => {
                    return Err(Failure::usage(format!("there is no variable {name}"))
                        .hint(format!("set it for this command alone: read -rs {name}; export {name}")));
                }
                Err(std::env::VarError::NotUnicode(_)) => {
                    return Err(Failure::usage(format!("the variable {name} holds no text")));
                }
            },
            Self::File(path) if path.as_os_str() == "-" => {
                let mut text = String::new();
                let read = std::io::stdin().take(MAX_VALUE + 2).read_to_string(&mut text);
                read.map_err(|error| Failure::file("read", path, &error))?;
                (text, "standard input".to_owned())
            }
            Self::File(path) => {
                let mut text = String::new();
                let read =
                    std::fs::File::open(path).and_then(|file| file.take(MAX_VALUE + 2).read_to_string(&mut text));
                read.map_err(|error| Failure::file("read", path, &error))?;
                (text, path.display().to_string())
            }
            Self::Prompt(words) => (ask(words)?, "what was typed".to_owned()),
        };
        checked(value, &from)
    }
}

/// A value without the end of its line.
fn checked(mut value: String, from: &str) -> Result<SecretString, Failure> {
    let length = value.trim_end_matches(['\r', '\n']).len();
    value.truncate(length);
    if value.is_empty() {
        return Err(Failure::usage(format!("{from} is empty; a credential needs a value")));
    }
    if value.len() as u64 > MAX_VALUE {
        return Err(Failure::usage(format!("{from} is longer than {MAX_VALUE} bytes")));
    }
    Ok(SecretString::from(value))
}

/// `user:password` as it is sent; what is encoded already is left as it is.
pub fn basic(value: &SecretString) -> Result<SecretString, Failure> {
    let text = value.expose_secret();
    if text.contains(':') {
        return Ok(SecretString::from(STANDARD.encode(text)));
    }
    match STANDARD.decode(text) {
        Ok(plain) if plain.contains(&b':') => Ok(value.clone()),
        _ => Err(Failure::usage("a basic login must be user:password, or that in base64")),
    }
}

/// Asks at the terminal, without showing what is typed.
fn ask(words: &str) -> Result<String, Failure> {
    if !std::io::stdin().is_terminal() {
        return Err(Failure::usage("no value is named, and there is no terminal to ask for one")
            .hint("use --bearer-from-env VAR, or --bearer-from FILE"));
    }
    let failed = |error: std::io::Error| Failure::new("CLIENT", format!("ask for a value: {error}"));
    let mut out = std::io::stderr();
    out.write_all(words.as_bytes()).and_then(|()| out.flush()).map_err(failed)?;
    let silent = Silent::begin().map_err(|error| failed(error.into()))?;
    let mut line = String::new();
    let read = std::io::stdin().read_line(&mut line);
    drop(silent);
    let _ = out.write_all(b"\n"); // the terminal may be gone
    read.map_err(failed)?;
    Ok(line)
}

/// A terminal that does not show what is typed, until this ends.
struct Silent(Termios);

impl Silent {
    fn begin() -> rustix::io::Result<Self> {
        let before = tcgetattr(rustix::stdio::stdin())?;
        let mut silent = before.clone();
        silent.local_modes.remove(LocalModes::ECHO);
        tcsetattr(rustix::stdio::stdin(), OptionalActions::Flush, &silent)?;
        Ok(Self(before))
    }
}

impl Drop for Silent {
    fn drop(&mut self) {
        let _ = tcsetattr(rustix::stdio::stdin(), OptionalActions::Now, &self.0); // the terminal may be gone
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_value_loses_the_end_of_its_line_and_nothing_else() {
        let value = |text: &str| checked(text.to_owned(), "it").map(|value| value.expose_secret().to_owned());
        assert_eq!(value(" a b \n").expect("a value"), " a b ");
        assert_eq!(value("a\r\n").expect("a value"), "a");
        assert!(value("\n").is_err());
        assert!(value(&"x".repeat(20_000)).is_err());
    }

    #[test]
    fn a_login_is_encoded_once() {
        let sent = |text: &str| basic(&SecretString::from(text)).map(|value| value.expose_secret().to_owned());
        assert_eq!(sent("user:secret").expect("a login"), "dXNlcjpzZWNyZXQ=");
        assert_eq!(sent("dXNlcjpzZWNyZXQ=").expect("a login"), "dXNlcjpzZWNyZXQ=");
        assert!(sent("secret").is_err());
    }
}
