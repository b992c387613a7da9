//! The local store of images: names, images, layers, and how they come and go.
//!
//! Many processes may use one store. Nothing here is kept in memory but work under way, so that
//! what another process pulled is seen at once. Records change only under a lock; see [`records`].

mod collect;
mod flight;
mod prune;
mod pull;
mod records;
#[cfg(test)]
mod tests;

use std::collections::{BTreeSet, HashMap};
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use secrecy::ExposeSecret;

use crate::registry::{Session, blocking};
use crate::{
    Bounds, Credentials, Error, Image, LayerId, Platform, Progress, Pruned, Reference, Removed, Stage, Unpack,
};
use flight::Flights;
pub(crate) use pull::Outcome;
use records::{ImageRecord, NameRecord, Records};

/// Age at which an unfinished download is not worth continuing.
const PARTIAL_LIFETIME: Duration = Duration::from_secs(24 * 3600);
/// Fewest digits of an id that stand for the whole.
const MIN_ID_DIGITS: usize = 12;

/// The local store of images. A clone is another handle on the same store.
#[derive(Clone)]
pub struct Store {
    shared: Arc<Shared>,
}

pub(crate) struct Shared {
    records: Records,
    unpacker: Arc<dyn Unpack>,
    flights: Flights<FlightKey, Image>,
    /// One lock per layer being fetched, so that two images with a common base fetch it once.
    layers: Mutex<HashMap<LayerId, std::sync::Weak<tokio::sync::Mutex<()>>>>,
}

/// Who asks for what; equal keys share one download.
type FlightKey = (String, Option<Platform>, Option<String>, Vec<String>);

/// How an image is asked for.
#[derive(Debug, Clone, Default)]
pub struct EnsureOptions {
    /// Account for the image's registry.
    pub credentials: Option<Credentials>,
    /// The platform it must be for. Without one: what the store has, else this machine's.
    pub platform: Option<Platform>,
    /// Registries, as `host` or `host:port`, that speak plain HTTP. Loopback always does.
    pub plain_http_hosts: Vec<String>,
}

/// What a person typed.
enum Wanted {
    Named(Reference),
    /// The first digits of an id.
    Id(String),
}

impl Wanted {
    fn parse(text: &str) -> Result<Self, Error> {
        match text.strip_prefix("sha256:") {
            Some(digits)
                if digits.len() >= MIN_ID_DIGITS
                    && digits.len() <= 64
                    && digits.bytes().all(|b| b.is_ascii_hexdigit()) =>
            {
                Ok(Self::Id(digits.to_ascii_lowercase()))
            }
            Some(_) => Err(Error::Reference {
                reference: text.chars().take(MIN_ID_DIGITS).collect(),
                reason: "an image id is sha256: and 12 to 64 hexadecimal digits",
            }),
            None => text.parse().map(Self::Named),
        }
    }
}

impl Store {
    /// Opens the store in `root`, making it when it is missing, and clears what killed processes left.
    ///
    /// # Errors
    /// The directory cannot be made, read or written.
    pub async fn open(root: &Path, unpacker: Arc<dyn Unpack>) -> Result<Self, Error> {
        let root = root.to_owned();
        let records = blocking("open the image store", move || {
            let records = Records::open(&root)?;
            records.remove_partials(PARTIAL_LIFETIME)?;
            Ok(records)
        })
        .await?;
        let shared = Shared { records, unpacker, flights: Flights::new(), layers: Mutex::default() };
        Ok(Self { shared: Arc::new(shared) })
    }

    /// Finds an image that is wholly here, by name or id; asks no registry and checks no grant.
    ///
    /// # Errors
    /// The name is not valid, or the store cannot be read.
    pub async fn resolve(&self, reference: &str) -> Result<Option<Image>, Error> {
        let wanted = Wanted::parse(reference)?;
        let found = self.with(move |shared| shared.find(&wanted, None, Access::Everything)).await?;
        self.shared.complete(found).await
    }

    /// Gives an image: the local one where there is one, else its registry's.
    ///
    /// An image that came with credentials is local only for those whose credentials its registry
    /// accepted before. Equal calls at the same time share one download; a call that is dropped
    /// ends the download only when nobody else waits for it.
    ///
    /// # Errors
    /// There is no such image, the registry refused or failed, a layer was refused, or the disk is full.
    pub async fn ensure(
        &self,
        reference: &str,
        options: EnsureOptions,
        progress: &(dyn Fn(Progress) + Send + Sync),
    ) -> Result<Image, Error> {
        let wanted = Wanted::parse(reference)?;
        let grant = self.shared.grant(&wanted, options.credentials.as_ref());
        let platform = options.platform.clone();
        let found = self.with(move |shared| shared.find(&wanted, platform.as_ref(), Access::Granted(grant))).await?;
        if let Some(image) = self.shared.complete(found).await? {
            let layers = image.layers.clone();
            self.with(move |shared| layers.iter().try_for_each(|layer| shared.records.touch_layer(layer))).await?;
            let count = u32::try_from(image.layers.len()).unwrap_or(u32::MAX);
            progress(Progress { stage: Stage::Done, layers_done: count, layers_total: count, ..Progress::default() });
            return Ok(image);
        }
        let wanted = options.platform.clone();
        match (self.pull(reference, options, progress).await, wanted) {
            (Err(error), Some(platform)) => Err(self.explain_platform(reference, platform, error).await?),
            (outcome, _) => outcome,
        }
    }

