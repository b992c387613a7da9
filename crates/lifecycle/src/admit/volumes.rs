//! Volumes: decoded, checked by text alone, and compared with what operator and runtime offer.

use std::collections::BTreeSet;

use protocol::error::code;
use protocol::lifecycle::{self as wire, NamedVolume};
use serde_json::Value;

use super::Refusal;
use crate::quantity;
use crate::runtime::Capabilities;
use crate::volume::{self, Claim, MAX_CLAIM_BYTES, MAX_NAME_BYTES, MAX_VOLUMES, Source, Volume};

/// Access modes that a volume of one machine has anyway.
const KEPT_ACCESS_MODES: [&str; 2] = ["ReadWriteOnce", "ReadWriteMany"];
/// The access mode of a volume that is only read.
const READ_ONLY_MODE: &str = "ReadOnlyMany";
/// The word by which a runtime says that it keeps no size limit.
const NO_LIMIT: &str = "none";

/// What the operator allows of volumes.
#[derive(Clone, Debug, Default)]
pub struct VolumeRules {
    /// Paths of the machine that may be mounted, with all beneath; empty allows none.
    pub allowed_host_paths: Vec<String>,
    /// Size limit of a named volume that is made without one asked for.
    pub default_bytes: Option<u64>,
}

/// Reads the volumes of a create.
pub(super) fn parse(
    asked: Vec<Value>,
    runtime: &Capabilities,
    rules: &VolumeRules,
    leased: bool,
) -> Result<Vec<Volume>, Refusal> {
    if asked.len() > MAX_VOLUMES {
        return Err(Refusal::bad("volumes", format!("a sandbox has at most {MAX_VOLUMES} volumes")));
    }
    let one = |(index, value)| read(&format!("volumes[{index}]"), value, runtime, rules, leased);
    let volumes: Vec<Volume> = asked.into_iter().enumerate().map(one).collect::<Result<_, _>>()?;
    let (mut names, mut places) = (BTreeSet::new(), BTreeSet::new());
    for (index, volume) in volumes.iter().enumerate() {
        let field = format!("volumes[{index}]");
        if !names.insert(&volume.name) {
            let problem = "is the name of another volume, too";
            return Err(Refusal::new(400, code::DUPLICATE_VOLUME_NAME, format!("{field}.name"), problem));
        }
        if !places.insert(&volume.mount_path) {
            let problem = "another volume is mounted there, too";
            return Err(Refusal::new(400, code::INVALID_MOUNT_PATH, format!("{field}.mountPath"), problem));
        }
        let agrees = |other: &&Claim| volume.claim().is_none_or(|claim| claim.name != other.name || claim == *other);
        if !volumes.iter().filter_map(Volume::claim).all(|other| agrees(&other)) {
            let problem = "another volume has the same claimName with other settings; they must agree";
            return Err(Refusal::bad(format!("{field}.pvc"), problem));
        }
    }
    Ok(volumes)
}

/// The size limit that a call of its own asks for a named volume, or the default.
///
/// # Errors
/// A [`Refusal`] that names the field.
pub fn named_volume(
    asked: &wire::CreateVolumeRequest,
    runtime: &Capabilities,
    rules: &VolumeRules,
) -> Result<Option<u64>, Refusal> {
    if !runtime.volumes.named {
        return Err(Refusal::unsupported("name", "there are no named volumes here"));
    }
    if !volume::is_name(&asked.name, MAX_CLAIM_BYTES) {
        return Err(wrong_claim_name("name"));
    }
    match &asked.storage {
        None => enforceable("storage", rules.default_bytes, runtime),
        Some(text) => size("storage", text, runtime).map(Some),
    }
}

fn read(
    field: &str,
    value: Value,
    runtime: &Capabilities,
    rules: &VolumeRules,
    leased: bool,
) -> Result<Volume, Refusal> {
    let Some(object) = value.as_object() else {
        return Err(Refusal::invalid(field, "must be an object"));
    };
    let has = |name: &str| object.get(name).is_some_and(|value| !value.is_null());
    let backends: Vec<&str> = ["host", "pvc", "ossfs"].into_iter().filter(|name| has(name)).collect();
    let [backend] = backends.as_slice() else {
        return Err(Refusal::new(400, code::INVALID_VOLUME, field, "needs exactly one of host, pvc and ossfs"));
    };
    if *backend == "ossfs" {
        let problem = "bucket volumes do not exist here; use a named volume (pvc) or upload the files";
        return Err(Refusal::unsupported(format!("{field}.ossfs"), problem));
    }
    let asked: wire::Volume =
        serde_json::from_value(value).map_err(|error| Refusal::invalid(field, error.to_string()))?;
    if !volume::is_name(&asked.name, MAX_NAME_BYTES) {
        let problem = format!("must be 1 to {MAX_NAME_BYTES} of a-z, 0-9 and \"-\", without \"-\" at the ends");
        return Err(Refusal::new(400, code::INVALID_VOLUME_NAME, format!("{field}.name"), problem));
    }
    // Docker takes a slash at the end; it says nothing.
    let mount_path = match asked.mount_path.strip_suffix('/') {
        Some(path) if !path.is_empty() => path.to_owned(),
        _ => asked.mount_path,
    };
    if let Some(mistake) = volume::mistake_in_mount_path(&mount_path) {
        return Err(Refusal::new(400, code::INVALID_MOUNT_PATH, format!("{field}.mountPath"), mistake));
    }
    let sub_path = asked.sub_path.filter(|path| !path.is_empty());
    if let Some(mistake) = sub_path.as_deref().and_then(volume::mistake_in_relative) {
        return Err(Refusal::new(400, code::INVALID_SUB_PATH, format!("{field}.subPath"), mistake));
    }
    let read_only = asked.read_only.unwrap_or(false);
    let source = match (asked.host, asked.pvc) {
        (Some(host), _) => host_path(&format!("{field}.host"), host.path, rules)?,
        (None, Some(pvc)) => Source::Named(claim(&format!("{field}.pvc"), pvc, read_only, runtime, rules, leased)?),
        (None, None) => return Err(Refusal::invalid(field, "needs a backend")),
    };
    Ok(Volume { name: asked.name, source, mount_path, sub_path, read_only })
}

