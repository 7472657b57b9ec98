//! The devices of a contract: the one with the name in the contract, and devices that had this name before a rename.
//! Pure.
//!
//! ```text
//!  contract: netdev = "vnet3" ─┬─ interface 7, called vnet3       its device
//!                              │       └─ renamed to old ─▶ still its device, under that name
//!                              └─ interface 9, called vnet3       its device from now on; 7 keeps its limits
//! ```
//!
//! The kernel gives an interface index to one device only, until the next boot. Records of an earlier agent
//! hold for devices with our marks.

use super::netdev::netdev;
use super::record::{Entry, Record};
use super::shape::{self, Senders};
use crate::tc::{Network, Shaping, Ways};
use std::borrow::Cow;
use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use tidegate_contract::{Attach, Vnic};

/// By the name in the contract: the devices that have its limits.
#[derive(Debug, Default)]
pub struct Devices {
    /// The last seen name of each, by interface index.
    known: BTreeMap<String, BTreeMap<u32, String>>,
    /// Whether the record was read.
    recalled: bool,
}

/// A device of a contract has a new name.
#[derive(Debug, PartialEq, Eq)]
pub struct Renamed {
    /// The name in the contract.
    pub netdev: String,
    /// The former name.
    pub from: String,
    /// The present name.
    pub to: String,
    /// Another contract has this name: the device is no longer this contract's.
    pub taken: bool,
}

