//! What lasts from one run of a session to the next: exported variables and the working directory.
//!
//! A run's shell writes both into a memory file of its own that the command itself does not hold, so nothing
//! that a command prints can be taken for state. Whatever the file holds is still the sandbox's word: it is
//! bounded and read like any other input.

use std::collections::BTreeMap;
use std::ffi::CString;
use std::fs::File;
use std::io::{self, Read, Seek};

use super::exports::{self, is_name};
use crate::environment::{Environment, without_private};

/// Bytes of names and values that a session keeps. The kernel takes about 2 MiB of arguments and environment
/// together; many sessions may be kept at once.
pub const MAX_ENV_BYTES: usize = 256 * 1024;
/// Bytes of `NAME=value` with its final NUL that the kernel gives to a program.
const MAX_ENTRY_BYTES: usize = 128 * 1024;
/// Bytes of a dump that are read: quotes make a value up to four times as long (`$'\001'`).
const MAX_DUMP_BYTES: u64 = 4 * MAX_ENV_BYTES as u64 + 64 * 1024;

/// Names that each shell sets for itself, and those of its interactive face.
const SHELL_NAMES: [&str; 10] =
    ["_", "PWD", "SHLVL", "SHELLOPTS", "BASHOPTS", "PS1", "PS2", "PS3", "PS4", "PROMPT_COMMAND"];
/// The script's own variable, exported only under `set -a`.
pub const STATUS_VARIABLE: &str = "__osb_status";

/// Variables and directory with which the next run begins.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct State {
    /// Values may be any bytes but NUL.
    env: BTreeMap<String, Vec<u8>>,
    /// Absolute.
    pub cwd: Vec<u8>,
}

impl State {
    /// The state of a new session.
    pub fn new(env: Environment, cwd: String) -> Self {
        let mut env: BTreeMap<String, Vec<u8>> =
            without_private(env).into_iter().map(|(name, value)| (name, value.into_bytes())).collect();
        env.remove("PWD");
        Self { env, cwd: cwd.into_bytes() }
    }

    /// The same variables in another directory.
    pub fn at(&self, cwd: Vec<u8>) -> Self {
        Self { env: self.env.clone(), cwd }
    }

    /// `NAME=value` entries of a process.
    pub fn entries(&self) -> Vec<CString> {
        let entry = |(name, value): (&String, &Vec<u8>)| {
            // Neither holds a NUL: they came from another process's environment or from a C string.
            CString::new([name.as_bytes(), b"=", value].concat()).ok()
        };
        self.env.iter().filter_map(entry).chain(CString::new([b"PWD=", self.cwd.as_slice()].concat())).collect()
    }

    /// The variables as text, for what is looked up in them.
    pub fn environment(&self) -> Environment {
        self.env.iter().map(|(name, value)| (name.clone(), String::from_utf8_lossy(value).into_owned())).collect()
    }

    /// What a finished run wrote; `None` when it wrote nothing whole, because the command left the shell by
    /// `exit` or `exec` or was killed.
    ///
    /// # Errors
    /// Why the state cannot be kept, for people.
    pub fn after(&self, file: &mut File) -> Result<Option<Self>, String> {
        let mut dump = Vec::new();
        let read = |file: &mut File, dump: &mut Vec<u8>| -> io::Result<usize> {
            file.rewind()?;
            file.take(MAX_DUMP_BYTES + 1).read_to_end(dump)
        };
        read(file, &mut dump).map_err(|error| format!("read the state of the run: {error}"))?;
        if dump.len() as u64 > MAX_DUMP_BYTES {
            return Err(too_large());
        }
        let Some((cwd, rest)) = split_nul(&dump) else { return Ok(None) };
        let Some((exported, _)) = split_nul(rest) else { return Ok(None) };
        let mut env = self.kept();
        for (name, value) in exports::parse(exported)? {
            if SHELL_NAMES.contains(&name.as_str()) || name == STATUS_VARIABLE {
                continue;
            }
            if name.len() + value.len() + 2 > MAX_ENTRY_BYTES {
                return Err(format!(
                    "variable {name} is longer than {MAX_ENTRY_BYTES} bytes, which no program can be given; keep it in a file"
                ));
            }
            env.insert(name, value);
        }
        if env.iter().map(|(name, value)| name.len() + value.len() + 2).sum::<usize>() > MAX_ENV_BYTES {
            return Err(too_large());
        }
        let cwd = cwd.strip_suffix(b"\n").unwrap_or(cwd).to_vec();
        Ok(Some(Self { env, cwd: if cwd.starts_with(b"/") { cwd } else { self.cwd.clone() } }))
    }

