//! What stands around the programs of this sandbox, read back from the kernel at each call and never assumed.
//!
//! What execd cannot see is not claimed: limits and mounts are in the receipt that the server shows.

use std::fs;

use protocol::execd::hardening::{Hardening, HardeningReport, Layer};
use rustix::process::{Pid, child_subreaper, getpid};

use crate::error::{ApiError, Result, system_text};

/// States of a layer (published).
const ACTIVE: &str = "active";
const DISABLED: &str = "disabled";
const UNSUPPORTED: &str = "unsupported";
/// `Seccomp` in a status when a filter is in force.
const FILTER: u32 = 2;

/// Reads everything back.
///
/// # Errors
/// 500 where there is no `/proc`: nothing could be said then.
pub fn report() -> Result<HardeningReport> {
    let status = read("/proc/self/status")?;
    let field = |name: &str| {
        let line = status.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'));
        line.map(str::trim).unwrap_or_default()
    };
    let number = |name: &str| field(name).parse().unwrap_or(0);
    let seccomp_mode = number("Seccomp");
    let first = getpid() == Pid::INIT;
    let layers = Hardening {
        init_mode: if first {
            "pid1"
        } else if child_subreaper().is_ok_and(|own| own.is_some()) {
            "subreaper"
        } else {
            "none"
        }
        .to_owned(),
        signal_shield: first,
        cap_drop: capabilities(field("CapBnd"))?,
        seccomp: match seccomp_mode {
            FILTER => layer(ACTIVE, "a filter of system calls holds for every process"),
            _ => layer(DISABLED, "no filter of system calls is in force"),
        },
        landlock: layer(DISABLED, "no Landlock rules are set; files are separated by mounts"),
        ebpf: layer(UNSUPPORTED, "nothing is observed by eBPF"),
    };
    Ok(HardeningReport {
        layers,
        no_new_privs: field("NoNewPrivs") == "1",
        seccomp_mode,
        seccomp_filters: number("Seccomp_filters"),
        capabilities_effective: field("CapEff").to_owned(),
        capabilities_bounding: field("CapBnd").to_owned(),
        uid_map: uid_map(&read("/proc/self/uid_map")?),
    })
}

fn read(path: &str) -> Result<String> {
    fs::read_to_string(path).map_err(|error| ApiError::runtime(format!("read {path}: {}", system_text(&error))))
}

/// Active when processes can have less than all that the kernel knows.
fn capabilities(bounding: &str) -> Result<Layer> {
    let kept = u64::from_str_radix(bounding, 16);
    let kept = kept.map_err(|_| ApiError::runtime(format!("the kernel told {bounding:?} as CapBnd")))?.count_ones();
    let known = read("/proc/sys/kernel/cap_last_cap").ok().and_then(|last| last.trim().parse::<u32>().ok());
    Ok(match known.map(|last| last + 1) {
        Some(all) if kept < all => layer(ACTIVE, &format!("{kept} of {all} capabilities are left")),
        Some(_) => layer(DISABLED, "no capability was taken away"),
        None => layer(UNSUPPORTED, &format!("{kept} capabilities are left; how many there are cannot be read")),
    })
}

fn uid_map(text: &str) -> Vec<[u32; 3]> {
    let line = |line: &str| {
        let mut numbers = line.split_ascii_whitespace().map_while(|word| word.parse().ok());
        Some([numbers.next()?, numbers.next()?, numbers.next()?])
    };
    text.lines().filter_map(line).collect()
}

fn layer(state: &str, message: &str) -> Layer {
    Layer { state: state.to_owned(), message: Some(message.to_owned()) }
}

#[cfg(test)]
mod tests {
    use super::{capabilities, uid_map};

    #[test]
    fn fewer_capabilities_than_the_kernel_knows_are_a_layer() {
        assert_eq!(capabilities("00000000a80425fb").expect("a mask").state, "active");
        assert_eq!(capabilities("ffffffffffffffff").expect("a mask").state, "disabled");
        assert!(capabilities("none").is_err());
    }

    #[test]
    fn the_map_of_ids_is_read_line_by_line() {
        assert_eq!(uid_map("         0     100000      65536\n"), [[0, 100_000, 65_536]]);
        assert_eq!(uid_map("         0          0 4294967295\nhalf 1\n"), [[0, 0, u32::MAX]]);
    }
}
