use std::collections::BTreeMap;
use std::fs;

use super::*;

/// Settles settings with these flags, variables and this file.
fn settle(global: Global, env: &[(&str, &str)], file: &str) -> Result<Settings, Failure> {
    let dir = tempfile::tempdir().expect("a directory");
    let path = dir.path().join(".opensandbox/config.toml");
    fs::create_dir_all(path.parent().expect("has a parent")).expect("a directory");
    fs::write(&path, file).expect("a file");
    let mut env: BTreeMap<String, String> = env.iter().map(|(k, v)| ((*k).into(), (*v).into())).collect();
    env.insert("HOME".into(), dir.path().display().to_string());
    env.entry("OSB_DATA_DIR".into()).or_insert_with(|| dir.path().join("data").display().to_string());
    Settings::resolve(&global, &|name| env.get(name).cloned())
}

const FILE: &str =
    "[connection]\ndomain = 'file:1'\nrequest_timeout = 7\nuse_server_proxy = true\n[defaults]\ntimeout = 'none'\n";

#[test]
fn os_120_flag_goes_before_environment_before_file_before_default() {
    let env = [("OPEN_SANDBOX_DOMAIN", "env:1")];
    let flag = Global { domain: Some("flag:1".into()), ..Global::default() };
    for (global, env, file, value, source) in [
        (flag, &env[..], FILE, "flag:1", Source::Flag),
        (Global::default(), &env[..], FILE, "env:1", Source::Env("OPEN_SANDBOX_DOMAIN")),
        (Global::default(), &[][..], FILE, "file:1", Source::File),
        (Global::default(), &[][..], "", DEFAULT_DOMAIN, Source::Default),
    ] {
        let settings = settle(global, env, file).expect("settles");
        assert_eq!(settings.domain, Setting { value: value.into(), source });
    }
}

#[test]
fn os_120_every_default_can_be_set_in_the_file() {
    let settings = settle(Global::default(), &[], FILE).expect("settles");
    assert_eq!(settings.request_timeout.value, Duration::from_secs(7));
    assert!(settings.use_server_proxy.value);
    assert_eq!(settings.timeout, Setting { value: units::Limit::None, source: Source::File });
    assert_eq!(settings.image, Setting { value: "host".into(), source: Source::Default });
}

#[test]
fn os_120_unknown_keys_are_reported_with_the_nearest_known_one() {
    let settings = settle(Global::default(), &[], "[connection]\napikey = 'x'\n[colours]\na = 1\n").expect("settles");
    assert_eq!(settings.warnings.len(), 2);
    assert!(settings.warnings.iter().any(|w| w.contains("`connection.apikey`") && w.contains("`connection.api_key`")));
    assert!(settings.warnings.iter().any(|w| w.contains("`colours.a`")));
}

#[test]
fn a_wrong_value_names_its_file_and_key() {
    let failure = settle(Global::default(), &[], "[defaults]\ntimeout = 'soon'\n").expect_err("no duration");
    assert!(failure.message.contains("config.toml: timeout: `soon`"), "{}", failure.message);
    let failure = settle(Global::default(), &[("OPEN_SANDBOX_PROTOCOL", "ftp")], "").expect_err("no protocol");
    assert!(failure.message.contains("env OPEN_SANDBOX_PROTOCOL"), "{}", failure.message);
    assert_eq!(failure.exit, crate::failure::EXIT_USAGE);
}

#[test]
fn a_file_that_was_asked_for_must_exist() {
    let global = Global { config: Some("/nonexistent/c.toml".into()), ..Global::default() };
    assert!(settle(global, &[], "").is_err());
}

#[test]
fn a_url_sets_address_and_protocol() {
    let settings = settle(Global::default(), &[("OPEN_SANDBOX_DOMAIN", "https://box.test/")], "").expect("settles");
    assert_eq!(settings.url(), "https://box.test");
}

/// A data directory with a server announced under this process's own id.
fn announced() -> tempfile::TempDir {
    let dir = tempfile::tempdir().expect("a directory");
    let json = format!(r#"{{"url":"http://127.0.0.1:4567","pid":{}}}"#, std::process::id());
    fs::write(dir.path().join("server.json"), json).expect("a file");
    fs::write(dir.path().join("api-key"), "local-key\n").expect("a file");
    dir
}

#[test]
fn a_local_server_and_its_key_are_found() {
    let data = announced();
    let env = [("OSB_DATA_DIR", data.path().to_str().expect("is text"))];
    let settings = settle(Global::default(), &env, "").expect("settles");
    assert_eq!(settings.url(), "http://127.0.0.1:4567");
    assert_eq!(settings.api_key.expect("found").value, "local-key");
}

#[test]
fn the_local_key_is_not_sent_to_an_address_that_somebody_named() {
    let data = announced();
    let env = [("OSB_DATA_DIR", data.path().to_str().expect("is text")), ("OPEN_SANDBOX_DOMAIN", "example.test:4567")];
    assert!(settle(Global::default(), &env, "").expect("settles").api_key.is_none());
    let env = [env[0], ("OPEN_SANDBOX_DOMAIN", "localhost:4567")];
    assert!(settle(Global::default(), &env, "").expect("settles").api_key.is_some());
}

#[test]
fn a_dead_server_is_not_found() {
    let data = announced();
    // Above every possible process id (2^22).
    fs::write(data.path().join("server.json"), r#"{"url":"http://127.0.0.1:4567","pid":2000000000}"#).expect("a file");
    let env = [("OSB_DATA_DIR", data.path().to_str().expect("is text"))];
    assert_eq!(settle(Global::default(), &env, "").expect("settles").domain.source, Source::Default);
}
