//! From a contract to what a NIC is told of one function. Pure.

use crate::device::Function;
use crate::device::vf::LinkState as Link;
use tidegate_contract::{Attach, Discipline, LinkState, UPLINK, Vnic};

/// Largest VLAN id.
const VLANS: u32 = 4094;

/// The physical function and the index of a contract's attachment.
pub fn address(vnic: &Vnic) -> Option<(&str, u16)> {
    match &vnic.attach {
        Attach::Vf { pf, index, .. } => Some((pf, *index)),
        _ => None,
    }
}

/// Whether two contracts name the same function; their settings may differ.
pub fn same(a: &Attach, b: &Attach) -> bool {
    matches!((a, b), (Attach::Vf { pf: p, index: i, .. }, Attach::Vf { pf: q, index: j, .. }) if p == q && i == j)
}

/// The settings of a contract's function; `None` if the attachment is no function.
///
/// # Errors
/// Every key of the contract that no NIC can enforce.
pub fn function(vnic: &Vnic) -> Result<Option<Function>, Vec<String>> {
    let Attach::Vf { index, options, .. } = &vnic.attach else { return Ok(None) };
    let refused = refused(vnic, options.qos);
    if !refused.is_empty() {
        return Err(refused);
    }
    Ok(Some(Function {
        index: *index,
        mac: Some(vnic.mac),
        vlan: u16::try_from(vnic.segment.id()).ok(),
        qos: Some(options.qos),
        spoofchk: Some(!vnic.allowed.any_mac),
        trust: Some(options.trust),
        link_state: Some(match options.link_state {
            LinkState::Auto => Link::Auto,
            LinkState::Enable => Link::Enable,
            LinkState::Disable => Link::Disable,
        }),
        tx_max: vnic.tx.max,
        tx_min: vnic.tx.min,
    }))
}

/// Notes for a reader of a plan, of a contract with a limit.
pub fn excess_note(vnic: &Vnic) -> Option<String> {
    let what = "frames above tx.max wait in the NIC, which does not distinguish flows: a long flow delays the others";
    vnic.tx.max.map(|_| what.into())
}

