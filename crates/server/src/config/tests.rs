use secrecy::ExposeSecret as _;

use super::{Config, ConfigError, Effective, Source, Sources, load};

fn from(file: &str, env: &[(&str, &str)], flags: &[(&'static str, &str)]) -> Result<(Config, Effective), ConfigError> {
    let dir = tempfile::tempdir().expect("a directory");
    let path = dir.path().join("osb.toml");
    std::fs::write(&path, file).expect("written");
    load(&Sources {
        file: Some(path),
        env: env.iter().map(|(k, v)| ((*k).to_owned(), (*v).to_owned())).collect(),
        flags: flags.iter().map(|(k, v)| (*k, (*v).to_owned())).collect(),
    })
}

#[track_caller]
fn refused(file: &str, env: &[(&str, &str)], expected: &str) {
    match from(file, env, &[]) {
        Ok(_) => panic!("accepted: {file:?} {env:?}"),
        Err(error) => assert!(error.to_string().contains(expected), "{error}"),
    }
}

#[test]
fn defaults_listen_on_loopback_only() {
    let (config, effective) = load(&Sources::default()).expect("no source is fine");
    assert_eq!((config.server.host.as_str(), config.server.port), ("127.0.0.1", 8080));
    assert!(config.server.api_key.is_none());
    assert!(effective.entries.iter().all(|e| e.source == Source::Default));
}

#[test]
fn flag_beats_variable_beats_file_beats_default() {
    let file = "[server]\nport = 1\nhost = \"::1\"\nlimit_concurrency = 7\n";
    let env = [("OSB_SERVER_PORT", "2"), ("OSB_SERVER_HOST", "0.0.0.0")];
    let (config, effective) = from(file, &env, &[("server.port", "3")]).expect("is fine");
    assert_eq!((config.server.port, config.server.host.as_str(), config.server.limit_concurrency), (3, "0.0.0.0", 7));
    let source = |key| effective.entries.iter().find(|e| e.key == key).expect("known").source.clone();
    assert_eq!(source("server.port"), Source::Flag);
    assert_eq!(source("server.host"), Source::Env("OSB_SERVER_HOST".to_owned()));
    assert_eq!(source("server.limit_concurrency"), Source::File);
    assert_eq!(source("log.level"), Source::Default);
}

#[test]
fn unknown_keys_are_named_with_the_nearest_known_one() {
    refused("[server]\nprot = 1\n", &[], "unknown key server.prot in");
    refused("[server]\nprot = 1\n", &[], "did you mean server.port?");
    refused("[sever]\nport = 1\n", &[], "did you mean server.port?");
    refused("", &[("OSB_SERVER_PROT", "1")], "OSB_SERVER_PROT");
    refused("[something]\ncompletely = \"different\"\n", &[], "unknown key something.completely");
}

#[test]
fn published_keys_without_a_subject_are_refused_with_the_reason() {
    refused("[docker]\nnetwork_mode = \"bridge\"\n", &[], "docker.network_mode");
    refused("[runtime]\ntype = \"docker\"\n", &[], "runtime.type");
    refused("[storage]\nossfs_mount_root = \"/mnt/ossfs\"\n", &[], "bucket volumes do not exist here");
    refused("[store.postgresql]\ndsn = \"postgres://u:secret@h/d\"\n", &[], "store.postgresql.dsn");
}

#[test]
fn wrong_values_name_key_source_and_range() {
    refused(
        "[server]\nport = 70000\n",
        &[],
        "server.port from file: must be a whole number from 0 to 65535, not 70000",
    );
    refused("[server]\nport = \"80\"\n", &[], "server.port");
    refused("", &[("OSB_SERVER_PORT", "abc")], "env OSB_SERVER_PORT");
    refused("[log]\nlevel = \"LOUD\"\n", &[], "one of ERROR");
    refused("[server]\nmax_sandbox_timeout_seconds = 59\n", &[], "from 60");
    refused("server = 5\n", &[], "unknown key server in");
    refused("[server\n", &[], "is not TOML");
}

#[test]
fn other_variables_are_none_of_ours() {
    from("", &[("OSB_DATA_DIR", "/x"), ("OSB_BIN", "/y"), ("HOME", "/nowhere")], &[]).expect("are left alone");
}

#[test]
fn secrets_are_masked_wherever_they_come_from() {
    let secret = "s3cr3t-planted";
    let (config, effective) = from("", &[("OPENSANDBOX_SERVER_API_KEY", secret)], &[]).expect("is fine");
    assert_eq!(config.server.api_key.expect("set").expose_secret(), secret);
    assert!(!format!("{effective} {effective:?}").contains(secret));
    assert!(effective.to_string().contains("api_key = \"********\"  # env OPENSANDBOX_SERVER_API_KEY"), "{effective}");
    let wrong = from("[server]\napi_key = [\"s3cr3t-planted\"]\n", &[], &[]).err().expect("is wrong").to_string();
    assert!(!wrong.contains(secret), "{wrong}");
}

#[test]
fn keys_of_links_come_together_and_are_never_shown() {
    let file = "[ingress.secure_access]\nactive_key = \"b\"\nkeys = [{ key_id = \"a\", key = \"cGxhbnRlZC0x\" }, \
                { key_id = \"b\", key = \"cGxhbnRlZC0y\" }]\n";
    let (config, effective) = from(file, &[], &[]).expect("is fine");
    assert!(config.ingress.keys.is_some());
    let text = effective.to_string();
    assert!(!text.contains("cGxhbnRlZC"), "{text}");
    assert!(text.contains("secure_access.keys = [{ key_id = \"a\", key = \"********\" }"), "{text}");
    let keys = ("OPENSANDBOX_SECURE_ACCESS_KEYS", "a=cGxhbnRlZA==,b=cGxhbnRlZC0y");
    let active = ("OPENSANDBOX_SECURE_ACCESS_ACTIVE_KEY", "a");
    assert!(from("", &[keys, active], &[]).expect("is fine").0.ingress.keys.is_some());
    refused("", &[keys], "ingress.secure_access.keys from env OPENSANDBOX_SECURE_ACCESS_KEYS: needs");
    refused("", &[active], "ingress.secure_access.active_key from env");
    refused("", &[keys, ("OPENSANDBOX_SECURE_ACCESS_ACTIVE_KEY", "c")], "none of the keys");
    for wrong in ["a", "a=", "aa=cGxhbnRlZA==", "a=planted-1!", "a=cGxhbnRlZA==,a=cGxhbnRlZA=="] {
        let error = from("", &[("OPENSANDBOX_SECURE_ACCESS_KEYS", wrong), active], &[]).err().expect("is wrong");
        assert!(!error.to_string().contains("planted") && !error.to_string().contains("cGxh"), "{error}");
    }
    refused("[ingress.gateway]\naddress = \"x\"\n", &[], "ingress.gateway.address");
    refused("[renew_intent.redis]\nenabled = true\n", &[], "needs no queue");
    let env = [("OSB_RENEW_INTENT_MIN_INTERVAL_SECONDS", "7")];
    assert_eq!(from("", &env, &[]).expect("is fine").0.renew_intent.min_interval.as_secs(), 7);
}

#[test]
fn the_effective_configuration_is_a_file_that_loads_again() {
    let (_, effective) = from("[native]\ngrace_seconds = 0\n", &[], &[]).expect("is fine");
    let text = effective.to_string();
    let (again, _) = from(&text, &[], &[]).expect("loads");
    assert!(again.native.grace.is_zero());
}

#[test]
fn authorities_of_origins_are_read_while_they_can_be() {
    let dir = tempfile::tempdir().expect("a directory");
    let (good, other) = (dir.path().join("ca.pem"), dir.path().join("other"));
    std::fs::write(&good, "-----BEGIN CERTIFICATE-----\nMII\n-----END CERTIFICATE-----\n").expect("written");
    std::fs::write(&other, "a key, perhaps").expect("written");
    let file =
        |path: &std::path::Path| format!("[egress]\nupstream_ca = [\"{}\"]\nvault_plain_http = true\n", path.display());
    let (config, effective) = from(&file(&good), &[], &[]).expect("is fine");
    assert!(config.egress.upstream_ca_pem[0].contains("MII") && config.egress.vault_plain_http);
    assert!(effective.to_string().contains("ca.pem") && !effective.to_string().contains("MII"));
    refused(&file(&other), &[], "holds no certificate");
    refused(&file(&dir.path().join("none")), &[], "egress.upstream_ca");
    std::fs::write(&good, "-----BEGIN CERTIFICATE-----\n".repeat(8000)).expect("written");
    refused(&file(&good), &[], "longer than");
}

#[test]
fn a_secure_runtime_is_gvisor_or_none() {
    use super::SecureRuntime;
    let loaded = |file: &str| from(file, &[], &[]).expect("is fine").0.secure_runtime;
    assert_eq!(loaded(""), SecureRuntime::None);
    assert_eq!(loaded("[secure_runtime]\ntype = \"\"\n"), SecureRuntime::None);
    assert_eq!(loaded("[secure_runtime]\ntype = \"gvisor\"\n"), SecureRuntime::Gvisor);
    assert_eq!(loaded("[secure_runtime]\ntype = \"gvisor\"\ndocker_runtime = \"runsc\"\n"), SecureRuntime::Gvisor);
    refused("[secure_runtime]\ntype = \"kata\"\n", &[], "secure_runtime.type from file: must be one of \"\", gvisor");
    refused(
        "[secure_runtime]\ndocker_runtime = \"runsc\"\n",
        &[],
        "docker_runtime from file: needs secure_runtime.type",
    );
    refused("[secure_runtime]\nk8s_runtime_class = \"gvisor\"\n", &[], "secure_runtime.k8s_runtime_class");
}

#[test]
fn host_paths_and_sizes_of_volumes_are_checked_at_the_start() {
    assert!(
        from("", &[], &[]).expect("is fine").0.storage.allowed_host_paths.is_empty(),
        "none is allowed unless named"
    );
    let file = "[storage]\nallowed_host_paths = [\"/srv/a\", \"/\"]\nvolume_default_size = \"1.5Gi\"\n";
    let storage = from(file, &[], &[]).expect("is fine").0.storage;
    assert_eq!(storage.allowed_host_paths, ["/srv/a", "/"]);
    assert_eq!(storage.volume_default_bytes, Some(3 << 29));
    for path in ["srv", "/srv/", "/srv/../etc", "/a//b"] {
        refused(&format!("[storage]\nallowed_host_paths = [\"{path}\"]\n"), &[], "storage.allowed_host_paths");
    }
    refused("[storage]\nvolume_default_size = \"1k\"\n", &[], "storage.volume_default_size");
}
