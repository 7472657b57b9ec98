//! Which frames go to other workers than the uplink's, in the kernel's table. The table is computed purely.
//!
//! ```text
//!  contracts: segment, MACs ─┐
//!  the switch: their workers ┴▶ wanted: (VLAN, MAC) ─▶ place of a socket ─ differences ─▶ `direct` of plain_nic.bpf.c
//! ```
//!
//! A frame that goes to another worker's socket than that of its vNIC, while the table changes, crosses to it in the switch.

use super::program::{Maps, of_libbpf};
use super::queue::{QUEUES, lost};
use libbpf_rs::{MapCore, MapFlags};
use std::collections::BTreeMap;
use std::io;
use std::os::fd::OwnedFd;
use tidegate_contract::Vnic;
use tidegate_evidence::SocketCounts;
use tidegate_switch::link::nic::xdp::form::MOST;

/// Most entries: `ADDRESSES` of `plain_nic.bpf.c`.
const ADDRESSES: usize = 8192;

/// VLAN and MAC, as the program compares them.
pub(crate) type Address = [u8; 8];

/// The places of sockets by address.
pub(crate) type Table = BTreeMap<Address, u32>;

/// Returns the table for vNICs and their workers, and how many addresses have no room. `sockets` are the workers in the order of their sockets; the
/// first one gets all frames without an entry. The vNICs' own addresses come first, then further ones, each in the order of `vnics`.
pub(crate) fn wanted<'a>(
    vlans: &[u16],
    sockets: &[usize],
    vnics: impl Iterator<Item = (&'a Vnic, usize)>,
) -> (Table, usize) {
    let direct = vnics.filter_map(|(vnic, worker)| {
        let vlan = u16::try_from(vnic.segment.id()).ok().filter(|vlan| vlans.contains(vlan))?;
        let place = sockets.iter().take(MOST).position(|has| *has == worker).filter(|place| *place > 0)?;
        Some((vnic, vlan, place as u32))
    });
    let direct: Vec<(&Vnic, u16, u32)> = direct.collect();
    let own = direct.iter().map(|(vnic, vlan, place)| (&vnic.mac, vlan, place));
    // A vNIC with many further addresses leaves all others their own.
    let further = direct
        .iter()
        .flat_map(|(vnic, vlan, place)| vnic.allowed.macs.iter().map(move |mac| (mac, vlan, place)));
    let (mut table, mut left) = (Table::new(), 0);
    for (mac, vlan, place) in own.chain(further) {
        let mut address = [0; 8];
        address[..2].copy_from_slice(&vlan.to_ne_bytes());
        address[2..].copy_from_slice(&mac.0);
        match table.len() {
            ..ADDRESSES => _ = table.insert(address, *place),
            _ => left += usize::from(!table.contains_key(&address)),
        }
    }
    (table, left)
}

/// The table of one device.
pub(crate) struct Direct {
    maps: Maps,
    /// As the kernel has it.
    in_force: Table,
}

impl Direct {
    /// Takes over the maps of a program.
    pub(crate) fn of(maps: Maps) -> Self {
        let entry = |key: Vec<u8>| {
            let place = maps.direct.lookup(&key, MapFlags::ANY).ok()??;
            Some((key.try_into().ok()?, u32::from_ne_bytes(place.try_into().ok()?)))
        };
        let in_force = maps.direct.keys().filter_map(entry).collect();
        Self { maps, in_force }
    }

    /// Changes the kernel's table, entry by entry.
    ///
    /// # Errors
    /// The kernel refused one; those before are changed.
    pub(crate) fn follow(&mut self, wanted: &Table) -> io::Result<()> {
        let gone: Vec<Address> =
            self.in_force.keys().filter(|address| !wanted.contains_key(*address)).copied().collect();
        for address in gone {
            self.maps.direct.delete(&address).map_err(of_libbpf)?;
            self.in_force.remove(&address);
        }
        for (address, place) in wanted {
            if self.in_force.get(address) != Some(place) {
                self.maps.direct.update(address, &place.to_ne_bytes(), MapFlags::ANY).map_err(of_libbpf)?;
                self.in_force.insert(*address, *place);
            }
        }
        Ok(())
    }

