//! The addresses that stand for names within one sandbox.
//!
//! A name gets an address of its own the first time it is asked for and keeps it for ever: a connection to that address
//! is a connection to that name, also when the server speaks first and the client never says whom it wants. The file is
//! written before the answer is sent, so a name outlives this process, a pause, a snapshot and a fork.
//!
//! File: one line per name, `a.b.c.d name\n`, appended one by one. A last line without its end was never
//! answered, and is dropped.

use std::collections::HashMap;
use std::io;
use std::net::Ipv4Addr;
use std::os::fd::OwnedFd;
use std::sync::{Mutex, PoisonError};

use ipnet::Ipv4Net;
use rustix::io::Errno;

use crate::limits;
use crate::name::Name;

/// Where names live unless the operator says otherwise.
///
/// Not "private" to any library (198.18.0.0/15, 240.0.0.0/4 and 100.64.0.0/10 are refused by Python's `ipaddress` and by
/// guards against forged requests), and nothing that anybody reaches over the internet: a part of 28.0.0.0/8, which
/// belongs to the US Department of Defense and has never carried a public service.
pub const DEFAULT_RANGE: Ipv4Net = Ipv4Net::new_assert(Ipv4Addr::new(28, 64, 0, 0), 16);
/// Narrowest range that is taken: half of it is always free, so that a place is found at once.
pub const MAX_PREFIX: u8 = 17;
/// Longest file that is read: every name at its longest, with its address.
const FILE_BYTES: usize = limits::NAMES * (crate::name::NAME_BYTES + 17);

/// Why a name gets no address.
#[derive(Debug, thiserror::Error)]
pub enum NameError {
    /// The sandbox has as many as it may have.
    #[error("the sandbox has asked for {} names", limits::NAMES)]
    Full,
    /// The file cannot be written.
    #[error("write the names file")]
    File(#[source] io::Error),
}

/// The names of one sandbox.
#[derive(Debug)]
pub struct Names {
    range: Ipv4Net,
    file: OwnedFd,
    book: Mutex<Book>,
}

#[derive(Debug, Default)]
struct Book {
    by_name: HashMap<Name, Ipv4Addr>,
    by_address: HashMap<Ipv4Addr, Name>,
    /// Where the next line goes.
    end: u64,
}

impl Names {
    /// Takes the names from a file, which must be open for reading and writing. Lines that are none, or whose address
    /// lies outside `range`, are kept in the file and not used.
    ///
    /// # Errors
    /// When it cannot be read or repaired.
    pub fn load(file: OwnedFd, range: Ipv4Net) -> io::Result<Self> {
        let text = read_all(&file)?;
        let whole = text.iter().rposition(|byte| *byte == b'\n').map_or(0, |last| last + 1);
        if whole < text.len() {
            rustix::fs::ftruncate(&file, whole as u64)?;
        }
        let mut book = Book { end: whole as u64, ..Book::default() };
        for line in String::from_utf8_lossy(&text[..whole]).lines() {
            if let Some((address, name)) = read_line(line).filter(|(address, _)| range.contains(address))
                && book.by_name.len() < limits::NAMES
                && !book.by_name.contains_key(&name)
                && !book.by_address.contains_key(&address)
            {
                book.insert(name, address);
            }
        }
        Ok(Self { range, file, book: Mutex::new(book) })
    }

    /// The address of a name, if it has one.
    pub fn find(&self, name: &Name) -> Option<Ipv4Addr> {
        self.book().by_name.get(name).copied()
    }

    /// The address of a name; a new one is written down first.
    ///
    /// # Errors
    /// When there are too many names, or the file cannot be written.
    pub fn address_of(&self, name: &Name) -> Result<Ipv4Addr, NameError> {
        let mut book = self.book();
        if let Some(address) = book.by_name.get(name) {
            return Ok(*address);
        }
        if book.by_name.len() >= limits::NAMES {
            return Err(NameError::Full);
        }
        let address = self.free_place(&book, name);
        // Short, and to the page cache: no reason to leave the lock for it, and the order of lines is that of answers.
        book.end += write_line(&self.file, book.end, &format!("{address} {name}\n")).map_err(NameError::File)?;
        book.insert(name.clone(), address);
        Ok(address)
    }

    /// The name that an address stands for.
    pub fn name_of(&self, address: Ipv4Addr) -> Option<Name> {
        self.book().by_address.get(&address).cloned()
    }

    /// Whether an address is one that stands for names, whether or not it does yet.
    pub fn is_synthetic(&self, address: Ipv4Addr) -> bool {
        self.range.contains(&address)
    }

    /// How many there are.
    pub fn count(&self) -> usize {
        self.book().by_name.len()
    }

    /// The place that the name itself picks, or the next free one: a name mostly has the same address in every sandbox,
    /// which spares programs that remember addresses (known hosts, caches in images) surprises.
    fn free_place(&self, book: &Book, name: &Name) -> Ipv4Addr {
        let size = 1u32 << (32 - self.range.prefix_len());
        let base = self.range.network().to_bits();
        // The first and the last are left out: they look like a network and a broadcast address.
        let usable = size - 2;
        let first = hash(name.as_str()) % usable;
        (0..usable)
            .map(|step| Ipv4Addr::from_bits(base + 1 + (first + step) % usable))
            .find(|address| !book.by_address.contains_key(address))
            .expect("the range has twice as many places as there may be names")
    }

    fn book(&self) -> std::sync::MutexGuard<'_, Book> {
        self.book.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Book {
    fn insert(&mut self, name: Name, address: Ipv4Addr) {
        self.by_address.insert(address, name.clone());
        self.by_name.insert(name, address);
    }
}

/// FNV-1a: the same in every build and process, unlike the standard library's. A sandbox that makes places collide
/// slows down nobody but itself.
fn hash(text: &str) -> u32 {
    text.bytes().fold(0x811c_9dc5, |hash, byte| (hash ^ u32::from(byte)).wrapping_mul(0x0100_0193))
}

fn read_line(line: &str) -> Option<(Ipv4Addr, Name)> {
    let (address, name) = line.split_once(' ')?;
    Some((address.parse().ok()?, Name::from_ascii(name).ok()?))
}

fn read_all(file: &OwnedFd) -> io::Result<Vec<u8>> {
    let mut text = Vec::new();
    let mut buffer = vec![0; 64 * 1024];
    loop {
        match rustix::io::pread(file, &mut buffer[..], text.len() as u64) {
            Ok(0) => return Ok(text),
            Ok(read) => text.extend_from_slice(&buffer[..read]),
            Err(Errno::INTR) => {}
            Err(errno) => return Err(errno.into()),
        }
        if text.len() > FILE_BYTES {
            return Err(io::Error::new(io::ErrorKind::FileTooLarge, "a names file longer than all names together"));
        }
    }
}

/// Writes a whole line or none.
fn write_line(file: &OwnedFd, at: u64, line: &str) -> io::Result<u64> {
    let mut done = 0;
    while done < line.len() {
        let failed = match rustix::io::pwrite(file, &line.as_bytes()[done..], at + done as u64) {
            Ok(0) => io::ErrorKind::WriteZero.into(),
            Ok(written) => {
                done += written;
                continue;
            }
            Err(Errno::INTR) => continue,
            Err(errno) => io::Error::from(errno),
        };
        // The next line overwrites what is left if this fails too.
        let _ = rustix::fs::ftruncate(file, at);
        return Err(failed);
    }
    Ok(line.len() as u64)
}

#[cfg(test)]
mod tests;
