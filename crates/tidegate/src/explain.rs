//! Drop reasons and causes of misses in plain words.

use crate::format::duration;
use tidegate_evidence::{Culprit, CulpritKind, DropReason, FarMiss, Miss, MissCause};
use tidegate_evidence::{NetdevDrop, NicDrop};

/// Says what another host reports of a late frame.
pub fn far_miss(miss: &FarMiss) -> String {
    let FarMiss { peer, dst, cause, others, .. } = miss;
    let [late, error] = [miss.late_ns, miss.error_ns].map(duration);
    let what = match (miss.dropped, miss.is_certain()) {
        (true, _) => "dropped".to_owned(),
        (false, true) => format!("late by {late}"),
        (false, false) => format!("perhaps late by {late}, within {error}"),
    };
    let [here, network, there] = [miss.hold_ns, miss.network_ns, miss.there_ns].map(duration);
    let more = if *others > 0 { format!("; and {}", plural_more(*others)) } else { String::new() };
    format!(
        "{what} at {peer} ({dst}): {here} here, {network} in the network, {there} there; cause: {cause}{more}"
    )
}

fn plural_more(others: u32) -> String {
    format!("{others} more frame{}", if others == 1 { "" } else { "s" })
}

/// Returns the meaning of a drop reason, and a remedy if there is one. `label` is that of a [`DropReason`],
/// a [`NetdevDrop`] or a [`NicDrop`]; a newer agent or switch may send one that this program does not know.
pub fn drop_reason(label: &str) -> &'static str {
    let of_netdev = || NetdevDrop::of_label(label).map(netdev_drop);
    let of_nic = || NicDrop::of_label(label).map(nic_drop);
    let known = DropReason::of_label(label).map(switch_drop).or_else(of_netdev).or_else(of_nic);
    known.unwrap_or("a reason this program does not know; it is older than the switch or the agent")
}

fn netdev_drop(reason: NetdevDrop) -> &'static str {
    match reason {
        NetdevDrop::Policed => "more than its `tx.max`, and `tx.method` says that it does not wait",
        NetdevDrop::OverBurst => {
            "a super-frame larger than its `tx.burst`, which the kernel cannot cut: raise it, or turn segmentation \
             offload off in the guest"
        }
        NetdevDrop::UnknownHeaders => {
            "a super-frame whose headers cannot be followed, so that its bytes on the wire are not known: turn \
             segmentation offload off in the guest"
        }
        NetdevDrop::DoubleTagged => {
            "a super-frame behind more than one VLAN tag, which the kernel would damage while it waits for `tx.max`: \
             turn segmentation offload off in the guest, or write `tx.method = \"police\"`"
        }
        NetdevDrop::RingFull => "the receiver took no frame until its ring was full",
        NetdevDrop::Kernel => "the kernel dropped the frame on its way",
    }
}

fn nic_drop(reason: NicDrop) -> &'static str {
    match reason {
        NicDrop::Nic => "the NIC dropped the frame, and gives no reason",
    }
}

