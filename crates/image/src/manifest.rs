//! Manifests, indexes and configurations: the few fields that matter, in OCI's and Docker's dialects.

use serde::Deserialize;

use crate::digest::Digest;
use crate::{Error, ImageConfig, LayerId, Platform};

/// Largest manifest or index, in bytes; registries refuse larger ones.
pub(crate) const MAX_MANIFEST_BYTES: u64 = 4 << 20;
/// Largest configuration, in bytes. Its history makes it large; real ones stay under a hundredth of this.
pub(crate) const MAX_CONFIG_BYTES: u64 = 8 << 20;
/// Most layers of one image. Docker stops at 127; overlayfs at 500.
pub(crate) const MAX_LAYERS: usize = 256;
/// Largest compressed layer, in bytes; unpacked ones are bounded again.
pub(crate) const MAX_LAYER_BYTES: u64 = 40 << 30;

/// Largest compressed image, in bytes: what one name may make a server fetch.
pub(crate) const MAX_IMAGE_BYTES: u64 = 64 << 30;

/// Media types that are asked for.
pub(crate) const ACCEPT: &str = "application/vnd.oci.image.index.v1+json, application/vnd.oci.image.manifest.v1+json, \
     application/vnd.docker.distribution.manifest.list.v2+json, application/vnd.docker.distribution.manifest.v2+json";

/// Name of an image in an OCI layout, as `skopeo` and `docker save` write it.
const REF_NAME: &str = "org.opencontainers.image.ref.name";
/// Full name of an image in an OCI layout, as containerd and `docker save` write it.
const CONTAINERD_NAME: &str = "io.containerd.image.name";

/// Points at a blob.
#[derive(Debug, Clone, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Descriptor {
    #[serde(default)]
    pub(crate) media_type: String,
    pub(crate) digest: Digest,
    pub(crate) size: u64,
    platform: Option<RawPlatform>,
    #[serde(default)]
    annotations: std::collections::BTreeMap<String, String>,
}

impl Descriptor {
    /// Names that an OCI layout gives to what is pointed at, best first.
    pub(crate) fn names(&self) -> impl Iterator<Item = &str> {
        [CONTAINERD_NAME, REF_NAME].into_iter().filter_map(|key| self.annotations.get(key)).map(String::as_str)
    }

    fn platform(&self) -> Option<Platform> {
        self.platform
            .as_ref()
            // Signatures and attestations hide in indexes as platform unknown/unknown.
            .filter(|p| p.os != "unknown" && p.architecture != "unknown")
            .map(|p| Platform::new(&p.os, &p.architecture, p.variant.as_deref()))
    }
}

#[derive(Debug, Clone, Deserialize)]
struct RawPlatform {
    #[serde(default)]
    os: String,
    #[serde(default)]
    architecture: String,
    variant: Option<String>,
}

/// One image: its configuration and its layers.
#[derive(Debug, Clone, Deserialize)]
pub(crate) struct Manifest {
    pub(crate) config: Descriptor,
    pub(crate) layers: Vec<Descriptor>,
}

/// One image per platform.
#[derive(Debug, Clone, Deserialize)]
pub(crate) struct Index {
    pub(crate) manifests: Vec<Descriptor>,
}

/// What a manifest's bytes turned out to be.
#[derive(Debug, Clone)]
pub(crate) enum Document {
    Manifest(Manifest),
    Index(Index),
}

impl Document {
    /// Reads a manifest or an index; which one is told by its content, since some have no media type.
    pub(crate) fn parse(bytes: &[u8], what: &str) -> Result<Self, Error> {
        let malformed = |e: serde_json::Error| Error::malformed(what, e.to_string());
        let value: serde_json::Value = serde_json::from_slice(bytes).map_err(malformed)?;
        if value.get("schemaVersion") == Some(&1.into()) {
            return Err(Error::MediaType {
                what: what.to_owned(),
                found: "docker manifest schema 1".to_owned(),
                advice: "push the image again with a current tool",
            });
        }
        match (value.get("manifests").is_some(), value.get("layers").is_some()) {
            (true, false) => serde_json::from_value(value).map(Self::Index).map_err(malformed),
            (false, true) => {
                let manifest: Manifest = serde_json::from_value(value).map_err(malformed)?;
                manifest.verify(what)?;
                Ok(Self::Manifest(manifest))
            }
            // Two readers would see two images in it (CVE-2021-41190).
            (true, true) => Err(Error::malformed(what, "it is an index and a manifest at once")),
            (false, false) => Err(Error::malformed(what, "it is neither an index nor a manifest")),
        }
    }
}

