//! Layers on disk, handled by a short-lived child of the jailer and never by the server.
//!
//! A blob is hostile input. The child that reads it has no network, no capability but those that files need, and by
//! Landlock no file but the directory of layers.

use std::fs::File;
use std::os::fd::OwnedFd;

use image::LayerId;
use image::layers::Area;
use image::unpack::{Compression, Limits, Ownership, UnpackError, unpack_layer};
use landlock::{
    ABI, Access, AccessFs, CompatLevel, Compatible, PathBeneath, PathFd, Ruleset, RulesetAttr, RulesetCreatedAttr,
};
use rustix::thread::{CapabilitySet, CapabilitySets, set_capabilities, set_no_new_privs};

use super::{Jail, Mode};
use crate::error::{Context, Failure, Kind, Result};
use crate::sys;
use crate::wire::Reply;

/// What making files with owners and modes needs.
const UNPACKERS: CapabilitySet = CapabilitySet::CHOWN
    .union(CapabilitySet::DAC_OVERRIDE)
    .union(CapabilitySet::FOWNER)
    .union(CapabilitySet::FSETID)
    .union(CapabilitySet::SETFCAP);

/// Where names that nobody can guess come from.
const RANDOM_SOURCES: &[&str] = &["/dev/urandom", "/dev/random"];

/// Unpacks a blob into the layer that it must hash to.
pub fn unpack(jail: &Jail, layer: &str, compression: Compression, blob: OwnedFd) -> Result<Reply> {
    let layer = parse(layer)?;
    let area = open(jail)?;
    confine(jail, None)?;
    let ownership = match jail.mode {
        Mode::Root => Ownership::Keep,
        Mode::User => Ownership::Current,
    };
    let work = || {
        // Also when the layer is there: the blob must prove to be that layer before anybody may use it as such.
        let draft = area.begin()?;
        let stats = unpack_layer(File::from(blob), compression, draft.root(), &layer, ownership, &Limits::default())?;
        draft.commit(&layer, &stats)?;
        Ok(stats)
    };
    Ok(work().map_or_else(Reply::UnpackFailed, |stats| Reply::Unpacked { stats }))
}

/// Whether a layer is there.
pub fn has(jail: &Jail, layer: &str) -> Result<Reply> {
    let layer = parse(layer)?;
    Ok(answer(open(jail)?.has(&layer).map(|present| Reply::Has { present })))
}

/// Removes a layer. One that a sandbox stands on stays readable there until that sandbox ends.
pub fn remove(jail: &Jail, layer: &str) -> Result<Reply> {
    let layer = parse(layer)?;
    Ok(answer(open(jail)?.remove(&layer).map(|()| Reply::Done)))
}

/// Makes the layer that the host image stands on.
pub fn host(jail: &Jail) -> Result<Reply> {
    let made = image::host::build_skeleton(&jail.paths.layers());
    let made = made.map_err(|error| Failure::new(Kind::Image, format!("make the host image: {error}")))?;
    Ok(Reply::Host {
        layer: made.layer.as_str().to_owned(),
        env: made.config.env,
        working_dir: made.config.working_dir,
    })
}

/// Removes what killed workers left half made; those that live are left alone.
pub fn sweep(root: &std::path::Path) -> Result<()> {
    let swept = Area::open(root).and_then(|area| area.sweep());
    swept.map(|_| ()).map_err(|error| Failure::internal(format!("sweep the layers: {error}")))
}

fn answer(result: std::result::Result<Reply, UnpackError>) -> Reply {
    result.unwrap_or_else(Reply::UnpackFailed)
}

fn parse(layer: &str) -> Result<LayerId> {
    layer.parse().map_err(|error| Failure::new(Kind::Refused, format!("layer {layer}: {error}")))
}

pub(super) fn open(jail: &Jail) -> Result<Area> {
    Area::open(&jail.paths.layers()).map_err(|error| Failure::internal(format!("open the layers: {error}")))
}

/// Gives up everything that making a layer does not need. `source` is a directory that may be read, too.
pub(super) fn confine(jail: &Jail, source: Option<&OwnedFd>) -> Result<()> {
    if jail.mode == Mode::Root {
        sys::unshare_network_namespace().op("leave the network")?;
    }
    set_no_new_privs(true).op("set no_new_privs")?;
    let abi = ABI::V3;
    let layers =
        PathFd::new(jail.paths.layers()).map_err(|error| Failure::internal(format!("open the layers: {error}")))?;
    let mut random = Vec::new();
    for path in RANDOM_SOURCES {
        random.extend(PathFd::new(path).ok().map(|fd| PathBeneath::new(fd, AccessFs::ReadFile)));
    }
    let source = source.map(|source| source.try_clone().map(|fd| PathBeneath::new(fd, AccessFs::from_read(abi))));
    let source = source.transpose().op("keep the directory to read")?;
    // Best effort by the library's meaning: a kernel without Landlock still has the other walls.
    let restricted = Ruleset::default()
        .set_compatibility(CompatLevel::BestEffort)
        .handle_access(AccessFs::from_all(abi))
        .and_then(Ruleset::create)
        .and_then(|rules| rules.add_rule(PathBeneath::new(layers, AccessFs::from_all(abi))))
        .and_then(|rules| source.into_iter().try_fold(rules, |rules, rule| rules.add_rule(rule)))
        .and_then(|rules| random.into_iter().try_fold(rules, |rules, rule| rules.add_rule(rule)))
        .and_then(landlock::RulesetCreated::restrict_self);
    restricted.map_err(|error| Failure::internal(format!("confine the unpacking: {error}")))?;
    if jail.mode == Mode::Root {
        let sets = CapabilitySets { effective: UNPACKERS, permitted: UNPACKERS, inheritable: CapabilitySet::empty() };
        set_capabilities(None, sets).op("drop capabilities")?;
    }
    Ok(())
}
