//! The shared addresses of a table's ports.

use super::shares::{Key, keys};
use super::table::{Entry, Table, macs};
use crate::fdb::Fdb;
use tidegate_contract::{SharedAddress, Vnic};

impl Table {
    /// Forgets the addresses that no contract names any more.
    pub fn close_shares(&mut self, fdb: &Fdb) {
        let named = self.entries.values().flat_map(|entry| keys(entry.segment, &entry.vnic)).collect();
        let owners = &self.entries;
        let owns = |entry: &Entry, (segment, address): &Key| {
            entry.segment == *segment && macs(&entry.vnic).any(|mac| *address == SharedAddress::Mac(mac))
        };
        self.shares.close(fdb, &named, |key| owners.values().any(|entry| owns(entry, key)));
    }

    /// Returns why a contract conflicts with existing ports in the addresses that it shares or owns.
    pub fn refuses_shares(&self, vnic: &Vnic) -> Option<String> {
        let others =
            || self.entries.values().filter(|e| e.vnic.name != vnic.name && e.vnic.segment == vnic.segment);
        let segment = vnic.segment.id();
        for mac in vnic.allowed.shared.iter().filter_map(|address| address.mac()) {
            if let Some(owner) = others().find(|e| macs(&e.vnic).any(|own| own == mac)) {
                return Some(format!(
                    "MAC {mac} belongs to {} in segment {segment}: vNICs cannot share it",
                    owner.vnic.name
                ));
            }
        }
        for mac in macs(vnic) {
            if let Some(other) = others().find(|e| e.vnic.allowed.shared.contains(&SharedAddress::Mac(mac))) {
                return Some(format!(
                    "MAC {mac} is shared by {} in segment {segment}: a vNIC cannot have it alone",
                    other.vnic.name
                ));
            }
        }
        None
    }
}
