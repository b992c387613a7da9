//! From a registry into the store.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::sync::{Arc, Mutex, PoisonError};

use futures_util::{StreamExt, TryStreamExt};
use tokio::sync::watch;

use super::records::{Exclusive, ImageRecord, LayerRecord, NameRecord, Target};
use super::{Admission, Shared, image};
use crate::digest::{Digest, HashingReader};
use crate::manifest::{Configuration, Descriptor, Document, MAX_CONFIG_BYTES, Manifest};
use crate::registry::{Partial, Session, blocking, verify};
use crate::unpack::{Compression, Limits, MAGIC_BYTES, UnpackError};
use crate::{Error, Image, LayerId, Platform, Progress, Reference, Stage};

/// Layers of one image that are fetched at a time; what Docker does, and kind to registries.
const LAYERS_AT_ONCE: usize = 3;
/// Levels of indexes before a manifest; real images have one.
const MAX_INDEXES: usize = 3;

/// One pull of one name for one account.
pub(super) struct Pull<'a> {
    pub(super) shared: &'a Arc<Shared>,
    pub(super) name: &'a Reference,
    pub(super) session: &'a Session,
    pub(super) platform: Option<Platform>,
    pub(super) grant: Option<String>,
    pub(super) report: Arc<watch::Sender<Progress>>,
}

impl Pull<'_> {
    pub(super) async fn run(self) -> Result<Image, Error> {
        let what = format!("manifest of {}", self.name);
        let (manifest, bytes) = self.manifest(&what).await?;
        let config_bytes = self.session.small_blob(&manifest.config.digest, MAX_CONFIG_BYTES).await?;
        let configuration = Configuration::parse(&config_bytes, &format!("configuration of {}", self.name))?;
        self.verify_platform(&configuration.config.platform)?;
        let layers = configuration.pair(&manifest.layers, &what)?;

        // From here on a prune leaves these layers alone.
        let _hold = self.shared.clone().hold(configuration.layers.clone()).await?;
        let tracker = Tracker::new(self.report.clone(), layers.iter().map(|(descriptor, _)| descriptor.size));
        let fetches: Vec<_> = layers
            .iter()
            .enumerate()
            .map(|(index, (descriptor, layer))| self.fetch(index, descriptor, layer, &tracker))
            .collect();
        futures_util::stream::iter(fetches).buffer_unordered(LAYERS_AT_ONCE).try_collect::<()>().await?;

        let image = self
            .shared
            .clone()
            .record_image(Outcome {
                configuration,
                config_digest: manifest.config.digest.clone(),
                config_bytes,
                manifest_bytes: Some(bytes),
                names: vec![self.name.clone()],
                admission: self.admission(),
                is_fetched: true,
            })
            .await?;
        tracker.done();
        Ok(image)
    }

    fn admission(&self) -> Admission {
        Admission { public: self.grant.is_none(), grant: self.grant.clone() }
    }

    /// Follows indexes to the manifest for the platform.
    async fn manifest(&self, what: &str) -> Result<(Manifest, Vec<u8>), Error> {
        let mut bytes = self.session.manifest(&self.name.version()).await?;
        if let Some(pinned) = self.name.digest() {
            verify(&bytes, pinned, "manifest")?;
        }
        let platform = self.platform.clone().unwrap_or_else(Platform::current);
        for _ in 0..=MAX_INDEXES {
            match Document::parse(&bytes, what)? {
                Document::Manifest(manifest) => return Ok((manifest, bytes)),
                Document::Index(index) => {
                    let chosen = index.select(&platform, &self.name.to_string())?;
                    bytes = self.session.manifest(&chosen.digest.to_string()).await?;
                    verify(&bytes, &chosen.digest, "manifest")?;
                }
            }
        }
        Err(Error::malformed(what, format!("it has more than {MAX_INDEXES} indexes in one another")))
    }

    fn verify_platform(&self, has: &Platform) -> Result<(), Error> {
        match &self.platform {
            Some(wanted) if !has.satisfies(wanted) => Err(Error::Platform {
                reference: self.name.to_string(),
                wanted: wanted.clone(),
                available: vec![has.clone()],
            }),
            _ => Ok(()),
        }
    }

    async fn fetch(
        &self,
        index: usize,
        descriptor: &Descriptor,
        layer: &LayerId,
        tracker: &Tracker,
    ) -> Result<(), Error> {
        let lock = self.shared.layer_lock(layer);
        let _one_at_a_time = lock.lock().await;
        if !self.have(layer).await? {
            let path = self.shared.records.partial_path(&descriptor.digest, self.grant.as_deref());
            let mut partial = Partial::open(&path).await?;
            self.bring(index, descriptor, layer, &mut partial, tracker).await?;
            partial.remove()?;
        }
        tracker.layer_done(index, descriptor.size);
        Ok(())
    }

    async fn bring(
        &self,
        index: usize,
        descriptor: &Descriptor,
        layer: &LayerId,
        partial: &mut Partial,
        tracker: &Tracker,
    ) -> Result<(), Error> {
        // Another process may have brought it while this one waited for the file.
        if self.have(layer).await? {
            return Ok(());
        }
        let at = |bytes| tracker.bytes(index, bytes);
        self.session.download(&descriptor.digest, descriptor.size, partial, &at).await?;
        let added = self.shared.clone().add_layer(layer.clone(), partial.reader()?, self.admission()).await;
        if added.is_err() {
            // Refused content is not worth keeping, and a full disk has no room for it.
            partial.restart()?;
        }
        added
    }

    /// Whether the layer is here and this account may have it.
    ///
    /// A manifest that names a layer does not prove that its author has the content, so a layer
    /// that came with somebody's credentials is fetched again, and only then shared.
    async fn have(&self, layer: &LayerId) -> Result<bool, Error> {
        let (wanted, grant) = (layer.clone(), self.grant.clone());
        let allowed = self
            .shared
            .clone()
            .with(move |shared| {
                Ok(shared.records.layer(&wanted)?.is_some_and(|record| record.allows(grant.as_deref())))
            })
            .await?;
        Ok(allowed && self.shared.unpacker.has(layer).await.map_err(|e| Error::unpack(layer, e))?)
    }
}

