//! Addresses in contracts: MAC, IP prefix, segment. They serialise as people write them.

use serde::{Deserialize, Serialize};
use std::{fmt, net::IpAddr, str::FromStr};

/// An Ethernet address, written `52:54:00:00:00:01`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct Mac(pub [u8; 6]);

/// An IP prefix, written `10.0.0.0/8` or `fd00::/64`; host bits are zero.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct Prefix {
    addr: IpAddr,
    len: u8,
}

/// An address that one of several vNICs has at a time: a MAC, `00:00:5e:00:01:33`, or an IP address, `192.0.2.10`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub enum SharedAddress {
    /// An Ethernet address.
    Mac(Mac),
    /// An IPv4 or IPv6 address.
    Ip(IpAddr),
}

/// A tenant network: VXLAN VNI (RFC 7348) and RDMA Q_Key. 0 to 2^24 - 1.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(try_from = "u32", into = "u32")]
pub struct Segment(u32);

/// An invalid address: what is wrong, and what to write.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[allow(missing_docs, reason = "each variant's message says it")]
pub enum AddressError {
    #[error("{0:?} is not a MAC address; write six pairs of hex digits, \"52:54:00:00:00:01\"")]
    Mac(String),
    #[error(
        "{0} is a group (broadcast or multicast) address; a vNIC sends from a unicast address, whose first byte is even"
    )]
    Group(Mac),
    #[error("00:00:00:00:00:00 is not a valid address; write a unicast address, \"52:54:00:00:00:01\"")]
    ZeroMac,
    #[error("{0:?} is not an IP prefix; write \"10.0.0.0/8\" or \"fd00::/64\"")]
    Prefix(String),
    #[error(
        "{0:?} is neither a MAC nor an IP address; write \"00:00:5e:00:01:33\", \"192.0.2.10\" or \"2001:db8::10\""
    )]
    Shared(String),
    #[error("{0} is not the address of one host; write a unicast address, \"192.0.2.10\"")]
    NotUnicast(IpAddr),
    #[error("{0} has no prefix length; write \"{0}/{1}\" for this address alone")]
    NoLength(IpAddr, u8),
    #[error("prefix length {0} is too long; at most {1} for this kind of address")]
    Length(u8, u8),
    #[error("{0}/{1} has bits set after its first {1}; the network is {2}/{1}")]
    HostBits(IpAddr, u8, IpAddr),
    #[error("segment {0} is out of range; 0 to 16777215 (2^24 - 1)")]
    SegmentRange(u32),
    #[error("{0:?} is not a segment; write a number, 0 to 16777215 (2^24 - 1)")]
    Segment(String),
}

impl Mac {
    /// Returns the group bit (IEEE 802), set for broadcast and multicast.
    pub const fn is_group(self) -> bool {
        self.0[0] & 1 == 1
    }

    /// Returns the address, if a station may send from it.
    ///
    /// # Errors
    /// A group address, or all zero.
    pub fn as_source(self) -> Result<Self, AddressError> {
        match self {
            Self([0, 0, 0, 0, 0, 0]) => Err(AddressError::ZeroMac),
            mac if mac.is_group() => Err(AddressError::Group(mac)),
            mac => Ok(mac),
        }
    }
}

impl fmt::Display for Mac {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let [a, b, c, d, e, g] = self.0;
        f.pad(&format!("{a:02x}:{b:02x}:{c:02x}:{d:02x}:{e:02x}:{g:02x}"))
    }
}

impl FromStr for Mac {
    type Err = AddressError;
    fn from_str(text: &str) -> Result<Self, AddressError> {
        let bad = || AddressError::Mac(text.into());
        let mut mac = [0; 6];
        let mut parts = text.split(':');
        for byte in &mut mac {
            let part = parts.next().ok_or_else(bad)?;
            // `from_str_radix` alone would accept "+1".
            if part.len() != 2 || !part.bytes().all(|b| b.is_ascii_hexdigit()) {
                return Err(bad());
            }
            *byte = u8::from_str_radix(part, 16).map_err(|_| bad())?;
        }
        if parts.next().is_some() { Err(bad()) } else { Ok(Self(mac)) }
    }
}

impl Prefix {
    /// Makes the network `addr/len`.
    ///
    /// # Errors
    /// `len` over 32 (IPv4) or 128 (IPv6), or bits of `addr` set after the first `len`.
    pub fn new(addr: IpAddr, len: u8) -> Result<Self, AddressError> {
        let width = width(addr);
        if len > width {
            return Err(AddressError::Length(len, width));
        }
        let network = network(addr, len);
        if network != addr {
            return Err(AddressError::HostBits(addr, len, network));
        }
        Ok(Self { addr, len })
    }

    /// Returns the network address.
    pub const fn addr(self) -> IpAddr {
        self.addr
    }

    /// Returns the length (bits), 0 to 32 or 128.
    #[allow(clippy::len_without_is_empty, reason = "the length of a prefix is not a count of items")]
    pub const fn len(self) -> u8 {
        self.len
    }

