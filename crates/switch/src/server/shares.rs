//! The addresses that vNICs share: the holder of each, and the data for each port's policy.
//!
//! ```text
//!  contracts ─▶ open: a Holder for each address, MACs reserved in the FDB ─▶ of: what a port shares ─▶ its policy
//!           └─▶ close: addresses that no contract names any more
//! ```
//!
//! Only control threads use it, under the table's lock. A holder closes only when no port's policy has it any more.

use crate::fdb::{Fdb, PortIndex, SegmentIndex};
use crate::frame::policy::shared::Shared;
use crate::holder::Holder;
use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::sync::Arc;
use tidegate_contract::{SharedAddress, Vnic};

/// An address in its segment.
pub(super) type Key = (SegmentIndex, SharedAddress);

/// The shared addresses of all segments.
#[derive(Default)]
pub struct Shares {
    holders: BTreeMap<Key, Arc<Holder>>,
    /// The shared IP addresses last sent to the ports of each segment.
    published_ips: BTreeMap<SegmentIndex, Arc<[IpAddr]>>,
}

impl Shares {
    /// Creates the missing holders of a contract's addresses.
    ///
    /// # Errors
    /// No room in the forwarding database; nothing has changed.
    pub fn open(&mut self, fdb: &Fdb, segment: SegmentIndex, vnic: &Vnic) -> Result<(), String> {
        let new = vnic.allowed.shared.iter().filter(|one| !self.holders.contains_key(&(segment, **one)));
        let new: BTreeSet<SharedAddress> = new.copied().collect();
        let macs = || new.iter().filter_map(|address| address.mac());
        for (done, mac) in macs().enumerate() {
            if fdb.reserve(segment, mac).is_err() {
                macs().take(done).for_each(|mac| fdb.unreserve(segment, mac));
                return Err(format!("no room in the forwarding database for {mac}"));
            }
        }
        self.holders.extend(new.into_iter().map(|address| ((segment, address), Arc::default())));
        Ok(())
    }

    /// Forgets the addresses that are not in `named`.
    pub fn close(&mut self, fdb: &Fdb, named: &BTreeSet<Key>, owned: impl Fn(&Key) -> bool) {
        self.holders.retain(|key, _| {
            let stays = named.contains(key);
            if let ((segment, SharedAddress::Mac(mac)), false, false) = (key, stays, owned(key)) {
                fdb.unreserve(*segment, *mac);
            }
            stays
        });
    }

    /// Returns the addresses that a vNIC shares; `None` if its segment shares none.
    pub fn of(&self, port: PortIndex, segment: SegmentIndex, vnic: &Vnic) -> Option<Shared> {
        let own = |address: &SharedAddress| Some((*address, self.holders.get(&(segment, *address))?.clone()));
        Shared::new(port, vnic.allowed.shared.iter().filter_map(own).collect(), self.ips(segment))
    }

    /// Returns the IP addresses that vNICs of a segment share, in order.
    pub fn ips(&self, segment: SegmentIndex) -> Arc<[IpAddr]> {
        let mut all: Vec<IpAddr> =
            self.holders.keys().filter(|key| key.0 == segment).filter_map(|key| key.1.ip()).collect();
        all.sort_unstable();
        all.into()
    }

    /// Whether the shared IP addresses of a segment have changed since the last call.
    pub fn changed(&mut self, segment: SegmentIndex) -> bool {
        let now = self.ips(segment);
        if now.is_empty() {
            return self.published_ips.remove(&segment).is_some();
        }
        let same = self.published_ips.get(&segment).is_some_and(|published| *published == now);
        self.published_ips.insert(segment, now);
        !same
    }

    /// Releases the addresses that a port's contract named `before`, and not `now`.
    pub fn release(&self, fdb: &Fdb, port: PortIndex, before: &BTreeSet<Key>, now: &BTreeSet<Key>) {
        for key in before.difference(now) {
            let Some(holder) = self.holders.get(key) else { continue };
            holder.release(port);
            if let (segment, SharedAddress::Mac(mac)) = key {
                holder.lead(fdb, *segment, *mac);
            }
        }
    }

    /// Returns the holder of an address.
    pub fn holder(&self, segment: SegmentIndex, address: SharedAddress) -> Option<&Holder> {
        self.holders.get(&(segment, address)).map(Arc::as_ref)
    }
}

/// Returns the shared addresses of a contract.
pub fn keys(segment: SegmentIndex, vnic: &Vnic) -> BTreeSet<Key> {
    vnic.allowed.shared.iter().map(|address| (segment, *address)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    const SEGMENT: SegmentIndex = SegmentIndex(3);

    fn sharing(n: u8, shared: &str) -> Vnic {
        let text = format!(
            "[vnic.v{n}]\nattach = {{ tap = \"v{n}\" }}\nmac = \"52:54:00:00:00:0{n}\"\nsegment = 7\n\
             allowed = {{ prefixes = [\"192.0.2.{n}/32\"], shared = [{shared}] }}\n"
        );
        tidegate_contract::parse(&text, "test").unwrap().vnics.remove(0).value
    }

    /// Otherwise n new routers would cause n * n updates.
    #[test]
    fn ports_get_the_shared_ip_addresses_only_after_a_change() {
        const PAIR: &str = "\"00:00:5e:00:01:33\", \"192.0.2.10\"";
        let (fdb, mut shares) = (Fdb::default(), Shares::default());
        assert!(!shares.changed(SEGMENT), "none");
        let mut named = BTreeSet::new();
        let mut told = Vec::new();
        for (n, shared) in [(1, PAIR), (2, PAIR), (3, "\"00:00:5e:00:01:33\""), (4, "\"192.0.2.11\"")] {
            let vnic = sharing(n, shared);
            shares.open(&fdb, SEGMENT, &vnic).unwrap();
            named.extend(keys(SEGMENT, &vnic));
            told.push((shares.changed(SEGMENT), shares.changed(SEGMENT), shares.changed(SegmentIndex(4))));
        }
        assert_eq!(told, [true, false, false, true].map(|changed| (changed, false, false)));
        // First the last of them goes, then all.
        shares.close(
            &fdb,
            &named.iter().copied().filter(|key| *key != (SEGMENT, ip("192.0.2.11"))).collect(),
            |_| false,
        );
        assert_eq!((shares.changed(SEGMENT), shares.changed(SEGMENT)), (true, false));
        shares.close(&fdb, &BTreeSet::new(), |_| false);
        assert_eq!((shares.changed(SEGMENT), shares.changed(SEGMENT)), (true, false));
    }

    fn ip(text: &str) -> SharedAddress {
        text.parse().unwrap()
    }
}
