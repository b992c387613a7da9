//! A memory file in which secrets lie sealed, so that the next process finds what this one knew.
//!
//! Whoever starts egress processes makes the [`Memory`] once, holds it, and hands it to each of them: it outlives any one
//! of them, and is gone with the last who holds it. It is never on a disk, and worth nothing without its key.
//!
//! ```text
//!  slot 0                                    slot 1
//!  ┌───────┬──────────┬────────┬───────┬─────────────────────┐ ┌─ ...
//!  │ magic │ sequence │ length │ nonce │ sealed bytes │ tag  │ │
//!  └───────┴──────────┴────────┴───────┴─────────────────────┘ └─ ...
//! ```
//!
//! A change is written to the slot that is empty; then the other is emptied. Wherever a process is killed in that, a whole
//! slot is left, and the newest whole one is what counts: the state before the change or the one after it, and never parts
//! of both, since a slot that is not whole does not open. What was deleted is not there any more, sealed or not.

use std::fmt;
use std::fs::File;
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::fs::FileExt as _;

use aws_lc_rs::aead::{AES_256_GCM, Aad, NONCE_LEN, Nonce, RandomizedNonceKey};
use rustix::fs::{FallocateFlags, MemfdFlags};
use serde::{Deserialize, Serialize};
use zeroize::{Zeroize, ZeroizeOnDrop, Zeroizing};

/// Bytes of a key.
const KEY_BYTES: usize = 32;
/// Most bytes of everything that is kept: a thousand vaults at their limit would be sixteen times as much, and all of it is
/// written at each change.
pub const MAX_BYTES: usize = 64 * 1024 * 1024;
/// First bytes of a slot; another layout gets others.
const MAGIC: [u8; 8] = *b"osbseal1";
/// Magic, sequence and length, which the seal covers.
const COVERED_BYTES: usize = 24;
/// Those and the nonce.
const HEAD_BYTES: usize = COVERED_BYTES + NONCE_LEN;
/// Bytes of a tag of AES-GCM.
const TAG_BYTES: usize = 16;
/// From one slot to the next. What is not written takes no memory.
const SLOT_BYTES: u64 = (MAX_BYTES + 4096) as u64;

/// What opens a sealed memory file.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize, Zeroize, ZeroizeOnDrop)]
#[serde(transparent)]
pub struct Key([u8; KEY_BYTES]);

impl fmt::Debug for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Key(..)")
    }
}

impl Key {
    pub(crate) fn bytes(&self) -> &[u8; KEY_BYTES] {
        &self.0
    }
}

/// A memory file with its key.
#[derive(Debug)]
pub struct Memory {
    pub(crate) file: OwnedFd,
    pub(crate) key: Key,
    /// What the authorities of sandboxes follow from, if they are to outlive the memory.
    pub(crate) authorities: Option<Key>,
}

impl Memory {
    /// Makes an empty one.
    ///
    /// # Errors
    /// When there is no room for a descriptor, or the system gives no random bytes.
    pub fn new() -> io::Result<Self> {
        let mut key = Key([0; KEY_BYTES]);
        getrandom::fill(&mut key.0).map_err(|_| io::Error::other("the kernel gives no random bytes"))?;
        Ok(Self { file: rustix::fs::memfd_create("sealed", MemfdFlags::CLOEXEC)?, key, authorities: None })
    }

    /// With a secret of the machine from which the keys of authorities follow: they outlive the memory, and vaults can be
    /// filled again.
    #[must_use]
    pub fn for_authorities(self, secret: [u8; KEY_BYTES]) -> Self {
        Self { authorities: Some(Key(secret)), ..self }
    }

    /// From what another process holds.
    pub(crate) fn from_parts(file: OwnedFd, key: Key, authorities: Option<Key>) -> Self {
        Self { file, key, authorities }
    }
}

/// Bytes that leave no copy behind: when they need more room, and when they go, what they were is overwritten.
#[derive(Default)]
pub struct Secret(Zeroizing<Vec<u8>>);

impl Secret {
    /// An empty one with room for so many bytes.
    pub fn with_capacity(bytes: usize) -> Self {
        Self(Zeroizing::new(Vec::with_capacity(bytes)))
    }

    /// The bytes.
    pub fn bytes(&self) -> &[u8] {
        &self.0
    }

    /// Reads exactly so many bytes of a file from its beginning.
    ///
    /// # Errors
    /// When there are fewer.
    pub fn read(file: &File, length: usize) -> io::Result<Self> {
        let mut bytes = Zeroizing::new(vec![0; length]);
        file.read_exact_at(&mut bytes, 0)?;
        Ok(Self(bytes))
    }
}

impl io::Write for Secret {
    fn write(&mut self, more: &[u8]) -> io::Result<usize> {
        let needed = self.0.len() + more.len();
        if needed > self.0.capacity() {
            let mut larger = Zeroizing::new(Vec::with_capacity(needed.max(2 * self.0.capacity())));
            larger.extend_from_slice(&self.0);
            self.0 = larger;
        }
        self.0.extend_from_slice(more);
        Ok(more.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Secret({} bytes)", self.0.len())
    }
}

/// An open sealed memory file; one process at a time has it.
pub struct Sealed {
    file: File,
    key: RandomizedNonceKey,
    /// Of the slot in force; 0 before anything was written.
    sequence: u64,
}

impl fmt::Debug for Sealed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Sealed").field("sequence", &self.sequence).finish_non_exhaustive()
    }
}

