//! How images go.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use super::records::{Exclusive, Records};
use super::{Shared, Wanted};
use crate::digest::Digest;
use crate::registry::blocking;
use crate::{Error, LayerId, Pruned, Removed};

/// Time for which a layer that was asked for stays: from the answer to a create until its sandbox
/// is on record takes milliseconds; a minute also covers a machine that hangs.
pub(super) const RECENT_USE: Duration = Duration::from_secs(60);

pub(super) fn remove(records: &Records, wanted: &Wanted) -> Result<Removed, Error> {
    let exclusive = records.lock()?;
    let mut removed = Removed::default();
    let images: Vec<Digest> = match wanted {
        Wanted::Named(reference) => {
            let name = reference.to_string();
            let record = records.name(&name)?.ok_or_else(|| Error::NotLocal { reference: name.clone() })?;
            records.remove_name(&exclusive, &name)?;
            removed.references.push(name);
            record.targets.into_iter().map(|target| target.image).collect()
        }
        Wanted::Id(prefix) => {
            let matching: Vec<Digest> = records
                .images()?
                .into_iter()
                .map(|record| record.digest)
                .filter(|digest| digest.hex().starts_with(prefix))
                .collect();
            match &matching[..] {
                [] => {
                    return Err(Error::NotLocal { reference: format!("sha256:{prefix}") });
                }
                [_] => {}
                _ => {
                    return Err(Error::AmbiguousId { prefix: prefix.clone() });
                }
            }
            removed.references = take_names(records, &exclusive, &matching)?;
            matching
        }
    };
    let named = named_images(records)?;
    for image in images {
        if !named.contains(&image) {
            records.remove_image(&exclusive, &image)?;
            removed.image = Some(image.to_string());
        }
    }
    Ok(removed)
}

/// Takes the names of images away; gives those that mean nothing any more.
pub(super) fn take_names(records: &Records, exclusive: &Exclusive, images: &[Digest]) -> Result<Vec<String>, Error> {
    let mut gone = Vec::new();
    for mut name in records.names()? {
        let before = name.targets.len();
        name.targets.retain(|target| !images.contains(&target.image));
        if name.targets.is_empty() {
            records.remove_name(exclusive, &name.name)?;
            gone.push(name.name);
        } else if name.targets.len() < before {
            records.write_name(exclusive, &name)?;
        }
    }
    Ok(gone)
}

pub(super) async fn prune(shared: &Arc<Shared>, in_use: &BTreeSet<LayerId>) -> Result<Pruned, Error> {
    let at_work = shared.clone();
    let exclusive = blocking("lock the image store", move || at_work.records.lock()).await?;
    let records = &shared.records;
    let mut pruned = Pruned { bytes: records.remove_partials(Duration::ZERO)?, ..Pruned::default() };

    let named = named_images(records)?;
    let mut needed = records.held(&exclusive)?;
    needed.extend(in_use.iter().cloned());
    for image in records.images()? {
        if image.keeps_without_name || named.contains(&image.digest) {
            needed.extend(image.layers);
        } else {
            records.remove_image(&exclusive, &image.digest)?;
            pruned.images.push(image.digest.to_string());
        }
    }
    for record in records.layers()?.into_iter().filter(|record| !needed.contains(&record.layer)) {
        let idle = records.layer_idle(&record.layer)?;
        if idle.is_some_and(|idle| idle < RECENT_USE) {
            pruned.layers_kept += 1;
            continue;
        }
        // The record last: after a crash in between, the next prune finds the layer again.
        shared.unpacker.remove(&record.layer).await.map_err(|e| Error::unpack(&record.layer, e))?;
        records.remove_layer(&exclusive, &record.layer)?;
        pruned.bytes += record.bytes;
        pruned.layers.push(record.layer);
    }
    Ok(pruned)
}

fn named_images(records: &Records) -> Result<BTreeSet<Digest>, Error> {
    Ok(records.names()?.into_iter().flat_map(|name| name.targets).map(|target| target.image).collect())
}
