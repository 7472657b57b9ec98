//! Which port owns a link-local address in its segment.
//!
//! ```text
//!  contracts ──▶ NamedAddresses: those in their `allowed.prefixes` ──▶ never claimed
//!  workers ─ claim, release ─▶ ┌──────────────────────────┐
//!                              │ 16,384 × (address, port) │ ──▶ the first port has it
//!                              └──────────────────────────┘
//! ```
//!
//! All workers share one lock-free table. A worker looks there only when a vNIC first uses an address: each
//! port remembers its own, at most [`LINK_LOCALS_MAX`], in [`LinkLocals`](crate::frame::LinkLocals). So 1,024
//! ports fill at most a quarter of the table, and no guest can fill it for others.
//!
//! An entry is one word, claimed by one compare-and-swap: the port, and 47 bits of a hash of segment and
//! address. The hash key is random in each process, so guests cannot choose addresses that share slots or
//! collide.

use crate::capacity::VNICS;
use crate::fdb::{PortIndex, SegmentIndex};
use crate::frame::policy::link_local::LINK_LOCALS_MAX;
use crate::frame::policy::prefixes::{Net6, named};
use std::hash::{BuildHasher, RandomState};
use std::net::{IpAddr, Ipv6Addr};
use std::sync::atomic::{AtomicU64, Ordering};
use tidegate_contract::Vnic;

const SLOTS: usize = 1 << 14;
const _: () =
    assert!(SLOTS >= 4 * VNICS * LINK_LOCALS_MAX, "sparse enough that there is always a free place near by");
/// Slots in which an address may be. A search reads all of them: an empty one may be a released claim.
const PLACES: usize = 32;
/// The bits of an entry that identify the address.
const ADDRESS: u64 = !0xffff;
const EMPTY: u64 = 0;

/// The table of claims.
pub struct Claims {
    slots: Box<[AtomicU64]>,
    key: RandomState,
}

impl Default for Claims {
    fn default() -> Self {
        Self::new()
    }
}

impl Claims {
    /// Returns a table without claims (128 KiB).
    pub fn new() -> Self {
        Self::with_slots(SLOTS)
    }

    /// Returns a table of `slots` entries, a power of two.
    fn with_slots(slots: usize) -> Self {
        Self { slots: (0..slots).map(|_| AtomicU64::new(EMPTY)).collect(), key: RandomState::new() }
    }

    /// Claims an address for a port; `false` if another port has it. Of two simultaneous claims of the same
    /// address, both may be refused; a later frame claims it.
    pub fn claim(&self, segment: SegmentIndex, ip: Ipv6Addr, port: PortIndex) -> bool {
        let (start, address) = self.find(segment, ip);
        let mine = address | u64::from(port);
        // Ends: each round but the last loses a slot to another claim.
        for _ in 0..PLACES {
            let mut free = None;
            for slot in self.places(start) {
                match slot.load(Ordering::SeqCst) {
                    EMPTY => free = free.or(Some(slot)),
                    entry if entry == mine => return true,
                    entry if entry & ADDRESS == address => return false,
                    _ => {}
                }
            }
            let Some(free) = free else { return false };
            if free.compare_exchange(EMPTY, mine, Ordering::SeqCst, Ordering::SeqCst).is_err() {
                continue;
            }
            // Another port may have claimed the address meanwhile, in an earlier slot. Both store first and
            // look then, so at least one sees the other.
            let taken = |slot: &AtomicU64| {
                let entry = slot.load(Ordering::SeqCst);
                entry != mine && entry & ADDRESS == address
            };
            if !self.places(start).any(taken) {
                return true;
            }
            free.store(EMPTY, Ordering::SeqCst);
            return false;
        }
        false
    }

    /// Releases a port's claim.
    pub fn release(&self, segment: SegmentIndex, ip: Ipv6Addr, port: PortIndex) {
        let (start, address) = self.find(segment, ip);
        let mine = address | u64::from(port);
        for slot in self.places(start) {
            if slot.load(Ordering::SeqCst) == mine {
                slot.store(EMPTY, Ordering::SeqCst);
            }
        }
    }

    /// Returns the number of claims.
    pub fn count(&self) -> usize {
        self.slots.iter().filter(|slot| slot.load(Ordering::Relaxed) != EMPTY).count()
    }

    /// Returns an address's first slot and its address bits.
    fn find(&self, segment: SegmentIndex, ip: Ipv6Addr) -> (usize, u64) {
        let hash = self.key.hash_one((segment.0, ip.to_bits()));
        // Bit 63 is set: no entry equals EMPTY.
        (hash as usize, hash & ADDRESS | 1 << 63)
    }

    fn places(&self, start: usize) -> impl Iterator<Item = &AtomicU64> {
        let mask = self.slots.len() - 1;
        (0..PLACES).map(move |i| &self.slots[start.wrapping_add(i) & mask])
    }
}

fn shared(vnic: &Vnic) -> impl Iterator<Item = Net6> + '_ {
    vnic.allowed.shared.iter().filter_map(|address| match address.ip()? {
        IpAddr::V6(ip) if ip.is_unicast_link_local() => Some((ip.to_bits(), u128::MAX)),
        _ => None,
    })
}

/// The link-local addresses that the contracts of a segment name. No vNIC claims these.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct NamedAddresses {
    /// First and last address of each range; sorted and disjoint.
    ranges: Box<[(u128, u128)]>,
}

