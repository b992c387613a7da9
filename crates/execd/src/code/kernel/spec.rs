//! Installed kernels: `kernel.json` files where Jupyter looks for them.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::Read;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::rc::Rc;

use serde::Deserialize;

use crate::blocking;
use crate::code::language::{environment, unsupported};
use crate::daemon::Daemon;
use crate::environment::Environment;
use crate::error::{ApiError, Result};

/// Bytes of a `kernel.json` that are read.
const MAX_SPEC_BYTES: u64 = 256 * 1024;
/// Kernels that are looked at in one directory.
const MAX_KERNELS: usize = 256;

/// An installed kernel.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
pub struct Spec {
    /// Program and arguments; `{connection_file}` and `{resource_dir}` stand in them.
    pub argv: Vec<String>,
    /// The language as the client named it.
    pub language: String,
    /// Variables of the kernel; `${NAME}` stands for one of the sandbox.
    #[serde(default)]
    pub env: BTreeMap<String, String>,
    /// `signal` or `message`.
    #[serde(default)]
    pub interrupt_mode: Option<String>,
    /// Where the spec lies.
    #[serde(skip)]
    pub directory: PathBuf,
}

impl Spec {
    /// The kernel of a language in this sandbox.
    ///
    /// # Errors
    /// 400 that says which languages there are.
    pub async fn find(daemon: &Rc<Daemon>, language: &str) -> Result<Self> {
        let env = environment(daemon);
        let wanted = language.to_owned();
        let found = blocking::run(move || {
            let (mut found, mut others) = (None, Vec::new());
            for spec in directories(&env).iter().flat_map(|directory| installed(directory)) {
                if spec.language.eq_ignore_ascii_case(&wanted) && found.is_none() {
                    found = Some(Self { language: wanted.clone(), ..spec });
                } else {
                    others.push(spec.language.to_ascii_lowercase());
                }
            }
            others.sort();
            others.dedup();
            (found, others)
        });
        let (found, others) = found.await.map_err(|error| ApiError::runtime(error.to_string()))?;
        found.ok_or_else(|| {
            let others: String = others.iter().map(|name| format!(", {name}")).collect();
            unsupported(format!(
                "language: {language:?} is not supported here: it has no driver and this sandbox's image has no \
                 Jupyter kernel for it; execd has drivers for python, javascript, typescript, bash, sql{others}"
            ))
        })
    }
}

/// Where kernels may be installed: what the user chose, the user's own, those beside the programs of `PATH`
/// (virtual environments), the system's.
fn directories(env: &Environment) -> Vec<PathBuf> {
    let text = |name: &str| env.get(name).map(String::as_str).filter(|text| !text.is_empty());
    let paths =
        |name: &str| text(name).into_iter().flat_map(|list| list.split(':')).filter(|path| path.starts_with('/'));
    let mut found: Vec<PathBuf> = paths("JUPYTER_PATH").map(PathBuf::from).collect();
    let own = text("JUPYTER_DATA_DIR").map(PathBuf::from);
    found.extend(own.or_else(|| text("HOME").map(|home| Path::new(home).join(".local/share/jupyter"))));
    found.extend(paths("PATH").filter_map(|path| Some(Path::new(path).parent()?.join("share/jupyter"))));
    found.extend(["/usr/local/share/jupyter", "/usr/share/jupyter"].map(PathBuf::from));
    let mut all: Vec<PathBuf> = Vec::new();
    for directory in found.into_iter().map(|directory| directory.join("kernels")) {
        if !all.contains(&directory) {
            all.push(directory);
        }
    }
    all
}

/// The kernels in a directory, by their names; what cannot be read is not there.
fn installed(directory: &Path) -> Vec<Spec> {
    let Ok(entries) = fs::read_dir(directory) else { return Vec::new() };
    let mut places: Vec<PathBuf> = entries.flatten().take(MAX_KERNELS).map(|entry| entry.path()).collect();
    places.sort();
    places.into_iter().filter_map(read).collect()
}

fn read(directory: PathBuf) -> Option<Spec> {
    let mut bytes = Vec::new();
    // Without O_NONBLOCK a pipe of that name would hold the worker.
    let file = File::options().read(true).custom_flags(libc::O_NONBLOCK).open(directory.join("kernel.json")).ok()?;
    let file = file.metadata().is_ok_and(|metadata| metadata.is_file()).then_some(file)?;
    file.take(MAX_SPEC_BYTES).read_to_end(&mut bytes).ok()?;
    let spec: Spec = serde_json::from_slice(&bytes).ok()?;
    (!spec.argv.is_empty() && !spec.language.is_empty()).then_some(Spec { directory, ..spec })
}

#[cfg(test)]
mod tests {
    use super::{directories, installed};

    #[test]
    fn kernels_are_looked_for_where_jupyter_does() {
        let env = [("JUPYTER_PATH", "/a:b"), ("HOME", "/home/u"), ("PATH", "/venv/bin:/usr/bin")];
        let env = env.map(|(name, value)| (name.to_owned(), value.to_owned())).into();
        let found: Vec<String> = directories(&env).iter().map(|path| path.display().to_string()).collect();
        assert_eq!(
            found,
            [
                "/a/kernels",
                "/home/u/.local/share/jupyter/kernels",
                "/venv/share/jupyter/kernels",
                "/usr/share/jupyter/kernels",
                "/usr/local/share/jupyter/kernels",
            ]
        );
    }

    #[test]
    fn broken_specs_are_not_there() {
        let directory = tempfile::tempdir().expect("a temporary directory");
        for (name, text) in [
            ("good", r#"{"argv":["x","{connection_file}"],"language":"Go","display_name":"G"}"#),
            ("broken", "{"),
            ("empty", r#"{"argv":[],"language":"x"}"#),
        ] {
            std::fs::create_dir(directory.path().join(name)).expect("mkdir");
            std::fs::write(directory.path().join(name).join("kernel.json"), text).expect("write");
        }
        let found = installed(directory.path());
        assert_eq!(found.iter().map(|spec| spec.language.as_str()).collect::<Vec<_>>(), ["Go"]);
    }
}
