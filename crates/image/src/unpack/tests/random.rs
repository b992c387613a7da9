//! Random archives: whatever they say, nothing outside the layer changes and nothing panics.

use proptest::prelude::*;
use tar::EntryType;

use super::*;

fn name() -> impl Strategy<Value = String> {
    let part = prop_oneof![
        4 => prop::sample::select(vec!["a", "b", "c"]).prop_map(str::to_owned),
        1 => prop::sample::select(vec!["..", ".", "", "outside", "canary", ".wh.a", ".wh..wh..opq", ".wh..", "dev", "a\u{0}b"]).prop_map(str::to_owned),
    ];
    prop::collection::vec(part, 1..4).prop_map(|parts| parts.join("/"))
}

fn kind() -> impl Strategy<Value = EntryType> {
    prop::sample::select(vec![
        EntryType::Regular,
        EntryType::Directory,
        EntryType::Symlink,
        EntryType::Link,
        EntryType::Fifo,
        EntryType::Char,
        EntryType::Block,
        EntryType::GNUSparse,
        EntryType::XHeader,
        EntryType::GNULongName,
    ])
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 400, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn random_entries_never_write_outside(entries in prop::collection::vec((kind(), name(), name(), 0..600_usize, any::<u16>()), 1..12)) {
        let mut tar = Tar::new();
        for (kind, name, link, len, mode) in &entries {
            let link = if *kind == EntryType::Symlink && len % 2 == 0 { format!("../{link}") } else { link.clone() };
            let mut header = header(*kind, name, &link);
            header.set_size(*len as u64);
            header.set_mode(u32::from(*mode));
            header.set_cksum();
            tar = tar.raw(&header, &vec![b'1'; *len]);
        }
        let ground = Ground::new();
        // Accepted or refused: the ground itself asserts that nothing outside changed.
        let _ = ground.unpack(&tar.bytes());
    }

    #[test]
    fn random_bytes_never_panic(mut bytes in prop::collection::vec(any::<u8>(), 0..4096), seal in any::<bool>()) {
        if seal && bytes.len() >= 512 {
            let mut header = Header::new_ustar();
            header.as_mut_bytes().copy_from_slice(&bytes[..512]);
            header.set_cksum();
            bytes[..512].copy_from_slice(header.as_bytes());
        }
        let _ = Ground::new().unpack(&bytes);
    }

    #[test]
    fn damaged_archives_never_write_outside(at in any::<prop::sample::Index>(), value in any::<u8>(), reseal in any::<bool>()) {
        let mut bytes = Tar::new()
            .pax(&[("path", b"sub/long"), ("mtime", b"1.5"), ("SCHILY.xattr.user.x", b"y")])
            .file("x", &[1; 100])
            .symlink("s", "../outside")
            .pax(&[("GNU.sparse.size", b"1000"), ("GNU.sparse.map", b"0,10,500,10")])
            .file("h", &[2; 20])
            .hard_link("l", "sub/long")
            .bytes();
        let at = at.index(bytes.len());
        bytes[at] = value;
        if reseal {
            let start = at / 512 * 512;
            let mut header = Header::new_ustar();
            header.as_mut_bytes().copy_from_slice(&bytes[start..start + 512]);
            header.set_cksum();
            bytes[start..start + 512].copy_from_slice(header.as_bytes());
        }
        let _ = Ground::new().unpack(&bytes);
    }
}
