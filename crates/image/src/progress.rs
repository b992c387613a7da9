//! How far a pull or an import has come.

use std::fmt;

/// What is being done.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub enum Stage {
    /// The name is looked up, here or in the registry.
    #[default]
    Resolving,
    /// Blobs arrive.
    Downloading,
    /// All blobs are here; layers are unpacked.
    Unpacking,
    /// The image is in the store.
    Done,
}

/// A point on the way from a name to an image in the store.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Progress {
    /// What is being done.
    pub stage: Stage,
    /// Compressed bytes that are here.
    pub done_bytes: u64,
    /// Compressed bytes in all; 0 while unknown.
    pub total_bytes: u64,
    /// Layers that are unpacked.
    pub layers_done: u32,
    /// Layers in all; 0 while unknown.
    pub layers_total: u32,
}

/// Bytes in a megabyte, as people count downloads.
const MEGABYTE: f64 = 1e6;

impl fmt::Display for Progress {
    /// One line for a person, without the image's name.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let megabytes = |bytes: u64| bytes as f64 / MEGABYTE;
        match self.stage {
            Stage::Resolving => f.write_str("looking up the image"),
            Stage::Downloading => write!(
                f,
                "downloading {:.1} of {:.1} MB, {} of {} layers unpacked",
                megabytes(self.done_bytes),
                megabytes(self.total_bytes),
                self.layers_done,
                self.layers_total
            ),
            Stage::Unpacking => write!(f, "unpacking, {} of {} layers done", self.layers_done, self.layers_total),
            Stage::Done => write!(f, "image ready, {} layers", self.layers_total),
        }
    }
}
