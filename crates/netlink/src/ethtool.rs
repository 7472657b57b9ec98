//! ethtool's netlink (linux/ethtool_netlink.h): the speed of a link, and its highest speed.

use crate::attribute::{Attributes, find, read, string, u32_at};
use tidegate_contract::Rate;

/// Name and version of the generic netlink family.
pub const FAMILY: (&str, u8) = ("ethtool", 1);

/// Asks for link modes.
pub const LINKMODES_GET: u8 = 4;

const LINKMODES_HEADER: u16 = 1;
const LINKMODES_OURS: u16 = 3;
const LINKMODES_SPEED: u16 = 5;
const HEADER_DEV_INDEX: u16 = 1;
const BITSET_BITS: u16 = 3;
const BITSET_BITS_BIT: u16 = 1;
const BITSET_BIT_NAME: u16 = 2;
/// The kernel's parser requires this flag on nested attributes (linux/netlink.h).
const NLA_F_NESTED: u16 = 1 << 15;

/// Asks for the link modes of a netdev, by their names.
pub fn link_modes(index: u32) -> Attributes {
    let mut attributes = Attributes::default();
    attributes.nest(LINKMODES_HEADER | NLA_F_NESTED, |header| header.put_u32(HEADER_DEV_INDEX, index));
    attributes
}

/// Present and highest supported speed; `None` if the driver does not say.
pub fn speeds(attributes: &[u8]) -> (Option<Rate>, Option<Rate>) {
    let now = find(attributes, LINKMODES_SPEED).and_then(|value| u32_at(value, 0));
    // All ones is unknown (`SPEED_UNKNOWN`).
    let now = now.filter(|mbit| *mbit != u32::MAX).map(u64::from);
    let bits = find(attributes, LINKMODES_OURS).and_then(|ours| find(ours, BITSET_BITS)).unwrap_or_default();
    let names = read(bits).filter(|(kind, _)| *kind == BITSET_BITS_BIT);
    let top = names.filter_map(|(_, bit)| speed_of(&string(find(bit, BITSET_BIT_NAME)?))).max();
    (now.and_then(rate), top.and_then(rate))
}

/// Mbit/s of a link mode, such as `1000baseT/Full`; others, such as `Autoneg`, have none.
fn speed_of(name: &str) -> Option<u64> {
    let (mbit, _) = name.split_once("base")?;
    mbit.parse().ok()
}

fn rate(mbit: u64) -> Option<Rate> {
    Rate::from_bits(mbit.saturating_mul(1_000_000).min(Rate::MAX.bits()))
}
