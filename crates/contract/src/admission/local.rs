//! The egress towards a vNIC of this host.
//!
//! A remote sends to it with an envelope of its own host, which conformed up to J = Td - arrival budget before: its
//! frames may bunch on the way. Frames that arrive within t conformed within t + J, so at most b + r (t + J) bytes of
//! them arrive: the envelope has the burst b + r J (the output bound of a network that delays by J at most; Le Boudec
//! and Thiran, Network Calculus, 1.4.1). The deadline here is this host's arrival budget.

use super::egress::{Egress, Minimum, Order, Source};
use super::neighbours::Neighbours;
use super::refusal::NotAdmissible;
use super::set::{Routes, Sender, names};
use crate::frame::SUPER_FRAME_IPV4;
use crate::{Attach, Discipline, Host, Rate, Remote, Uplink, Vnic};

pub(super) fn egress(
    name: &str,
    host: &Host,
    routes: &Routes<'_>,
    neighbours: &Neighbours<'_>,
    senders: &[Sender<'_>],
) -> Result<Egress, Vec<NotAdmissible>> {
    let (egress, vnics) = (name.to_owned(), names(senders));
    let Some(receiver) = routes.vnic(name) else {
        return Err(vec![NotAdmissible::UnknownEgress { egress, vnics }]);
    };
    if receiver.rx.discipline == Discipline::Fifo {
        return Err(vec![NotAdmissible::Fifo { egress, vnics }]);
    }
    let key = format!("vnic.{name}.rx.max");
    let Some(capacity) = receiver.rx.max else {
        return Err(vec![NotAdmissible::NoCapacity { egress, vnics, key }]);
    };
    let (mut sources, mut minima, mut bare) = (Vec::new(), Vec::new(), Vec::new());
    for sender in senders {
        let source = match sender {
            Sender::Vnic(vnic) | Sender::Beyond(vnic, _) if !vnic.is_realtime() => {
                let min = vnic.tx.min.map(|min| min.bits());
                minima.extend(min.map(|rate| Minimum { name: vnic.name.clone(), rate, added: 0 }));
                continue;
            }
            Sender::Vnic(vnic) | Sender::Beyond(vnic, _) => of_vnic(vnic),
            Sender::Remote(remote, uplink) => of_remote(remote, uplink),
            Sender::Lost(_) => None,
        };
        match source {
            Some(source) => sources.push(source),
            None => bare.push(sender.name().to_owned()),
        }
    }
    if !bare.is_empty() {
        return Err(vec![NotAdmissible::NoEnvelope { egress, vnics: bare }]);
    }
    let (order, blocking) = match receiver.attach {
        Attach::Netdev { .. } => (Order::Priority, SUPER_FRAME_IPV4),
        _ => (Order::Edf, neighbours.largest_frame(receiver)),
    };
    Ok(Egress {
        name: egress,
        order,
        capacity_key: key,
        capacity: capacity.bits(),
        blocking: blocking * 8,
        host_latency: host.host_latency.get(),
        sources,
        minima,
        senders: vnics,
    })
}

fn of_vnic(vnic: &Vnic) -> Option<Source> {
    Some(Source {
        name: vnic.name.clone(),
        table: "vnic",
        burst: u128::from(vnic.tx.burst?.get()) * 8,
        rate: vnic.tx.max?.bits(),
        deadline: vnic.deadline?.get(),
        jitter: 0,
        added: 0,
        away: None,
        smallest_rate: vnic.tx.min.map_or(1, Rate::bits),
        smallest_burst: vnic.largest_frame(),
    })
}

fn of_remote(remote: &Remote, uplink: &Uplink) -> Option<Source> {
    let deadline = remote.deadline?.get();
    // A checked remote has more than the budget.
    let here = uplink.arrival_budget.get().min(deadline);
    Some(Source {
        name: remote.name.clone(),
        table: "remote",
        burst: u128::from(remote.tx.burst?.get()) * 8,
        rate: remote.tx.max?.bits(),
        deadline: here,
        jitter: deadline - here,
        added: 0,
        away: None,
        smallest_rate: 1,
        smallest_burst: 1,
    })
}