/// A path that is allowed by its text. Where it really leads the runtime finds out. What is refused is not told again: it
/// may be a guess at what lies on the machine.
fn host_path(field: &str, path: String, rules: &VolumeRules) -> Result<Source, Refusal> {
    let wrong = |problem: &str| Err(Refusal::new(400, code::INVALID_HOST_PATH, format!("{field}.path"), problem));
    let mut start = path.chars();
    let is_drive = start.next().is_some_and(|c| c.is_ascii_alphabetic())
        && start.next() == Some(':')
        && matches!(start.next(), Some('/' | '\\'));
    if is_drive {
        return wrong("begins with a drive letter, and this machine has none");
    }
    if let Some(mistake) = volume::mistake_in_path(&path) {
        return wrong(mistake);
    }
    if !rules.allowed_host_paths.iter().any(|allowed| volume::is_beneath(&path, allowed)) {
        let problem = "lies beneath no path that this server allows (storage.allowed_host_paths); use a named volume \
                       (pvc) or upload the files";
        return Err(Refusal::new(400, code::HOST_PATH_NOT_ALLOWED, field, problem));
    }
    Ok(Source::Host { path })
}

fn claim(
    field: &str,
    asked: NamedVolume,
    read_only: bool,
    runtime: &Capabilities,
    rules: &VolumeRules,
    leased: bool,
) -> Result<Claim, Refusal> {
    if leased {
        return Err(Refusal::unsupported(field, "named volumes outlive sandboxes: they need a server (`osb server`)"));
    }
    if !runtime.volumes.named {
        let problem = format!("the runtime {} has no named volumes", runtime.runtime);
        return Err(Refusal::unsupported(field, problem));
    }
    if !volume::is_name(&asked.claim_name, MAX_CLAIM_BYTES) {
        return Err(wrong_claim_name(&format!("{field}.claimName")));
    }
    if asked.storage_class.is_some_and(|class| !class.is_empty()) {
        let problem = "there are no storage classes here; leave it out";
        return Err(Refusal::unsupported(format!("{field}.storageClass"), problem));
    }
    for mode in asked.access_modes.unwrap_or_default() {
        let is_kept = KEPT_ACCESS_MODES.contains(&mode.as_str()) || (mode == READ_ONLY_MODE && read_only);
        if !is_kept {
            let problem = "must be ReadWriteOnce, ReadWriteMany or, with readOnly, ReadOnlyMany";
            return Err(Refusal::unsupported(format!("{field}.accessModes"), problem));
        }
    }
    let create = asked.create_if_not_exists.unwrap_or(true);
    let bytes = asked.storage.map(|text| size(&format!("{field}.storage"), &text, runtime)).transpose()?;
    let default_bytes = match bytes {
        None if create => enforceable(field, rules.default_bytes, runtime)?,
        _ => None,
    };
    let delete_at_end = asked.delete_on_sandbox_termination.unwrap_or(false);
    Ok(Claim { name: asked.claim_name, create, delete_at_end, bytes, default_bytes })
}

fn wrong_claim_name(field: &str) -> Refusal {
    let problem = format!("must be 1 to {MAX_CLAIM_BYTES} of a-z, 0-9 and \"-\", without \"-\" at the ends");
    Refusal::new(400, code::INVALID_PVC_NAME, field, problem)
}

fn size(field: &str, text: &str, runtime: &Capabilities) -> Result<u64, Refusal> {
    let bytes = quantity::storage(text)
        .ok_or_else(|| Refusal::bad(field, "must be a number with an optional unit Ki, Mi, Gi or Ti"))?;
    if !(volume::MIN_BYTES..=volume::MAX_BYTES).contains(&bytes) {
        let problem = format!("{bytes} bytes are outside {} to {}", volume::MIN_BYTES, volume::MAX_BYTES);
        return Err(Refusal::bad(field, problem));
    }
    enforceable(field, Some(bytes), runtime).map(|_| bytes)
}

/// A size limit, if it can be kept here.
fn enforceable(field: &str, bytes: Option<u64>, runtime: &Capabilities) -> Result<Option<u64>, Refusal> {
    if bytes.is_some() && runtime.volumes.size_limit == NO_LIMIT {
        let problem =
            "a size limit of a volume cannot be kept on this machine (it needs root and loop devices); leave it out";
        return Err(Refusal::unsupported(field, problem));
    }
    Ok(bytes)
}
