//! Puts the sources over each other and checks every key of them.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use egress::upstream::UpstreamProxy;
use ingress::links::Keys;
use lifecycle::{quantity, volume};
use secrecy::{ExposeSecret as _, SecretString};
use toml::{Table, Value};

use super::keys::{KEYS, Key, PUBLISHED_ENV, UNSUPPORTED};
use super::{
    Config, ConfigError, DefaultPolicy, Effective, Egress, Entry, Images, Ingress, Log, Native, Proxy, RenewIntent,
    SecureRuntime, Server, Source, Storage, StoreConfig,
};

/// Variable with the path of the configuration file (published).
const FILE_ENV: &str = "SANDBOX_CONFIG_PATH";
/// The configuration file in the home directory (published).
const HOME_FILE: &str = ".sandbox.toml";
/// Most bytes of authorities: they travel to the egress process in one packet.
const MAX_CA_BYTES: usize = 128 * 1024;
/// Prefix of the variables that set any key: `OSB_SERVER_PORT` is `server.port`.
const ENV_PREFIX: &str = "OSB_";
/// Farthest edit distance at which a known key is offered for an unknown one.
const MAX_DISTANCE: usize = 4;

/// Where values are looked for.
#[derive(Clone, Default)]
pub struct Sources {
    /// The file named by `--config`; otherwise `SANDBOX_CONFIG_PATH`, otherwise `~/.sandbox.toml` if it exists.
    pub file: Option<PathBuf>,
    /// The environment.
    pub env: BTreeMap<String, String>,
    /// Values of flags by key, `server.port` to `9000`.
    pub flags: BTreeMap<&'static str, String>,
}

/// Reads and checks the configuration.
///
/// # Errors
/// The first key that is unknown, cannot be obeyed here, or has a wrong value; a file that cannot be read.
pub fn load(sources: &Sources) -> Result<(Config, Effective), ConfigError> {
    let file = file_of(sources);
    let mut values = Values::default();
    if let Some(path) = &file {
        values.take_file(path)?;
    }
    values.take_env(&sources.env)?;
    values.take_flags(&sources.flags)?;
    let config = values.config()?;
    values.check_egress(&config.egress)?;
    Ok((config, Effective { file, entries: values.entries() }))
}

fn file_of(sources: &Sources) -> Option<PathBuf> {
    if let Some(path) = &sources.file {
        return Some(path.clone());
    }
    if let Some(path) = sources.env.get(FILE_ENV).filter(|p| !p.is_empty()) {
        return Some(PathBuf::from(path));
    }
    let home = sources.env.get("HOME").filter(|home| !home.is_empty())?;
    Some(Path::new(home).join(HOME_FILE)).filter(|path| path.is_file())
}