fn refused(vnic: &Vnic, qos: u8) -> Vec<String> {
    let Vnic { segment, rx, tx, queueing, allowed, queues, to, .. } = vnic;
    let burst = [("tx.burst", tx.burst), ("rx.burst", rx.burst), ("rx.queue", rx.queue)];
    let sizes = burst.into_iter().filter(|(_, size)| size.is_some()).map(|(key, _)| {
        format!("{key}: the NIC decides how many frames of a function may wait; leave {key} out")
    });
    let elsewhere = to.iter().filter(|to| *to != UPLINK && (tx.min.is_some() || vnic.is_realtime())).map(|to| {
        format!("to: a promise to a function holds on the link of its NIC, not towards {to}; write to = [\"uplink\"]")
    });
    let rules = [
        (
            rx.max.is_some(),
            "rx.max: no NIC limits the frames that a function receives; limit the senders, or leave rx.max out",
        ),
        (
            rx.discipline == Discipline::Fifo,
            "rx.discipline: the NIC decides the order of frames; leave rx.discipline out",
        ),
        (!queueing.is_default(), "queueing: the NIC decides in which order frames wait; leave queueing out"),
        (
            !allowed.macs.is_empty(),
            "allowed.macs: a NIC checks that a function sends from its own MAC, or checks no address; write \
             allowed.macs = \"any\", which leaves source addresses unchecked, or leave it out",
        ),
        (
            !allowed.prefixes.is_empty(),
            "allowed.prefixes: no NIC checks the IP addresses a function sends from; leave allowed.prefixes out",
        ),
        (
            !allowed.shared.is_empty(),
            "allowed.shared: a NIC gives a MAC to one function, and moves no MAC because a guest sends from it; leave \
             allowed.shared out",
        ),
        (
            !allowed.vlans.is_empty(),
            "allowed.vlans: a function in segment 0 may send any VLAN tags, a function in another segment none; leave \
             allowed.vlans out",
        ),
        (
            allowed.control,
            "allowed.control: the NIC decides which frames for the link itself pass; leave allowed.control out",
        ),
        (
            allowed.router,
            "allowed.router: no NIC distinguishes router advertisements from other frames; leave allowed.router out",
        ),
        (
            allowed.dhcp_server,
            "allowed.dhcp-server: no NIC distinguishes frames of a DHCP server from other frames; leave \
             allowed.dhcp-server out",
        ),
        (*queues != 1, "queues: the NIC decides how many queues a function has; leave queues out"),
        (
            qos != 0 && segment.id() == 0,
            "attach.qos: this priority is part of the VLAN tag of a segment, and segment 0 has no tag",
        ),
        (
            segment.id() > VLANS,
            "segment: a NIC distinguishes 4094 segments, by VLAN; choose 1 to 4094, or 0 for none",
        ),
    ];
    let rules = rules.into_iter().filter(|(broken, _)| *broken).map(|(_, why)| why.to_owned());
    rules.chain(sizes).chain(elsewhere).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use tidegate_contract::{Allowed, Bytes, Mac, Queueing, Rate, Rx, Segment, Tx};
    use tidegate_testkit::contract::vf;

    #[test]
    fn a_contract_becomes_the_settings_of_a_vf() {
        let mut vnic = vf("a", 1, "eth1", 2);
        vnic.segment = Segment::new(42).expect("in range");
        vnic.tx.max = Rate::from_bits(500_000_000);
        let settings = function(&vnic).expect("it can be told").expect("a function");
        assert_eq!(
            (settings.index, settings.vlan, settings.qos, settings.spoofchk),
            (2, Some(42), Some(0), Some(true))
        );
        assert_eq!((settings.tx_max, settings.tx_min), (vnic.tx.max, None));
        assert!(excess_note(&vnic).is_some_and(|note| note.contains("flows")));
        vnic.allowed.any_mac = true;
        assert_eq!(function(&vnic).expect("it can be told").expect("a function").spoofchk, Some(false));
        assert_eq!(address(&vnic), Some(("eth1", 2)));
        assert_eq!(function(&tidegate_testkit::contract::vnic("b", 2)), Ok(None));
    }

    #[test]
    fn a_key_that_no_nic_keeps_is_refused() {
        let plain = vf("a", 1, "eth1", 2);
        let rate = Rate::from_bits(1_000_000);
        let size = Some(Bytes::new(9_000));
        let cases = [
            ("rx.max", Vnic { rx: Rx { max: rate, ..Rx::default() }, ..plain.clone() }),
            ("rx.queue", Vnic { rx: Rx { queue: size, ..Rx::default() }, ..plain.clone() }),
            ("tx.burst", Vnic { tx: Tx { burst: size, ..Tx::default() }, ..plain.clone() }),
            (
                "allowed.macs",
                Vnic {
                    allowed: Allowed { macs: vec![Mac([2, 0, 0, 0, 0, 9])], ..Allowed::default() },
                    ..plain.clone()
                },
            ),
            (
                "allowed.vlans",
                Vnic { allowed: Allowed { vlans: vec![5], ..Allowed::default() }, ..plain.clone() },
            ),
            (
                "allowed.control",
                Vnic { allowed: Allowed { control: true, ..Allowed::default() }, ..plain.clone() },
            ),
            (
                "allowed.router",
                Vnic { allowed: Allowed { router: true, ..Allowed::default() }, ..plain.clone() },
            ),
            (
                "allowed.dhcp-server",
                Vnic { allowed: Allowed { dhcp_server: true, ..Allowed::default() }, ..plain.clone() },
            ),
            ("queueing", Vnic { queueing: Queueing::Fifo, ..plain.clone() }),
            ("queues", Vnic { queues: 2, ..plain.clone() }),
            ("segment", Vnic { segment: Segment::new(5000).expect("in range"), ..plain.clone() }),
            ("to", Vnic { tx: Tx { min: rate, ..Tx::default() }, to: vec!["b".into()], ..plain.clone() }),
        ];
        for (key, vnic) in cases {
            let why = function(&vnic).expect_err(key);
            assert!(why.len() == 1 && why[0].starts_with(&format!("{key}: ")), "{key}: {why:?}");
        }
    }
}
