//! Flows of steered NICs: those of contracts, and those of `[host.flow.NAME]`. Pure.
//!
//! A contract's flow is that of frames to its vNIC: its MAC inside of VXLAN from the uplink's peers, or inside of its segment's VLAN.

use crate::load::prior;
use std::collections::{BTreeSet, HashSet};
use std::net::IpAddr;
use tidegate_contract::{Flow, Host, Tunnel, Uplink, UplinkKind, Vnic};
use tidegate_cores::stage::{Handle, Kind, Link, Stage};
use tidegate_place::Network;

/// A flow, and the vNIC for which it is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NamedFlow {
    /// Unique at its device.
    pub name: String,
    /// Which frames.
    pub flow: Flow,
    /// The vNIC that receives them, if a contract asks for the flow.
    pub vnic: Option<String>,
    /// Whether a deadline depends on it.
    pub realtime: bool,
    /// Frames a second at the full rate of the contract.
    pub frames: u64,
}

impl NamedFlow {
    /// Returns its handle.
    pub fn handle(&self) -> Handle {
        Handle::Flow { device: self.flow.device.clone(), name: self.name.clone() }
    }

    /// Returns its stage: the work of the network stack for its frames.
    pub fn stage(&self) -> Stage {
        Stage {
            handle: self.handle(),
            vnics: self.vnic.iter().cloned().collect(),
            realtime: self.realtime,
            load: prior::load(Kind::SoftIrq, self.frames),
            measured: false,
            present: self.flow.cpu.into_iter().collect(),
            pinned_by: self.flow.cpu.map(|_| format!("`cpu` of [host.flow.{}]", self.name)),
        }
    }

    /// Returns the frames that go on to the vNIC's port at the host switch.
    pub fn link(&self) -> Option<Link> {
        let to = Handle::Port(self.vnic.clone()?);
        Some(Link { from: self.handle(), to, frames: u32::try_from(self.frames).unwrap_or(u32::MAX) })
    }
}

/// Returns the flows of all steered NICs. A flow of the administrator holds instead of a contract's with its name, or for the same frames.
pub fn flows(contracts: &[&Vnic], host: &Host, network: &Network) -> Vec<NamedFlow> {
    let is_steered = |device: &String| host.cores.steer.contains(device);
    let explicit = host.flow.iter().filter(|(_, flow)| is_steered(&flow.device));
    let explicit = explicit.map(|(name, flow)| {
        let (vnic, realtime, frames) = (None, false, 0);
        NamedFlow { name: name.clone(), flow: flow.clone(), vnic, realtime, frames }
    });
    let mut all: Vec<NamedFlow> = explicit.collect();
    let remotes = network.remotes.iter().filter(|remote| remote.deadline.is_some());
    let local = contracts.iter().filter(|vnic| vnic.is_realtime());
    let receivers: BTreeSet<&String> =
        remotes.flat_map(|remote| &remote.to).chain(local.flat_map(|vnic| &vnic.to)).collect();
    for device in &host.cores.steer {
        let Some(uplink) = uplink(device, network) else { continue };
        let here = all.iter().filter(|named| named.flow.device == *device);
        let (mut names, mut fields) = (BTreeSet::new(), HashSet::new());
        for named in here {
            names.insert(named.name.clone());
            fields.insert(Flow { cpu: None, ..named.flow.clone() });
        }
        for vnic in contracts {
            let realtime = vnic.is_realtime() || receivers.contains(&vnic.name);
            if !realtime && vnic.tx.min.is_none() {
                continue;
            }
            let flow = flow(device, uplink, vnic);
            if !names.contains(&vnic.name) && fields.insert(flow.clone()) {
                let (name, frames) = (vnic.name.clone(), prior::frames(vnic).1);
                all.push(NamedFlow { name, flow, vnic: Some(vnic.name.clone()), realtime, frames });
            }
        }
    }
    all
}

/// Returns the flow of frames to a vNIC.
fn flow(device: &str, uplink: &Uplink, vnic: &Vnic) -> Flow {
    let segment = vnic.segment.id();
    let is_tunnel = uplink.kind == UplinkKind::Vxlan;
    Flow {
        id: is_tunnel.then_some(segment),
        vlan: u16::try_from(segment).ok().filter(|_| !is_tunnel),
        mac: Some(vnic.mac),
        ..Flow::new(device, if is_tunnel { Tunnel::Vxlan } else { Tunnel::None })
    }
}

/// VXLAN as a NIC gets it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Vxlan {
    /// Its UDP port.
    pub port: u16,
    /// Outer addresses of frames for contracts, from and to: of each peer, and of this host.
    pub peers: BTreeSet<(IpAddr, IpAddr)>,
}

