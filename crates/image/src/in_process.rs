//! Unpacking in the calling process.

use std::fs::File;
use std::path::Path;
use std::sync::Arc;

use crate::LayerId;
use crate::layers::Area;
use crate::unpack::{BoxFuture, Compression, LayerStats, Limits, Ownership, Unpack, UnpackError, unpack_layer};

/// Unpacks in this process, without confinement: for tests and tools, not for strangers' images.
#[derive(Debug, Clone)]
pub struct InProcess {
    area: Arc<Area>,
    ownership: Ownership,
    limits: Limits,
}

impl InProcess {
    /// Keeps layers in `root`; owners are kept when the process is root.
    ///
    /// # Errors
    /// The directory cannot be made or opened.
    pub fn open(root: &Path, limits: Limits) -> Result<Self, UnpackError> {
        let ownership = match rustix::process::geteuid().is_root() {
            true => Ownership::Keep,
            false => Ownership::Current,
        };
        Ok(Self { area: Arc::new(Area::open(root)?), ownership, limits })
    }

    /// The directory of the layers.
    pub fn area(&self) -> &Area {
        &self.area
    }

    async fn run<T: Send + 'static>(
        &self,
        work: impl FnOnce(&Self) -> Result<T, UnpackError> + Send + 'static,
    ) -> Result<T, UnpackError> {
        let this = self.clone();
        tokio::task::spawn_blocking(move || work(&this))
            .await
            .map_err(|e| UnpackError::Process { reason: e.to_string() })?
    }
}

impl Unpack for InProcess {
    fn unpack<'a>(
        &'a self,
        blob: File,
        layer: &'a LayerId,
        compression: Compression,
    ) -> BoxFuture<'a, Result<LayerStats, UnpackError>> {
        let layer = layer.clone();
        Box::pin(self.run(move |this| {
            let draft = this.area.begin()?;
            let stats = unpack_layer(blob, compression, draft.root(), &layer, this.ownership, &this.limits)?;
            draft.commit(&layer, &stats)?;
            Ok(stats)
        }))
    }

    fn has<'a>(&'a self, layer: &'a LayerId) -> BoxFuture<'a, Result<bool, UnpackError>> {
        let layer = layer.clone();
        Box::pin(self.run(move |this| this.area.has(&layer)))
    }

    fn remove<'a>(&'a self, layer: &'a LayerId) -> BoxFuture<'a, Result<(), UnpackError>> {
        let layer = layer.clone();
        Box::pin(self.run(move |this| this.area.remove(&layer)))
    }
}
