//! The files of /etc that belong to a sandbox and not to its image.

use std::os::fd::OwnedFd;
use std::path::Path;

use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;

use super::{Shape, open_beneath};
use crate::error::{Context, Failure, Kind, Result};

/// A question that the egress process took with it when it died is asked again after a second, not after five.
const RESOLVER_OPTIONS: &str = "options timeout:1 attempts:5";

/// Writes the files of /etc that belong to the sandbox and not to its image, into what lies over the image and is not
/// mounted yet: there they hide the image's without a trace of those.
pub(super) fn write(upper: &OwnedFd, layers: &[OwnedFd], shape: &Shape<'_>) -> Result<()> {
    let lower = lower_etc(layers)?;
    let mode = lower.map_or(Mode::from_raw_mode(0o755), |stat| Mode::from_raw_mode(stat.st_mode & 0o7777));
    rustix::fs::mkdirat(upper, "etc", mode).op("make /etc")?;
    let etc = open_beneath(upper, Path::new("etc"), OFlags::RDONLY | OFlags::DIRECTORY).op("open /etc")?;
    if let Some(owner) = lower.filter(|stat| (stat.st_uid, stat.st_gid) != (0, 0)) {
        let (uid, gid) = (rustix::fs::Uid::from_raw(owner.st_uid), rustix::fs::Gid::from_raw(owner.st_gid));
        // An owner without a number here cannot be kept; it is root's then.
        let _ = rustix::fs::fchown(&etc, Some(uid), Some(gid));
    }
    rustix::fs::fchmod(&etc, mode).op("set the mode of /etc")?;
    let name = shape.hostname;
    let hosts = format!("127.0.0.1\tlocalhost {name}\n::1\tlocalhost ip6-localhost ip6-loopback\n");
    let resolver = match shape.resolver {
        Some(address) => format!("nameserver {address}\n{RESOLVER_OPTIONS}\n"),
        None => "# This sandbox has no way out; names are not resolved.\n".to_owned(),
    };
    let files = [
        ("hosts", &hosts),
        ("hostname", &format!("{name}\n")),
        ("resolv.conf", &resolver),
        ("machine-id", &machine_id(name)),
    ];
    for (file, text) in files {
        let flags = OFlags::CREATE | OFlags::EXCL | OFlags::WRONLY | OFlags::CLOEXEC | OFlags::NOFOLLOW;
        let opened =
            rustix::fs::openat(&etc, file, flags, Mode::from_raw_mode(0o644)).op(format!("make /etc/{file}"))?;
        rustix::io::write(&opened, text.as_bytes()).op(format!("write /etc/{file}"))?;
    }
    Ok(())
}

/// What programs take for the identity of the machine: each sandbox's own, whatever its image has.
fn machine_id(name: &str) -> String {
    use sha2::{Digest, Sha256};
    let digest = Sha256::digest(name.as_bytes());
    let mut text: String = digest.iter().take(16).map(|byte| format!("{byte:02x}")).collect();
    text.push('\n');
    text
}

/// The image's /etc, by the uppermost layer that knows it.
fn lower_etc(layers: &[OwnedFd]) -> Result<Option<rustix::fs::Stat>> {
    for layer in layers.iter().rev() {
        let stat = match rustix::fs::statat(layer, "etc", rustix::fs::AtFlags::SYMLINK_NOFOLLOW) {
            Ok(stat) => stat,
            Err(Errno::NOENT) => continue,
            Err(errno) => return Err(Failure::errno("look at the image's /etc", errno)),
        };
        return match stat.st_mode & libc::S_IFMT {
            libc::S_IFDIR => Ok(Some(stat)),
            // A whiteout: the layers below do not count.
            libc::S_IFCHR if stat.st_rdev == 0 => Ok(None),
            _ => Err(Failure::new(Kind::Image, "the image has no directory at /etc, but a link or a file")),
        };
    }
    Ok(None)
}