impl Devices {
    /// Reads a contract's devices from the record, once: the indices whose devices have our marks.
    pub fn recall<'a>(&mut self, recorded: impl Iterator<Item = (&'a str, &'a [u32])>, network: &Network) {
        if self.recalled || network.scope.is_some() {
            return;
        }
        self.recalled = true;
        for (netdev, indices) in recorded {
            for index in indices {
                if network.netdevs.get(index).is_some_and(crate::tc::Netdev::is_marked) {
                    self.known.entry(netdev.into()).or_default().insert(*index, netdev.into());
                }
            }
        }
    }

    /// Updates the devices of all contracts, named `netdevs`; returns the renamed ones.
    pub fn look(&mut self, netdevs: &BTreeSet<&str>, network: &Network) -> Vec<Renamed> {
        let mut renamed = Vec::new();
        self.known.retain(|netdev, _| netdevs.contains(netdev.as_str()));
        for (netdev, known) in &mut self.known {
            // Unobserved devices are unknown.
            known.retain(|index, _| network.netdevs.contains_key(index) || !network.is_about(*index));
            for (index, name) in known.iter_mut() {
                let Some(link) = network.netdevs.get(index).filter(|link| link.name != *name) else {
                    continue;
                };
                let (from, to) = (std::mem::replace(name, link.name.clone()), link.name.clone());
                let taken = to != *netdev && netdevs.contains(to.as_str());
                renamed.push(Renamed { netdev: netdev.clone(), from, to, taken });
            }
            // Another contract's now.
            known.retain(|_, name| name == netdev || !netdevs.contains(name.as_str()));
        }
        let there = network.netdevs.iter().filter(|(_, link)| netdevs.contains(link.name.as_str()));
        for (index, link) in there {
            if !self.is_of(&link.name, *index) {
                self.known.entry(link.name.clone()).or_default().insert(*index, link.name.clone());
            }
        }
        renamed
    }

    /// Returns the present name of a contract's device; the contract's own without one.
    pub fn name<'a>(&'a self, netdev: &'a str) -> &'a str {
        self.main(netdev).map_or(netdev, |(_, name)| name)
    }

    /// Returns the renamed devices of a contract, except [`Self::name`].
    pub fn strays<'a>(&'a self, netdev: &'a str) -> impl Iterator<Item = (u32, &'a str)> {
        let main = self.main(netdev).map(|(index, _)| index);
        self.all(netdev).filter(move |(index, _)| Some(*index) != main)
    }

    /// Returns all devices of a contract.
    pub fn all<'a>(&'a self, netdev: &str) -> impl Iterator<Item = (u32, &'a str)> + use<'a> {
        self.known.get(netdev).into_iter().flatten().map(|(index, name)| (*index, name.as_str()))
    }

    /// Whether a device is one of a contract's.
    pub fn is_of(&self, netdev: &str, index: u32) -> bool {
        self.all(netdev).any(|(other, _)| other == index)
    }

    /// Returns a contract attached to its device by its present name.
    pub fn placed<'a>(&self, vnic: &'a Vnic) -> Cow<'a, Vnic> {
        match netdev(vnic) {
            Some(netdev) if self.name(netdev) != netdev => {
                let name = self.name(netdev).to_owned();
                Cow::Owned(Vnic { attach: Attach::Netdev { name }, ..vnic.clone() })
            }
            _ => Cow::Borrowed(vnic),
        }
    }

    /// Returns the requests for a contract beside those of `senders`, as they are placed: its device's
    /// first, then those of further ones that have had its limits.
    pub fn shapings(&self, entry: &Entry, owned: Ways, senders: &Senders<'_>) -> Vec<Shaping> {
        let main = shape::nearest(&self.placed(&entry.vnic), owned, senders);
        let names = netdev(&entry.vnic).into_iter().flat_map(|netdev| self.strays(netdev));
        let stray = |(_, name): (u32, &str)| {
            Some(Shaping { netdev: name.to_owned(), owned: entry.owned, ..main.clone()? })
        };
        let strays: Vec<Shaping> = names.filter_map(stray).collect();
        main.into_iter().chain(strays).collect()
    }

    /// Returns notes for people about a renamed device.
    pub fn notes(&self, vnic: &Vnic) -> Vec<String> {
        let Some(netdev) = netdev(vnic) else { return vec![] };
        let name = self.name(netdev);
        let renamed = (name != netdev).then(|| {
            format!(
                "interface {netdev} is called {name} now; its limits stay on it: rename it back, or write {name} in `attach`"
            )
        });
        let strays = self.strays(netdev).map(|(_, name)| {
            format!("interface {name}, which was {netdev} before it was renamed, keeps the limits of this contract, too")
        });
        renamed.into_iter().chain(strays).collect()
    }

    /// Returns the one with the contract's name, else the last one that had it.
    fn main(&self, netdev: &str) -> Option<(u32, &str)> {
        let named = self.all(netdev).find(|(_, name)| *name == netdev);
        named.or_else(|| self.all(netdev).max_by_key(|(index, _)| *index))
    }
}

impl fmt::Display for Renamed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { netdev, from, to, taken } = self;
        write!(f, "interface {from} was renamed to {to}")?;
        if *taken {
            f.write_str(", which another contract names: from now on it has the limits of that one")
        } else {
            write!(f, "; the limits of the contract of {netdev} stay on it")
        }
    }
}

