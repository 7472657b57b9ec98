//! Checks what a switch says of RDMA.
//!
//! ```text
//!  Hello: devices ──────┐
//!  Uplinks: RdmaStatus ─┴▶ as many as there can be? names that can be? ─▶ texts shortened, made visible
//! ```

use super::message::UplinkStatus;
use super::visible_text;
use crate::capacity::VNICS;
use std::collections::BTreeSet;
use tidegate_contract::Vnic;
use tidegate_contract::rdma::is_device_name;
use tidegate_evidence::{
    QueuePairStatus, RDMA_ADDRESSES as ADDRESSES, RDMA_DEVICES as DEVICES, RDMA_MEMBERS as MEMBERS,
    RdmaDevice,
};

/// Checks the devices of a switch.
///
/// # Errors
/// The invalid value.
pub(super) fn check_devices(devices: &mut [RdmaDevice]) -> Result<(), String> {
    if devices.len() > DEVICES || devices.iter().any(|device| device.addresses.len() > ADDRESSES) {
        return Err(format!(
            "the switch reports {} RDMA devices, expected at most {DEVICES}, with at most {ADDRESSES} addresses each",
            devices.len()
        ));
    }
    let mut names = BTreeSet::new();
    for device in devices {
        if !is_device_name(&device.name) || !names.insert(device.name.clone()) {
            return Err("the switch reports an RDMA device that can have no such name, or one twice".into());
        }
        device.error = device.error.take().map(visible_text);
        device.link = visible_text(std::mem::take(&mut device.link));
    }
    Ok(())
}

/// Checks the RDMA of an uplink.
///
/// # Errors
/// The invalid value.
pub(super) fn check(UplinkStatus { uplink, rdma, .. }: &mut UplinkStatus) -> Result<(), String> {
    let Some(rdma) = rdma else { return Ok(()) };
    if rdma.pairs.len() > VNICS || rdma.members.len() > MEMBERS {
        return Err(format!("it has more queue pairs or members at {} than there can be", uplink.name));
    }
    let is_declared = |name: &str| uplink.peers.iter().any(|peer| peer.name == name);
    let named = rdma.pairs.iter().all(|pair| Vnic::is_name(&pair.vnic))
        && rdma.members.iter().all(|member| is_declared(&member.peer))
        && rdma.members.iter().filter_map(|member| member.remote.as_deref()).all(Vnic::is_name)
        && is_device_name(&rdma.device);
    if !named {
        return Err(format!("it has queue pairs or members at {} that can have no such name", uplink.name));
    }
    let of_pair = |pair: &mut QueuePairStatus| {
        let Some(zero_copy) = &mut pair.zero_copy else { return };
        let landing = zero_copy.landing.as_mut().and_then(|landing| landing.copied_because.as_mut());
        for reason in zero_copy.copied_because.iter_mut().chain(landing) {
            *reason = visible_text(std::mem::take(reason));
        }
    };
    rdma.pairs.iter_mut().for_each(of_pair);
    let errors = rdma.pairs.iter_mut().map(|pair| &mut pair.error);
    let errors =
        errors.chain(rdma.members.iter_mut().map(|member| &mut member.error)).chain([&mut rdma.error]);
    errors.for_each(|error| *error = error.take().map(visible_text));
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use tidegate_contract::testing;
    use tidegate_evidence::{MemberStatus, QueuePairStatus, RdmaStatus, ZeroCopyStatus};

    fn device(name: &str) -> RdmaDevice {
        RdmaDevice { name: name.into(), ..RdmaDevice::default() }
    }

    #[test]
    fn devices_are_bounded_named_and_made_visible() {
        let mut good = [RdmaDevice { error: Some("\u{1b}[2Jno".into()), ..device("rxe0") }, device("rxe1")];
        check_devices(&mut good).unwrap();
        assert!(!good[0].error.as_ref().unwrap().contains('\u{1b}'));
        let many: Vec<_> = (0..=DEVICES).map(|n| device(&format!("rxe{n}"))).collect();
        let addresses = RdmaDevice { addresses: vec![[10, 0, 0, 1].into(); ADDRESSES + 1], ..device("a") };
        for mut bad in
            [many, vec![addresses], vec![device("../a")], vec![device("-x")], vec![device("a"), device("a")]]
        {
            assert!(check_devices(&mut bad).is_err(), "{bad:?}");
        }
    }

    #[test]
    fn queue_pairs_and_members_are_of_vnics_and_peers() {
        let uplink = testing::uplink("net0");
        let peer = uplink.peers[0].name.clone();
        let pair = |vnic: &str| QueuePairStatus { vnic: vnic.into(), ..QueuePairStatus::default() };
        let member = |peer: &str, remote: Option<&str>| MemberStatus {
            remote: remote.map(Into::into),
            segment: tidegate_contract::Segment::new(1).unwrap(),
            mac: tidegate_contract::Mac([2, 0, 0, 0, 0, 1]),
            peer: peer.into(),
            queue_pair: 17,
            longest: 1000,
            error: Some("\u{1b}".into()),
        };
        let says = |device: &str, pairs: Vec<QueuePairStatus>, members: Vec<MemberStatus>| {
            let rdma = RdmaStatus { device: device.into(), pairs, members, ..RdmaStatus::default() };
            let status =
                serde_json::json!({ "uplink": uplink, "remotes": [], "index": 1, "worker": 0, "rdma": rdma });
            let mut status: UplinkStatus = serde_json::from_value(status).unwrap();
            check(&mut status).map(|()| status)
        };
        let hostile =
            ZeroCopyStatus { copied_because: Some("\u{1b}[2Jno".into()), ..ZeroCopyStatus::default() };
        let zero_copy = QueuePairStatus { zero_copy: Some(hostile), ..pair("web") };
        let told = says("rxe0", vec![zero_copy], vec![]).unwrap().rdma.unwrap().pairs[0].zero_copy.clone();
        assert!(!told.unwrap().copied_because.unwrap().contains('\u{1b}'));
        let good =
            says("rxe0", vec![pair("web")], vec![member(&peer, None), member(&peer, Some("db"))]).unwrap();
        assert!(!good.rdma.unwrap().members[0].error.as_ref().unwrap().contains('\u{1b}'));
        assert!(says("a/b", vec![], vec![]).is_err());
        assert!(says("a", vec![pair("\n")], vec![]).is_err());
        assert!(says("a", vec![], vec![member("unknown", None)]).is_err());
        assert!(says("a", vec![], vec![member(&peer, Some(" "))]).is_err());
        assert!(says("a", vec![pair("web"); VNICS + 1], vec![]).is_err());
        assert!(says("a", vec![], vec![member(&peer, None); MEMBERS + 1]).is_err());
    }
}
