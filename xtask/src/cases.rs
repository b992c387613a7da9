//! Which tests prove which case of `specs/cases.toml`.

use std::collections::BTreeMap;

use anyhow::{Context, Result, bail};
use serde::Deserialize;

use crate::results::{self, TestResult};
use crate::system::root;

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Cases {
    case: Vec<Case>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Case {
    id: String,
    area: String,
    title: String,
}

/// Prints id, tests and verdict of every case.
///
/// # Errors
/// A case has no test, or one that failed.
pub fn run() -> Result<()> {
    report(&results::load()?)
}

/// As [`run`], over results at hand.
///
/// # Errors
/// As [`run`].
pub fn report(results: &[TestResult]) -> Result<()> {
    let path = root().join("specs/cases.toml");
    let text = std::fs::read_to_string(&path).with_context(|| format!("read {}", path.display()))?;
    let cases: Cases = toml::from_str(&text).with_context(|| format!("parse {}", path.display()))?;
    let mut proofs: BTreeMap<String, Vec<&TestResult>> = BTreeMap::new();
    for result in results {
        for id in ids_in(&result.name) {
            proofs.entry(id).or_default().push(result);
        }
    }
    println!("{:<7} {:<10} {:<8} what, and the tests that prove it", "case", "area", "verdict");
    let mut open = Vec::new();
    for case in &cases.case {
        let tests = proofs.get(&case.id).map(Vec::as_slice).unwrap_or_default();
        let verdict = if tests.is_empty() {
            "NO TEST"
        } else if tests.iter().all(|test| test.outcome == "passed") {
            "holds"
        } else {
            "BROKEN"
        };
        println!("{:<7} {:<10} {verdict:<8} {}", case.id, case.area, case.title);
        let mut names: Vec<String> = tests.iter().map(|test| format!("{} [{}]", test.name, test.suite)).collect();
        names.dedup();
        for name in names {
            println!("{:<27} {name}", "");
        }
        if verdict != "holds" {
            open.push(case.id.clone());
        }
    }
    println!("{} of {} cases hold", cases.case.len() - open.len(), cases.case.len());
    if !open.is_empty() {
        bail!("cases without proof: {}", open.join(" "));
    }
    Ok(())
}

/// Case ids in a test's name: `os_002_...` is OS-002.
fn ids_in(name: &str) -> Vec<String> {
    let lower = name.to_lowercase();
    let mut ids = Vec::new();
    for prefix in ["ex_", "os_", "ex-", "os-"] {
        for (at, _) in lower.match_indices(prefix) {
            let digits = lower.get(at + 3..at + 6).unwrap_or("");
            let bounded = at == 0 || !lower.as_bytes()[at - 1].is_ascii_alphanumeric();
            if bounded && digits.len() == 3 && digits.bytes().all(|byte| byte.is_ascii_digit()) {
                ids.push(format!("{}-{digits}", prefix[..2].to_uppercase()));
            }
        }
    }
    ids
}

#[cfg(test)]
mod tests {
    use super::ids_in;

    #[test]
    fn ids_are_found_where_they_stand_alone() {
        assert_eq!(ids_in("a::os_002_renewed"), ["OS-002"]);
        assert_eq!(ids_in("test_x[os_019-gpu-all]"), ["OS-019"]);
        assert_eq!(ids_in("ex_002_and_os_041"), ["EX-002", "OS-041"]);
        assert_eq!(ids_in("macos_002"), Vec::<String>::new());
        assert_eq!(ids_in("os_2_short"), Vec::<String>::new());
    }
}