    /// Returns whether `addr` is in the prefix; false across IP versions.
    pub fn contains(self, addr: IpAddr) -> bool {
        addr.is_ipv4() == self.addr.is_ipv4() && network(addr, self.len) == self.addr
    }
}

const fn width(addr: IpAddr) -> u8 {
    if addr.is_ipv4() { 32 } else { 128 }
}

fn network(addr: IpAddr, len: u8) -> IpAddr {
    match addr {
        IpAddr::V4(a) => {
            IpAddr::V4((a.to_bits() & u32::MAX.checked_shl(32 - u32::from(len)).unwrap_or(0)).into())
        }
        IpAddr::V6(a) => {
            IpAddr::V6((a.to_bits() & u128::MAX.checked_shl(128 - u32::from(len)).unwrap_or(0)).into())
        }
    }
}

impl fmt::Display for Prefix {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(&format!("{}/{}", self.addr, self.len))
    }
}

impl FromStr for Prefix {
    type Err = AddressError;
    fn from_str(text: &str) -> Result<Self, AddressError> {
        let bad = || AddressError::Prefix(text.into());
        let Some((addr, len)) = text.split_once('/') else {
            let addr = text.parse().map_err(|_| bad())?;
            return Err(AddressError::NoLength(addr, width(addr)));
        };
        if len.is_empty() || !len.bytes().all(|b| b.is_ascii_digit()) {
            return Err(bad());
        }
        Self::new(addr.parse().map_err(|_| bad())?, len.parse().map_err(|_| bad())?)
    }
}

impl SharedAddress {
    /// Returns the address, if a host may have it.
    ///
    /// # Errors
    /// A group address, or another address that no host can have.
    pub fn as_source(self) -> Result<Self, AddressError> {
        match self {
            Self::Mac(mac) => mac.as_source().map(Self::Mac),
            Self::Ip(ip) => {
                let broadcast = matches!(ip, IpAddr::V4(v4) if v4.is_broadcast());
                let mapped = matches!(ip, IpAddr::V6(v6) if v6.to_ipv4_mapped().is_some());
                let no_hosts = ip.is_unspecified() || ip.is_multicast() || ip.is_loopback();
                if no_hosts || broadcast || mapped { Err(AddressError::NotUnicast(ip)) } else { Ok(self) }
            }
        }
    }

    /// Returns the MAC, if it is one.
    pub const fn mac(self) -> Option<Mac> {
        match self {
            Self::Mac(mac) => Some(mac),
            Self::Ip(_) => None,
        }
    }

    /// Returns the IP address, if it is one.
    pub const fn ip(self) -> Option<IpAddr> {
        match self {
            Self::Mac(_) => None,
            Self::Ip(ip) => Some(ip),
        }
    }
}

impl fmt::Display for SharedAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Mac(mac) => mac.fmt(f),
            Self::Ip(ip) => ip.fmt(f),
        }
    }
}

impl FromStr for SharedAddress {
    type Err = AddressError;
    fn from_str(text: &str) -> Result<Self, AddressError> {
        let ip = || text.parse().map(Self::Ip).map_err(|_| AddressError::Shared(text.into()));
        text.parse().map(Self::Mac).or_else(|_: AddressError| ip())
    }
}

impl Segment {
    /// Makes segment `id`; `None` above 2^24 - 1.
    pub const fn new(id: u32) -> Option<Self> {
        if id < 1 << 24 { Some(Self(id)) } else { None }
    }
    /// Returns the number.
    pub const fn id(self) -> u32 {
        self.0
    }
}

impl fmt::Display for Segment {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(&self.0, f)
    }
}

impl FromStr for Segment {
    type Err = AddressError;
    fn from_str(text: &str) -> Result<Self, AddressError> {
        text.parse::<u32>().map_err(|_| AddressError::Segment(text.into()))?.try_into()
    }
}

impl TryFrom<u32> for Segment {
    type Error = AddressError;
    fn try_from(id: u32) -> Result<Self, AddressError> {
        Self::new(id).ok_or(AddressError::SegmentRange(id))
    }
}

impl From<Segment> for u32 {
    fn from(segment: Segment) -> Self {
        segment.0
    }
}

macro_rules! serialised_as_string {
    ($($type:ident),*) => {$(
        impl TryFrom<String> for $type {
            type Error = AddressError;
            fn try_from(text: String) -> Result<Self, AddressError> {
                text.parse()
            }
        }
        impl From<$type> for String {
            fn from(value: $type) -> Self {
                value.to_string()
            }
        }
    )*};
}

