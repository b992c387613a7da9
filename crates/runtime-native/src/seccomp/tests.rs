use super::*;

/// Runs the filter as the kernel would.
fn verdict(code: &[sock_filter], arch: u32, number: u32, arguments: [u64; 6]) -> u32 {
    let word = |offset: u32| match offset {
        0 => number,
        4 => arch,
        offset => {
            let index = (offset - 16) / 8;
            (arguments[index as usize] >> (32 * ((offset / 4) % 2))) as u32
        }
    };
    let mut at = 0;
    let mut accumulator = 0;
    loop {
        let instruction = code[at];
        at += 1;
        let class = u32::from(instruction.code) & 7;
        match class {
            libc::BPF_LD => accumulator = word(instruction.k),
            libc::BPF_RET => return instruction.k,
            _ => {
                let hit = match u32::from(instruction.code) & 0xF0 {
                    libc::BPF_JEQ => accumulator == instruction.k,
                    libc::BPF_JGE => accumulator >= instruction.k,
                    libc::BPF_JSET => accumulator & instruction.k != 0,
                    other => panic!("unexpected jump {other:#x}"),
                };
                at += usize::from(if hit { instruction.jt } else { instruction.jf });
            }
        }
    }
}

fn native(number: i64, arguments: [u64; 6]) -> u32 {
    verdict(&program(), NATIVE_ARCH, number as u32, arguments)
}

#[test]
fn every_listed_call_gets_its_verdict() {
    for call in ALLOWED {
        assert_eq!(native(*call, [0; 6]), RET_ALLOW, "call {call}");
    }
    for call in REFUSED {
        assert_eq!(native(*call, [0; 6]), errno(libc::EPERM), "call {call}");
    }
}

#[test]
fn no_call_is_on_two_lists() {
    for call in REFUSED {
        assert!(!ALLOWED.contains(call), "call {call}");
    }
}

#[test]
fn unknown_calls_do_not_exist() {
    for number in [470, 500, 0x3FFF_FFFF] {
        assert_eq!(native(number, [0; 6]), errno(libc::ENOSYS));
    }
}

#[test]
fn foreign_abis_are_shut_out() {
    assert_eq!(verdict(&program(), 0x4000_0003, 1, [0; 6]), RET_KILL);
    assert_eq!(native(0x4000_0001, [0; 6]), errno(libc::ENOSYS));
}

#[test]
fn clone_may_not_make_namespaces() {
    assert_eq!(native(libc::SYS_clone, [libc::SIGCHLD as u64, 0, 0, 0, 0, 0]), RET_ALLOW);
    for flag in [libc::CLONE_NEWUSER, libc::CLONE_NEWNS, libc::CLONE_NEWNET, libc::CLONE_NEWCGROUP, 0x80] {
        assert_eq!(native(libc::SYS_clone, [flag as u32 as u64, 0, 0, 0, 0, 0]), errno(libc::EPERM));
    }
    assert_eq!(native(libc::SYS_clone3, [0; 6]), errno(libc::ENOSYS));
}

#[test]
fn sockets_of_other_families_are_refused() {
    assert_eq!(native(libc::SYS_socket, [libc::AF_INET as u64, 0, 0, 0, 0, 0]), RET_ALLOW);
    for family in [libc::AF_ALG, libc::AF_PACKET, libc::AF_VSOCK, libc::AF_BLUETOOTH] {
        assert_eq!(native(libc::SYS_socket, [family as u64, 0, 0, 0, 0, 0]), errno(libc::EAFNOSUPPORT));
    }
}

#[test]
fn netlink_is_for_routes_only() {
    let netlink = |protocol: i32| native(libc::SYS_socket, [libc::AF_NETLINK as u64, 0, protocol as u64, 0, 0, 0]);
    assert_eq!(netlink(libc::NETLINK_ROUTE), RET_ALLOW);
    for protocol in [libc::NETLINK_NETFILTER, libc::NETLINK_AUDIT, libc::NETLINK_KOBJECT_UEVENT] {
        assert_eq!(netlink(protocol), errno(libc::EPROTONOSUPPORT));
    }
}

#[test]
fn sync_does_nothing() {
    assert_eq!(native(libc::SYS_sync, [0; 6]), errno(0));
}

#[test]
fn the_program_fits_the_kernels_limit() {
    assert!(program().len() < 1024, "{} instructions; the kernel takes 4096", program().len());
}