impl NamedAddresses {
    /// Collects the link-local addresses of `contracts`.
    pub fn new<'a>(contracts: impl Iterator<Item = &'a Vnic>) -> Self {
        let mut all: Vec<(u128, u128)> = contracts
            .flat_map(|vnic| named(&vnic.allowed.prefixes).chain(shared(vnic)))
            .map(|(net, mask)| (net, net | !mask))
            .collect();
        all.sort_unstable();
        // Two prefixes are nested or disjoint.
        all.dedup_by(|next, kept| next.1 <= kept.1);
        Self { ranges: all.into() }
    }

    /// Whether a contract names `ip`.
    pub fn contain(&self, ip: Ipv6Addr) -> bool {
        let bits = ip.to_bits();
        let behind = self.ranges.partition_point(|(first, _)| *first <= bits);
        behind > 0 && bits <= self.ranges[behind - 1].1
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::HashMap;
    use std::sync::atomic::AtomicU32;

    fn ip(n: u64) -> Ipv6Addr {
        Ipv6Addr::from_bits(0xfe80 << 112 | u128::from(n))
    }

    const SEGMENT: SegmentIndex = SegmentIndex(3);

    proptest! {
        #[test]
        fn behaves_like_a_map(steps in prop::collection::vec((any::<bool>(), 0u16..3, 0u64..20, 0u16..4), 1..300)) {
            let claims = Claims::new();
            let mut model: HashMap<(u16, u64), u16> = HashMap::new();
            for (claim, segment, n, port) in steps {
                if claim {
                    let holder = *model.entry((segment, n)).or_insert(port);
                    prop_assert_eq!(claims.claim(SegmentIndex(segment), ip(n), port), holder == port);
                } else {
                    claims.release(SegmentIndex(segment), ip(n), port);
                    if model.get(&(segment, n)) == Some(&port) {
                        model.remove(&(segment, n));
                    }
                }
                prop_assert_eq!(claims.count(), model.len());
            }
        }

        #[test]
        fn the_named_addresses_are_those_of_the_contracts(
            prefixes in prop::collection::vec((0u128..4096, 112u8..=128), 0..12),
            addresses in prop::collection::vec(0u128..4096, 20),
        ) {
            let link = 0xfe80 << 112;
            let prefix = |(n, len): &(u128, u8)| {
                let mask = u128::MAX << (128 - len);
                format!("\"{}/{len}\"", Ipv6Addr::from_bits((link | n) & mask))
            };
            let mut texts: Vec<_> = prefixes.iter().map(prefix).collect();
            texts.sort();
            texts.dedup();
            let contract = |(i, prefixes): (usize, &[String])| {
                let text = format!(
                    "[vnic.v{i}]\nattach = {{ tap = \"t{i}\" }}\nmac = \"52:54:00:00:00:01\"\nsegment = 1\n\
                     allowed = {{ prefixes = [{}] }}",
                    prefixes.join(",")
                );
                tidegate_contract::parse(&text, "test").unwrap().vnics.remove(0).value
            };
            let vnics: Vec<Vnic> = texts.chunks(3).enumerate().map(contract).collect();
            let named = NamedAddresses::new(vnics.iter());
            for n in addresses {
                let address = Ipv6Addr::from_bits(link | n);
                let of = |vnic: &Vnic| vnic.allowed.prefixes.iter().any(|p| p.contains(address.into()));
                prop_assert_eq!(named.contain(address), vnics.iter().any(of), "{}", address);
            }
        }
    }

    #[test]
    fn as_many_as_all_ports_may_hold_find_a_place() {
        let claims = Claims::new();
        let all = || {
            (0..VNICS as u64 * LINK_LOCALS_MAX as u64)
                .map(|n| (ip(n), (n / LINK_LOCALS_MAX as u64) as PortIndex))
        };
        assert!(all().all(|(ip, port)| claims.claim(SEGMENT, ip, port)));
        assert_eq!(claims.count(), VNICS * LINK_LOCALS_MAX);
        assert!(!all().any(|(ip, port)| claims.claim(SEGMENT, ip, port ^ 1)));
        assert!(all().all(|(ip, port)| claims.claim(SEGMENT, ip, port)), "what one has is one's own");
        all().for_each(|(ip, port)| claims.release(SEGMENT, ip, port ^ 1));
        assert_eq!(claims.count(), VNICS * LINK_LOCALS_MAX, "a port gives up its own only");
        all().for_each(|(ip, port)| claims.release(SEGMENT, ip, port));
        assert_eq!(claims.count(), 0);
    }

    #[test]
    fn an_address_has_one_holder_at_a_time() {
        const ADDRESSES: u64 = 6;
        // So small a table that claims collide and leave gaps.
        let claims = Claims::with_slots(8);
        let holders: Vec<AtomicU32> = (0..ADDRESSES).map(|_| AtomicU32::new(0)).collect();
        let granted = AtomicU32::new(0);
        std::thread::scope(|scope| {
            for port in 0..4u16 {
                let (claims, holders, granted) = (&claims, &holders, &granted);
                scope.spawn(move || {
                    let mut random = u64::from(port) + 1;
                    for _ in 0..50_000 {
                        random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
                        let n = (random >> 33) % ADDRESSES;
                        if claims.claim(SEGMENT, ip(n), port) {
                            granted.fetch_add(1, Ordering::Relaxed);
                            assert_eq!(holders[n as usize].fetch_add(1, Ordering::SeqCst), 0, "two holders");
                            std::hint::spin_loop();
                            holders[n as usize].fetch_sub(1, Ordering::SeqCst);
                            claims.release(SEGMENT, ip(n), port);
                        }
                    }
                });
            }
        });
        assert!(granted.into_inner() > 1000);
        assert_eq!(claims.count(), 0);
    }
}
