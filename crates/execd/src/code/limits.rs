//! How many contexts there may be, and how much each may take: settings of the sandbox's environment.

use std::time::Duration;

use crate::environment::Environment;

/// Contexts at once: each is a process, and a Python one takes about 10 MiB.
const DEFAULT_MAX_CONTEXTS: usize = 64;
/// How the limits are set.
const MAX_CONTEXTS: &str = "EXECD_CODE_MAX_CONTEXTS";
const MEMORY_BYTES: &str = "EXECD_CODE_MEMORY_BYTES";
const IDLE_SECONDS: &str = "EXECD_CODE_IDLE_SECONDS";

/// Longest idle limit, in seconds: a year.
const MAX_IDLE_SECONDS: u64 = 365 * 24 * 60 * 60;

/// The idle limit of this many seconds; 0 is none.
pub fn idle(seconds: u64) -> Option<Duration> {
    (seconds > 0).then(|| Duration::from_secs(seconds.min(MAX_IDLE_SECONDS)))
}

/// Bounds of contexts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Contexts at once.
    pub max_contexts: usize,
    /// Bytes of memory of one interpreter; `None` leaves that to the sandbox.
    pub memory_bytes: Option<u64>,
    /// Time without a run after which a context is deleted; `None` is never.
    pub idle: Option<Duration>,
}

impl Limits {
    /// Reads the settings; one that is no number is as if it were not there, and is told on standard error.
    pub fn of(env: &Environment) -> Self {
        let number = |name: &str| {
            let text = env.get(name).filter(|text| !text.is_empty())?;
            let number: Option<u64> = text.parse().ok();
            if number.is_none() {
                eprintln!("execd: {name}: {text:?} is not a number; it is not used");
            }
            number.filter(|number| *number > 0)
        };
        Self {
            max_contexts: number(MAX_CONTEXTS).map_or(DEFAULT_MAX_CONTEXTS, |count| count as usize),
            memory_bytes: number(MEMORY_BYTES),
            idle: number(IDLE_SECONDS).and_then(idle),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::Limits;
    use crate::environment::Environment;

    #[test]
    fn settings_are_numbers_and_nothing_means_the_defaults() {
        let env = |pairs: &[(&str, &str)]| -> Environment {
            pairs.iter().map(|(name, value)| ((*name).into(), (*value).into())).collect()
        };
        let defaults = Limits { max_contexts: 64, memory_bytes: None, idle: None };
        assert_eq!(Limits::of(&env(&[])), defaults);
        assert_eq!(
            Limits::of(&env(&[("EXECD_CODE_MAX_CONTEXTS", "many"), ("EXECD_CODE_IDLE_SECONDS", "0")])),
            defaults
        );
        let set = env(&[
            ("EXECD_CODE_MAX_CONTEXTS", "3"),
            ("EXECD_CODE_MEMORY_BYTES", "5"),
            ("EXECD_CODE_IDLE_SECONDS", "7"),
        ]);
        let limits = Limits { max_contexts: 3, memory_bytes: Some(5), idle: Some(Duration::from_secs(7)) };
        assert_eq!(Limits::of(&set), limits);
    }
}
