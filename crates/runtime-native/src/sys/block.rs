//! Loop devices and the quick end of a file system.

use std::fs::File;
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::time::{Duration, Instant};

use rustix::io::Errno;

use super::check;

const LOOP_CTL_GET_FREE: u64 = 0x4C82;
const LOOP_CONFIGURE: u64 = 0x4C0A;
const LO_FLAGS_AUTOCLEAR: u32 = 4;
/// `_IOR('X', 125, __u32)`: every file system's emergency stop.
const FS_IOC_SHUTDOWN: u64 = 0x8004_587D;
/// Drop what is dirty instead of writing it.
const SHUTDOWN_NO_LOG_FLUSH: u32 = 2;
/// How long a free device may be somebody else's before we give up: the kernel calls one free until its next owner, who
/// has claimed it and may not be running just now, has set it up.
const ATTACH_PATIENCE: Duration = Duration::from_secs(5);
/// How long to leave the processor to that owner.
const ATTACH_PAUSE: Duration = Duration::from_millis(1);

/// `struct loop_info64` of <linux/loop.h>.
#[repr(C)]
struct LoopInfo {
    device: u64,
    inode: u64,
    rdevice: u64,
    offset: u64,
    sizelimit: u64,
    number: u32,
    encrypt_type: u32,
    encrypt_key_size: u32,
    flags: u32,
    file_name: [u8; 64],
    crypt_name: [u8; 64],
    encrypt_key: [u8; 32],
    init: [u64; 2],
}

/// `struct loop_config` of <linux/loop.h>.
#[repr(C)]
struct LoopConfig {
    fd: u32,
    block_size: u32,
    info: LoopInfo,
    reserved: [u64; 8],
}

/// A configured loop device that the kernel releases by itself at the last close.
pub struct LoopDevice {
    /// Keeps the device configured until the file system holds it.
    pub fd: OwnedFd,
    /// `/dev/loopN`.
    pub path: String,
}

/// Attaches an image to a free loop device with the auto-clear flag.
pub fn attach_loop(image: &File) -> Result<LoopDevice, Errno> {
    let control = File::options().read(true).write(true).open("/dev/loop-control").map_err(errno)?;
    let begun = Instant::now();
    loop {
        // SAFETY: the ioctl takes no argument.
        let number = check(unsafe { libc::ioctl(control.as_raw_fd(), LOOP_CTL_GET_FREE as _) }.into())?;
        let path = format!("/dev/loop{number}");
        let c_path = std::ffi::CString::new(path.as_str()).expect("a formatted number has no NUL");
        // SAFETY: `c_path` is a NUL-terminated string that lives across the call.
        let raw = check(unsafe { libc::open(c_path.as_ptr(), libc::O_RDWR | libc::O_CLOEXEC) }.into())?;
        // SAFETY: `open` just returned this descriptor; nobody else owns it.
        let fd = unsafe { OwnedFd::from_raw_fd(raw as i32) };
        // SAFETY: all-zero is a valid `LoopConfig`: plain integers and bytes.
        let mut config: LoopConfig = unsafe { std::mem::zeroed() };
        config.fd = image.as_raw_fd() as u32;
        config.block_size = 4096;
        config.info.flags = LO_FLAGS_AUTOCLEAR;
        // SAFETY: the kernel reads one `LoopConfig`, which lives across the call.
        match check(unsafe { libc::ioctl(fd.as_raw_fd(), LOOP_CONFIGURE as _, &raw const config) }.into()) {
            Ok(_) => return Ok(LoopDevice { fd, path }),
            Err(Errno::BUSY) if begun.elapsed() < ATTACH_PATIENCE => std::thread::sleep(ATTACH_PAUSE),
            Err(errno) => return Err(errno),
        }
    }
}

/// Ends a file system at once, without writing back what is dirty: for a disk whose content is no longer wanted.
pub fn shutdown_filesystem(directory: BorrowedFd<'_>) -> Result<(), Errno> {
    let mode = SHUTDOWN_NO_LOG_FLUSH;
    // SAFETY: the kernel reads one `u32`, which lives across the call.
    check(unsafe { libc::ioctl(directory.as_raw_fd(), FS_IOC_SHUTDOWN as _, &raw const mode) }.into()).map(drop)
}

fn errno(error: std::io::Error) -> Errno {
    Errno::from_io_error(&error).unwrap_or(Errno::IO)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn many_at_once_all_find_a_device() {
        let image = tempfile::tempfile().expect("a file");
        image.set_len(1 << 20).expect("a size");
        std::thread::scope(|scope| {
            for _ in 0..16 {
                scope.spawn(|| {
                    for _ in 0..20 {
                        attach_loop(&image).expect("a device");
                    }
                });
            }
        });
    }
}