fn switch_drop(reason: DropReason) -> &'static str {
    match reason {
        DropReason::Malformed => {
            "headers or an offload request that make no sense: a fault of the sender's driver"
        }
        DropReason::TooScattered => "spread over more pieces of memory than a frame may be",
        DropReason::TooLong => "longer than the sender's contract allows: raise `mtu`, or lower the guest's",
        DropReason::SourceMac => {
            "sent from a MAC address that is not the vNIC's own, or naming one in ARP or neighbour discovery: if this is intended, add it to `allowed.macs`, or to `allowed.shared` of each vNIC that takes turns with it (VRRP, CARP)"
        }
        DropReason::SourcePrefix => {
            "sent from an IP address outside `allowed.prefixes`, or claiming one in ARP or neighbour discovery: if this is intended, add its prefix, or the address to `allowed.shared` of each vNIC that takes turns with it"
        }
        DropReason::LinkLocal => {
            "sent from an IPv6 link-local address that is another vNIC's, or from a fifth one: \
             `tidegate vnic show` lists those a vNIC holds; name it in `allowed.prefixes`"
        }
        DropReason::Control => {
            "for the link itself (STP, LACP, LLDP, EAPOL, PAUSE): if this is intended, set `allowed.control`"
        }
        DropReason::Router => {
            "a router advertisement or redirect: if the vNIC is a router, set `allowed.router`"
        }
        DropReason::DhcpServer => {
            "a message that only DHCP servers and relays send: if the vNIC is one, set `allowed.dhcp-server`"
        }
        DropReason::Vlan => "on a VLAN that is not in `allowed.vlans`",
        DropReason::Encapsulation => {
            "an encapsulation, IPv6 extension headers or fragments that hide the fields that `allowed` checks"
        }
        DropReason::NoReceiver => {
            "no vNIC in the segment has its destination address: does the other vNIC exist, in the same segment?"
        }
        DropReason::FloodCap => {
            "more broadcast, multicast or unknown destinations than the host's `flood` rate allows"
        }
        DropReason::QueueFull => {
            "the queue towards the receiver was full: the receiver gets more than its `rx.max`"
        }
        DropReason::PoolFull => {
            "where its frames wait for `tx.max` there was no room: the vNIC sends more than that, and the switch cannot make it wait"
        }
        DropReason::NoBuffers => {
            "the queue towards the receiver was full: the receiving guest gives no buffers, it is too slow or it stalled"
        }
        DropReason::WorkerBehind => {
            "the queue towards the receiver was full: the switch's worker came too late, `tidegate top` shows how busy it is"
        }
        DropReason::Codel => {
            "the frames of its flow waited for too long, for `tx.max` of the sender or `rx.max` of the receiver, and its \
             sender does not take marks (ECN): TCP slows down by this, as intended"
        }
        DropReason::Shared => {
            "from an address in `allowed.shared` that another vNIC has, without announcing it, or announced too often"
        }
        DropReason::FlowCap => {
            "more waited for `tx.max` of the sender or `rx.max` of the receiver than there is room for, and most of it was of this flow: TCP slows down by this; a flow that does not slow down loses its frames above the limit"
        }
        DropReason::RingShare => {
            "half of the sender's ring was waiting already: the receiver is slower than this sender, or has reached its \
             `rx.max`"
        }
        DropReason::HeldTooLong => {
            "waited longer than any frame may be held: the receiver gives no buffers, or has reached its `rx.max`"
        }
        DropReason::Late => "could no longer arrive before its deadline",
        DropReason::Unacceptable => {
            "of a length or kind the receiver cannot take: compare the `mtu` of both, or let the guest have \
             mergeable receive buffers"
        }
        DropReason::ReceiverDown => "the receiver's port went down while it waited",
        DropReason::SenderReset => "the sender's own port was reset while it waited",
        DropReason::TapRefused => "the receiver's tap refused it: is the interface up?",
        DropReason::UnknownPeer => {
            "from an address that is no `peer` of the uplink: another host uses this VXLAN, or the list of peers is old"
        }
        DropReason::UnknownSegment => {
            "of a VNI that is no segment here, or none that this peer carries: compare `segment` on both hosts"
        }
        DropReason::Congested => {
            "marked by a congested network between hosts, and the inner sender does not take marks (ECN, RFC 6040)"
        }
        DropReason::PathMtu => {
            "too long for the path between hosts: VXLAN adds 50 bytes (IPv4) or 70 (IPv6) to each frame; set the guests' \
             `mtu` that much lower than the network's"
        }
        DropReason::NoRoute => "the kernel has no route to the peer: `ip route get` its address",
        DropReason::UplinkRefused => {
            "the kernel refused to send it to the peer: a filter (nftables, cgroup) that does not know it?"
        }
        DropReason::Replayed => {
            "its stamp is valid and has arrived before, or 128 later frames have overtaken it: the network between hosts \
             repeats frames, or another host does"
        }
    }
}

