//! `cargo xtask check`: format, lints and the tidiness that no tool knows of.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};

use crate::cargo::cargo;
use crate::system::{root, run as run_command, step};

/// Longest source file, in lines; past it a second idea is hiding.
const MAX_LINES: usize = 800;

/// Runs all checks.
///
/// # Errors
/// One of them fails.
pub fn run() -> Result<()> {
    step("tidiness", || {
        let problems = problems()?;
        if !problems.is_empty() {
            bail!("{}", problems.join("\n"));
        }
        Ok(())
    })?;
    step("format", || run_command(cargo().args(["fmt", "--all", "--check"])))?;
    step("lints", || {
        let clippy = ["clippy", "--workspace", "--all-targets", "--quiet", "--", "-D", "warnings"];
        run_command(cargo().args(clippy))
    })
}

/// What is untidy in the files of the workspace.
pub(crate) fn problems() -> Result<Vec<String>> {
    let root = root();
    let mut problems = Vec::new();
    for file in files(&root)? {
        let name = file.strip_prefix(&root).unwrap_or(&file).display().to_string();
        match file.extension().and_then(|extension| extension.to_str()) {
            Some("rs") => {
                let text = fs::read_to_string(&file).with_context(|| format!("read {name}"))?;
                let lines = text.lines().count();
                if lines > MAX_LINES {
                    problems.push(format!("{name}: {lines} lines, at most {MAX_LINES}"));
                }
                let starts_with_doc = text.starts_with("//!") || text.starts_with("#!");
                let is_test = name.ends_with("tests.rs") || name.contains("/tests/");
                if !starts_with_doc && !is_test {
                    problems.push(format!("{name}: the module does not say what it owns (//!)"));
                }
            }
            _ if name.ends_with("Cargo.toml") => {
                let text = fs::read_to_string(&file).with_context(|| format!("read {name}"))?;
                if !text.contains("license = \"Apache-2.0\"") && !text.contains("license.workspace = true") {
                    problems.push(format!("{name}: no licence"));
                }
            }
            _ => {}
        }
    }
    if !root.join("LICENSE").exists() {
        problems.push("LICENSE is missing".into());
    }
    Ok(problems)
}

/// Files of the workspace, without what is built or fetched.
fn files(directory: &Path) -> Result<Vec<PathBuf>> {
    let mut found = Vec::new();
    for entry in fs::read_dir(directory).with_context(|| format!("read {}", directory.display()))? {
        let path = entry?.path();
        let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
        if name.starts_with('.') || name == "target" || name == "node_modules" {
            continue;
        }
        if path.is_dir() {
            found.extend(files(&path)?);
        } else {
            found.push(path);
        }
    }
    Ok(found)
}

#[cfg(test)]
mod tests {
    #[test]
    fn the_workspace_is_tidy() {
        assert_eq!(super::problems().expect("the files are read"), Vec::<String>::new());
    }
}
