//! The configuration file: TOML with three sections. What nobody understands is reported, not ignored.

use std::path::Path;

use crate::failure::Failure;

/// Largest configuration file that is read, in bytes: a real one is below one kibibyte.
const MAX_FILE_BYTES: u64 = 1024 * 1024;

/// What the file says, every value as text.
#[derive(Debug, Default)]
pub struct File {
    pub connection: Connection,
    pub output: Output,
    pub defaults: Defaults,
    /// Sections and keys that nobody understands.
    pub warnings: Vec<String>,
}

/// `[connection]`.
#[derive(Debug, Default)]
pub struct Connection {
    pub api_key: Option<String>,
    pub domain: Option<String>,
    pub protocol: Option<String>,
    pub request_timeout: Option<String>,
    pub use_server_proxy: Option<String>,
}

/// `[output]`.
#[derive(Debug, Default)]
pub struct Output {
    pub color: Option<String>,
    pub format: Option<String>,
}

/// `[defaults]`.
#[derive(Debug, Default)]
pub struct Defaults {
    pub image: Option<String>,
    pub timeout: Option<String>,
}

impl File {
    /// Reads the file; a missing one is empty unless it was asked for by name.
    pub fn read(path: &Path, asked_for: bool) -> Result<Self, Failure> {
        match std::fs::metadata(path) {
            Ok(meta) if meta.len() > MAX_FILE_BYTES => {
                return Err(Failure::usage(format!("{}: larger than {MAX_FILE_BYTES} bytes", path.display())));
            }
            Ok(_) => {}
            Err(error) if error.kind() == std::io::ErrorKind::NotFound && !asked_for => return Ok(Self::default()),
            Err(error) => return Err(Failure::usage(format!("read {}: {error}", path.display()))),
        }
        let text = std::fs::read_to_string(path)
            .map_err(|error| Failure::usage(format!("read {}: {error}", path.display())))?;
        Self::parse(&text).map_err(|error| Failure::usage(format!("{}: {error}", path.display())))
    }

    /// Takes a file apart.
    pub fn parse(text: &str) -> Result<Self, String> {
        let table: toml::Table = text.parse().map_err(|error: toml::de::Error| error.to_string().trim().to_owned())?;
        let mut file = Self::default();
        for (section, value) in table {
            let Some(entries) = value.as_table() else {
                file.unknown(&section, &["[connection]", "[output]", "[defaults]"]);
                continue;
            };
            for (key, value) in entries {
                let name = format!("{section}.{key}");
                match file.place(&name) {
                    Some(place) => *place = Some(scalar(&name, value)?),
                    None => file.unknown(&name, &KEYS),
                }
            }
        }
        Ok(file)
    }

    fn place(&mut self, name: &str) -> Option<&mut Option<String>> {
        Some(match name {
            "connection.api_key" => &mut self.connection.api_key,
            "connection.domain" => &mut self.connection.domain,
            "connection.protocol" => &mut self.connection.protocol,
            "connection.request_timeout" => &mut self.connection.request_timeout,
            "connection.use_server_proxy" => &mut self.connection.use_server_proxy,
            "output.color" => &mut self.output.color,
            "output.format" => &mut self.output.format,
            "defaults.image" => &mut self.defaults.image,
            "defaults.timeout" => &mut self.defaults.timeout,
            _ => return None,
        })
    }

    fn unknown(&mut self, name: &str, known: &[&str]) {
        self.warnings.push(match nearest(name, known) {
            Some(near) => format!("unknown key `{name}` is ignored; did you mean `{near}`?"),
            None => format!("unknown key `{name}` is ignored; known are {}", known.join(", ")),
        });
    }
}

/// Every key of the file.
const KEYS: [&str; 9] = [
    "connection.api_key",
    "connection.domain",
    "connection.protocol",
    "connection.request_timeout",
    "connection.use_server_proxy",
    "output.color",
    "output.format",
    "defaults.image",
    "defaults.timeout",
];

fn scalar(name: &str, value: &toml::Value) -> Result<String, String> {
    match value {
        toml::Value::String(text) => Ok(text.clone()),
        toml::Value::Integer(number) => Ok(number.to_string()),
        toml::Value::Float(number) => Ok(number.to_string()),
        toml::Value::Boolean(flag) => Ok(flag.to_string()),
        _ => Err(format!("{name}: neither text, number nor true or false")),
    }
}

/// Fewest equal letters in the same order, relative to length, that make a name look like a misspelling: 70 %.
const LIKENESS_PERCENT: usize = 70;

/// The known name that a misspelled one most resembles.
fn nearest<'a>(name: &str, known: &[&'a str]) -> Option<&'a str> {
    let best = known.iter().max_by_key(|candidate| common(name, candidate) * 100 / candidate.len().max(name.len()))?;
    (common(name, best) * 100 >= LIKENESS_PERCENT * best.len().max(name.len())).then_some(*best)
}

/// Length of the longest common subsequence.
fn common(left: &str, right: &str) -> usize {
    let right: Vec<char> = right.chars().collect();
    let mut row = vec![0; right.len() + 1];
    for a in left.chars() {
        let mut diagonal = 0;
        for (column, b) in right.iter().enumerate() {
            let above = row[column + 1];
            row[column + 1] = if a == *b { diagonal + 1 } else { above.max(row[column]) };
            diagonal = above;
        }
    }
    row[right.len()]
}
