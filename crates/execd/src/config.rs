//! Flags and environment of the stand-alone mode, named as published.

use std::ffi::OsString;
use std::time::Duration;

use crate::environment::Environment;

/// Port that the published clients expect.
const DEFAULT_PORT: u16 = 44772;
/// Grace between TERM and KILL at the end.
const DEFAULT_GRACE: Duration = Duration::from_secs(1);

/// How execd was asked to run.
#[derive(Debug, PartialEq, Eq)]
pub struct Config {
    /// Where it listens.
    pub listen: Listen,
    /// The token of requests.
    pub token: Option<String>,
    /// Grace at the end.
    pub grace: Duration,
    /// Main process that execd looks after as an init would; none without `--init`.
    pub entrypoint: Vec<String>,
    /// Variables that flags set: where a Jupyter server is, and its token.
    pub jupyter: Vec<(&'static str, String)>,
    /// File that is told how the hook before the main process went.
    pub start_report: Option<String>,
}

/// Where to listen.
#[derive(Debug, PartialEq, Eq)]
pub enum Listen {
    /// Address and port; port 0 takes a free one, which is printed.
    Tcp(String, u16),
    /// Path of a unix socket.
    Unix(String),
}

/// Reads the arguments after the program's name. Flags win over the environment.
///
/// # Errors
/// What is wrong, for people.
pub fn parse(args: impl Iterator<Item = OsString>, env: &Environment) -> Result<Config, String> {
    let (mut host, mut port, mut unix) = ("0.0.0.0".to_owned(), DEFAULT_PORT, None);
    let mut token = env.get("EXECD_ACCESS_TOKEN").cloned();
    let mut grace = env.get("EXECD_API_GRACE_SHUTDOWN").map_or(Ok(DEFAULT_GRACE), |text| duration(text))?;
    let mut init = false;
    let mut jupyter = Vec::new();
    let mut start_report = None;
    let mut runtime_init =
        env.get("EXECD_RUNTIME_INIT").map_or(Ok(false), |text| switch("EXECD_RUNTIME_INIT", text))?;
    let mut entrypoint = Vec::new();
    let mut args = args.map(|arg| arg.into_string().map_err(|arg| format!("argument {arg:?} is not UTF-8")));
    while let Some(arg) = args.next().transpose()? {
        if arg == "--" {
            entrypoint = args.by_ref().collect::<Result<_, _>>()?;
            break;
        }
        let Some(flag) = arg.strip_prefix("--").or_else(|| arg.strip_prefix('-')) else {
            return Err(format!("argument {arg:?} is not a flag; put the main process after --"));
        };
        // As Go reads them: a switch takes no word after it, only one behind `=`.
        let (name, value) = flag.split_once('=').unwrap_or((flag, "true"));
        let on = match name {
            "init" => Some(&mut init),
            "runtime-init" => Some(&mut runtime_init),
            _ => None,
        };
        if let Some(on) = on {
            *on = switch(&format!("--{name}"), value)?;
            continue;
        }
        let (name, value) = match flag.split_once('=') {
            Some((name, value)) => (name.to_owned(), value.to_owned()),
            None => (flag.to_owned(), args.next().transpose()?.ok_or_else(|| format!("flag --{flag} needs a value"))?),
        };
        match name.as_str() {
            "host" => host = value,
            "port" => port = value.parse().map_err(|_| format!("--port: {value:?} is not a port"))?,
            "unix" => unix = Some(value),
            "access-token" => token = Some(value),
            "graceful-shutdown-timeout" => grace = duration(&value)?,
            "lifecycle-startup-status-file" => start_report = Some(value),
            // What stands around programs is the runtime's choice; nobody must believe that this file was read.
            "isolation-config" => {
                return Err("--isolation-config: this execd takes no such file: the runtime isolates sandboxes".into());
            }
            // Known to the published daemon and without a meaning here yet: taken, so that its callers can start us.
            "jupyter-idle-poll-interval" | "log-level" => {}
            "jupyter-host" => jupyter.push(("JUPYTER_HOST", value)),
            "jupyter-token" => jupyter.push(("JUPYTER_TOKEN", value)),
            _ => return Err(format!("unknown flag --{name}")),
        }
    }
    if runtime_init {
        return Err("--runtime-init: this execd takes its settings at its start, not later by /internal/init".into());
    }
    match (init, entrypoint.is_empty()) {
        (true, true) => return Err("--init needs the main process after --".into()),
        (false, false) => return Err("a main process after -- needs --init".into()),
        _ => {}
    }
    let listen = unix.map_or(Listen::Tcp(host, port), Listen::Unix);
    Ok(Config { listen, token: token.filter(|token| !token.is_empty()), grace, entrypoint, jupyter, start_report })
}

/// The value of a switch, as Go and the published environment write it.
fn switch(name: &str, text: &str) -> Result<bool, String> {
    match text.to_ascii_lowercase().as_str() {
        "1" | "t" | "true" | "yes" | "on" => Ok(true),
        "" | "0" | "f" | "false" | "no" | "off" => Ok(false),
        _ => Err(format!("{name}: {text:?} is neither true nor false")),
    }
}

/// A duration as Go writes it: `1s`, `500ms`, `1m30s`.
///
/// # Errors
/// What is wrong, for people.
pub fn duration(text: &str) -> Result<Duration, String> {
    let malformed = || format!("duration {text:?} is not like 500ms, 2s or 1m30s");
    let mut rest = text;
    let mut total = Duration::ZERO;
    while !rest.is_empty() {
        let digits = rest.find(|letter: char| !(letter.is_ascii_digit() || letter == '.')).ok_or_else(malformed)?;
        let (number, after) = rest.split_at(digits);
        let unit = after.find(|letter: char| letter.is_ascii_digit()).unwrap_or(after.len());
        let (unit, after) = after.split_at(unit);
        let seconds = match unit {
            "ms" => 0.001,
            "s" => 1.0,
            "m" => 60.0,
            "h" => 3600.0,
            _ => return Err(malformed()),
        };
        let number: f64 = number.parse().map_err(|_| malformed())?;
        total += Duration::try_from_secs_f64(number * seconds).map_err(|_| malformed())?;
        rest = after;
    }
    if text.is_empty() { Err(malformed()) } else { Ok(total) }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::{Config, Environment, Listen, duration, parse};

    fn parsed(args: &[&str], env: &[(&str, &str)]) -> Result<Config, String> {
        let env: Environment = env.iter().map(|(name, value)| ((*name).into(), (*value).into())).collect();
        parse(args.iter().map(Into::into), &env)
    }

    #[test]
    fn os_051_nothing_set_means_the_defaults() {
        let config = parsed(&[], &[]).expect("defaults");
        assert_eq!(config.listen, Listen::Tcp("0.0.0.0".into(), 44772));
        assert_eq!((config.token, config.grace), (None, Duration::from_secs(1)));
    }

    #[test]
    fn flags_win_and_take_one_or_two_dashes() {
        let config = parsed(&["-port=1", "--access-token", "b"], &[("EXECD_ACCESS_TOKEN", "a")]).expect("flags");
        assert_eq!((config.listen, config.token.as_deref()), (Listen::Tcp("0.0.0.0".into(), 1), Some("b")));
    }

    #[test]
    fn mistakes_are_refused() {
        for args in [
            &["--port", "x"][..],
            &["--nope", "1"],
            &["--port"],
            &["--init"],
            &["--init=maybe", "--", "a"],
            &["--init=false", "--", "a"],
            &["--runtime-init"],
            &["--isolation-config", "/etc/isolation.toml"],
            &["--", "a"],
            &["a"],
        ] {
            assert!(parsed(args, &[]).is_err(), "{args:?}");
        }
        assert!(parsed(&[], &[("EXECD_RUNTIME_INIT", "1")]).is_err_and(|why| why.contains("runtime-init")));
    }

    #[test]
    fn init_mode_is_a_switch_as_go_reads_it() {
        for args in [&["--init", "--", "a", "b"][..], &["-init=true", "--", "a", "b"], &["--init=1", "--", "a", "b"]] {
            assert_eq!(parsed(args, &[]).expect("init mode").entrypoint, ["a", "b"], "{args:?}");
        }
        let config = parsed(&["--lifecycle-startup-status-file", "/run/status"], &[("EXECD_RUNTIME_INIT", "off")]);
        assert_eq!(config.expect("flags").start_report.as_deref(), Some("/run/status"));
    }

    #[test]
    fn durations_are_gos() {
        assert_eq!(duration("1m1.5s"), Ok(Duration::from_millis(61_500)));
        assert_eq!(duration("200ms"), Ok(Duration::from_millis(200)));
        assert!(duration("5").is_err() && duration("").is_err() && duration("-1s").is_err());
    }
}
