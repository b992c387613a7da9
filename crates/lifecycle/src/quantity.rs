//! Amounts as people write them in resource limits: `512Mi`, `500m`, `1.5`.
//!
//! Syntax of the published server: a memory amount is an integer with an optional unit, where `k`, `m`,
//! `g`, `t` (with or without `b`) count in thousands and `ki`, `mi`, `gi`, `ti` in 1024s, in any letter
//! case; a cpu amount is a decimal number of cores or an integer with `m` for thousandths.

#[cfg(test)]
mod tests;

/// Parses a number of bytes; `None` when malformed or beyond 2^63-1.
pub fn bytes(text: &str) -> Option<u64> {
    let text = text.trim();
    let digits = text.len() - text.trim_start_matches(|c: char| c.is_ascii_digit()).len();
    let number: u64 = text.get(..digits)?.parse().ok()?;
    let factor: u64 = match text[digits..].to_ascii_lowercase().as_str() {
        "" | "b" => 1,
        "k" | "kb" => 1_000,
        "m" | "mb" => 1_000_000,
        "g" | "gb" => 1_000_000_000,
        "t" | "tb" => 1_000_000_000_000,
        "ki" | "kib" => 1 << 10,
        "mi" | "mib" => 1 << 20,
        "gi" | "gib" => 1 << 30,
        "ti" | "tib" => 1 << 40,
        _ => return None,
    };
    number.checked_mul(factor).filter(|n| i64::try_from(*n).is_ok())
}

/// Parses an amount of cpu into thousandths of a core; `None` when malformed, not positive or over a million cores.
pub fn cpu_millis(text: &str) -> Option<u64> {
    let text = text.trim();
    if let Some(millis) = text.strip_suffix('m') {
        return millis.parse().ok().filter(|n| (1..=1_000_000_000).contains(n));
    }
    if !text.bytes().all(|b| b.is_ascii_digit() || b == b'.') {
        return None;
    }
    let cores: f64 = text.parse().ok()?;
    let millis = (cores * 1000.0).round();
    (1.0..=1e9).contains(&millis).then_some(millis as u64)
}

/// Parses a positive count.
pub fn count(text: &str) -> Option<u64> {
    text.trim().parse().ok().filter(|n| *n > 0)
}

/// Parses an amount of storage as Kubernetes writes it, fractions included (`1.5Gi`); `None` when malformed or beyond
/// 2^63-1.
pub fn storage(text: &str) -> Option<u64> {
    const UNITS: [(&str, u32); 6] = [("Ki", 10), ("Mi", 20), ("Gi", 30), ("Ti", 40), ("Pi", 50), ("Ei", 60)];
    /// Digits behind the point that still count: a thousandth of a byte of the largest unit.
    const MAX_FRACTION_DIGITS: usize = 18;
    let found = UNITS.iter().find_map(|(unit, shift)| Some((text.strip_suffix(unit)?, *shift)));
    let (number, shift) = found.unwrap_or((text, 0));
    let (whole, fraction) = number.split_once('.').unwrap_or((number, "0"));
    let digits = |part: &str| !part.is_empty() && part.bytes().all(|byte| byte.is_ascii_digit());
    if !digits(whole) || !digits(fraction) || fraction.len() > MAX_FRACTION_DIGITS {
        return None;
    }
    let scale = 10u128.checked_pow(u32::try_from(fraction.len()).ok()?)?;
    let value = whole.parse::<u128>().ok()?.checked_mul(scale)?.checked_add(fraction.parse().ok()?)?;
    let bytes = value.checked_mul(1 << shift)?.div_ceil(scale);
    u64::try_from(bytes).ok().filter(|bytes| i64::try_from(*bytes).is_ok())
}