/// Describes one missed deadline: by how much the frame was late, and what it waited for.
pub fn miss(miss: &Miss) -> String {
    let head = match &miss.dropped {
        Some(reason) => format!("dropped after {} ({})", duration(miss.delay), drop_reason(reason)),
        None if miss.is_certain() => {
            let [least, most] =
                [miss.delay_least, miss.delay].map(|delay| delay.saturating_sub(miss.deadline));
            format!("missed by {}", between(least, most))
        }
        None if miss.is_by_sleep() => format!(
            "possibly missed: took {} and what the worker took to wake up, at most {}",
            between(miss.delay_least, miss.delay),
            duration(miss.slept)
        ),
        None => format!("possibly missed: took {}", between(miss.delay_least, miss.delay)),
    };
    let mut waits: Vec<(MissCause, u64)> = [
        (MissCause::Tokens, miss.tokens),
        (MissCause::Queue, miss.queue),
        (MissCause::Buffers, miss.buffers),
        (MissCause::Worker, miss.worker),
    ]
    .into_iter()
    .filter(|(cause, ns)| *ns > 0 && (cause.label() == miss.cause || *ns >= miss.delay / 10))
    .collect();
    // The cause first, then the others, longest first.
    waits.sort_by_key(|(cause, ns)| (cause.label() != miss.cause, std::cmp::Reverse(*ns)));
    let waits: Vec<String> = waits.into_iter().map(|(cause, ns)| wait(cause, ns, miss)).collect();
    match (waits.is_empty(), MissCause::of_label(&miss.cause)) {
        (true, Some(MissCause::Network)) => {
            format!("{head}: delayed in the network between the hosts, to `{}`", miss.egress)
        }
        (true, Some(MissCause::Sender)) => {
            format!("{head}: left the host that sent it late, to `{}`", miss.egress)
        }
        (true, _) => format!("{head}, on its way to `{}`", miss.egress),
        (false, _) => format!("{head}: waited {}", waits.join(", ")),
    }
}

/// Formats a time that lies between two values.
fn between(least: u64, most: u64) -> String {
    let [least, most] = [least, most].map(duration);
    if least == most { most } else { format!("{least} to {most}") }
}

fn wait(cause: MissCause, ns: u64, miss: &Miss) -> String {
    let (time, egress) = (duration(ns), &miss.egress);
    match cause {
        MissCause::Queue => match &miss.behind {
            Some(behind) => format!("{time} in the queue of `{egress}` behind `{behind}`"),
            None => format!("{time} in the queue of `{egress}`"),
        },
        MissCause::Buffers => format!("{time} for `{egress}` to offer receive buffers"),
        MissCause::Worker => match &miss.culprit {
            Some(Culprit { what, took, .. }) => {
                format!("{time} for the switch's worker, of which {what} took {}", duration(*took))
            }
            None => format!("{time} for the host (the switch's worker, or the kernel)"),
        },
        MissCause::Tokens => {
            format!("{time} for its own envelope (sent faster than `tx.max` and `tx.burst`)")
        }
        // A record has no separate wait for these.
        MissCause::Network | MissCause::Sender | MissCause::Dropped => time,
    }
}

/// Returns the meaning of a cause of misses.
pub fn cause(label: &str) -> &'static str {
    match MissCause::of_label(label) {
        Some(MissCause::Tokens) => "waited for its own envelope: sent faster than `tx.max` and `tx.burst`",
        Some(MissCause::Queue) => "waited behind other frames in the receiver's queue",
        Some(MissCause::Buffers) => "the receiving guest offered no buffers",
        Some(MissCause::Worker) => {
            "the switch's worker came late, by a loop longer than the host budget H; of netdevs, the host's kernel"
        }
        Some(MissCause::Network) => "delayed in the network between the hosts",
        Some(MissCause::Sender) => "left the host that sent it late",
        Some(MissCause::Dropped) => "dropped, so it never arrived",
        None => "a cause this program does not know; it is older than the switch",
    }
}