/// Which slot a state is written to.
fn slot(sequence: u64) -> u64 {
    sequence % 2
}

impl Sealed {
    /// Opens the file, and what was written to it last.
    ///
    /// # Errors
    /// When the file cannot be read.
    pub fn open(memory: Memory) -> io::Result<(Self, Option<Secret>)> {
        let key = RandomizedNonceKey::new(&AES_256_GCM, &memory.key.0).map_err(|_| io::Error::other("a bad key"))?;
        let mut sealed = Self { file: File::from(memory.file), key, sequence: 0 };
        let mut newest = None;
        for at in [0, 1] {
            if let Some((sequence, state)) = sealed.read(at)?
                && sequence > sealed.sequence
            {
                sealed.sequence = sequence;
                newest = Some(state);
            }
        }
        // The one before was killed before it came to this.
        sealed.empty(slot(sealed.sequence + 1))?;
        Ok((sealed, newest))
    }

    /// Writes a state in place of the one before. The state before stays in force when this fails.
    ///
    /// # Errors
    /// When it is larger than [`MAX_BYTES`], or there is no memory.
    pub fn write(&mut self, mut state: Secret) -> io::Result<()> {
        if state.0.len() > MAX_BYTES {
            return Err(io::Error::new(io::ErrorKind::FileTooLarge, "more secrets than are kept"));
        }
        let sequence = self.sequence + 1;
        let written = self.write_slot(sequence, &mut state.0);
        if written.is_err() {
            // What was left of it does not open; this only gives the memory back.
            let _ = self.empty(slot(sequence));
            return written;
        }
        self.sequence = sequence;
        // The newer slot counts from here on, so a failure changes nothing that is asked for.
        if let Err(error) = self.empty(slot(sequence + 1)) {
            tracing::error!(%error, "an old state of the secrets stays in memory, sealed");
        }
        Ok(())
    }

    fn write_slot(&self, sequence: u64, state: &mut [u8]) -> io::Result<()> {
        let length = state.len() as u64;
        let covered: [u8; COVERED_BYTES] = covered(sequence, length);
        let (nonce, tag) = self
            .key
            .seal_in_place_separate_tag(Aad::from(&covered), state)
            .map_err(|_| io::Error::other("the secrets cannot be sealed"))?;
        let at = slot(sequence) * SLOT_BYTES;
        let behind = HEAD_BYTES as u64;
        self.file.write_all_at(tag.as_ref(), at + behind + length)?;
        self.file.write_all_at(state, at + behind)?;
        self.file.write_all_at(&[&covered[..], nonce.as_ref()].concat(), at)
    }

    /// The state of a slot, if it is whole.
    fn read(&self, at: u64) -> io::Result<Option<(u64, Secret)>> {
        let start = at * SLOT_BYTES;
        let mut head = [0; HEAD_BYTES];
        match self.file.read_exact_at(&mut head, start) {
            Ok(()) => {}
            Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => return Ok(None),
            Err(error) => return Err(error),
        }
        let number = |from: usize| u64::from_le_bytes(head[from..from + 8].try_into().expect("eight bytes"));
        let (sequence, length) = (number(8), number(16));
        let is_possible = head[..8] == MAGIC && slot(sequence) == at && length <= MAX_BYTES as u64;
        if !is_possible {
            return Ok(None);
        }
        let mut sealed = Zeroizing::new(vec![0; usize::try_from(length).map_err(io::Error::other)? + TAG_BYTES]);
        match self.file.read_exact_at(&mut sealed, start + HEAD_BYTES as u64) {
            Ok(()) => {}
            Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => return Ok(None),
            Err(error) => return Err(error),
        }
        let nonce = Nonce::try_assume_unique_for_key(&head[COVERED_BYTES..]).expect("its length is right");
        let Ok(opened) = self.key.open_in_place(nonce, Aad::from(&head[..COVERED_BYTES]), &mut sealed) else {
            tracing::warn!(slot = at, "a sealed state does not open: its writer was killed, or the key is another");
            return Ok(None);
        };
        let length = opened.len();
        sealed.truncate(length);
        Ok(Some((sequence, Secret(sealed))))
    }

    /// Gives a slot's memory back, with all that is in it.
    fn empty(&self, at: u64) -> io::Result<()> {
        let flags = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
        Ok(rustix::fs::fallocate(&self.file, flags, at * SLOT_BYTES, SLOT_BYTES)?)
    }
}

fn covered(sequence: u64, length: u64) -> [u8; COVERED_BYTES] {
    let mut bytes = [0; COVERED_BYTES];
    bytes[..8].copy_from_slice(&MAGIC);
    bytes[8..16].copy_from_slice(&sequence.to_le_bytes());
    bytes[16..].copy_from_slice(&length.to_le_bytes());
    bytes
}

#[cfg(test)]
mod tests;
