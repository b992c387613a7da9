//! Ranges of addresses.

use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::str::FromStr;

use serde::{Deserialize, Serialize};

#[cfg(test)]
mod tests;

/// A range of IPv4 or IPv6 addresses that share their first bits, as text `203.0.113.0/24`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct Cidr {
    first: IpAddr,
    prefix: u8,
}

/// Why a text or a pair of numbers is no [`Cidr`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NotACidr(String);

impl fmt::Display for NotACidr {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "\"{}\" is neither an address nor a range of addresses like 203.0.113.0/24", self.0)
    }
}

impl std::error::Error for NotACidr {}

impl Cidr {
    /// The range of this many leading bits around an address; the address's other bits are dropped.
    ///
    /// # Errors
    /// An address has fewer bits than that.
    pub fn new(address: IpAddr, prefix: u8) -> Result<Self, NotACidr> {
        let bits = bits(address);
        if prefix > bits {
            return Err(NotACidr(format!("{address}/{prefix}")));
        }
        let mask = mask(bits - prefix);
        let first = match address {
            IpAddr::V4(v4) => Ipv4Addr::from_bits(v4.to_bits() & !(mask as u32)).into(),
            IpAddr::V6(v6) => Ipv6Addr::from_bits(v6.to_bits() & !mask).into(),
        };
        Ok(Self { first, prefix })
    }

    /// The lowest address.
    pub fn first(&self) -> IpAddr {
        self.first
    }

    /// The highest address.
    pub fn last(&self) -> IpAddr {
        let mask = mask(bits(self.first) - self.prefix);
        match self.first {
            IpAddr::V4(v4) => Ipv4Addr::from_bits(v4.to_bits() | mask as u32).into(),
            IpAddr::V6(v6) => Ipv6Addr::from_bits(v6.to_bits() | mask).into(),
        }
    }

    /// How many leading bits the addresses share.
    pub fn prefix(&self) -> u8 {
        self.prefix
    }

    /// Whether an address lies in the range. An IPv4 address written as an IPv6 one is another address.
    pub fn contains(&self, address: IpAddr) -> bool {
        address.is_ipv4() == self.first.is_ipv4() && (self.first..=self.last()).contains(&address)
    }
}

fn bits(address: IpAddr) -> u8 {
    if address.is_ipv4() { 32 } else { 128 }
}

/// So many low bits.
fn mask(low: u8) -> u128 {
    1u128.checked_shl(low.into()).unwrap_or(0).wrapping_sub(1)
}

impl From<IpAddr> for Cidr {
    fn from(address: IpAddr) -> Self {
        Self { first: address, prefix: bits(address) }
    }
}

impl FromStr for Cidr {
    type Err = NotACidr;

    /// Reads `address/prefix`, or an address alone.
    fn from_str(text: &str) -> Result<Self, NotACidr> {
        let wrong = || NotACidr(text.to_owned());
        let Some((address, prefix)) = text.split_once('/') else {
            return text.parse::<IpAddr>().map(Self::from).map_err(|_| wrong());
        };
        let is_number = !prefix.is_empty() && prefix.bytes().all(|byte| byte.is_ascii_digit());
        let prefix = prefix.parse().ok().filter(|_| is_number).ok_or_else(wrong)?;
        Self::new(address.parse().map_err(|_| wrong())?, prefix).map_err(|_| wrong())
    }
}

impl fmt::Display for Cidr {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.first, self.prefix)
    }
}

impl TryFrom<String> for Cidr {
    type Error = NotACidr;

    fn try_from(text: String) -> Result<Self, NotACidr> {
        text.parse()
    }
}

impl From<Cidr> for String {
    fn from(range: Cidr) -> Self {
        range.to_string()
    }
}