/// Everything about an image whose layers are in the store.
pub(crate) struct Outcome {
    pub(crate) configuration: Configuration,
    pub(crate) config_digest: Digest,
    pub(crate) config_bytes: Vec<u8>,
    pub(crate) manifest_bytes: Option<Vec<u8>>,
    pub(crate) names: Vec<Reference>,
    pub(crate) admission: Admission,
    pub(crate) is_fetched: bool,
}

impl Shared {
    /// Keeps layers from a prune for as long as the result lives.
    pub(crate) async fn hold(self: Arc<Self>, layers: Vec<LayerId>) -> Result<impl Sized + use<>, Error> {
        self.with(move |shared| {
            let exclusive = shared.records.lock()?;
            shared.records.hold(&exclusive, &layers)
        })
        .await
    }

    /// Whether a layer is here for everybody.
    pub(crate) async fn has_public_layer(self: Arc<Self>, layer: LayerId) -> Result<bool, Error> {
        let wanted = layer.clone();
        let public = self
            .clone()
            .with(move |shared| Ok(shared.records.layer(&wanted)?.is_some_and(|record| record.public)))
            .await?;
        Ok(public && self.unpacker.has(&layer).await.map_err(|e| Error::unpack(&layer, e))?)
    }

    /// Unpacks a layer from a verified blob, or, where it is here already, verifies that the blob is that layer.
    pub(crate) async fn add_layer(
        self: Arc<Self>,
        layer: LayerId,
        blob: File,
        admission: Admission,
    ) -> Result<(), Error> {
        // On record before it exists, so that a prune finds it after a crash.
        self.clone().note_layer(layer.clone(), None, None).await?;
        match self.place_layer(&layer, blob).await {
            Ok(bytes) => self.note_layer(layer, bytes, Some(admission)).await,
            Err(error) => {
                if let Err(failure) = self.forget_layer(layer.clone()).await {
                    tracing::warn!(layer = %layer, error = %failure, "record of a refused layer stays");
                }
                Err(error)
            }
        }
    }

    /// Makes the layer exist; gives its bytes when it did not before.
    async fn place_layer(&self, layer: &LayerId, blob: File) -> Result<Option<u64>, Error> {
        let failed = |e: UnpackError| Error::unpack(layer, e);
        let compression = detect(&blob).map_err(failed)?;
        if self.unpacker.has(layer).await.map_err(failed)? {
            let expected = layer.clone();
            let verify = move || verify_diff_id(blob, compression, &expected).map_err(|e| Error::unpack(&expected, e));
            return blocking("verify a layer", verify).await.map(|()| None);
        }
        let stats = self.unpacker.unpack(blob, layer, compression).await.map_err(failed)?;
        if stats.dropped_attributes + stats.dropped_devices + stats.remapped_owners > 0 {
            tracing::info!(
                layer = %layer,
                dropped_attributes = stats.dropped_attributes,
                dropped_devices = stats.dropped_devices,
                remapped_owners = stats.remapped_owners,
                "layer was made inert in parts"
            );
        }
        Ok(Some(stats.bytes))
    }

    /// Takes back the record of a layer that did not come to be.
    async fn forget_layer(self: Arc<Self>, layer: LayerId) -> Result<(), Error> {
        let there = self.unpacker.has(&layer).await.map_err(|e| Error::unpack(&layer, e))?;
        self.with(move |shared| {
            let exclusive = shared.records.lock()?;
            match shared.records.layer(&layer)? {
                Some(record) if !there && !record.public && record.grants.is_empty() => {
                    shared.records.remove_layer(&exclusive, &layer)
                }
                _ => Ok(()),
            }
        })
        .await
    }

    async fn note_layer(
        self: Arc<Self>,
        layer: LayerId,
        bytes: Option<u64>,
        admission: Option<Admission>,
    ) -> Result<(), Error> {
        self.with(move |shared| {
            let exclusive = shared.records.lock()?;
            let mut record = shared.records.layer(&layer)?.unwrap_or_else(|| LayerRecord {
                layer: layer.clone(),
                bytes: 0,
                public: false,
                grants: Default::default(),
            });
            record.bytes = bytes.unwrap_or(record.bytes);
            if let Some(admission) = admission {
                record.public |= admission.public;
                record.grants.extend(admission.grant);
            }
            shared.records.write_layer(&exclusive, &record)
        })
        .await
    }

