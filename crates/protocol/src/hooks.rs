//! Commands that a sandbox runs by itself: before its main process, now and then, and around a pause and its end.

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
/// Seconds that a hook around a pause or before the end may take when it does not say: somebody waits for it.
pub const DEFAULT_MOMENT_SECONDS: u32 = 10;
/// Most seconds of a hook around a pause.
pub const MAX_PAUSE_SECONDS: u32 = 60;
/// Most seconds of the hook before the end; with the usual grace a deletion is still answered in time.
pub const MAX_BEFORE_END_SECONDS: u32 = 15;

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
    /// Ours: runs before the sandbox is frozen by a pause.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub before_pause: Option<PauseHook>,
    /// Ours: runs after it is thawed by a resume, before it is shown as running.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub after_resume: Option<Hook>,
    /// Ours: runs before a deletion or the deadline ends the sandbox.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub before_end: Option<Hook>,
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

/// A command and what its failure means for the pause.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
pub struct PauseHook {
    /// Argument vector; no shell comes between.
    pub command: Vec<String>,
    /// Seconds after which it is killed; [`DEFAULT_MOMENT_SECONDS`] when absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub timeout_seconds: Option<u32>,
    /// What follows when it fails; [`OnFailure::Continue`] when absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub on_failure: Option<OnFailure>,
}

/// What follows when the hook before a pause fails or takes too long.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum OnFailure {
    /// The failure is an event, and the sandbox is paused.
    Continue,
    /// The pause fails with the hook's reason, and the sandbox runs on.
    Refuse,
}

/// When a hook runs that a sandbox is told to run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Moment {
    /// Before a pause freezes it.
    BeforePause,
    /// After a resume has thawed it.
    AfterResume,
    /// Before a deletion or its deadline ends it.
    BeforeEnd,
}

impl Moment {
    /// All of them.
    pub const ALL: [Self; 3] = [Self::BeforePause, Self::AfterResume, Self::BeforeEnd];

    /// The name of its field, and of the hook in paths and messages.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::BeforePause => "beforePause",
            Self::AfterResume => "afterResume",
            Self::BeforeEnd => "beforeEnd",
        }
    }

    /// Reads the name.
    pub fn parse(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|moment| moment.as_str() == name)
    }
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
        *self == Self::default()
    }

    /// The command of this moment, and the seconds that it may take.
    pub fn at(&self, moment: Moment) -> Option<(&[String], u32)> {
        let (command, seconds) = match moment {
            Moment::BeforePause => self.before_pause.as_ref().map(|hook| (&hook.command, hook.timeout_seconds)),
            Moment::AfterResume => self.after_resume.as_ref().map(|hook| (&hook.command, hook.timeout_seconds)),
            Moment::BeforeEnd => self.before_end.as_ref().map(|hook| (&hook.command, hook.timeout_seconds)),
        }?;
        Some((command, seconds.unwrap_or(DEFAULT_MOMENT_SECONDS)))
    }

    /// What follows when the hook before a pause fails.
    pub fn on_pause_failure(&self) -> OnFailure {
        self.before_pause.as_ref().and_then(|hook| hook.on_failure).unwrap_or(OnFailure::Continue)
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
        for moment in Moment::ALL {
            let most = match moment {
                Moment::BeforePause | Moment::AfterResume => MAX_PAUSE_SECONDS,
                Moment::BeforeEnd => MAX_BEFORE_END_SECONDS,
            };
            if let Some((words, asked)) = self.at(moment) {
                command(moment.as_str(), words)?;
                seconds(moment.as_str(), Some(asked), most)?;
            }
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

    use super::{Hooks, Moment, OnFailure};

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
    fn the_added_moments_have_bounds_and_one_choice() {
        let value = json!({
            "beforePause": {"command": ["sync"], "timeoutSeconds": 60, "onFailure": "refuse"},
            "afterResume": {"command": ["true"]},
            "beforeEnd": {"command": ["save"], "timeoutSeconds": 15}
        });
        let hooks = checked(value.clone()).expect("hooks");
        assert_eq!(serde_json::to_value(&hooks).expect("JSON"), value);
        assert!(!hooks.is_empty());
        assert_eq!(hooks.on_pause_failure(), OnFailure::Refuse);
        assert_eq!(hooks.at(Moment::AfterResume), Some((&["true".to_owned()][..], 10)));
        assert_eq!(Hooks::default().at(Moment::BeforeEnd), None);
        assert_eq!(Hooks::default().on_pause_failure(), OnFailure::Continue);
        assert!(Moment::ALL.into_iter().all(|moment| Moment::parse(moment.as_str()) == Some(moment)));
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
            (json!({"beforePause": {"command": []}}), "beforePause.command"),
            (json!({"beforePause": {"command": ["a"], "timeoutSeconds": 61}}), "beforePause.timeoutSeconds"),
            (json!({"beforePause": {"command": ["a"], "onFailure": "maybe"}}), "maybe"),
            (json!({"afterResume": {"command": ["a"], "timeoutSeconds": 0}}), "afterResume.timeoutSeconds"),
            (json!({"afterResume": {"command": ["a"], "onFailure": "refuse"}}), "onFailure"),
            (json!({"beforeEnd": {"command": ["a"], "timeoutSeconds": 16}}), "beforeEnd.timeoutSeconds"),
            (json!({"periodic": [periodic("", "@daily")]}), "periodic[0].name"),
            (json!({"periodic": [periodic("a", "@daily"), periodic("a", "@daily")]}), "periodic[1].name"),
            (json!({"periodic": [periodic("a", "never")]}), "periodic[0].schedule"),
        ] {
            let why = checked(value.clone()).expect_err("a mistake");
            assert!(why.contains(word), "{value}: {why}");
        }
    }
}