impl Manifest {
    fn verify(&self, what: &str) -> Result<(), Error> {
        if !matches!(
            self.config.media_type.as_str(),
            "" | "application/vnd.oci.image.config.v1+json" | "application/vnd.docker.container.image.v1+json"
        ) {
            return Err(Error::MediaType {
                what: what.to_owned(),
                found: self.config.media_type.clone(),
                advice: "it is some other artifact, not a container image",
            });
        }
        if self.layers.len() > MAX_LAYERS {
            return Err(Error::malformed(what, format!("it has more than {MAX_LAYERS} layers")));
        }
        for layer in &self.layers {
            let is_tar = ["application/vnd.oci.image.layer.", "application/vnd.docker.image.rootfs."]
                .iter()
                .filter_map(|prefix| layer.media_type.strip_prefix(prefix))
                .any(|rest| !rest.contains("encrypted") && rest.contains("tar"));
            if !is_tar && !layer.media_type.is_empty() {
                return Err(Error::MediaType {
                    what: format!("layer {} of {what}", layer.digest),
                    found: layer.media_type.clone(),
                    advice: "layers are tars: bare, gzip or zstd",
                });
            }
            if layer.size > MAX_LAYER_BYTES {
                return Err(Error::TooLarge {
                    what: format!("layer {} of {what}", layer.digest),
                    limit_bytes: MAX_LAYER_BYTES,
                });
            }
        }
        // At most MAX_LAYERS sizes of at most MAX_LAYER_BYTES cannot overflow.
        if self.layers.iter().map(|layer| layer.size).sum::<u64>() > MAX_IMAGE_BYTES {
            return Err(Error::TooLarge { what: what.to_owned(), limit_bytes: MAX_IMAGE_BYTES });
        }
        Ok(())
    }
}

impl Index {
    /// The image for a platform.
    pub(crate) fn select(&self, wanted: &Platform, reference: &str) -> Result<&Descriptor, Error> {
        if let [only] = &self.manifests[..]
            && only.platform.is_none()
        {
            return Ok(only);
        }
        let matching = || self.manifests.iter().filter(|m| m.platform().is_some_and(|p| p.satisfies(wanted)));
        // Among variants, the plain one is what every machine of the architecture runs.
        let plain = matching().find(|m| m.platform().is_some_and(|p| p.variant.is_none()));
        plain.or_else(|| matching().next()).ok_or_else(|| Error::Platform {
            reference: reference.to_owned(),
            wanted: wanted.clone(),
            available: self.platforms(),
        })
    }

    fn platforms(&self) -> Vec<Platform> {
        let mut platforms: Vec<Platform> = self.manifests.iter().filter_map(Descriptor::platform).collect();
        platforms.sort();
        platforms.dedup();
        platforms
    }
}

/// A configuration, understood.
#[derive(Debug, Clone)]
pub(crate) struct Configuration {
    pub(crate) config: ImageConfig,
    pub(crate) layers: Vec<LayerId>,
    pub(crate) created_at: Option<String>,
}

#[derive(Deserialize)]
struct RawConfiguration {
    #[serde(flatten)]
    platform: RawPlatform,
    created: Option<String>,
    config: Option<RawProcess>,
    rootfs: RawRootfs,
}

#[derive(Deserialize, Default)]
#[serde(rename_all = "PascalCase", default)]
struct RawProcess {
    env: Option<Vec<String>>,
    working_dir: Option<String>,
    user: Option<String>,
    entrypoint: Option<Vec<String>>,
    cmd: Option<Vec<String>>,
    labels: Option<std::collections::BTreeMap<String, Option<String>>>,
    exposed_ports: Option<std::collections::BTreeMap<String, serde::de::IgnoredAny>>,
    stop_signal: Option<String>,
}

#[derive(Deserialize)]
struct RawRootfs {
    #[serde(default)]
    diff_ids: Vec<Digest>,
}

impl Configuration {
    pub(crate) fn parse(bytes: &[u8], what: &str) -> Result<Self, Error> {
        let raw: RawConfiguration = serde_json::from_slice(bytes).map_err(|e| Error::malformed(what, e.to_string()))?;
        if raw.rootfs.diff_ids.len() > MAX_LAYERS {
            return Err(Error::malformed(what, format!("it has more than {MAX_LAYERS} layers")));
        }
        let process = raw.config.unwrap_or_default();
        let text = |text: Option<String>| text.filter(|text| !text.is_empty());
        let pair = |entry: String| match entry.split_once('=') {
            Some((name, value)) => (name.to_owned(), value.to_owned()),
            None => (entry, String::new()),
        };
        let config = ImageConfig {
            platform: Platform::new(
                if raw.platform.os.is_empty() { "linux" } else { &raw.platform.os },
                &if raw.platform.architecture.is_empty() {
                    Platform::current().architecture
                } else {
                    raw.platform.architecture
                },
                raw.platform.variant.as_deref(),
            ),
            env: process.env.unwrap_or_default().into_iter().map(pair).collect(),
            working_dir: text(process.working_dir),
            user: text(process.user),
            entrypoint: process.entrypoint.unwrap_or_default(),
            cmd: process.cmd.unwrap_or_default(),
            labels: process.labels.unwrap_or_default().into_iter().map(|(k, v)| (k, v.unwrap_or_default())).collect(),
            exposed_ports: process.exposed_ports.unwrap_or_default().into_keys().collect(),
            stop_signal: text(process.stop_signal),
        };
        let layers = raw.rootfs.diff_ids.iter().map(|digest| digest.layer_id().clone()).collect();
        Ok(Self { config, layers, created_at: text(raw.created) })
    }

    /// Pairs a manifest's layers with their diff ids.
    pub(crate) fn pair<'m>(
        &self,
        layers: &'m [Descriptor],
        what: &str,
    ) -> Result<Vec<(&'m Descriptor, LayerId)>, Error> {
        if layers.len() != self.layers.len() {
            let reason =
                format!("the manifest has {} layers and the configuration {}", layers.len(), self.layers.len());
            return Err(Error::malformed(what, reason));
        }
        Ok(layers.iter().zip(self.layers.iter().cloned()).collect())
    }
}