    /// What no shell can list: names that are not a shell's, which it passes on without knowing them, and its
    /// own names as they were.
    fn kept(&self) -> BTreeMap<String, Vec<u8>> {
        let kept = |name: &str| !is_name(name) || (SHELL_NAMES.contains(&name));
        self.env.iter().filter(|(name, _)| kept(name)).map(|(name, value)| (name.clone(), value.clone())).collect()
    }
}

fn too_large() -> String {
    format!("the exported variables are more than {MAX_ENV_BYTES} bytes; keep large values in files")
}

fn split_nul(bytes: &[u8]) -> Option<(&[u8], &[u8])> {
    let at = memchr::memchr(0, bytes)?;
    Some((&bytes[..at], &bytes[at + 1..]))
}

#[cfg(test)]
mod tests {
    use std::fs::File;
    use std::io::Write;

    use super::{MAX_ENV_BYTES, State};

    fn state() -> State {
        let env = [("A", "1"), ("EXECD_ENVS", "/e"), ("odd.name", "o"), ("PS1", "$ "), ("SHLVL", "3")];
        State::new(env.iter().map(|(name, value)| ((*name).into(), (*value).into())).collect(), "/w".into())
    }

    fn after(dump: &[u8]) -> Result<Option<State>, String> {
        let mut file: File = tempfile::tempfile().expect("a file");
        file.write_all(dump).expect("written");
        state().after(&mut file)
    }

    fn names(state: &State) -> Vec<&str> {
        state.env.keys().map(String::as_str).collect()
    }

    #[test]
    fn private_names_never_reach_a_session() {
        assert_eq!(names(&state()), ["A", "PS1", "SHLVL", "odd.name"]);
    }

    #[test]
    fn a_whole_dump_replaces_the_variables_and_the_directory() {
        let next = after(b"/x y\n\0declare -x B=\"2\"\ndeclare -x SHLVL=\"4\"\ndeclare -x __osb_status=\"0\"\n\0");
        let next = next.expect("a dump").expect("whole");
        assert_eq!(names(&next), ["B", "PS1", "SHLVL", "odd.name"]);
        assert_eq!((next.cwd.as_slice(), next.env["SHLVL"].as_slice()), (&b"/x y"[..], &b"3"[..]));
    }

    #[test]
    fn a_dump_that_is_not_whole_changes_nothing() {
        for dump in [&b""[..], b"/x\n", b"/x\n\0", b"/x\n\0declare -x B=\"2\"\n"] {
            assert_eq!(after(dump), Ok(None));
        }
    }

    #[test]
    fn what_no_program_could_be_given_is_told() {
        let long = |bytes: usize| format!("/\n\0export B='{}'\n\0", "x".repeat(bytes));
        assert!(after(long(100 * 1024).as_bytes()).is_ok());
        assert!(after(long(128 * 1024).as_bytes()).expect_err("too long").contains("variable B"));
        let many: String = (0..10).map(|number| format!("export V{number}='{}'\n", "x".repeat(30_000))).collect();
        let error = after(format!("/\n\0{many}\0").as_bytes()).expect_err("too many");
        assert!(error.contains(&MAX_ENV_BYTES.to_string()), "{error}");
    }
}