/// Returns the meaning of a kind of culprit.
pub fn culprit(label: &str) -> &'static str {
    match CulpritKind::of_label(label) {
        Some(CulpritKind::OwnLoop) => "the worker was busy with other frames, or with a change",
        Some(CulpritKind::Task) => "another program had the worker's CPU",
        Some(CulpritKind::Idle) => "the worker's CPU was idle, and took long to wake up",
        Some(CulpritKind::Softirq) => "the kernel was busy on the worker's CPU, mostly with others' packets",
        Some(CulpritKind::Interrupt) => "a device's interrupt took long on the worker's CPU",
        Some(CulpritKind::Stolen) => "the host of this virtual machine had the CPU",
        Some(CulpritKind::Unexplained) => "no known cause explains most of the delay",
        None => "a culprit this program does not know; it is older than the agent",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn late() -> Miss {
        Miss {
            number: 3,
            at: 0,
            egress: "sink".into(),
            cause: "queue".into(),
            dropped: None,
            behind: Some("bulk1".into()),
            delay: 1_120_000,
            delay_least: 1_120_000,
            slept: 0,
            seen: None,
            by: Some(0),
            deadline: 1_000_000,
            tokens: 0,
            worker: 20_000,
            queue: 800_000,
            buffers: 300_000,
            culprit: None,
        }
    }

    #[test]
    fn every_reason_and_cause_is_explained() {
        for reason in DropReason::ALL {
            assert!(!drop_reason(reason.label()).contains("older than"), "{}", reason.label());
        }
        for of in MissCause::ALL {
            assert!(!cause(of.label()).contains("older than"), "{}", of.label());
        }
        for kind in CulpritKind::ALL {
            assert!(!culprit(kind.label()).contains("older than"), "{}", kind.label());
        }
        for reason in NetdevDrop::ALL {
            assert!(
                DropReason::of_label(reason.label()).is_none(),
                "{} is also the switch's",
                reason.label()
            );
            assert_eq!(drop_reason(reason.label()), netdev_drop(*reason));
        }
        for reason in NicDrop::ALL {
            assert_eq!(drop_reason(reason.label()), nic_drop(*reason));
        }
        assert!(drop_reason("new").contains("older than the switch"));
    }

    #[test]
    fn the_cause_comes_first_and_trifles_are_left_out() {
        assert_eq!(
            miss(&late()),
            "missed by 120 us: waited 800 us in the queue of `sink` behind `bulk1`, \
             300 us for `sink` to offer receive buffers"
        );
        let buffers = Miss { cause: "buffers".into(), behind: None, ..late() };
        assert_eq!(
            miss(&buffers),
            "missed by 120 us: waited 300 us for `sink` to offer receive buffers, 800 us in the queue of `sink`"
        );
    }

    #[test]
    fn the_certainty_of_a_miss_comes_first() {
        let waited = Miss { queue: 0, buffers: 0, worker: 1_120_000, cause: "worker".into(), ..late() };
        let said = |delay_least, delay, slept| {
            let miss = miss(&Miss { delay_least, delay, slept, ..waited.clone() });
            miss.split_once(": waited").map(|(head, _)| head.to_owned()).unwrap()
        };
        assert_eq!(said(1_100_000, 1_120_000, 0), "missed by 100 us to 120 us");
        assert_eq!(said(20_000, 1_120_000, 0), "possibly missed: took 20.0 us to 1.12 ms");
        let asleep =
            "possibly missed: took 20.0 us to 30.0 us and what the worker took to wake up, at most 1.40 ms";
        assert_eq!(said(20_000, 30_000, 1_400_000), asleep);
    }

    #[test]
    fn the_culprit_of_a_late_frame_is_named() {
        let culprit = Culprit { kind: "softirq".into(), what: "ksoftirqd/2 NET_RX".into(), took: 900_000 };
        let worker = Miss { worker: 1_000_000, queue: 0, buffers: 0, culprit: Some(culprit), ..late() };
        assert_eq!(
            miss(&Miss { cause: "worker".into(), ..worker }),
            "missed by 120 us: waited 1.00 ms for the switch's worker, of which ksoftirqd/2 NET_RX took 900 us"
        );
    }

    #[test]
    fn dropped_and_network_misses_have_their_own_words() {
        let dropped = Miss { dropped: Some("late".into()), cause: "dropped".into(), ..late() };
        assert!(
            miss(&dropped)
                .starts_with("dropped after 1.12 ms (could no longer arrive before its deadline): waited"),
            "{}",
            miss(&dropped)
        );
        let network = Miss { cause: "network".into(), queue: 0, buffers: 0, worker: 0, ..late() };
        assert_eq!(miss(&network), "missed by 120 us: delayed in the network between the hosts, to `sink`");
    }
}