serialised_as_string!(Mac, Prefix, SharedAddress);

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn error<T: FromStr<Err = AddressError> + fmt::Debug>(text: &str) -> String {
        text.parse::<T>().expect_err(text).to_string()
    }

    #[test]
    fn macs() {
        assert_eq!("52:54:00:aB:00:01".parse(), Ok(Mac([0x52, 0x54, 0, 0xab, 0, 1])));
        for text in [
            "",
            "52:54:00:00:00",
            "52:54:00:00:00:01:02",
            "52:54:00:00:00:1",
            "52-54-00-00-00-01",
            "5g:54:00:00:00:01",
            "+1:54:00:00:00:01",
        ] {
            assert!(error::<Mac>(text).contains("is not a MAC address"), "{text}");
        }
        assert_eq!(Mac([0; 6]).as_source(), Err(AddressError::ZeroMac));
        assert_eq!(
            Mac([1, 0, 0x5e, 0, 0, 1]).as_source(),
            Err(AddressError::Group(Mac([1, 0, 0x5e, 0, 0, 1])))
        );
        assert_eq!(Mac([2, 0, 0, 0, 0, 0]).as_source(), Ok(Mac([2, 0, 0, 0, 0, 0])));
    }

    #[test]
    fn prefixes() {
        assert_eq!(
            error::<Prefix>("10.0.0.1"),
            r#"10.0.0.1 has no prefix length; write "10.0.0.1/32" for this address alone"#
        );
        assert_eq!(
            error::<Prefix>("10.0.0.1/8"),
            "10.0.0.1/8 has bits set after its first 8; the network is 10.0.0.0/8"
        );
        assert_eq!(
            error::<Prefix>("fd00::1/64"),
            "fd00::1/64 has bits set after its first 64; the network is fd00::/64"
        );
        assert_eq!(
            error::<Prefix>("10.0.0.0/33"),
            "prefix length 33 is too long; at most 32 for this kind of address"
        );
        for text in ["", "/", "10.0.0/8", "10.0.0.0/", "10.0.0.0/+8", "10.0.0.0/999"] {
            assert!(error::<Prefix>(text).contains("is not an IP prefix"), "{text}");
        }
        let all: Prefix = "0.0.0.0/0".parse().expect("a prefix");
        assert!(all.contains("255.0.0.1".parse().expect("an address")));
        assert!(!all.contains("::1".parse().expect("an address")));
        let one: Prefix = "fd00::1/128".parse().expect("a prefix");
        assert!(one.contains("fd00::1".parse().expect("an address")));
        assert!(!one.contains("fd00::2".parse().expect("an address")));
    }

    #[test]
    fn shared_addresses() {
        let parsed = |text: &str| text.parse::<SharedAddress>().expect(text);
        assert_eq!(parsed("00:00:5e:00:01:33").mac(), Some(Mac([0, 0, 0x5e, 0, 1, 0x33])));
        assert_eq!(parsed("192.0.2.10").ip(), Some(IpAddr::from([192, 0, 2, 10])));
        for text in ["00:00:5e:00:01:33", "192.0.2.10", "2001:db8::10"] {
            assert_eq!(parsed(text).to_string(), text);
            assert_eq!(parsed(text).as_source(), Ok(parsed(text)));
            let json = serde_json::to_string(&parsed(text)).expect("serialises");
            assert_eq!(serde_json::from_str::<SharedAddress>(&json).expect("parses"), parsed(text));
        }
        for text in ["", "192.0.2.0/24", "any", "00:00:5e:00:01"] {
            assert!(error::<SharedAddress>(text).contains("is neither a MAC nor an IP address"), "{text}");
        }
        for text in
            ["0.0.0.0", "::", "224.0.0.18", "ff02::12", "127.0.0.1", "255.255.255.255", "::ffff:192.0.2.1"]
        {
            assert!(parsed(text).as_source().is_err(), "{text}");
        }
    }

    #[test]
    fn segments() {
        assert_eq!("16777215".parse(), Ok(Segment(16_777_215)));
        assert_eq!("16777216".parse::<Segment>(), Err(AddressError::SegmentRange(1 << 24)));
        assert!(serde_json::from_str::<Segment>("16777216").is_err());
        assert_eq!(serde_json::to_string(&Segment(42)).expect("serialises"), "42");
    }

    proptest! {
        #[test]
        fn printed_addresses_read_back(mac: [u8; 6], v4: u32, v6: u128, len in 0u8..=128) {
            prop_assert_eq!(Mac(mac).to_string().parse(), Ok(Mac(mac)));
            for (addr, len) in [(IpAddr::V4(v4.into()), len % 33), (IpAddr::V6(v6.into()), len)] {
                let prefix = Prefix::new(network(addr, len), len).expect("masked");
                prop_assert_eq!(prefix.to_string().parse(), Ok(prefix));
                prop_assert!(prefix.contains(addr));
                let json = serde_json::to_string(&prefix).expect("serialises");
                prop_assert_eq!(serde_json::from_str::<Prefix>(&json).expect("parses"), prefix);
            }
        }

        #[test]
        fn contains_compares_leading_bits(net: u32, addr: u32, len in 0u8..=32, same in 0u32..=32) {
            // The address agrees in the first `same` bits, so that both outcomes occur.
            let keep = u32::MAX.checked_shl(32 - same).unwrap_or(0);
            let addr = (net & keep) | (addr & !keep);
            let prefix = Prefix::new(network(IpAddr::V4(net.into()), len), len).expect("masked");
            let equal = (0..u32::from(len)).all(|i| (net ^ addr) >> (31 - i) & 1 == 0);
            prop_assert_eq!(prefix.contains(IpAddr::V4(addr.into())), equal);
        }
    }
}
