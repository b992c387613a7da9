//! What a sandbox wrote over its image, copied into a layer.
//!
//! The copy reads what hostile programs wrote. It goes from descriptor to descriptor, beneath the two directories that it
//! was given, and follows no link. Nothing here freezes, forks or names a layer: that is [`crate::jailer`]'s.
//!
//! A tree has one text ([`tree`]), and its SHA-256 names the layer. The text of the source is summed up while it is copied;
//! later the layer is read back from the disk, and both sums must be equal before anybody hears of the snapshot.

mod attribute;
mod leave_out;
mod records;
mod text;
mod tree;

#[cfg(test)]
mod tests;

pub(crate) use leave_out::{LeaveOut, note_platform_files};
pub(crate) use records::Records;
pub(crate) use tree::{Counts, Source, copy, read_back};
