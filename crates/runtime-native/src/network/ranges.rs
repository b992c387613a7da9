//! Ranges of addresses as the filter's sets want them: in order, apart from each other, ends named.

use std::net::IpAddr;

use protocol::network::Cidr;

use super::expression::Family;

#[cfg(test)]
mod tests;

/// Addresses from `first` until before `end`; without `end`, until the last of all.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Interval {
    /// The first address inside.
    pub first: Vec<u8>,
    /// The first address behind.
    pub end: Option<Vec<u8>>,
}

/// The ranges of one family, merged where they touch or overlap.
pub fn intervals(ranges: &[Cidr], family: Family) -> Vec<Interval> {
    let mut bounds: Vec<(u128, u128)> = ranges
        .iter()
        .filter(|range| range.first().is_ipv4() == (family == Family::V4))
        .map(|range| (number(range.first()), number(range.last())))
        .collect();
    bounds.sort_unstable();
    let mut merged: Vec<(u128, u128)> = Vec::new();
    for (first, last) in bounds {
        match merged.last_mut() {
            Some(before) if before.1.checked_add(1).is_none_or(|behind| first <= behind) => {
                before.1 = before.1.max(last)
            }
            _ => merged.push((first, last)),
        }
    }
    let highest = match family {
        Family::V4 => u32::MAX.into(),
        Family::V6 => u128::MAX,
    };
    merged
        .into_iter()
        .map(|(first, last)| Interval {
            first: bytes(first, family),
            end: (last < highest).then(|| bytes(last + 1, family)),
        })
        .collect()
}

fn number(address: IpAddr) -> u128 {
    match address {
        IpAddr::V4(v4) => v4.to_bits().into(),
        IpAddr::V6(v6) => v6.to_bits(),
    }
}

fn bytes(number: u128, family: Family) -> Vec<u8> {
    let all = number.to_be_bytes();
    match family {
        Family::V4 => all[12..].to_vec(),
        Family::V6 => all.to_vec(),
    }
}