/// Checked values over the defaults.
#[derive(Default)]
struct Values(BTreeMap<&'static str, (Value, Source)>);

impl Values {
    fn take_file(&mut self, path: &Path) -> Result<(), ConfigError> {
        let text =
            std::fs::read_to_string(path).map_err(|source| ConfigError::Read { path: path.to_owned(), source })?;
        let table: Table = toml::from_str(&text)
            .map_err(|source| ConfigError::Syntax { path: path.to_owned(), source: Box::new(source) })?;
        let place = format!("\"{}\"", path.display());
        let mut flat = Vec::new();
        flatten("", table, &mut flat);
        for (name, value) in flat {
            let key = known(&name, &place)?;
            self.set(key, key.kind.check(value), Source::File)?;
        }
        Ok(())
    }

    fn take_env(&mut self, env: &BTreeMap<String, String>) -> Result<(), ConfigError> {
        for (name, text) in env {
            let published = PUBLISHED_ENV.iter().find(|(_, variable)| variable == name).map(|(key, _)| *key);
            let Some(dotted) = published.map(str::to_owned).or_else(|| dotted(name)) else {
                continue;
            };
            let key = known(&dotted, &format!("the environment ({name})"))?;
            self.set(key, key.kind.parse(text), Source::Env(name.clone()))?;
        }
        Ok(())
    }

    fn take_flags(&mut self, flags: &BTreeMap<&'static str, String>) -> Result<(), ConfigError> {
        for (name, text) in flags {
            let key = known(name, "the command line")?;
            self.set(key, key.kind.parse(text), Source::Flag)?;
        }
        Ok(())
    }

    fn set(&mut self, key: &'static Key, value: Result<Value, String>, source: Source) -> Result<(), ConfigError> {
        match value {
            Ok(value) => {
                self.0.insert(key.name, (value, source));
                Ok(())
            }
            Err(problem) => Err(ConfigError::Value { key: key.name, origin: source, problem }),
        }
    }

    fn get(&self, name: &str) -> Option<Value> {
        if let Some((value, _)) = self.0.get(name) {
            return Some(value.clone());
        }
        default_of(KEYS.iter().find(|key| key.name == name).expect("a known key"))
    }

    fn text(&self, name: &str) -> Option<String> {
        self.get(name).and_then(|value| value.as_str().map(str::to_owned))
    }

    fn number(&self, name: &str) -> Option<u64> {
        self.get(name).and_then(|value| value.as_integer()).map(i64::unsigned_abs)
    }

    fn seconds(&self, name: &str) -> Duration {
        Duration::from_secs(self.number(name).expect("has a default"))
    }

    fn config(&self) -> Result<Config, ConfigError> {
        let number = |name| self.number(name).expect("has a default");
        let narrow = |name| u32::try_from(number(name)).expect("checked against the range of the key");
        Ok(Config {
            server: Server {
                host: self.text("server.host").expect("has a default"),
                port: u16::try_from(number("server.port")).expect("checked against the range of the key"),
                api_key: self.text("server.api_key").map(SecretString::from),
                eip: self.text("server.eip"),
                max_sandbox_timeout_seconds: self.number("server.max_sandbox_timeout_seconds"),
                limit_concurrency: usize::try_from(number("server.limit_concurrency"))
                    .expect("checked against the range of the key"),
                timeout_keep_alive: self.seconds("server.timeout_keep_alive"),
                timeout_graceful_shutdown: self.seconds("server.timeout_graceful_shutdown"),
                backlog: narrow("server.backlog"),
            },
            proxy: Proxy {
                trust_forwarded: self.get("proxy.trust_forwarded").and_then(|v| v.as_bool()).expect("has a default"),
            },
            ingress: Ingress { keys: self.keys()?.map(Arc::new) },
            renew_intent: RenewIntent {
                enabled: self.get("renew_intent.enabled").and_then(|v| v.as_bool()).expect("has a default"),
                min_interval: self.seconds("renew_intent.min_interval_seconds"),
            },
            log: Log { level: self.text("log.level").expect("has a default").to_ascii_uppercase() },
            store: StoreConfig { path: self.text("store.path").map(PathBuf::from) },
            native: Native {
                grace: Duration::from_secs_f64(
                    self.get("native.grace_seconds").and_then(|v| v.as_float()).expect("has a default"),
                ),
            },
            images: self.images()?,
            storage: self.storage()?,
            egress: Egress {
                default_policy: match self.text("egress.default_policy").as_deref() {
                    Some("nothing") => DefaultPolicy::Nothing,
                    Some("all") => DefaultPolicy::All,
                    _ => DefaultPolicy::Public,
                },
                always_allow: self.list("egress.always_allow"),
                always_deny: self.list("egress.always_deny"),
                resolvers: self.list("egress.resolvers"),
                deny_webhook: self.text("egress.deny_webhook").map(SecretString::from),
                upstream_proxy: self.text("egress.upstream_proxy").map(SecretString::from),
                upstream_direct: self.list("egress.upstream_direct"),
                upstream_ca_pem: self.upstream_ca()?,
                recording_max_bytes: number("egress.recording_max_bytes"),
                vault_plain_http: self.get("egress.vault_plain_http").and_then(|v| v.as_bool()).expect("has a default"),
            },
            secure_runtime: self.secure_runtime()?,
            warm: super::Warm {
                max_memory_bytes: number("warm.max_memory_bytes"),
                pool_wait: self.seconds("warm.pool_wait_seconds"),
            },
        })
    }

    /// The refusal of a value that is of the right kind and means nothing.
    fn wrong(&self, key: &'static str, problem: String) -> ConfigError {
        let origin = self.0.get(key).map_or(Source::Default, |(_, source)| source.clone());
        ConfigError::Value { key, origin, problem }
    }

    /// Where images come from, and how long they stay.
    fn images(&self) -> Result<Images, ConfigError> {
        let size = "images.max_size";
        let max_bytes = match self.text(size) {
            None => None,
            Some(text) => match quantity::storage(&text) {
                Some(bytes) if bytes > 0 => Some(bytes),
                _ => return Err(self.wrong(size, format!("\"{text}\" is no size, such as 50Gi"))),
            },
        };
        let days = self.number("images.unused_days");
        let unused_for = days.map(|days| Duration::from_secs(days * 24 * 60 * 60));
        let bounds = image::Bounds { max_bytes, unused_for };
        Ok(Images { plain_http_hosts: self.list("images.plain_http_hosts"), bounds })
    }

    /// What volumes there may be.
    fn storage(&self) -> Result<Storage, ConfigError> {
        let (paths, size) = ("storage.allowed_host_paths", "storage.volume_default_size");
        let wrong = |key: &'static str, problem: String| self.wrong(key, problem);
        let allowed_host_paths = self.list(paths);
        for path in &allowed_host_paths {
            if let Some(mistake) = volume::mistake_in_path(path) {
                return Err(wrong(paths, format!("\"{path}\" {mistake}")));
            }
        }
        let volume_default_bytes = match self.text(size) {
            None => None,
            Some(text) => match quantity::storage(&text) {
                Some(bytes) if (volume::MIN_BYTES..=volume::MAX_BYTES).contains(&bytes) => Some(bytes),
                _ => return Err(wrong(size, format!("\"{text}\" is no size from 16Mi to 4Ti"))),
            },
        };
        Ok(Storage { allowed_host_paths, volume_default_bytes })
    }

    /// What sandboxes run on; the published name of its runtime means nothing without a type.
    fn secure_runtime(&self) -> Result<SecureRuntime, ConfigError> {
        let (kind, name) = ("secure_runtime.type", "secure_runtime.docker_runtime");
        match (self.text(kind).unwrap_or_default().as_str(), self.text(name).unwrap_or_default().as_str()) {
            ("", "") => Ok(SecureRuntime::None),
            ("", _) => {
                let origin = self.0.get(name).map_or(Source::Default, |(_, source)| source.clone());
                Err(ConfigError::Value { key: name, origin, problem: format!("needs {kind}, too") })
            }
            _ => Ok(SecureRuntime::Gvisor),
        }
    }

    /// The keys of links: named and active both, or neither.
    fn keys(&self) -> Result<Option<Keys>, ConfigError> {
        let (listed, active) = ("ingress.secure_access.keys", "ingress.secure_access.active_key");
        let wrong = |key: &'static str, problem: String| {
            let origin = self.0.get(key).map_or(Source::Default, |(_, source)| source.clone());
            ConfigError::Value { key, origin, problem }
        };
        let (keys, active) = match (self.get(listed), self.text(active)) {
            (None, None) => return Ok(None),
            (Some(_), None) => return Err(wrong(listed, format!("needs {active}, too"))),
            (None, Some(_)) => return Err(wrong(active, format!("needs {listed}, too"))),
            (Some(keys), Some(active)) => (keys, active),
        };
        let text = |item: &Value, name: &str| item.get(name).and_then(Value::as_str).unwrap_or_default().to_owned();
        let pairs: Vec<_> =
            keys.as_array().into_iter().flatten().map(|item| (text(item, "key_id"), text(item, "key"))).collect();
        let keys = Keys::new(&active, pairs.iter().map(|(id, key)| (id.as_str(), key.as_str())));
        keys.map(Some).map_err(|error| wrong(listed, error.to_string()))
    }

    /// What the files of `egress.upstream_ca` hold. Read here, while they can be read: the server has no rights later.
    fn upstream_ca(&self) -> Result<Vec<String>, ConfigError> {
        let key = "egress.upstream_ca";
        let wrong = |problem: String| {
            let origin = self.0.get(key).map_or(Source::Default, |(_, source)| source.clone());
            ConfigError::Value { key, origin, problem }
        };
        let read = |path: String| {
            let text = std::fs::read_to_string(&path).map_err(|error| wrong(format!("read \"{path}\": {error}")))?;
            match text.contains("-----BEGIN CERTIFICATE-----") {
                true => Ok(text),
                false => Err(wrong(format!("\"{path}\" holds no certificate as PEM"))),
            }
        };
        let texts: Vec<String> = self.list(key).into_iter().map(read).collect::<Result<_, _>>()?;
        if texts.iter().map(String::len).sum::<usize>() > MAX_CA_BYTES {
            return Err(wrong(format!(
                "the files are longer than {MAX_CA_BYTES} bytes in all; name your own authorities only"
            )));
        }
        Ok(texts)
    }

    fn list(&self, name: &str) -> Vec<String> {
        let items = self.get(name).and_then(|value| value.as_array().cloned()).unwrap_or_default();
        items.iter().filter_map(|item| item.as_str().map(str::to_owned)).collect()
    }

    /// Values whose meaning is the egress process's.
    fn check_egress(&self, egress: &Egress) -> Result<(), ConfigError> {
        let wrong = |key: &'static str, problem: String| {
            let origin = self.0.get(key).map_or(Source::Default, |(_, source)| source.clone());
            Err(ConfigError::Value { key, origin, problem })
        };
        for (key, targets) in
            [("egress.always_allow", &egress.always_allow), ("egress.always_deny", &egress.always_deny)]
        {
            for target in targets {
                if let Some(problem) = crate::network::mistake_in(target) {
                    return wrong(key, format!("\"{target}\": {problem}"));
                }
            }
        }
        if let Some(url) = &egress.upstream_proxy
            && let Err(problem) = UpstreamProxy::parse(url.expose_secret(), &[])
        {
            return wrong("egress.upstream_proxy", problem);
        }
        if let Some(text) = egress.upstream_direct.iter().find(|text| crate::network::mistake_in(text).is_some()) {
            let problem = crate::network::mistake_in(text).unwrap_or_default();
            return wrong("egress.upstream_direct", format!("\"{text}\": {problem}"));
        }
        let is_web =
            |url: &SecretString| ["http://", "https://"].iter().any(|scheme| url.expose_secret().starts_with(scheme));
        if egress.deny_webhook.as_ref().is_some_and(|url| !is_web(url)) {
            return wrong("egress.deny_webhook", "is no http:// or https:// URL".into());
        }
        match egress.resolvers.iter().find(|text| crate::network::resolver(text).is_none()) {
            Some(text) => wrong("egress.resolvers", format!("\"{text}\" is no address and no address:port")),
            None => Ok(()),
        }
    }

    fn entries(&self) -> Vec<Entry> {
        KEYS.iter()
            .map(|key| Entry {
                key: key.name,
                value: self.get(key.name).map(|value| key.kind.show(&value)),
                source: self.0.get(key.name).map_or(Source::Default, |(_, source)| source.clone()),
                purpose: key.purpose,
            })
            .collect()
    }
}

