//! A streaming tar reader: ustar, GNU and PAX, in constant memory.
//!
//! Written here because the general reader keeps extended headers and sparse maps of any size in
//! memory and knows one of the four sparse forms. It knows names and numbers as the archive has
//! them; what they may be is decided where they are applied.

mod pax;
mod sparse;

use std::io::{self, Read};

use pax::Extended;
pub use sparse::Piece;

use crate::error::{Error, check};
use crate::{BLOCK_BYTES, Block, Limits};

/// Bytes skipped at a time.
const SKIP_BYTES: usize = 16 * 1024;

/// What an entry is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// A regular file.
    File,
    /// A directory.
    Directory,
    /// A symbolic link.
    Symlink,
    /// Another name of a file before it in the archive.
    HardLink,
    /// A named pipe.
    Fifo,
    /// A character device and its numbers.
    CharacterDevice {
        /// The driver.
        major: u64,
        /// The device.
        minor: u64,
    },
    /// A block device.
    BlockDevice,
}

/// One member of the archive, its extended headers applied.
#[derive(Debug, Clone)]
pub struct Entry {
    /// As the archive has it: nothing about it is checked.
    pub name: Vec<u8>,
    /// Target of a link, unchecked too.
    pub link: Vec<u8>,
    /// What it is.
    pub kind: Kind,
    /// Permission bits and those above them, twelve in all.
    pub mode: u32,
    /// Owner.
    pub uid: u64,
    /// Group.
    pub gid: u64,
    /// Seconds and nanoseconds since 1970.
    pub mtime: (i64, u32),
    /// Bytes of the file when applied, holes included.
    pub size: u64,
    /// Where the stored data belongs, when the file has holes.
    pub pieces: Option<Vec<Piece>>,
    /// Extended attributes.
    pub attributes: Vec<(Vec<u8>, Vec<u8>)>,
}

/// Reads entries one after the other.
pub struct Archive<R> {
    input: R,
    limits: Limits,
    position: u64,
    /// Data of the current entry that was not read yet.
    data_left: u64,
    /// Zeros after that data.
    padding: u64,
    ended_by_marker: bool,
}

impl<R: Read> Archive<R> {
    /// Begins to read.
    pub fn new(input: R, limits: Limits) -> Self {
        Self { input, limits, position: 0, data_left: 0, padding: 0, ended_by_marker: false }
    }

    /// Bytes of the archive before the next byte to be read; after `next_entry`, where the data begins.
    pub fn position(&self) -> u64 {
        self.position
    }

    /// Whether the archive had its end marker, so that nothing was cut off between two entries.
    pub fn ended_by_marker(&self) -> bool {
        self.ended_by_marker
    }

    /// The next entry; what was not read of the last one's data is passed over. `None` at the end.
    ///
    /// # Errors
    /// The archive is damaged or over a limit.
    pub fn next_entry(&mut self) -> Result<Option<Entry>, Error> {
        let mut extended = Extended::default();
        loop {
            self.skip_data()?;
            let Some(block) = self.header_block()? else {
                return match extended.is_empty() {
                    true => Ok(None),
                    false => Err(Error::malformed("it ends after an extended header")),
                };
            };
            let stored = number(&block[124..136])?;
            match block[156] {
                b'x' | b'X' => {
                    let bytes = self.header_data(stored, &mut extended)?;
                    extended.read(&bytes, &self.limits)?;
                }
                b'L' => extended.path = Some(self.long_name(stored, &mut extended)?),
                b'K' => extended.link = Some(self.long_name(stored, &mut extended)?),
                // Global headers carry a comment of `git archive`; volume labels name a tape.
                b'g' | b'V' => self.begin_data(stored),
                flag => return self.entry(&block, flag, stored, extended).map(Some),
            }
        }
    }

    /// Reads data of the current entry, as stored; 0 at its end.
    ///
    /// # Errors
    /// The archive ends first.
    pub fn read_data(&mut self, buffer: &mut [u8]) -> Result<usize, Error> {
        let want = buffer.len().min(usize::try_from(self.data_left).unwrap_or(usize::MAX));
        if want == 0 {
            return Ok(0);
        }
        let read = read_some(&mut self.input, &mut buffer[..want])?;
        if read == 0 {
            return Err(Error::malformed("it is cut off in the data of a file"));
        }
        self.position += read as u64;
        self.data_left -= read as u64;
        Ok(read)
    }

    /// Reads what follows the end marker: whoever sends or hashes the stream wants all of it read.
    ///
    /// # Errors
    /// The stream cannot be read.
    pub fn drain(&mut self) -> Result<(), Error> {
        let mut scratch = [0; SKIP_BYTES];
        loop {
            match read_some(&mut self.input, &mut scratch)? {
                0 => return Ok(()),
                read => self.position += read as u64,
            }
        }
    }

