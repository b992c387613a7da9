//! A streaming tar writer: ustar, with PAX records for what does not fit.

use std::io::{self, Write};

use crate::read::Kind;
use crate::{BLOCK_BYTES, Block};

/// Longest name that fits the fixed header.
const NAME_BYTES: usize = 100;
/// Digits of the small numbers of a header, the mode and the owners.
const SMALL_DIGITS: usize = 7;
/// Digits of size and time.
const LARGE_DIGITS: usize = 11;

/// What a header says.
#[derive(Debug, Clone, Copy)]
pub struct Head<'a> {
    /// Relative; a directory's ends with a slash.
    pub name: &'a [u8],
    /// Target of a link, else empty.
    pub link: &'a [u8],
    /// A file, directory or link; fifos too.
    pub kind: Kind,
    /// Permission bits.
    pub mode: u32,
    /// Owner.
    pub uid: u32,
    /// Group.
    pub gid: u32,
    /// Seconds since 1970.
    pub mtime: i64,
    /// Bytes of data that follow; 0 for all but files.
    pub size: u64,
}

/// Writes entries one after the other.
pub struct Writer<W> {
    out: W,
    left: u64,
    padding: usize,
}

impl<W: Write> Writer<W> {
    /// Begins an archive.
    pub fn new(out: W) -> Self {
        Self { out, left: 0, padding: 0 }
    }

    /// Begins an entry. The data of the one before must be complete.
    ///
    /// # Errors
    /// The data is not complete, the kind is one that is not written, or the stream breaks.
    pub fn begin(&mut self, head: &Head<'_>) -> io::Result<()> {
        self.end_data()?;
        let flag = match head.kind {
            Kind::File => b'0',
            Kind::HardLink => b'1',
            Kind::Symlink => b'2',
            Kind::Directory => b'5',
            Kind::Fifo => b'6',
            Kind::CharacterDevice { .. } | Kind::BlockDevice => {
                return Err(io::Error::new(io::ErrorKind::Unsupported, "devices are not written"));
            }
        };
        let records = records(head);
        if !records.is_empty() {
            let extended = Head { link: b"", mtime: 0, size: records.len() as u64, name: b"PaxHeaders/entry", ..*head };
            self.out.write_all(&header(&extended, b'x'))?;
            self.out.write_all(&records)?;
            self.out.write_all(&[0; BLOCK_BYTES][..padding(records.len() as u64)])?;
        }
        self.out.write_all(&header(head, flag))?;
        self.left = head.size;
        self.padding = padding(head.size);
        Ok(())
    }

    /// Adds data to the current entry.
    ///
    /// # Errors
    /// It is more than the header said, or the stream breaks.
    pub fn data(&mut self, piece: &[u8]) -> io::Result<()> {
        let left = self.left.checked_sub(piece.len() as u64);
        self.left = left.ok_or_else(|| io::Error::new(io::ErrorKind::InvalidInput, "more data than was announced"))?;
        self.out.write_all(piece)
    }

    /// Ends the archive.
    ///
    /// # Errors
    /// The last entry is not complete, or the stream breaks.
    pub fn finish(mut self) -> io::Result<W> {
        self.end_data()?;
        self.out.write_all(&[0; 2 * BLOCK_BYTES])?;
        self.out.flush()?;
        Ok(self.out)
    }

    fn end_data(&mut self) -> io::Result<()> {
        if self.left > 0 {
            return Err(io::Error::new(io::ErrorKind::InvalidInput, "less data than was announced"));
        }
        let padding = std::mem::take(&mut self.padding);
        self.out.write_all(&[0; BLOCK_BYTES][..padding])
    }
}

fn padding(bytes: u64) -> usize {
    (bytes.wrapping_neg() % BLOCK_BYTES as u64) as usize
}

/// PAX records for everything that the fixed header cannot say.
fn records(head: &Head<'_>) -> Vec<u8> {
    let mut records = Vec::new();
    if head.name.len() > NAME_BYTES {
        record(&mut records, "path", head.name);
    }
    if head.link.len() > NAME_BYTES {
        record(&mut records, "linkpath", head.link);
    }
    for (key, value, digits) in [
        ("size", head.size, LARGE_DIGITS),
        ("uid", u64::from(head.uid), SMALL_DIGITS),
        ("gid", u64::from(head.gid), SMALL_DIGITS),
    ] {
        if value >= 1 << (3 * digits) {
            record(&mut records, key, value.to_string().as_bytes());
        }
    }
    if !(0..1 << (3 * LARGE_DIGITS)).contains(&head.mtime) {
        record(&mut records, "mtime", head.mtime.to_string().as_bytes());
    }
    records
}