impl Default for Config {
    fn default() -> Self {
        Values::default().config().expect("the defaults are valid")
    }
}

fn default_of(key: &Key) -> Option<Value> {
    let text = key.default?;
    let table: Table = toml::from_str(&format!("x = {text}")).expect("defaults are TOML");
    table.get("x").cloned()
}

/// Dotted names of the leaves of a table.
fn flatten(prefix: &str, table: Table, out: &mut Vec<(String, Value)>) {
    for (name, value) in table {
        let dotted = if prefix.is_empty() { name } else { format!("{prefix}.{name}") };
        match value {
            Value::Table(inner) => flatten(&dotted, inner, out),
            value => out.push((dotted, value)),
        }
    }
}

/// `OSB_SERVER_PORT` as `server.port`, for the sections that exist; other variables are none of ours.
fn dotted(variable: &str) -> Option<String> {
    let rest = variable.strip_prefix(ENV_PREFIX)?;
    // Sections, too, may hold an underscore.
    if let Some(key) = KEYS.iter().find(|key| key.name.replace('.', "_").eq_ignore_ascii_case(rest)) {
        return Some(key.name.to_owned());
    }
    let (section, name) = rest.split_once('_')?;
    let section = section.to_ascii_lowercase();
    let exists = KEYS.iter().any(|key| key.name.split_once('.').is_some_and(|(head, _)| head == section));
    (exists && !name.is_empty()).then(|| format!("{section}.{}", name.to_ascii_lowercase()))
}