    fn entry(&mut self, block: &Block, flag: u8, stored: u64, mut extended: Extended) -> Result<Entry, Error> {
        let name = extended.take_path().unwrap_or_else(|| header_name(block));
        let kind = match flag {
            b'0' | 0 | b'7' | b'S' if name.ends_with(b"/") => Kind::Directory,
            b'0' | 0 | b'7' | b'S' => Kind::File,
            b'1' => Kind::HardLink,
            b'2' => Kind::Symlink,
            b'3' => Kind::CharacterDevice { major: number(&block[329..337])?, minor: number(&block[337..345])? },
            b'4' => Kind::BlockDevice,
            b'5' | b'D' => Kind::Directory,
            b'6' => Kind::Fifo,
            other => {
                return Err(Error::refused(&name, format!("its type {:?} is unknown", char::from(other))));
            }
        };
        let stored = extended.size.unwrap_or(stored);
        // Links, devices and directories have no data whatever their size says; the dump of a directory has.
        let has_data = kind == Kind::File || flag == b'D';
        if kind == Kind::Directory && matches!(flag, b'0' | 0 | b'7' | b'S') && stored != 0 {
            return Err(Error::refused(&name, "it is a file whose name ends with a slash"));
        }
        self.begin_data(if has_data { stored } else { 0 });
        let (size, pieces) = match kind {
            Kind::File => self.map(block, flag, stored, &mut extended)?,
            _ => (0, None),
        };
        Ok(Entry {
            name,
            kind,
            link: extended.link.unwrap_or_else(|| until_nul(&block[157..257]).to_vec()),
            mode: u32::try_from(number(&block[100..108])? & 0o7777).expect("masked to twelve bits"),
            uid: extended.uid.map_or_else(|| number(&block[108..116]), Ok)?,
            gid: extended.gid.map_or_else(|| number(&block[116..124]), Ok)?,
            mtime: match extended.mtime {
                Some(mtime) => mtime,
                None => (signed(&block[136..148])?, 0),
            },
            size,
            pieces,
            attributes: extended.attributes,
        })
    }

    /// The size of a file when applied, and the places of its pieces when it is sparse.
    fn map(
        &mut self,
        block: &Block,
        flag: u8,
        stored: u64,
        extended: &mut Extended,
    ) -> Result<(u64, Option<Vec<Piece>>), Error> {
        let limit = self.limits.sparse_pieces;
        let (size, pieces) = if flag == b'S' {
            let size = number(&block[483..495])?;
            let mut pieces = Vec::new();
            let mut more = sparse::read_old(&block[386..482], block[482], &mut pieces, limit)?;
            // The map's further blocks lie before the data and do not count as data.
            while more {
                let next = self.block()?.ok_or_else(|| Error::malformed("it is cut off in a sparse map"))?;
                more = sparse::read_old(&next[..504], next[504], &mut pieces, limit)?;
            }
            (size, pieces)
        } else if let Some(header) = extended.sparse.take() {
            let size = header.size.ok_or_else(|| Error::malformed("a sparse file has no size"))?;
            match header.map_is_in_data {
                true => (size, self.map_in_data(limit)?),
                false => (size, header.pieces),
            }
        } else {
            return Ok((stored, None));
        };
        sparse::check(&pieces, size, self.data_left)?;
        Ok((size, Some(pieces)))
    }

    /// Reads the map of the PAX 1.0 form: decimal lines at the beginning of the data, padded to a block.
    fn map_in_data(&mut self, limit: usize) -> Result<Vec<Piece>, Error> {
        let mut lines = sparse::Lines::new(limit);
        loop {
            if self.data_left < BLOCK_BYTES as u64 {
                return Err(Error::malformed("a sparse map is longer than its file"));
            }
            let block = self.block()?.ok_or_else(|| Error::malformed("it is cut off in a sparse map"))?;
            self.data_left -= BLOCK_BYTES as u64;
            if lines.read(&block)? {
                return Ok(lines.into_pieces());
            }
        }
    }

    fn begin_data(&mut self, stored: u64) {
        self.data_left = stored;
        self.padding = stored.wrapping_neg() % BLOCK_BYTES as u64;
    }

    fn skip_data(&mut self) -> Result<(), Error> {
        let mut scratch = [0; SKIP_BYTES];
        while self.read_data(&mut scratch)? > 0 {}
        self.data_left = std::mem::take(&mut self.padding);
        while self.read_data(&mut scratch)? > 0 {}
        Ok(())
    }

