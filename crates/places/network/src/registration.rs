//! What this host announces: uplinks with a controller, and the vNICs that reach others over them.
//!
//! ```text
//!  uplinks of [controller] ─┐
//!  vNICs, terms of paths ───┼▶ Registration
//!  arrivals ────────────────┘
//! ```

use std::collections::BTreeMap;
use std::net::IpAddr;
use tidegate_contract::network_paths::PathTerms;
use tidegate_contract::{Controller, Uplink, Vnic};
use tidegate_controller_api::{self as api, Announced, Arrival, Registration};

/// Most vNICs and arrivals of a registration, VLANs of a plain NIC, addresses of a vNIC, receivers of one.
const VNICS: usize = 4096;
const VLANS: usize = 1024;
const ADDRESSES: usize = 16;
const RECEIVERS: usize = 64;

/// Returns what process `run` announces; `arrivals` were made from the View of version `view`.
pub fn registration(
    run: &str,
    controller: &Controller,
    uplinks: &[Uplink],
    vnics: &[&Vnic],
    terms: &[PathTerms],
    mut arrivals: Vec<Arrival>,
    view: u64,
) -> Registration {
    let mut receivers = BTreeMap::<&str, Vec<&str>>::new();
    for path in terms {
        receivers.entry(&path.vnic).or_default().push(&path.remote);
    }
    let served = || uplinks.iter().filter(|uplink| controller.serves(&uplink.name));
    let uplink = |uplink: &Uplink| {
        let (name, arrival_budget) = (uplink.name.clone(), uplink.arrival_budget.get());
        if uplink.is_plain() {
            let segments = uplink.peers.iter().filter_map(|peer| peer.segments.as_deref()).flatten();
            let vlans = segments.filter_map(|segment| u16::try_from(segment.id()).ok());
            let vlans = vlans.filter(|vlan| (1..=4094).contains(vlan)).take(VLANS).collect();
            return Some(api::Uplink { name, address: None, port: None, arrival_budget, vlans });
        }
        let (address, port) = (Some(uplink.local?), Some(uplink.port));
        Some(api::Uplink { name, address, port, arrival_budget, vlans: vec![] })
    };
    // Its uplinks may have no peers before the controller knows who is where.
    let reaches = |vnic: &Vnic| vnic.uses_uplinks() && vnic.segment.id() > 0 && served().next().is_some();
    let mut announced: Vec<Announced> = vnics
        .iter()
        .filter(|vnic| reaches(vnic))
        .map(|vnic| announced(vnic, receivers.get(vnic.name.as_str()).map_or(&[], Vec::as_slice)))
        .collect();
    announced.sort_by(|a, b| a.name.cmp(&b.name));
    announced.truncate(VNICS);
    // In any order of the View, the same ones count.
    arrivals.sort_by(|a, b| a.remote.cmp(&b.remote));
    arrivals.truncate(VNICS);
    Registration {
        run: run.to_owned(),
        uplinks: served().filter_map(uplink).collect(),
        vnics: announced,
        // Without a word on others no new registration is due when the View changes.
        view: if arrivals.is_empty() { 0 } else { view },
        arrivals,
    }
}

fn announced(vnic: &Vnic, receivers: &[&str]) -> Announced {
    let to: Vec<String> = receivers.iter().map(|to| (*to).to_owned()).take(RECEIVERS).collect();
    let host = |prefix: &tidegate_contract::Prefix| -> Option<IpAddr> {
        let text = prefix.to_string();
        let (address, length) = text.split_once('/')?;
        let address: IpAddr = address.parse().ok()?;
        let all = if address.is_ipv4() { "32" } else { "128" };
        (length == all).then_some(address)
    };
    Announced {
        name: vnic.name.clone(),
        mac: vnic.mac.to_string().to_lowercase(),
        segment: vnic.segment.id(),
        addresses: vnic.allowed.prefixes.iter().filter_map(host).take(ADDRESSES).collect(),
        rate: vnic.tx.max.map(|rate| rate.bits()),
        burst: vnic.tx.burst.map(|burst| burst.get()),
        deadline: vnic.deadline.filter(|_| !to.is_empty()).map(|deadline| deadline.get()),
        to,
    }
}
