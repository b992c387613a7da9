//! Which variables of the sandbox a session sees.

use protocol::execd::isolated::{CreateSession, EnvMode};

use crate::environment::Environment;

/// Names that never reach a session.
const PRIVATE_NAMES: [&str; 8] = [
    "EXECD_ACCESS_TOKEN",
    "JUPYTER_HOST",
    "JUPYTER_TOKEN",
    "EXECD_ISOLATION_CONFIG",
    "EXECD_ENVS",
    "OPENSANDBOX_LIFECYCLE",
    "EXECD_LIFECYCLE_CONFIG",
    "EXECD_RUNTIME_INIT",
];
/// Ends and beginnings of names that look like secrets (published).
const SECRET_ENDS: [&str; 4] = ["_API_KEY", "_TOKEN", "_SECRET", "_PASSWORD"];
const SECRET_BEGINNINGS: [&str; 5] = ["AWS_", "ALI_", "ALIYUN_", "K8S_", "KUBE_"];

/// The variables of a session's shell.
pub fn of_session(mut env: Environment, asked: &CreateSession) -> Environment {
    for name in PRIVATE_NAMES {
        env.remove(name);
    }
    let passthrough = asked.env_passthrough.clone().unwrap_or_default();
    let keys = passthrough.keys.unwrap_or_default();
    match passthrough.mode.unwrap_or_default() {
        EnvMode::Allow => env.retain(|name, _| keys.contains(name)),
        EnvMode::Deny if keys.is_empty() => env.retain(|name, _| !looks_secret(name)),
        EnvMode::Deny => env.retain(|name, _| !keys.contains(name)),
    }
    env
}

fn looks_secret(name: &str) -> bool {
    let name = name.to_ascii_uppercase();
    SECRET_ENDS.iter().any(|end| name.ends_with(end)) || SECRET_BEGINNINGS.iter().any(|begin| name.starts_with(begin))
}

#[cfg(test)]
mod tests {
    use protocol::execd::isolated::{CreateSession, EnvMode, EnvPassthrough};

    use super::of_session;

    fn names(mode: Option<EnvMode>, keys: &[&str]) -> Vec<String> {
        let env = ["HOME", "MY_TOKEN", "aws_key", "EXECD_ENVS", "X"];
        let env = env.iter().map(|name| ((*name).into(), "1".into())).collect();
        let keys = Some(keys.iter().map(|key| (*key).into()).collect());
        let env_passthrough = Some(EnvPassthrough { mode, keys });
        let mut names: Vec<String> =
            of_session(env, &CreateSession { env_passthrough, ..CreateSession::default() }).into_keys().collect();
        names.sort();
        names
    }

    #[test]
    fn secrets_go_by_default_and_named_ones_when_named() {
        assert_eq!(names(None, &[]), ["HOME", "X"]);
        assert_eq!(names(Some(EnvMode::Deny), &["X"]), ["HOME", "MY_TOKEN", "aws_key"]);
        assert_eq!(names(Some(EnvMode::Allow), &["X", "MISSING", "EXECD_ENVS"]), ["X"]);
    }
}
