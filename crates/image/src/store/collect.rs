//! Which images go because nobody has used them for long, or because there are too many.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use super::prune::{self, RECENT_USE};
use super::records::{ImageRecord, Records};
use super::{Shared, blocking};
use crate::digest::Digest;
use crate::{Bounds, Error, LayerId, Pruned};

/// Takes away what goes beyond the bounds, and then what nobody needs.
///
/// Names and records go first, under the lock; layers go as in every prune, which looks again at what is needed by then.
pub(super) async fn collect(shared: &Arc<Shared>, in_use: &BTreeSet<LayerId>, bounds: Bounds) -> Result<Pruned, Error> {
    let (at_work, used) = (shared.clone(), in_use.clone());
    let gone = blocking("collect images", move || {
        let records = &at_work.records;
        let exclusive = records.lock()?;
        let mut used = used;
        used.extend(records.held(&exclusive)?);
        let gone = choose(records, &used, bounds)?;
        prune::take_names(records, &exclusive, &gone)?;
        gone.iter().try_for_each(|image| records.remove_image(&exclusive, image))?;
        Ok(gone)
    })
    .await?;
    let mut pruned = prune::prune(shared, in_use).await?;
    pruned.images.extend(gone.iter().map(ToString::to_string));
    Ok(pruned)
}

/// The images to take away.
fn choose(records: &Records, used: &BTreeSet<LayerId>, bounds: Bounds) -> Result<Vec<Digest>, Error> {
    let sizes: BTreeMap<LayerId, u64> =
        records.layers()?.into_iter().map(|record| (record.layer, record.bytes)).collect();
    let mut stay = records.images()?;
    // Those that may go, unused for longest first.
    let mut idle: Vec<(Duration, Digest)> = Vec::new();
    for image in &stay {
        if may_go(image, used)
            && let Some(since) = idle_for(records, image)?
        {
            idle.push((since, image.digest.clone()));
        }
    }
    idle.sort_by_key(|(since, _)| std::cmp::Reverse(*since));
    let mut gone = Vec::new();
    for (since, image) in idle {
        let is_old = bounds.unused_for.is_some_and(|limit| since >= limit);
        let is_too_much = || bounds.max_bytes.is_some_and(|most| bytes_of(&stay, used, &sizes) > most);
        if is_old || is_too_much() {
            stay.retain(|other| other.digest != image);
            gone.push(image);
        }
    }
    Ok(gone)
}

/// Whether an image can be had again and nothing runs on it.
fn may_go(image: &ImageRecord, used: &BTreeSet<LayerId>) -> bool {
    image.is_fetched && !image.layers.iter().all(|layer| used.contains(layer))
}

/// How long nobody has asked for an image; `None` if that was just now, or it is not known. A layer that it shares may
/// have been asked for with another image, so the one that waits longest counts.
fn idle_for(records: &Records, image: &ImageRecord) -> Result<Option<Duration>, Error> {
    let mut longest = None;
    for layer in &image.layers {
        longest = longest.max(records.layer_idle(layer)?);
    }
    Ok(longest.filter(|idle| *idle >= RECENT_USE))
}

/// Bytes of all layers that would still be needed.
fn bytes_of(images: &[ImageRecord], used: &BTreeSet<LayerId>, sizes: &BTreeMap<LayerId, u64>) -> u64 {
    let needed: BTreeSet<&LayerId> = images.iter().flat_map(|image| &image.layers).chain(used).collect();
    needed.iter().filter_map(|layer| sizes.get(*layer)).sum()
}