impl Vxlan {
    /// Returns that of a NIC. Where the kernel routes VXLAN, frames of all such uplinks may come by it.
    pub fn of(device: &str, network: &Network) -> Self {
        let uplink = uplink(device, network).filter(|uplink| uplink.kind == UplinkKind::Vxlan);
        let port = uplink.map_or(tidegate_steering::table::VXLAN_PORT, |uplink| uplink.port);
        let by = network.uplinks.iter().filter(|uplink| is_by(uplink, device));
        let by = by.filter(|uplink| uplink.kind == UplinkKind::Vxlan && uplink.port == port);
        let pairs =
            by.flat_map(|uplink| uplink.peers.iter().filter_map(|peer| Some((peer.address?, uplink.local?))));
        Self { port, peers: pairs.collect() }
    }
}

/// Whether frames of an uplink may come by a NIC.
fn is_by(uplink: &Uplink, device: &str) -> bool {
    uplink.device.as_ref().is_none_or(|own| own == device)
}

/// Returns the uplink whose frames come by a NIC: its own, else the first of those that the kernel routes.
fn uplink<'n>(device: &str, network: &'n Network) -> Option<&'n Uplink> {
    let by = network.uplinks.iter().filter(|uplink| is_by(uplink, device));
    by.min_by_key(|uplink| uplink.device.is_none())
}

#[cfg(test)]
mod tests {
    use super::*;
    use tidegate_contract::{Nanos, Rate, parse};
    use tidegate_testkit::contract::vnic;

    fn network(more: &str) -> Network {
        let text = format!(
            "[uplink.up]\nlocal = \"192.0.2.1\"\nrate = \"1gbit\"\nlatency = \"100us\"\n{more}\n\
             peer.far = {{ address = \"192.0.2.2\" }}\n"
        );
        let document = parse(&text, "a test").unwrap();
        let uplinks = document.uplinks.into_iter().map(|uplink| uplink.value).collect();
        Network { uplinks, ..Network::default() }
    }

    fn steered() -> Host {
        let mut host = Host::default();
        host.cores.steer = vec!["eth1".into()];
        host
    }

    #[test]
    fn vnics_with_promises_have_flows() {
        let mut contracts = [vnic("plain", 1), vnic("voice", 2), vnic("sink", 3), vnic("web", 4)];
        contracts[1].deadline = Some(Nanos::new(1_000_000));
        contracts[1].to = vec!["sink".into()];
        contracts[3].tx.min = Rate::from_bits(1_000_000);
        let contracts: Vec<&Vnic> = contracts.iter().collect();
        let found = flows(&contracts, &steered(), &network(""));
        let names: Vec<(&str, bool)> = found.iter().map(|flow| (&*flow.name, flow.realtime)).collect();
        assert_eq!(names, [("voice", true), ("sink", true), ("web", false)]);
        let voice = &found[0];
        assert_eq!((voice.flow.tunnel, voice.flow.id), (Tunnel::Vxlan, Some(contracts[1].segment.id())));
        assert_eq!(voice.flow.mac, Some(contracts[1].mac));
        assert_eq!(voice.link().unwrap().to, Handle::Port("voice".into()));
        assert!(voice.stage().realtime && voice.stage().pinned_by.is_none());
        // The uplink has another NIC; no NIC is steered; there is no uplink.
        assert_eq!(flows(&contracts, &steered(), &network("device = \"eth0\"")), []);
        assert_eq!(flows(&contracts, &Host::default(), &network("")), []);
        assert_eq!(flows(&contracts, &steered(), Network::NONE), []);
    }

    #[test]
    fn a_flow_of_the_administrator_holds_instead_of_a_contracts() {
        let mut voice = vnic("voice", 2);
        voice.deadline = Some(Nanos::new(1_000_000));
        let network = network("");
        let own = Flow { cpu: Some(3), ..flow("eth1", &network.uplinks[0], &voice) };
        for name in ["voice", "mine"] {
            let mut host = steered();
            host.flow = [(name.to_owned(), own.clone())].into();
            let found = flows(&[&voice], &host, &network);
            assert_eq!(found.len(), 1, "{name}");
            assert_eq!(found[0].stage().present, [3].into());
            assert!(found[0].stage().pinned_by.unwrap().contains(name));
        }
    }

    #[test]
    fn a_contracts_flow_is_of_the_peers_of_the_nics_own_uplink() {
        let addresses = |from: u8, to: u8| ([192, 0, 2, from].into(), [192, 0, 2, to].into());
        let mut network = network("device = \"eth1\"\nport = 4790");
        let other =
            Uplink { name: "a".into(), local: Some([192, 0, 2, 9].into()), ..network.uplinks[0].clone() };
        network.uplinks.insert(0, Uplink { device: None, port: 4791, ..other });
        let at = |device: &str| Vxlan::of(device, &network);
        assert_eq!(at("eth1"), Vxlan { port: 4790, peers: [addresses(2, 1)].into() });
        assert_eq!(at("eth2"), Vxlan { port: 4791, peers: [addresses(2, 9)].into() });
        // By the same port, frames of both may come.
        network.uplinks[0].port = 4790;
        let both = [addresses(2, 1), addresses(2, 9)].into();
        assert_eq!(Vxlan::of("eth1", &network), Vxlan { port: 4790, peers: both });
        assert_eq!(Vxlan::of("eth1", Network::NONE), Vxlan { port: 4789, peers: BTreeSet::new() });
    }
}