    /// Records an image and its names; from then on it is found.
    pub(crate) async fn record_image(self: Arc<Self>, outcome: Outcome) -> Result<Image, Error> {
        self.with(move |shared| {
            let records = &shared.records;
            let exclusive = records.lock()?;
            records.write_blob(&outcome.config_digest, &outcome.config_bytes)?;
            if let Some(manifest) = &outcome.manifest_bytes {
                records.write_blob(&Digest::of(manifest), manifest)?;
            }
            let mut size_bytes = 0;
            for layer in &outcome.configuration.layers {
                size_bytes += records.layer(layer)?.map_or(0, |record| record.bytes);
            }
            let known = records.image(&outcome.config_digest)?;
            let record = ImageRecord {
                digest: outcome.config_digest.clone(),
                layers: outcome.configuration.layers,
                config: outcome.configuration.config,
                size_bytes,
                created_at: outcome.configuration.created_at,
                pulled_at: jiff::Timestamp::now(),
                keeps_without_name: outcome.names.is_empty()
                    || known.as_ref().is_some_and(|known| known.keeps_without_name),
                // What was imported once may have no registry that still has it.
                is_fetched: outcome.is_fetched && known.is_none_or(|known| known.is_fetched),
            };
            records.write_image(&exclusive, &record)?;
            for name in &outcome.names {
                shared.point(&exclusive, name, &record, &outcome.admission)?;
            }
            Ok(image(record, &records.names()?))
        })
        .await
    }

    /// Makes a name mean an image on the image's platform.
    fn point(
        &self,
        exclusive: &Exclusive,
        name: &Reference,
        image: &ImageRecord,
        admission: &Admission,
    ) -> Result<(), Error> {
        let name = name.to_string();
        let mut record = self.records.name(&name)?.unwrap_or(NameRecord { name, targets: Vec::new() });
        let mut target = Target {
            platform: image.config.platform.clone(),
            image: image.digest.clone(),
            public: admission.public,
            grants: admission.grant.iter().cloned().collect(),
        };
        record.targets.retain(|old| {
            let same_image = old.image == target.image;
            if same_image {
                target.public |= old.public;
                target.grants.extend(old.grants.iter().cloned());
            }
            !same_image && old.platform != target.platform
        });
        record.targets.insert(0, target);
        self.records.write_name(exclusive, &record)
    }
}

fn detect(blob: &File) -> Result<Compression, UnpackError> {
    let mut first = [0; MAGIC_BYTES];
    let read = blob.read_at(&mut first, 0).map_err(UnpackError::read)?;
    Ok(Compression::detect(&first[..read]))
}

fn verify_diff_id(blob: File, compression: Compression, expected: &LayerId) -> Result<(), UnpackError> {
    let decoded = compression.reader(blob).map_err(UnpackError::read)?;
    let bounded = crate::unpack::Bounded::new(decoded, Limits::default().stream_bytes);
    let mut hashing = HashingReader::new(bounded);
    std::io::copy(&mut hashing, &mut std::io::sink()).map_err(UnpackError::read)?;
    let found = hashing.finish();
    match found.layer_id() == expected {
        true => Ok(()),
        false => Err(UnpackError::DiffId { expected: expected.clone(), found: found.layer_id().clone() }),
    }
}

/// Adds up the progress of layers that are fetched at the same time.
struct Tracker {
    report: Arc<watch::Sender<Progress>>,
    state: Mutex<State>,
}

struct State {
    layer_bytes: Vec<u64>,
    progress: Progress,
}

impl Tracker {
    fn new(report: Arc<watch::Sender<Progress>>, sizes: impl ExactSizeIterator<Item = u64>) -> Self {
        let layers = sizes.len();
        let progress = Progress {
            stage: Stage::Downloading,
            total_bytes: sizes.sum(),
            layers_total: u32::try_from(layers).unwrap_or(u32::MAX),
            ..Progress::default()
        };
        report.send_replace(progress);
        Self { report, state: Mutex::new(State { layer_bytes: vec![0; layers], progress }) }
    }

    fn bytes(&self, index: usize, bytes: u64) {
        self.update(|state| state.layer_bytes[index] = bytes);
    }

    fn layer_done(&self, index: usize, bytes: u64) {
        self.update(|state| {
            state.layer_bytes[index] = bytes;
            state.progress.layers_done += 1;
        });
    }

    fn done(&self) {
        self.update(|state| state.progress.stage = Stage::Done);
    }

    fn update(&self, change: impl FnOnce(&mut State)) {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        change(&mut state);
        state.progress.done_bytes = state.layer_bytes.iter().sum();
        if state.progress.stage == Stage::Downloading && state.progress.done_bytes >= state.progress.total_bytes {
            state.progress.stage = Stage::Unpacking;
        }
        self.report.send_replace(state.progress);
    }
}