fn known(name: &str, place: &str) -> Result<&'static Key, ConfigError> {
    if let Some(key) = KEYS.iter().find(|key| key.name == name) {
        return Ok(key);
    }
    let covers = |pattern: &str| pattern == name || (pattern.ends_with('.') && name.starts_with(pattern));
    if let Some((_, why)) = UNSUPPORTED.iter().find(|(pattern, _)| covers(pattern)) {
        return Err(ConfigError::Unsupported { key: name.to_owned(), place: place.to_owned(), why });
    }
    let nearest = KEYS
        .iter()
        .map(|key| (distance(key.name, name), key.name))
        .min()
        .filter(|(distance, _)| *distance <= MAX_DISTANCE)
        .map(|(_, key)| key);
    Err(ConfigError::Unknown { key: name.to_owned(), place: place.to_owned(), nearest })
}

/// Number of insertions, deletions and replacements between two names.
fn distance(a: &str, b: &str) -> usize {
    let b: Vec<char> = b.chars().collect();
    let mut row: Vec<usize> = (0..=b.len()).collect();
    for (i, x) in a.chars().enumerate() {
        let mut diagonal = row[0];
        row[0] = i + 1;
        for (j, y) in b.iter().enumerate() {
            let above = row[j + 1];
            row[j + 1] = (above + 1).min(row[j] + 1).min(diagonal + usize::from(x != *y));
            diagonal = above;
        }
    }
    row[b.len()]
}