/// Returns the contracts on record, each attached to its device by its present name.
pub fn placed<'a>(record: &'a Record, devices: &Devices) -> Vec<Cow<'a, Vnic>> {
    record.iter().map(|entry| devices.placed(&entry.vnic)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::handle::Handle;
    use crate::tc::Netdev;
    use crate::tc::network::{Qdisc, Setting};
    use crate::tc::owner;

    fn network(links: &[(u32, &str)]) -> Network {
        let link = |name: &str| Netdev { name: name.into(), ..Netdev::default() };
        Network {
            netdevs: links.iter().map(|(index, name)| (*index, link(name))).collect(),
            ..Network::default()
        }
    }

    /// Returns main name and strays of `vnet3` after several looks.
    fn after(networks: &[&[(u32, &str)]]) -> (String, Vec<u32>) {
        let mut devices = Devices::default();
        for links in networks {
            devices.look(&["vnet3", "vnet4"].into(), &network(links));
        }
        (devices.name("vnet3").into(), devices.strays("vnet3").map(|(index, _)| index).collect())
    }

    #[test]
    fn a_renamed_device_is_followed_until_it_goes() {
        assert_eq!(after(&[&[]]), ("vnet3".into(), vec![]));
        assert_eq!(after(&[&[(7, "vnet3")]]), ("vnet3".into(), vec![]));
        assert_eq!(after(&[&[(7, "vnet3")], &[(7, "a")], &[(7, "b")]]), ("b".into(), vec![]));
        assert_eq!(after(&[&[(7, "vnet3")], &[(7, "a")], &[]]), ("vnet3".into(), vec![]));
        // Another one gets the name, and goes.
        let both: &[(u32, &str)] = &[(7, "a"), (9, "vnet3")];
        assert_eq!(after(&[&[(7, "vnet3")], both]), ("vnet3".into(), vec![7]));
        assert_eq!(after(&[&[(7, "vnet3")], both, &[(7, "a")]]), ("a".into(), vec![]));
        assert_eq!(after(&[&[(7, "vnet3")], both, &[(7, "a"), (9, "b")]]), ("b".into(), vec![7]));
        assert_eq!(after(&[&[(7, "vnet3")], both, &[(7, "vnet3"), (9, "b")]]), ("vnet3".into(), vec![9]));
    }

    #[test]
    fn a_netdev_named_by_another_contract_belongs_to_that_contract() {
        assert_eq!(after(&[&[(7, "vnet3")], &[(7, "vnet4")]]), ("vnet3".into(), vec![]));
        // Two devices swap names.
        let mut devices = Devices::default();
        let netdevs = ["vnet3", "vnet4"].into();
        devices.look(&netdevs, &network(&[(7, "vnet3"), (8, "vnet4")]));
        let renamed = devices.look(&netdevs, &network(&[(8, "vnet3"), (7, "vnet4")]));
        assert!(renamed.len() == 2 && renamed.iter().all(|renamed| renamed.taken), "{renamed:?}");
        assert_eq!(
            (devices.all("vnet3").collect(), devices.all("vnet4").collect()),
            (vec![(8, "vnet3")], vec![(7, "vnet4")])
        );
    }

    #[test]
    fn a_netdev_outside_a_partial_look_keeps_its_place() {
        let mut devices = Devices::default();
        let netdevs = ["vnet3", "vnet4"].into();
        devices.look(&netdevs, &network(&[(7, "vnet3"), (8, "vnet4")]));
        let mut part = network(&[(7, "a")]);
        part.scope = Some([7].into());
        let (netdev, from, to) = ("vnet3".into(), "vnet3".into(), "a".into());
        let renamed = Renamed { netdev, from, to, taken: false };
        assert_eq!(devices.look(&netdevs, &part), [renamed]);
        assert!(devices.is_of("vnet4", 8) && devices.is_of("vnet3", 7));
        part.netdevs.clear();
        devices.look(&netdevs, &part);
        assert!(devices.is_of("vnet4", 8) && !devices.is_of("vnet3", 7));
    }

    #[test]
    fn recorded_netdevs_are_believed_if_they_have_our_objects() {
        let (handle, parent) = (owner::ROOT_QDISC, Handle::ROOT);
        let mut there = network(&[(7, "a"), (8, "b")]);
        there.netdevs.get_mut(&7).expect("there").qdiscs =
            vec![Qdisc { handle, parent, setting: Setting::Clsact }];
        let mut devices = Devices::default();
        devices.recall([("vnet3", &[7_u32, 8, 9][..])].into_iter(), &there);
        devices.look(&["vnet3"].into(), &there);
        assert_eq!(devices.all("vnet3").collect::<Vec<_>>(), [(7, "a")]);
        let vnic = tidegate_testkit::contract::netdev("web", 1, "vnet3");
        assert_eq!(netdev(&devices.placed(&vnic)), Some("a"));
    }
}
