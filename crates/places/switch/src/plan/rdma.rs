//! Contracts with `transport = "rdma"` that the switch's devices cannot keep. Pure.
//!
//! ```text
//!  vNIC ─ segment ─▶ uplinks with `rdma` ─▶ device of the switch: open? RoCE? a GID of `local`? long enough? ─▶ Refusal
//! ```
//!
//! A contract in force is not refused again: a device that went away, or whose MTU became another one, leaves its frames to
//! VXLAN, and `tidegate vnic show` says so.

use tidegate_contract::rdma::why_too_long;
use tidegate_contract::{Peer, Transport, Uplink, Vnic};
use tidegate_evidence::RdmaDevice;
use tidegate_place::{Observed, Refusal, Wanted};

/// Returns why new and changed contracts cannot have RDMA.
pub(super) fn refusals<'a>(
    wanted: &'a Wanted<'_>,
    observed: &'a Observed,
    (devices, knows_zero_copy): (Option<&'a [RdmaDevice]>, bool),
) -> impl Iterator<Item = Refusal> + 'a {
    let is_in_force = |vnic: &&Vnic| observed.vnics.get(&vnic.name).is_some_and(|there| there.vnic == **vnic);
    let by_rdma = wanted.vnics.iter().filter(|vnic| vnic.transport == Transport::Rdma);
    by_rdma.filter(move |vnic| !is_in_force(vnic)).filter_map(move |vnic| {
        let carries = |uplink: &&Uplink| uplink.peers.iter().any(|peer: &Peer| peer.carries(vnic.segment));
        let uplinks = wanted.network.uplinks.iter().filter(carries);
        let refused = |key: &str, why: &str| Refusal::new(&vnic.name, format!("{key} cannot be kept: {why}"));
        if let Some(why) = uplinks.filter_map(|uplink| why_not(vnic, uplink, devices)).next() {
            return Some(refused("transport = \"rdma\"", &why));
        }
        let why = "this switch is of an earlier release, which copies all frames: upgrade it";
        (vnic.zero_copy && !knows_zero_copy).then(|| refused("zero-copy = true", why))
    })
}

/// Returns why a vNIC cannot have a queue pair at the device of an uplink; `None` if it can, or if the uplink has no device.
fn why_not(vnic: &Vnic, uplink: &Uplink, devices: Option<&[RdmaDevice]>) -> Option<String> {
    let name = uplink.rdma.as_ref()?;
    let Some(devices) = devices else {
        return Some("this switch is of an earlier release, which knows no RDMA: upgrade it".into());
    };
    let Some(device) = devices.iter().find(|device| device.name == *name) else {
        return Some(format!(
            "the switch does not use the RDMA device {name} of uplink {}; start it with --rdma {name}",
            uplink.name
        ));
    };
    if let Some(error) = &device.error {
        return Some(format!("the RDMA device {name} of uplink {} is of no use: {error}", uplink.name));
    }
    if device.link != "ethernet" {
        return Some(format!(
            "the port of {name} is {}, whose addresses (LIDs) are not tested; only RoCE v2 is supported",
            device.link
        ));
    }
    let has_local = uplink.local.is_some_and(|local| device.addresses.contains(&local));
    if let Some(local) = uplink.local.filter(|_| !has_local) {
        let there: Vec<String> = device.addresses.iter().map(ToString::to_string).collect();
        return Some(format!(
            "{name} has no RoCE v2 GID of {local}, the address of uplink {}; it has {}: give its network device the address",
            uplink.name,
            if there.is_empty() { "none".into() } else { there.join(", ") }
        ));
    }
    why_too_long(vnic, device.mtu)
}

#[cfg(test)]
mod tests {
    use super::*;
    use tidegate_contract::Host;
    use tidegate_place::{Adopt, HostWork, Network};

    fn refused(devices: &[RdmaDevice], change: impl FnOnce(&mut Vnic, &mut Uplink)) -> Option<String> {
        refused_at(Some(devices), change)
    }

    fn refused_at(
        devices: Option<&[RdmaDevice]>,
        change: impl FnOnce(&mut Vnic, &mut Uplink),
    ) -> Option<String> {
        let mut vnic = tidegate_testkit::contract::vnic("a", 1);
        vnic.transport = Transport::Rdma;
        vnic.mtu = 978;
        let mut uplink: Uplink = serde_json::from_str(
            r#"{"name":"net0","local":"192.0.2.1","rate":"10gbit","rdma":"rxe0","peers":[{"name":"b","address":"192.0.2.2"}]}"#,
        )
        .unwrap();
        change(&mut vnic, &mut uplink);
        let network = Network { uplinks: vec![uplink], ..Network::default() };
        let (host, vnics) = (Host::default(), [vnic]);
        let wanted = Wanted {
            host: &host,
            network: &network,
            vnics: &vnics,
            adopt: Adopt::No,
            claims: &[],
            work: HostWork::NONE,
        };
        refusals(&wanted, &Observed::nothing(""), (devices, false)).next().map(|refusal| refusal.reason)
    }

    fn device() -> RdmaDevice {
        RdmaDevice {
            name: "rxe0".into(),
            is_active: true,
            mtu: 1024,
            link: "ethernet".into(),
            addresses: vec!["192.0.2.1".parse().unwrap()],
            ..RdmaDevice::default()
        }
    }

    #[test]
    fn each_reason_is_told() {
        assert_eq!(refused(&[device()], |_, _| {}), None);
        assert_eq!(refused(&[], |vnic, _| vnic.transport = Transport::Uplink), None);
        let said = refused(&[], |_, _| {}).unwrap();
        assert!(said.contains("start it with --rdma rxe0"), "{said}");
        let said = refused_at(None, |_, _| {}).unwrap();
        assert!(said.contains("knows no RDMA: upgrade it"), "{said}");
        let broken = RdmaDevice { error: Some("libibverbs cannot be loaded".into()), ..device() };
        assert!(refused(&[broken], |_, _| {}).unwrap().contains("of no use: libibverbs"));
        let infiniband = RdmaDevice { link: "infiniband".into(), ..device() };
        assert!(refused(&[infiniband], |_, _| {}).unwrap().contains("LIDs"));
        let said = refused(&[device()], |_, uplink| uplink.local = "192.0.2.9".parse().ok()).unwrap();
        assert!(said.contains("no RoCE v2 GID of 192.0.2.9") && said.contains("it has 192.0.2.1"), "{said}");
        let said = refused(&[device()], |vnic, _| vnic.zero_copy = true).unwrap();
        assert!(
            said.starts_with("zero-copy = true cannot be kept: this switch is of an earlier release"),
            "{said}"
        );
        let said = refused(&[device()], |vnic, _| vnic.mtu = 979).unwrap();
        assert!(said.contains("write mtu = 978"), "{said}");
        // A port that is down comes up again.
        assert_eq!(refused(&[RdmaDevice { is_active: false, ..device() }], |_, _| {}), None);
    }
}
