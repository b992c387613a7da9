//! Images from files: root file system archives, OCI layouts, docker archives.
//!
//! A file is read once to tell what it is and to hash it; nothing is believed because of its name.

mod docker;
mod layout;
mod rootfs;
mod scan;
mod source;

use std::path::Path;
use std::sync::Arc;

use crate::digest::Digest;
use crate::manifest::Configuration;
use crate::registry::blocking;
use crate::store::{Admission, Outcome, Shared};
use crate::{Error, Image, LayerId, Progress, Reference, Stage};
use scan::Scanned;
use source::{Blob, Source};

/// An image found in a source, its layers still there.
struct Found {
    configuration: Configuration,
    config_digest: Digest,
    config_bytes: Vec<u8>,
    manifest_bytes: Option<Vec<u8>>,
    names: Vec<Reference>,
    /// Where each layer's blob is, lowest first.
    layers: Vec<(LayerId, Blob)>,
}

pub(crate) async fn import(
    shared: &Arc<Shared>,
    path: &Path,
    name: Option<&Reference>,
    progress: &(dyn Fn(Progress) + Send + Sync),
) -> Result<Image, Error> {
    progress(Progress::default());
    let temporary = shared.temporary_path()?;
    let (path, wanted) = (path.to_owned(), name.cloned());
    let (source, found) = blocking("read the image", move || {
        let (source, found) = open(&path, &temporary, wanted.as_ref())?;
        Ok((Arc::new(source), found))
    })
    .await?;

    let _hold = shared.clone().hold(found.configuration.layers.clone()).await?;
    let mut at = Progress {
        stage: Stage::Unpacking,
        layers_total: u32::try_from(found.layers.len()).unwrap_or(u32::MAX),
        ..Progress::default()
    };
    progress(at);
    for (layer, blob) in found.layers {
        if !shared.clone().has_public_layer(layer.clone()).await? {
            let (source, temporary) = (source.clone(), shared.temporary_path()?);
            let file = blocking("read a layer", move || source.open(&blob, &temporary)).await?;
            shared.clone().add_layer(layer, file, Admission::everybody()).await?;
        }
        at.layers_done += 1;
        progress(at);
    }
    let image = shared
        .clone()
        .record_image(Outcome {
            configuration: found.configuration,
            config_digest: found.config_digest,
            config_bytes: found.config_bytes,
            manifest_bytes: found.manifest_bytes,
            names: match name {
                Some(name) => vec![name.clone()],
                None => found.names,
            },
            admission: Admission::everybody(),
            is_fetched: false,
        })
        .await?;
    progress(Progress { stage: Stage::Done, ..at });
    Ok(image)
}

/// Tells what the source is and reads everything but its layers.
fn open(path: &Path, temporary: &Path, wanted: Option<&Reference>) -> Result<(Source, Found), Error> {
    let is_directory = std::fs::metadata(path).map_err(|e| Error::io("look at", path, e))?.is_dir();
    if is_directory {
        if !path.join(layout::MARKER).exists() {
            return Err(Error::UnknownKind {
                path: path.to_owned(),
                reason: "it is a directory without the file oci-layout; pack a root file system with `tar -C DIRECTORY -cf FILE .` and import the file".to_owned(),
            });
        }
        let source = Source::directory(path)?;
        let found = layout::read(&source, wanted)?;
        return Ok((source, found));
    }
    let file = std::fs::File::open(path).map_err(|e| Error::io("open", path, e))?;
    match scan::scan(file, path)? {
        Scanned::RootFs(whole) => {
            let found = rootfs::describe(&whole);
            Ok((Source::whole(path, whole.file), found))
        }
        Scanned::Images(archive) => {
            let source = Source::archive(path, archive, temporary)?;
            let found = match source.has(docker::MANIFEST) {
                true => docker::read(&source, wanted)?,
                false => layout::read(&source, wanted)?,
            };
            Ok((source, found))
        }
    }
}

/// Picks one of several images by the name that is wanted.
fn pick<T>(
    images: Vec<(Vec<Reference>, T)>,
    wanted: Option<&Reference>,
    what: &str,
) -> Result<(Vec<Reference>, T), Error> {
    let names: Vec<String> = images.iter().flat_map(|(names, _)| names).map(Reference::to_string).collect();
    let mut images = images;
    if images.len() > 1 {
        images.retain(|(names, _)| wanted.is_some_and(|wanted| names.contains(wanted)));
    }
    match images.pop() {
        Some(image) if images.is_empty() => Ok(image),
        None if names.is_empty() => Err(Error::malformed(what, "it holds no image")),
        _ => Err(Error::SeveralImages { names }),
    }
}
