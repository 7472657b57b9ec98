//! The physical interfaces that carry frames of vNICs.

use super::input::LookInput;
use super::nic::{self, Nic};
use crate::roots::Roots;
use std::collections::{BTreeMap, BTreeSet};
use tidegate_contract::Attach;

/// Returns the physical interfaces that carry frames of vNICs: those of uplinks, steered ones, those with functions, and those in a bridge
/// with a vNIC's tap.
pub fn nics(roots: &Roots, input: &LookInput<'_>) -> Vec<Nic> {
    let mut found = BTreeMap::<String, (BTreeSet<String>, BTreeSet<String>)>::new();
    let mut add = |device: &str, vnic: Option<&str>| {
        for physical in nic::physical(roots, device) {
            let (of_devices, of_vnics) = found.entry(physical).or_default();
            of_devices.insert(device.to_owned());
            of_vnics.extend(vnic.map(str::to_owned));
        }
    };
    let uplinks = input.network.uplinks.iter().filter_map(|uplink| uplink.device.as_ref());
    uplinks.chain(&input.host.cores.steer).for_each(|device| add(device, None));
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
