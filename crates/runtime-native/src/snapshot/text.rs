//! Where the text of a tree goes: into a sum, or into the sum and the hash.

use sha2::{Digest as _, Sha256};

/// Who takes the text in.
pub(super) trait Text {
    fn put(&mut self, bytes: &[u8]);
}

/// A sum that is quick enough to be made while a sandbox stands still.
pub(super) struct Sum(pub(super) crc32fast::Hasher);

impl Text for Sum {
    fn put(&mut self, bytes: &[u8]) {
        self.0.update(bytes);
    }
}

/// That sum, and the hash that names a layer.
pub(super) struct Both {
    pub(super) sum: crc32fast::Hasher,
    pub(super) hash: Sha256,
}

impl Text for Both {
    fn put(&mut self, bytes: &[u8]) {
        self.sum.update(bytes);
        self.hash.update(bytes);
    }
}