/// `length key=value\n`; the length counts itself.
fn record(records: &mut Vec<u8>, key: &str, value: &[u8]) {
    let rest = 1 + key.len() + 1 + value.len() + 1;
    let mut length = rest;
    while length != rest + length.to_string().len() {
        length = rest + length.to_string().len();
    }
    records.extend_from_slice(format!("{length} {key}=").as_bytes());
    records.extend_from_slice(value);
    records.push(b'\n');
}

fn header(head: &Head<'_>, flag: u8) -> Block {
    let mut block = [0; BLOCK_BYTES];
    let cut = |text: &'_ [u8]| text.len().min(NAME_BYTES);
    block[..cut(head.name)].copy_from_slice(&head.name[..cut(head.name)]);
    octal(&mut block[100..107], u64::from(head.mode & 0o7777));
    octal(&mut block[108..115], u64::from(head.uid));
    octal(&mut block[116..123], u64::from(head.gid));
    octal(&mut block[124..135], head.size);
    octal(&mut block[136..147], u64::try_from(head.mtime).unwrap_or(0));
    block[148..156].fill(b' ');
    block[156] = flag;
    block[157..157 + cut(head.link)].copy_from_slice(&head.link[..cut(head.link)]);
    block[257..265].copy_from_slice(b"ustar\x0000");
    let sum: u64 = block.iter().map(|byte| u64::from(*byte)).sum();
    octal(&mut block[148..154], sum);
    block[154] = 0;
    block
}

/// Octal digits to the width of the field; what does not fit is said by a record instead.
fn octal(field: &mut [u8], mut value: u64) {
    for digit in field.iter_mut().rev() {
        *digit = b'0' + (value & 7) as u8;
        value >>= 3;
    }
}

#[cfg(test)]
mod tests {
    use super::{Head, Writer};
    use crate::read::{Archive, Kind};
    use crate::{Limits, read::Entry};

    fn head(name: &[u8]) -> Head<'_> {
        Head { name, link: b"", kind: Kind::File, mode: 0o640, uid: 1000, gid: 100, mtime: 1_700_000_000, size: 0 }
    }

    #[track_caller]
    fn read_back(head: &Head<'_>) -> Entry {
        let mut writer = Writer::new(Vec::new());
        writer.begin(head).expect("an entry");
        writer.data(&vec![b'x'; head.size as usize]).expect("its data");
        let written = writer.finish().expect("an archive");
        assert_eq!(written.len() % super::BLOCK_BYTES, 0);
        // The reader that everybody else uses takes it too.
        let mut other = tar::Archive::new(written.as_slice());
        let theirs = other.entries().expect("entries").next().expect("one").expect("a good one");
        assert_eq!(&*theirs.path_bytes(), head.name);
        assert_eq!(theirs.size(), head.size);
        let mut ours = Archive::new(written.as_slice(), Limits::default());
        let entry = ours.next_entry().expect("a good one").expect("one");
        assert!(ours.next_entry().expect("no more").is_none() && ours.ended_by_marker());
        entry
    }

    #[test]
    fn what_is_written_is_read_back() {
        let long = [b'a'; 300];
        for name in [b"a".as_slice(), b"a/b c/\xff", &long[..100], &long[..101], &long] {
            let entry = read_back(&Head { size: 1000, ..head(name) });
            assert_eq!((entry.name.as_slice(), entry.mode, entry.uid, entry.gid), (name, 0o640, 1000, 100));
            assert_eq!((entry.mtime, entry.size), ((1_700_000_000, 0), 1000));
        }
        let link = read_back(&Head { kind: Kind::Symlink, link: &long, ..head(b"l") });
        assert_eq!((link.kind, link.link.as_slice()), (Kind::Symlink, long.as_slice()));
        let far = read_back(&Head { uid: 4_000_000_000, gid: 2_097_152, mtime: -5, ..head(b"f") });
        assert_eq!((far.uid, far.gid, far.mtime), (4_000_000_000, 2_097_152, (-5, 0)));
    }

    #[test]
    fn data_that_is_not_what_was_announced_is_refused() {
        let mut writer = Writer::new(Vec::new());
        writer.begin(&Head { size: 3, ..head(b"a") }).expect("an entry");
        assert!(writer.data(b"four").is_err());
        writer.data(b"tw").expect("two");
        assert!(writer.begin(&head(b"b")).is_err());
        assert!(writer.finish().is_err());
    }
}
