//! The physical interfaces that carry frames of vNICs.

use super::input::LookInput;
use super::nic::{self, Nic};
use crate::roots::{Roots, names, number};
use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use tidegate_contract::{Attach, Uplink};
use tidegate_place::Network;

/// Returns the interface of each uplink, by its name: the declared one, else the one with its address, from which the kernel usually sends.
pub fn uplinks(
    roots: &Roots,
    network: &Network,
    addresses: &mut dyn FnMut() -> Vec<(IpAddr, u32)>,
) -> BTreeMap<String, String> {
    let by_address = |uplink: &&Uplink| uplink.device.is_none() && uplink.local.is_some();
    let known = if network.uplinks.iter().any(|uplink| by_address(&uplink)) { addresses() } else { vec![] };
    let interfaces = roots.sys.join("class/net");
    let number_of = |name: &String| number::<u32>(interfaces.join(name).join("ifindex"));
    let with_address = |local: IpAddr| {
        let (_, interface) = known.iter().find(|(address, _)| *address == local)?;
        names(&interfaces).into_iter().find(|name| number_of(name) == Some(*interface))
    };
    let device = |uplink: &Uplink| uplink.device.clone().or_else(|| with_address(uplink.local?));
    network.uplinks.iter().filter_map(|uplink| Some((uplink.name.clone(), device(uplink)?))).collect()
}

/// Returns the physical interfaces that carry frames of vNICs: those of uplinks, steered ones, those with functions, and those in a bridge
/// with a vNIC's tap.
pub fn nics(roots: &Roots, input: &LookInput<'_>, uplinks: &BTreeMap<String, String>) -> Vec<Nic> {
    let mut found = BTreeMap::<String, (BTreeSet<String>, BTreeSet<String>)>::new();
    let mut add = |device: &str, vnic: Option<&str>| {
        for physical in nic::physical(roots, device) {
            let (of_devices, of_vnics) = found.entry(physical).or_default();
            of_devices.insert(device.to_owned());
            of_vnics.extend(vnic.map(str::to_owned));
        }
    };
    uplinks.values().chain(&input.host.cores.steer).for_each(|device| add(device, None));
    for vnic in input.contracts {
        match &vnic.attach {
            Attach::Vf { pf, .. } => add(pf, None),
            Attach::Netdev { name } => {
                let own = nic::physical(roots, name).into_iter();
                own.chain(nic::bridged(roots, name)).for_each(|device| add(&device, Some(&vnic.name)));
            }
            _ => {}
        }
    }
    let read = |(device, (for_devices, for_vnics)): (String, _)| {
        Nic::read(roots, &device).map(|nic| Nic { for_devices, for_vnics, ..nic })
    };
    let mut nics: Vec<Nic> = found.into_iter().filter_map(read).collect();
    for vnic in input.contracts {
        let Attach::Vf { pf, index, .. } = &vnic.attach else { continue };
        if let Some(nic) = nics.iter_mut().find(|nic| nic.device == *pf) {
            nic.add_function(roots, *index, &vnic.name);
        }
    }
    nics
}
