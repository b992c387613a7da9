//! The dependencies between crates are the ones of the design, and the map names real places.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::Value;

/// Crate, and the crates of this workspace it may depend on. A crate that is not listed may not exist.
const ARROWS: [(&str, &[&str]); 17] = [
    ("packets", &[]),
    ("protocol", &[]),
    ("telemetry", &[]),
    ("archive", &[]),
    ("early-answer", &[]),
    ("image", &["archive"]),
    ("ingress", &["protocol", "early-answer"]),
    ("lifecycle", &["protocol"]),
    ("execd", &["protocol", "archive", "early-answer"]),
    ("vault", &["protocol"]),
    ("egress", &["packets", "protocol", "early-answer", "vault"]),
    ("runtime-native", &["packets", "protocol", "lifecycle", "image"]),
    ("server", &["protocol", "lifecycle", "telemetry", "image", "ingress", "runtime-native", "egress"]),
    ("osb", &["protocol", "archive", "lifecycle", "telemetry", "image", "runtime-native", "egress", "server"]),
    ("e2e", &["early-answer"]),
    ("fuzz", &[]),
    ("xtask", &[]),
];

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("..")
}

fn metadata() -> Value {
    let output = Command::new(env!("CARGO"))
        .args(["metadata", "--format-version", "1", "--no-deps", "--offline"])
        .current_dir(root())
        .output()
        .expect("cargo runs");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    serde_json::from_slice(&output.stdout).expect("cargo metadata is JSON")
}

#[test]
fn crates_depend_on_each_other_as_designed() {
    let metadata = metadata();
    let packages = metadata["packages"].as_array().expect("packages");
    let names: BTreeSet<&str> = packages.iter().filter_map(|package| package["name"].as_str()).collect();
    let allowed: BTreeMap<&str, &[&str]> = ARROWS.into_iter().collect();
    let mut wrong = Vec::new();
    for package in packages {
        let name = package["name"].as_str().expect("a package has a name");
        let Some(arrows) = allowed.get(name) else {
            wrong.push(format!("{name} is not in the design"));
            continue;
        };
        for dependency in package["dependencies"].as_array().expect("dependencies") {
            let on = dependency["name"].as_str().expect("a dependency has a name");
            // Tests may lean on more: a development dependency ships nothing.
            let ships = dependency["kind"].as_str() != Some("dev");
            if ships && names.contains(on) && !arrows.contains(&on) {
                wrong.push(format!("{name} must not depend on {on}"));
            }
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

/// Packages of a choice with their features, as cargo builds them here.
fn features(choice: &[&str]) -> BTreeMap<String, String> {
    let output = Command::new(env!("CARGO"))
        .args(["tree", "--offline", "--target", "x86_64-unknown-linux-gnu", "--prefix", "none", "--format", "{p}\t{f}"])
        .args(choice)
        .current_dir(root())
        .output()
        .expect("cargo runs");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let text = String::from_utf8(output.stdout).expect("is text");
    let lines = text.lines().filter_map(|line| line.trim_end_matches(" (*)").split_once('\t'));
    lines.map(|(package, features)| (package.to_owned(), features.to_owned())).collect()
}

/// A feature that only tests ask for makes cargo build its package, and all that stands on it, a second time.
#[test]
fn tests_are_built_with_what_ships() {
    let ships = features(&["--package", "osb", "--package", "e2e", "--edges", "normal"]);
    let tested = features(&["--workspace", "--edges", "normal,dev"]);
    let other = ships.iter().filter(|(package, features)| tested.get(*package) != Some(features));
    let other: Vec<String> =
        other.map(|(package, features)| format!("{package}: {features}, not {:?}", tested.get(package))).collect();
    assert!(other.is_empty(), "{}", other.join("\n"));
    assert!(ships.len() > 100, "{} packages", ships.len());
}

#[test]
fn every_package_carries_the_licence() {
    let metadata = metadata();
    for package in metadata["packages"].as_array().expect("packages") {
        assert_eq!(package["license"], "Apache-2.0", "{}", package["name"]);
    }
    assert!(root().join("LICENSE").is_file());
}

/// Words in backquotes that look like paths of this tree.
fn paths_named_by(text: &str) -> Vec<String> {
    let tops = ["crates/", "e2e/", "xtask/", "specs/", "docs/", ".ci/", "deploy/", "sdks/", "fuzz/"];
    let words = text.split('`').skip(1).step_by(2);
    let clean = words.map(|word| word.trim_end_matches('/').to_owned());
    clean
        .filter(|word| {
            tops.iter().any(|top| format!("{word}/").starts_with(top)) && !word.contains(['*', '<', ' ', '{'])
        })
        .collect()
}

#[test]
fn every_path_that_the_map_names_exists() {
    let map = std::fs::read_to_string(root().join("ARCHITECTURE.md")).expect("ARCHITECTURE.md exists");
    let named = paths_named_by(&map);
    assert!(named.len() >= 10, "a map of {} paths is no map", named.len());
    let missing: Vec<&String> = named.iter().filter(|path| !root().join(path).exists()).collect();
    assert!(missing.is_empty(), "ARCHITECTURE.md names what is not there: {missing:?}");
}

#[test]
fn paths_are_told_from_other_words() {
    let text = "see `crates/server/src` and `step()`, `e2e`, `specs/published/`, `crates/*`";
    assert_eq!(paths_named_by(text), ["crates/server/src", "e2e", "specs/published"]);
}