    /// The next header that is not the end of the archive.
    fn header_block(&mut self) -> Result<Option<Block>, Error> {
        let Some(block) = self.block()? else {
            return Ok(None);
        };
        if block == [0; BLOCK_BYTES] {
            return match self.block()? {
                Some(next) if next != [0; BLOCK_BYTES] => Err(Error::malformed("a header follows a block of zeros")),
                _ => {
                    self.ended_by_marker = true;
                    Ok(None)
                }
            };
        }
        verify_checksum(&block)?;
        Ok(Some(block))
    }

    fn block(&mut self) -> Result<Option<Block>, Error> {
        let mut block = [0; BLOCK_BYTES];
        let mut filled = 0;
        while filled < BLOCK_BYTES {
            match read_some(&mut self.input, &mut block[filled..])? {
                0 if filled == 0 => return Ok(None),
                0 => return Err(Error::malformed("it is cut off in a header")),
                read => filled += read,
            }
        }
        self.position += BLOCK_BYTES as u64;
        Ok(Some(block))
    }

    fn header_data(&mut self, stored: u64, extended: &mut Extended) -> Result<Vec<u8>, Error> {
        extended.bytes = extended.bytes.saturating_add(stored.max(1));
        check("bytes of extended headers for one entry", extended.bytes, self.limits.header_bytes)?;
        self.begin_data(stored);
        let mut bytes = vec![0; usize::try_from(stored).expect("checked against the limit of header bytes")];
        let mut filled = 0;
        while filled < bytes.len() {
            filled += self.read_data(&mut bytes[filled..])?;
        }
        Ok(bytes)
    }

    fn long_name(&mut self, stored: u64, extended: &mut Extended) -> Result<Vec<u8>, Error> {
        let bytes = self.header_data(stored, extended)?;
        Ok(until_nul(&bytes).to_vec())
    }
}

fn read_some(input: &mut impl Read, buffer: &mut [u8]) -> Result<usize, Error> {
    loop {
        match input.read(buffer) {
            Ok(read) => return Ok(read),
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(Error::Stream(error)),
        }
    }
}

fn until_nul(field: &[u8]) -> &[u8] {
    field.split(|b| *b == 0).next().unwrap_or_default()
}

fn header_name(block: &Block) -> Vec<u8> {
    let name = until_nul(&block[..100]);
    // The field of the prefix has times in GNU's form, whose magic ends with spaces.
    let prefix = match &block[257..263] == b"ustar\0" {
        true => until_nul(&block[345..500]),
        false => b"",
    };
    match prefix {
        b"" => name.to_vec(),
        prefix => [prefix, b"/", name].concat(),
    }
}

/// Old programs summed signed characters; both sums are in use.
fn verify_checksum(block: &Block) -> Result<(), Error> {
    let counted = || block.iter().enumerate().map(|(at, byte)| if (148..156).contains(&at) { b' ' } else { *byte });
    let unsigned: i64 = counted().map(i64::from).sum();
    let signed_sum: i64 = counted().map(|byte| i64::from(byte.cast_signed())).sum();
    let written = signed(&block[148..156])?;
    match written == unsigned || written == signed_sum {
        true => Ok(()),
        false => Err(Error::malformed("a header's checksum is wrong")),
    }
}

pub(crate) fn number(field: &[u8]) -> Result<u64, Error> {
    u64::try_from(signed(field)?).map_err(|_| Error::malformed("a number in a header is negative"))
}

/// Reads octal digits, or GNU's base 256 for what does not fit.
fn signed(field: &[u8]) -> Result<i64, Error> {
    let wrong = || Error::malformed("a number in a header cannot be read");
    if field[0] & 0x80 != 0 {
        let negative = field[0] & 0x40 != 0;
        let mut value: i128 = if negative { -1 } else { 0 };
        for (at, byte) in field.iter().enumerate() {
            let byte = if at == 0 && !negative { byte & 0x7f } else { *byte };
            value = (value << 8) | i128::from(byte);
            if value > i128::from(i64::MAX) || value < i128::from(i64::MIN) {
                return Err(wrong());
            }
        }
        return i64::try_from(value).map_err(|_| wrong());
    }
    let digits: Vec<u8> =
        field.iter().copied().skip_while(|b| matches!(b, b' ' | 0)).take_while(|b| !matches!(b, b' ' | 0)).collect();
    let mut value: i64 = 0;
    for digit in digits {
        if !(b'0'..=b'7').contains(&digit) {
            return Err(wrong());
        }
        value = value.checked_mul(8).and_then(|v| v.checked_add(i64::from(digit - b'0'))).ok_or_else(wrong)?;
    }
    Ok(value)
}
