//! The VLANs of a bridge port.

use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::fmt;

/// The highest VLAN number; the lowest is 1 (IEEE 802.1Q, 9.6).
pub const LAST: u16 = 4094;

/// A port's membership in a VLAN.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Member {
    /// Untagged frames that come in belong to it. At most one VLAN of a port.
    pub pvid: bool,
    /// Its frames go out untagged.
    pub untagged: bool,
}

impl Member {
    /// The only VLAN of a port whose other end uses no VLANs.
    pub const ACCESS: Self = Self { pvid: true, untagged: true };
}

/// Consecutive VLANs with the same membership.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Range {
    /// 1 to [`LAST`].
    pub first: u16,
    /// The same or higher.
    pub last: u16,
    /// The membership.
    #[serde(flatten)]
    pub member: Member,
}

/// The VLANs of a bridge port: maximal ranges, ascending; the PVID is separate.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Vlans(Vec<Range>);

impl Vlans {
    /// Returns the VLANs of an access port.
    pub fn access(vid: u16) -> Self {
        [(vid, Member::ACCESS)].into_iter().collect()
    }

    /// As ranges.
    pub fn ranges(&self) -> &[Range] {
        &self.0
    }

    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Returns the port's membership in one; `None` if it is not a member.
    pub fn get(&self, vid: u16) -> Option<Member> {
        self.0.iter().find(|r| (r.first..=r.last).contains(&vid)).map(|r| r.member)
    }

    /// Returns them one by one.
    pub fn each(&self) -> impl Iterator<Item = (u16, Member)> {
        self.0.iter().flat_map(|r| (r.first..=r.last).map(|vid| (vid, r.member)))
    }

    /// Returns those that `are` selects.
    pub fn only(&self, mut are: impl FnMut(u16, Member) -> bool) -> Self {
        self.each().filter(|(vid, member)| are(*vid, *member)).collect()
    }
}

impl FromIterator<(u16, Member)> for Vlans {
    fn from_iter<I: IntoIterator<Item = (u16, Member)>>(each: I) -> Self {
        let mut ranges: Vec<Range> = Vec::new();
        for (vid, member) in each.into_iter().collect::<BTreeMap<_, _>>() {
            match ranges.last_mut() {
                Some(r) if r.last + 1 == vid && r.member == member && !member.pvid => r.last = vid,
                _ => ranges.push(Range { first: vid, last: vid, member }),
            }
        }
        Self(ranges)
    }
}

impl fmt::Display for Range {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { first, last, .. } = self;
        if first == last { write!(f, "{first}") } else { write!(f, "{first}-{last}") }
    }
}

impl fmt::Display for Vlans {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (i, range) in self.0.iter().enumerate() {
            let how = match range.member {
                Member { pvid: true, untagged: true } => " (PVID, untagged)",
                Member { pvid: true, untagged: false } => " (PVID)",
                Member { pvid: false, untagged: true } => " (untagged)",
                Member { pvid: false, untagged: false } => "",
            };
            write!(f, "{}{range}{how}", if i == 0 { "" } else { ", " })?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn ranges_are_as_bridge_shows_them() {
        let tagged = Member::default();
        let untagged = Member { untagged: true, ..tagged };
        let mut trunk: BTreeMap<u16, Member> = (2..=LAST).map(|vid| (vid, tagged)).collect();
        trunk.insert(42, Member::ACCESS);
        trunk.insert(43, untagged);
        let vlans: Vlans = trunk.into_iter().collect();
        assert_eq!(vlans.to_string(), "2-41, 42 (PVID, untagged), 43 (untagged), 44-4094");
        assert_eq!(vlans.only(|_, m| m.untagged).to_string(), "42 (PVID, untagged), 43 (untagged)");
    }

    proptest! {
        #[test]
        fn each_vlan_is_stored_exactly(
            given in proptest::collection::btree_map(1_u16..50, any::<(bool, bool)>(), 0..50)
        ) {
            let member = |(pvid, untagged)| Member { pvid, untagged };
            let vlans: Vlans = given.iter().map(|(vid, m)| (*vid, member(*m))).collect();
            for vid in 0..60 {
                prop_assert_eq!(vlans.get(vid), given.get(&vid).copied().map(member));
            }
            prop_assert_eq!(vlans.each().collect::<Vlans>(), vlans);
        }
    }
}
