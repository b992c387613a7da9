//! OCI image layouts, as a directory or inside a tar.

use super::source::{Blob, Source};
use super::{Found, pick};
use crate::digest::Digest;
use crate::manifest::{Configuration, Descriptor, Document, Index, MAX_CONFIG_BYTES, MAX_MANIFEST_BYTES};
use crate::registry::verify;
use crate::{Error, Platform, Reference};

/// The file that says that a directory is a layout.
pub(super) const MARKER: &str = "oci-layout";
/// The file that lists the images.
const INDEX: &str = "index.json";
/// Levels of indexes before a manifest; real layouts have one or two.
const MAX_INDEXES: usize = 3;

pub(super) fn read(source: &Source, wanted: Option<&Reference>) -> Result<Found, Error> {
    let what = format!("{INDEX} of {}", source.path().display());
    let Document::Index(index) = Document::parse(&source.read(INDEX, MAX_MANIFEST_BYTES)?, &what)? else {
        return Err(Error::malformed(what, "it is not an index"));
    };
    let (names, index) = pick(by_name(index), wanted, &what)?;
    let platform = Platform::current();
    let mut index = index;
    for _ in 0..=MAX_INDEXES {
        let chosen = index.select(&platform, &source.path().display().to_string())?;
        let bytes = verified(source, &chosen.digest, MAX_MANIFEST_BYTES)?;
        match Document::parse(&bytes, &format!("manifest {}", chosen.digest))? {
            Document::Index(inner) => index = inner,
            Document::Manifest(manifest) => {
                let what = format!("configuration {}", manifest.config.digest);
                let config_bytes = verified(source, &manifest.config.digest, MAX_CONFIG_BYTES)?;
                let configuration = Configuration::parse(&config_bytes, &what)?;
                let layers = configuration
                    .pair(&manifest.layers, &what)?
                    .into_iter()
                    .map(|(descriptor, layer)| {
                        (layer, Blob { name: blob(&descriptor.digest), digest: Some(descriptor.digest.clone()) })
                    })
                    .collect();
                return Ok(Found {
                    configuration,
                    config_digest: manifest.config.digest,
                    config_bytes,
                    manifest_bytes: Some(bytes),
                    names,
                    layers,
                });
            }
        }
    }
    Err(Error::malformed(what, format!("it has more than {MAX_INDEXES} indexes in one another")))
}

/// Splits an index into one per name. Manifests of the same name, or of none, are platforms of one image.
fn by_name(index: Index) -> Vec<(Vec<Reference>, Index)> {
    let mut images: Vec<(Vec<Reference>, Vec<Descriptor>)> = Vec::new();
    for descriptor in index.manifests {
        let names = names(&descriptor);
        match images
            .iter_mut()
            .find(|(known, of_image)| *known == names || of_image.iter().any(|other| other.digest == descriptor.digest))
        {
            Some((known, of_image)) => {
                known.extend(names.into_iter().filter(|name| !known.contains(name)).collect::<Vec<_>>());
                if !of_image.iter().any(|other| other.digest == descriptor.digest) {
                    of_image.push(descriptor);
                }
            }
            None => images.push((names, vec![descriptor])),
        }
    }
    images.into_iter().map(|(names, manifests)| (names, Index { manifests })).collect()
}

/// The full name of a manifest. A bare tag, which some tools write, names nothing by itself.
fn names(descriptor: &Descriptor) -> Vec<Reference> {
    descriptor.names().filter(|name| name.contains(['/', ':'])).find_map(|name| name.parse().ok()).into_iter().collect()
}

fn blob(digest: &Digest) -> String {
    format!("blobs/sha256/{}", digest.hex())
}

fn verified(source: &Source, digest: &Digest, limit: u64) -> Result<Vec<u8>, Error> {
    let bytes = source.read(&blob(digest), limit)?;
    verify(&bytes, digest, "blob")?;
    Ok(bytes)
}