    /// Where only the platform kept a local image from being used, and no registry has another, that is the cause.
    async fn explain_platform(&self, reference: &str, wanted: Platform, error: Error) -> Result<Error, Error> {
        if !matches!(error, Error::NotFound { .. } | Error::Unreachable { .. } | Error::Unauthorized { .. }) {
            return Ok(error);
        }
        let name = reference.parse::<Reference>()?.to_string();
        let looked_up = name.clone();
        let record = self.with(move |shared| shared.records.name(&looked_up)).await?;
        let available: Vec<Platform> = record
            .into_iter()
            .flat_map(|record| record.targets)
            .filter(|target| target.public)
            .map(|target| target.platform)
            .collect();
        match available.iter().any(|platform| !platform.satisfies(&wanted)) {
            true => Ok(Error::Platform { reference: name, wanted, available }),
            false => Ok(error),
        }
    }

    /// Gives an image after asking its registry what the name means now.
    ///
    /// # Errors
    /// As [`Store::ensure`]; also for an id, which no registry can be asked for.
    pub async fn pull(
        &self,
        reference: &str,
        options: EnsureOptions,
        progress: &(dyn Fn(Progress) + Send + Sync),
    ) -> Result<Image, Error> {
        let wanted = Wanted::parse(reference)?;
        let grant = self.shared.grant(&wanted, options.credentials.as_ref());
        let Wanted::Named(name) = wanted else {
            return Err(Error::NotLocal { reference: reference.to_owned() });
        };
        let key = (name.to_string(), options.platform.clone(), grant.clone(), options.plain_http_hosts.clone());
        let shared = self.shared.clone();
        let begin = move |report| -> crate::unpack::BoxFuture<'static, Result<Image, Error>> {
            Box::pin(async move {
                let session = Session::new(&name, options.credentials.as_ref(), &options.plain_http_hosts)?;
                pull::Pull {
                    shared: &shared,
                    name: &name,
                    session: &session,
                    platform: options.platform,
                    grant,
                    report,
                }
                .run()
                .await
            })
        };
        self.shared.flights.join(key, begin, progress).await
    }

    /// Takes an image from a file or directory: a root file system archive, an OCI layout or a docker archive.
    ///
    /// Archives may be bare, gzip or zstd. Without `name` the image has the names that it brings;
    /// a root file system brings none and is then known by its id.
    ///
    /// # Errors
    /// The source is of no known kind, damaged or refused, holds several images, or the disk is full.
    pub async fn import(
        &self,
        source: &Path,
        name: Option<&str>,
        progress: &(dyn Fn(Progress) + Send + Sync),
    ) -> Result<Image, Error> {
        let name = name.map(str::parse::<Reference>).transpose()?;
        crate::import::import(&self.shared, source, name.as_ref(), progress).await
    }

    /// All images, with their names, by their first name.
    ///
    /// # Errors
    /// The store cannot be read.
    pub async fn list(&self) -> Result<Vec<Image>, Error> {
        self.with(|shared| {
            let names = shared.records.names()?;
            let mut images: Vec<Image> =
                shared.records.images()?.into_iter().map(|record| image(record, &names)).collect();
            images.sort_by(|a, b| {
                (a.references.is_empty(), &a.references, &a.id).cmp(&(b.references.is_empty(), &b.references, &b.id))
            });
            Ok(images)
        })
        .await
    }

    /// Takes a name away, and its image with the last name; by id, the image with all its names.
    ///
    /// Sandboxes that run on it go on: layers go with [`Store::prune`].
    ///
    /// # Errors
    /// There is no such image, or the store cannot be written.
    pub async fn remove(&self, reference: &str) -> Result<Removed, Error> {
        let wanted = Wanted::parse(reference)?;
        self.with(move |shared| prune::remove(&shared.records, &wanted)).await
    }

    /// Takes away layers that no image and no sandbox needs, images that lost their last name, and
    /// unfinished downloads.
    ///
    /// `in_use` are the layers of sandboxes, snapshots and pools. Layers asked for within the last
    /// minute stay, so that a create that has its image but no sandbox yet does not lose it.
    ///
    /// # Errors
    /// The store cannot be read or written, or a layer cannot be removed.
    pub async fn prune(&self, in_use: &BTreeSet<LayerId>) -> Result<Pruned, Error> {
        prune::prune(&self.shared, in_use).await
    }

    /// As [`Store::prune`], and takes images away that go beyond the bounds, with their names: only such as a registry gave,
    /// and never one that a sandbox stands on or that was asked for within the last minute.
    ///
    /// # Errors
    /// As [`Store::prune`].
    pub async fn collect(&self, in_use: &BTreeSet<LayerId>, bounds: Bounds) -> Result<Pruned, Error> {
        collect::collect(&self.shared, in_use, bounds).await
    }

    async fn with<T: Send + 'static>(
        &self,
        work: impl FnOnce(&Shared) -> Result<T, Error> + Send + 'static,
    ) -> Result<T, Error> {
        self.shared.clone().with(work).await
    }
}

