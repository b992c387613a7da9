//! Commands that a sandbox runs by itself: before its main process, and now and then.

use serde::{Deserialize, Serialize};

use crate::schedule::Schedule;

/// Seconds that a hook may take when it does not say.
pub const DEFAULT_TIMEOUT_SECONDS: u32 = 60;
/// Most seconds of the hook before the main process.
pub const MAX_PRE_START_SECONDS: u32 = 10_800;
/// Most seconds of a periodic hook.
pub const MAX_PERIODIC_SECONDS: u32 = 300;
/// Periodic hooks of one sandbox.
pub const MAX_PERIODIC: usize = 64;

/// The field `lifecycle` of a create request, and the variable `OPENSANDBOX_LIFECYCLE` of execd.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
pub struct Hooks {
    /// Runs before the main process; its failure is the sandbox's.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pre_start: Option<Hook>,
    /// Run by their schedules while the sandbox runs.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub periodic: Vec<PeriodicHook>,
}

/// One command.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
pub struct Hook {
    /// Argument vector; no shell comes between.
    pub command: Vec<String>,
    /// Seconds after which it is killed; [`DEFAULT_TIMEOUT_SECONDS`] when absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub timeout_seconds: Option<u32>,
}

/// A command and when it runs.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
pub struct PeriodicHook {
    /// Unique among the hooks of a sandbox.
    pub name: String,
    /// See [`Schedule::parse`]; UTC.
    pub schedule: String,
    /// Argument vector; no shell comes between.
    pub command: Vec<String>,
    /// Seconds after which it is killed; [`DEFAULT_TIMEOUT_SECONDS`] when absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub timeout_seconds: Option<u32>,
}

/// What is wrong with hooks, and where.
#[derive(Debug, PartialEq, Eq)]
pub struct Mistake {
    /// The field, from within `lifecycle`.
    pub field: String,
    /// For people.
    pub problem: String,
}

impl Hooks {
    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.pre_start.is_none() && self.periodic.is_empty()
    }

    /// Checks what the form alone does not say.
    ///
    /// # Errors
    /// The first mistake.
    pub fn check(&self) -> Result<(), Mistake> {
        if let Some(hook) = &self.pre_start {
            command("preStart", &hook.command)?;
            seconds("preStart", hook.timeout_seconds, MAX_PRE_START_SECONDS)?;
        }
        if self.periodic.len() > MAX_PERIODIC {
            return Err(mistake("periodic", format!("has more than {MAX_PERIODIC} hooks")));
        }
        for (at, hook) in self.periodic.iter().enumerate() {
            let field = format!("periodic[{at}]");
            if hook.name.trim().is_empty() {
                return Err(mistake(format!("{field}.name"), "is empty"));
            }
            if self.periodic[..at].iter().any(|other| other.name == hook.name) {
                return Err(mistake(format!("{field}.name"), format!("{:?} is there twice", hook.name)));
            }
            Schedule::parse(&hook.schedule).map_err(|why| mistake(format!("{field}.schedule"), why.to_string()))?;
            command(&field, &hook.command)?;
            seconds(&field, hook.timeout_seconds, MAX_PERIODIC_SECONDS)?;
        }
        Ok(())
    }
}

fn mistake(field: impl Into<String>, problem: impl Into<String>) -> Mistake {
    Mistake { field: field.into(), problem: problem.into() }
}

fn command(field: &str, command: &[String]) -> Result<(), Mistake> {
    let field = format!("{field}.command");
    if command.first().is_none_or(|program| program.trim().is_empty()) {
        return Err(mistake(field, "needs a program as its first element"));
    }
    if command.iter().any(|part| part.contains('\0')) {
        return Err(mistake(field, "holds a NUL byte"));
    }
    Ok(())
}

fn seconds(field: &str, seconds: Option<u32>, most: u32) -> Result<(), Mistake> {
    match seconds {
        Some(seconds) if !(1..=most).contains(&seconds) => {
            Err(mistake(format!("{field}.timeoutSeconds"), format!("{seconds} is not between 1 and {most}")))
        }
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::Hooks;

    #[track_caller]
    fn checked(value: Value) -> Result<Hooks, String> {
        let hooks: Hooks = serde_json::from_value(value).map_err(|error| error.to_string())?;
        hooks.check().map_err(|mistake| format!("{}: {}", mistake.field, mistake.problem))?;
        Ok(hooks)
    }

    #[test]
    fn the_published_form_is_taken_and_written_the_same() {
        let value = json!({
            "preStart": {"command": ["make", "ready"], "timeoutSeconds": 10800},
            "periodic": [{"name": "tick", "schedule": "@every 5s", "command": ["true"], "timeoutSeconds": 300}]
        });
        let hooks = checked(value.clone()).expect("hooks");
        assert_eq!(serde_json::to_value(hooks).expect("JSON"), value);
        assert!(checked(json!({})).expect("none").is_empty());
    }

    #[test]
    fn mistakes_name_their_field() {
        let periodic = |name: &str, schedule: &str| json!({"name": name, "schedule": schedule, "command": ["a"]});
        for (value, word) in [
            (json!({"prestart": {}}), "prestart"),
            (json!({"preStart": {"command": []}}), "preStart.command"),
            (json!({"preStart": {"command": [" "]}}), "preStart.command"),
            (json!({"preStart": {"command": ["a\u{0}"]}}), "preStart.command"),
            (json!({"preStart": {"command": ["a"], "timeoutSeconds": 0}}), "preStart.timeoutSeconds"),
            (json!({"preStart": {"command": ["a"], "timeoutSeconds": 10801}}), "preStart.timeoutSeconds"),
            (json!({"preStart": {"command": ["a"], "shell": true}}), "shell"),
            (json!({"periodic": [periodic("", "@daily")]}), "periodic[0].name"),
            (json!({"periodic": [periodic("a", "@daily"), periodic("a", "@daily")]}), "periodic[1].name"),
            (json!({"periodic": [periodic("a", "never")]}), "periodic[0].schedule"),
        ] {
            let why = checked(value.clone()).expect_err("a mistake");
            assert!(why.contains(word), "{value}: {why}");
        }
    }
}
