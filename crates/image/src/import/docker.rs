//! What `docker save` writes.

use serde::Deserialize;

use super::source::{Blob, Source};
use super::{Found, pick};
use crate::digest::Digest;
use crate::manifest::{Configuration, MAX_CONFIG_BYTES, MAX_MANIFEST_BYTES};
use crate::{Error, Reference};

/// The member that lists the images.
pub(super) const MANIFEST: &str = "manifest.json";

#[derive(Deserialize)]
#[serde(rename_all = "PascalCase")]
struct Item {
    config: String,
    repo_tags: Option<Vec<String>>,
    layers: Vec<String>,
}

pub(super) fn read(source: &Source, wanted: Option<&Reference>) -> Result<Found, Error> {
    let what = format!("{MANIFEST} of {}", source.path().display());
    let items: Vec<Item> = serde_json::from_slice(&source.read(MANIFEST, MAX_MANIFEST_BYTES)?)
        .map_err(|e| Error::malformed(&what, e.to_string()))?;
    let mut images = Vec::new();
    for item in items {
        let names: Vec<Reference> = item.repo_tags.iter().flatten().map(|tag| tag.parse()).collect::<Result<_, _>>()?;
        images.push((names, item));
    }
    let (names, item) = pick(images, wanted, &what)?;
    let config_bytes = source.read(&item.config, MAX_CONFIG_BYTES)?;
    let configuration =
        Configuration::parse(&config_bytes, &format!("{} of {}", item.config, source.path().display()))?;
    if item.layers.len() != configuration.layers.len() {
        return Err(Error::malformed(
            &what,
            format!("it lists {} layers and the configuration {}", item.layers.len(), configuration.layers.len()),
        ));
    }
    let layers = configuration
        .layers
        .iter()
        .cloned()
        .zip(item.layers.into_iter().map(|name| Blob { name, digest: None }))
        .collect();
    Ok(Found {
        config_digest: Digest::of(&config_bytes),
        configuration,
        config_bytes,
        manifest_bytes: None,
        names,
        layers,
    })
}