/// Whether grants are looked at.
enum Access {
    /// The caller only looks.
    Everything,
    /// The caller wants to use it and has this account, or none.
    Granted(Option<String>),
}

impl Shared {
    pub(crate) async fn with<T: Send + 'static>(
        self: Arc<Self>,
        work: impl FnOnce(&Self) -> Result<T, Error> + Send + 'static,
    ) -> Result<T, Error> {
        blocking("use the image store", move || work(&self)).await
    }

    fn grant(&self, wanted: &Wanted, credentials: Option<&Credentials>) -> Option<String> {
        let credentials = credentials?;
        let repository = match wanted {
            Wanted::Named(name) => format!("{}/{}", name.registry(), name.repository()),
            Wanted::Id(_) => String::new(),
        };
        Some(self.records.grant(&repository, &credentials.username, credentials.password.expose_secret()))
    }

    /// Finds the record of an image that the caller may have.
    fn find(&self, wanted: &Wanted, platform: Option<&Platform>, access: Access) -> Result<Option<Image>, Error> {
        let allowed = |target: &records::Target| match &access {
            Access::Everything => true,
            Access::Granted(grant) => target.allows(grant.as_deref()),
        };
        let record = match wanted {
            Wanted::Named(reference) => {
                let Some(name) = self.records.name(&reference.to_string())? else {
                    return Ok(None);
                };
                let own = Platform::current();
                let fits = |target: &&records::Target| match platform {
                    Some(wanted) => target.platform.satisfies(wanted),
                    None => true,
                };
                let mut targets: Vec<_> = name.targets.iter().filter(|target| allowed(target)).filter(fits).collect();
                targets.sort_by_key(|target| !target.platform.satisfies(&own));
                match targets.first() {
                    Some(target) => self.records.image(&target.image)?,
                    None => None,
                }
            }
            Wanted::Id(prefix) => {
                let mut matching: Vec<ImageRecord> = self
                    .records
                    .images()?
                    .into_iter()
                    .filter(|record| record.digest.hex().starts_with(prefix))
                    .collect();
                if matching.len() > 1 {
                    return Err(Error::AmbiguousId { prefix: prefix.clone() });
                }
                let targets: Vec<_> = self.records.names()?.into_iter().flat_map(|name| name.targets).collect();
                matching.pop().filter(|record| {
                    record.keeps_without_name
                        || matches!(access, Access::Everything)
                        || targets.iter().any(|target| target.image == record.digest && allowed(target))
                })
            }
        };
        let names = self.records.names()?;
        Ok(record.map(|record| image(record, &names)))
    }

    /// The image, unless a layer of it has gone.
    async fn complete(&self, image: Option<Image>) -> Result<Option<Image>, Error> {
        let Some(image) = image else { return Ok(None) };
        for layer in &image.layers {
            if !self.unpacker.has(layer).await.map_err(|e| Error::unpack(layer, e))? {
                tracing::warn!(image = %image.id, layer = %layer, "layer of a known image is missing");
                return Ok(None);
            }
        }
        Ok(Some(image))
    }

    /// A path for a file that is being written; a crash leaves it to the next start.
    pub(crate) fn temporary_path(&self) -> Result<std::path::PathBuf, Error> {
        self.records.temporary_path()
    }

    fn layer_lock(&self, layer: &LayerId) -> Arc<tokio::sync::Mutex<()>> {
        let mut locks = self.layers.lock().unwrap_or_else(PoisonError::into_inner);
        locks.retain(|_, lock| lock.strong_count() > 0);
        match locks.get(layer).and_then(std::sync::Weak::upgrade) {
            Some(lock) => lock,
            None => {
                let lock = Arc::new(tokio::sync::Mutex::new(()));
                locks.insert(layer.clone(), Arc::downgrade(&lock));
                lock
            }
        }
    }
}

fn image(record: ImageRecord, names: &[NameRecord]) -> Image {
    let mut references: Vec<String> = names
        .iter()
        .filter(|name| name.targets.iter().any(|target| target.image == record.digest))
        .map(|name| name.name.clone())
        .collect();
    references.sort();
    Image {
        id: record.digest.to_string(),
        references,
        layers: record.layers,
        config: record.config,
        size_bytes: record.size_bytes,
        created_at: record.created_at,
        pulled_at: record.pulled_at,
    }
}

/// The digest of an image's configuration and the account under which it may be had.
pub(crate) struct Admission {
    pub(crate) public: bool,
    pub(crate) grant: Option<String>,
}

impl Admission {
    pub(crate) fn everybody() -> Self {
        Self { public: true, grant: None }
    }
}