    /// Returns the frames that each socket got, and lost where this agent made the `sockets`, queue by queue. `workers` are in the order of a queue's
    /// sockets.
    pub(crate) fn counts(&self, workers: &[usize], sockets: &[OwnedFd]) -> Vec<SocketCounts> {
        let mut counts = vec![];
        // Without sockets of ours their number is unknown.
        let queues = if sockets.is_empty() { QUEUES as usize } else { sockets.len() / workers.len().max(1) };
        for queue in 0..queues.min(QUEUES as usize) {
            for (place, worker) in workers.iter().take(MOST).enumerate() {
                let key = (place as u32 * QUEUES + queue as u32).to_ne_bytes();
                let each = self.maps.frames.lookup_percpu(&key, MapFlags::ANY).ok().flatten();
                let number = |bytes: &Vec<u8>| bytes.first_chunk().map_or(0, |n| u64::from_ne_bytes(*n));
                let frames = each.iter().flatten().map(number).fold(0, u64::wrapping_add);
                let dropped = sockets.get(queue * workers.len() + place).and_then(|socket| lost(socket).ok());
                let (ring_full, no_chunk) = dropped.unzip();
                if frames > 0 || dropped.is_some() {
                    counts.push(SocketCounts { queue, worker: *worker, frames, ring_full, no_chunk });
                }
            }
        }
        counts
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn vnics() -> Vec<Vnic> {
        let vnic = |name: &str, segment: u32, mac: &str, more: &str| {
            format!(
                "[vnic.{name}]\nattach = {{ tap = \"{name}\" }}\nmac = \"{mac}\"\nsegment = {segment}\n{more}\n"
            )
        };
        let text = [
            vnic("a", 42, "02:00:00:00:00:0a", ""),
            vnic("b", 42, "02:00:00:00:00:0b", "allowed = { macs = [\"02:00:00:00:01:0b\"] }"),
            vnic("c", 43, "02:00:00:00:00:0a", ""),
            vnic("d", 5000, "02:00:00:00:00:0d", ""),
        ];
        let parsed = tidegate_contract::parse(&text.concat(), "test").unwrap();
        parsed.vnics.into_iter().map(|located| located.value).collect()
    }

    #[test]
    fn addresses_of_contracts_go_to_the_sockets_of_their_workers() {
        let vnics = vnics();
        let table =
            |workers: [usize; 4], sockets: &[usize]| wanted(&[42, 43], sockets, vnics.iter().zip(workers)).0;
        let address = |vlan: u16, mac: [u8; 6]| -> Address {
            [&vlan.to_ne_bytes()[..], &mac].concat().try_into().unwrap()
        };
        let a = address(42, [2, 0, 0, 0, 0, 0xa]);
        let b = [address(42, [2, 0, 0, 0, 0, 0xb]), address(42, [2, 0, 0, 0, 1, 0xb])];
        let c = address(43, [2, 0, 0, 0, 0, 0xa]);
        assert_eq!(table([1, 0, 2, 0], &[1, 0, 2]), [(b[0], 1), (b[1], 1), (c, 2)].into());
        // A move to and fro.
        assert_eq!(table([0, 1, 1, 0], &[1, 0, 2]), [(a, 1)].into());
        // Workers without sockets, and a switch that tells of none.
        assert_eq!(table([3, 3, 1, 3], &[1, 0, 2]), [].into());
        assert_eq!(table([0, 1, 2, 0], &[]), [].into());
    }

    #[test]
    fn what_has_no_room_is_counted() {
        let mut vnic = vnics().remove(0);
        vnic.allowed.macs = (0..ADDRESSES as u32 + 5)
            .map(|n| {
                tidegate_contract::Mac([[2, 9].as_slice(), &n.to_be_bytes()].concat().try_into().unwrap())
            })
            .collect();
        let (table, left) = wanted(&[42], &[0, 1], std::iter::once((&vnic, 1)));
        assert_eq!((table.len(), left), (ADDRESSES, 6));
        let last = vnics().remove(1);
        let (table, left) = wanted(&[42], &[0, 1], [(&vnic, 1), (&last, 1)].into_iter());
        assert_eq!((table.len(), left), (ADDRESSES, 8));
        let own: Address = [&42_u16.to_ne_bytes()[..], &last.mac.0].concat().try_into().unwrap();
        assert!(table.contains_key(&own), "own addresses come first");
    }
}
