//! Random names of commands and sessions.

use rustix::rand::{GetRandomFlags, getrandom};

/// Sixteen bytes that nobody can guess.
fn random() -> [u8; 16] {
    let mut bytes = [0; 16];
    let mut filled = 0;
    while filled < bytes.len() {
        // 16 bytes from an initialised kernel pool come at once and whole.
        filled += getrandom(&mut bytes[filled..], GetRandomFlags::empty()).unwrap_or(0);
    }
    bytes
}

/// A number between 2^60 and 2^61.
pub fn tag() -> u64 {
    let [a, b, c, d, e, f, g, h, ..] = random();
    u64::from_le_bytes([a, b, c, d, e, f, g, h]) >> 4 | 1 << 60
}

/// 32 lower-case hexadecimal digits.
pub fn hex() -> String {
    random().iter().map(|byte| format!("{byte:02x}")).collect()
}

/// A UUID of version 4.
pub fn uuid() -> String {
    let mut bytes = random();
    bytes[6] = bytes[6] & 0x0f | 0x40;
    bytes[8] = bytes[8] & 0x3f | 0x80;
    let digits: String = bytes.iter().map(|byte| format!("{byte:02x}")).collect();
    format!("{}-{}-{}-{}-{}", &digits[..8], &digits[8..12], &digits[12..16], &digits[16..20], &digits[20..])
}

#[cfg(test)]
mod tests {
    #[test]
    fn a_uuid_says_its_version() {
        let id = super::uuid();
        assert_eq!((id.len(), &id[14..15]), (36, "4"));
        assert!(matches!(&id[19..20], "8" | "9" | "a" | "b"), "{id}");
        assert_ne!(id, super::uuid());
    }
}
