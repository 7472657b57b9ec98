//! Observes the state in force: the kernel's, beside the record.

use super::devices::placed;
use super::drift::{Drift, Seen};
use super::in_the_way::{InTheWay, InTheWayOf};
use super::netdev::netdev;
use super::shape::Senders;
use super::state::{AlsoRead, KernelPlace};
use super::unknown::unknown;
use super::{deadlines, shape};
use crate::ebpf::mark::Dropped;
use crate::ebpf::{ArrivalSource, Marked, Policed, Queue};
use crate::foreign::{BridgePort as Port, TakenOver};
use crate::handle::Handle;
use crate::tc::network::{Counters, Rule};
use crate::tc::owner;
use crate::tc::{Netdev, NetdevRefusal, Network, Shaping, Ways, no_shares_at, refusals};
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::time::Instant;
use tidegate_contract::Vnic;
use tidegate_evidence::Connection;
use tidegate_evidence::NetdevDrop;
use tidegate_evidence::{DropReason, Traffic, VnicStats};
use tidegate_place::{Observed, ObservedVnic, PlaceError, PlaceProgram};

impl KernelPlace {
    /// [`Place::observe`](tidegate_place::Place::observe).
    pub(super) fn look(&mut self, coming: &[Vnic]) -> Result<(Observed, InTheWayOf), PlaceError> {
        let (mut observed, mut in_the_way) = (nothing(), InTheWayOf::new());
        self.coming.clear();
        self.ports.clear();
        observed.problem = self.record.save().err().map(|e| format!("no change can be made: {e}"));
        // A host without such contracts pays nothing.
        if self.record.is_empty() && coming.is_empty() {
            return Ok((observed, in_the_way));
        }
        let vnics = self.record.iter().map(|entry| &entry.vnic).chain(coming);
        let network = self.network(AlsoRead::of(vnics))?;
        self.follow(&network);
        let placed = placed(&self.record, &self.devices);
        let all: Vec<&Vnic> = placed.iter().map(AsRef::as_ref).collect();
        let senders = Senders::of(all.iter().copied());
        observed.evidence.taken = Instant::now();
        let (mut shapings, mut entries) = (Vec::new(), Vec::new());
        for (entry, vnic) in self.record.iter().zip(&all) {
            let own_shapings = self.devices.shapings(entry, entry.owned, &senders);
            if !own_shapings.is_empty() {
                entries.push((entry, *vnic, shapings.len()..shapings.len() + own_shapings.len()));
                shapings.extend(own_shapings);
            }
        }
        let plan = self.plan_here(&mut shapings, &network);
        // Probed if there is something to mark.
        let cannot_mark = self.missing.get().and_then(|missing| missing.as_ref()?.marks.clone());
        let seen = Seen::new(&network);
        let drift = Drift::new(&plan, &network);
        let waits = self.waits.measure(&queues(&shapings, &seen));
        let watched = self.deadlines.watch(&all, &network);
        let mut bypass_notes = BTreeSet::new();
        let flows_before = std::mem::take(&mut self.flows_most);
        for (entry, vnic, range) in entries {
            let (shaping, strays) = (&shapings[range.start], &shapings[range.start + 1..range.end]);
            let mut vnic_state = ObservedVnic::of(&entry.vnic, Connection::Up);
            vnic_state.notes.extend(self.devices.notes(&entry.vnic));
            match seen.link(shaping) {
                None => {
                    vnic_state.connection = Connection::Disconnected;
                    let name = &shaping.netdev;
                    vnic_state.notes.push(format!(
                        "interface {name} does not exist; it gets its limits as soon as it exists"
                    ));
                }
                Some((index, link)) => {
                    let stray = |stray: &Shaping| drift.of(stray, seen.link(stray)?.0, &seen);
                    let differs = drift.of(shaping, index, &seen).or_else(|| strays.iter().find_map(stray));
                    if differs.is_none() {
                        self.shaped.insert(vnic.name.clone(), index);
                    } else if self.shaped.get(&vnic.name) != Some(&index) {
                        // The device of a VM that has just started, not a change by another program.
                        vnic_state.connection = Connection::Connected;
                    }
                    vnic_state.broken = differs;
                    vnic_state.notes.extend(note_of_lost(&entry.taken_over, index));
                    vnic_state.notes.extend(shape::notes(shaping));
                    vnic_state.notes.extend(shape::note_of_earlier(link));
                    for shaping in &shapings[range.clone()] {
                        let Some((_, link)) = seen.link(shaping) else { continue };
                        let Some(note) = shape::note_of_rules(shaping, link, &network) else { continue };
                        bypass_notes.insert(format!("vNIC {}: {note}", entry.vnic.name));
                        vnic_state.notes.push(note);
                    }
                    vnic_state
                        .notes
                        .extend(shape::note_of_marks(link.kind.as_deref(), cannot_mark.as_deref()));
                    let mut counted = counted(vnic, index, link, &seen);
                    let key = (vnic.name.clone(), index);
                    let before = flows_before.get(&key).copied().unwrap_or_default();
                    (counted.tx.flows_most, counted.rx.flows_most) =
                        (counted.tx.flows_now.max(before[0]), counted.rx.flows_now.max(before[1]));
                    self.flows_most.insert(key, [counted.tx.flows_most, counted.rx.flows_most]);
                    match &waits {
                        // The VM's wait to send; received frames wait for its own `rx.max`.
                        Ok(waits) => {
                            let of = |queue| waits.get(&queue).cloned();
                            let (sends, receives) = (sending(index, link), receiving(index, link));
                            counted.tokens_tx = of(sends).map(|waits| waits.delay);
                            counted.tokens_rx = of(receives).map(|waits| waits.delay);
                            let waits = of(sends).unwrap_or_default();
                            // Both ends are known: the kernel stamps each frame.
                            counted.delay_least = waits.delay.clone();
                            counted.delay = waits.delay;
                            counted.throttled_ns = waits.throttled_ns;
                        }
                        Err(why) => {
                            vnic_state.notes.push(format!("how long frames wait is not measured: {why}"))
                        }
                    }
                    match &watched {
                        Ok(watched) => {
                            let misses =
                                watched.get(&vnic.name).map(|seen| deadlines::enter(&mut counted, seen));
                            let misses = misses.filter(|misses| !misses.is_empty());
                            observed.evidence.misses.extend(misses.map(|misses| (vnic.name.clone(), misses)));
                        }
                        Err(why) if vnic.is_realtime() => {
                            vnic_state
                                .notes
                                .push(format!("whether its frames are late is not measured: {why}"));
                        }
                        Err(_) => {}
                    }
                    let unknown = unknown(shaping, waits.as_ref().err(), watched.as_ref().err());
                    observed.evidence.unknown.insert(vnic.name.clone(), unknown);
                    observed.evidence.vnics.insert(vnic.name.clone(), counted);
                }
            }
            vnic_state.notes.extend(vnic_state.broken.clone());
            observed.vnics.insert(vnic.name.clone(), vnic_state);
        }
        for note in bypass_notes.difference(&self.bypass_notes) {
            tracing::warn!("{note}");
        }
        self.bypass_notes = bypass_notes;
        let leftover = drift.of_no_netdev(&shapings, &seen);
        self.left_over = leftover.is_some();
        self.is_new &= self.left_over;
        if let Some(leftover) = leftover {
            // The leftover is most likely of an ended VM; otherwise another program made it.
            let whose = observed.vnics.values().find(|o| o.connection == Connection::Disconnected);
            let whose = whose.or(observed.vnics.values().next()).map(|o| o.vnic.name.clone());
            let whose = whose.and_then(|name| observed.vnics.get_mut(&name));
            if let Some(vnic) = whose.filter(|o| o.broken.is_none()) {
                vnic.broken = Some(leftover);
            }
        }
        self.look_ahead(coming, &network, &mut observed, &mut in_the_way);
        Ok((observed, in_the_way))
    }

    /// Returns why `coming` contracts are impossible, or the objects in their way.
    fn look_ahead(
        &mut self,
        coming: &[Vnic],
        network: &Network,
        observed: &mut Observed,
        in_the_way: &mut InTheWayOf,
    ) {
        let seen = network.names();
        let placed: Vec<_> = coming.iter().map(|vnic| self.devices.placed(vnic)).collect();
        let all: Vec<&Vnic> = placed.iter().map(AsRef::as_ref).collect();
        let senders = Senders::of(all.iter().copied());
        let mut requests = Vec::new();
        for vnic in all.iter().copied() {
            let known = self.record.known(&vnic.attach);
            let (owned, port) =
                known.as_ref().map_or((Ways::NONE, None), |entry| (entry.owned, entry.port.as_ref()));
            // The plan reports faults of the contract itself.
            let Ok(shaping) = shape::shaping_among(vnic, owned, &senders) else { continue };
            if let Some((index, link)) = seen.get(shaping.netdev.as_str())
                && shaping.segment.is_some()
                && !port.is_some_and(|port| port.is(*index, link))
                && let Some(port) = Port::now(*index, link)
            {
                self.ports.insert(vnic.name.clone(), port);
            }
            match seen.get(shaping.netdev.as_str()) {
                // Its VM is not running: the change waits for it, as the contract does.
                None if known.is_some() => continue,
                Some((index, _)) if known.is_none() => drop(self.coming.insert(vnic.name.clone(), *index)),
                _ => {}
            }
            requests.push((vnic, shaping));
        }
        self.qdiscs.check(requests.iter().filter_map(|(_, shaping)| shape::waiting(shaping)));
        requests.iter_mut().for_each(|(_, shaping)| self.queue_here(std::slice::from_mut(shaping)));
        let mut shapings: Vec<Shaping> = requests.iter().map(|(_, shaping)| shaping.clone()).collect();
        if !shapings.is_empty() && self.cannot_mark().is_some() {
            shapings.iter_mut().for_each(shape::leave_marks);
        }
        let refused = refusals(&shapings, network).into_iter().map(|r| (r.netdev.clone(), r));
        let refused: BTreeMap<String, NetdevRefusal> = refused.collect();
        // A receiver may be outside the change.
        let mut netdevs = HashMap::<&str, Vec<&str>>::new();
        for vnic in coming.iter().chain(self.record.iter().map(|entry| &entry.vnic)) {
            netdevs.entry(&vnic.name).or_default().extend(netdev(vnic));
        }
        let is_macvtap =
            |name: &&str| seen.get(name).is_some_and(|(_, l)| l.kind.as_deref() == Some("macvtap"));
        let no_shares = |vnic: &Vnic| {
            let mut receivers = vnic.to.iter().filter(|_| shape::has_share(vnic));
            receivers
                .find_map(|to| netdevs.get(to.as_str())?.iter().copied().find(is_macvtap))
                .map(no_shares_at)
        };
        let no_shares: Vec<Option<String>> = requests.iter().map(|(vnic, _)| no_shares(vnic)).collect();
        for ((vnic, shaping), no_shares) in requests.into_iter().zip(no_shares) {
            let kind = seen.get(shaping.netdev.as_str()).and_then(|(_, link)| link.kind.as_deref());
            let missing = self.lacks(&shaping, kind).or(no_shares);
            let missing = missing.or_else(|| {
                let (_, link) = seen.get(shaping.netdev.as_str())?;
                let known = self.record.known(&vnic.attach).map(|entry| entry.vnic);
                let before = known.and_then(|vnic| shape::nearest(&vnic, Ways::NONE, &Senders::default()));
                let waits = before.is_some_and(|before| before.redirects(kind));
                shape::refuse_rules(&shaping, link, network).filter(|_| !waits)
            });
            let refused = refused.get(&shaping.netdev).cloned();
            let obstacle = match (missing, refused) {
                (Some(missing), _) => missing,
                (None, Some(NetdevRefusal { reason, foreign: Some(what), .. })) => {
                    let lost = match self.foreign_at(&shaping, network) {
                        Ok(foreign) => foreign.lost.to_string(),
                        Err(why) => why,
                    };
                    let lost = Some(lost).filter(|lost| !lost.is_empty());
                    in_the_way.insert(vnic.name.clone(), InTheWay { what, reason, lost });
                    continue;
                }
                (None, Some(refused)) => refused.reason,
                (None, None) => continue,
            };
            observed.obstacles.insert(vnic.name.clone(), obstacle);
        }
    }
}

/// Returns an empty observation.
pub(super) fn nothing() -> Observed {
    let version = rustix::system::uname().release().to_string_lossy().into_owned();
    let program = PlaceProgram { version, ..PlaceProgram::default() };
    let mut observed = Observed::nothing("the kernel: classes and eBPF programs of its netdev");
    observed.evidence.counts_flows = true;
    Observed { program, ..observed }
}

/// Returns a note for people about take-overs on this device.
fn note_of_lost(taken_over: &TakenOver, index: u32) -> Option<String> {
    let why = Some(&taken_over.lost).filter(|lost| !lost.is_empty() && taken_over.index == index)?;
    Some(format!(
        "the objects that another program made on its interface are not restored when the contract ends: {why}"
    ))
}

/// Returns the queue of frames that a VM sends.
fn sending(index: u32, link: &Netdev) -> Queue {
    Queue { index, ingress: link.kind.as_deref() != Some("macvtap") }
}

/// Returns the queue of frames that it receives.
fn receiving(index: u32, link: &Netdev) -> Queue {
    Queue { ingress: !sending(index, link).ingress, index }
}

/// Returns the queues of present shaped netdevs.
fn queues(shapings: &[Shaping], seen: &Seen<'_>) -> BTreeMap<Queue, ArrivalSource> {
    let of = |shaping: &Shaping| {
        let (index, link) = seen.link(shaping)?;
        let ends = shaping.uses(link.kind.as_deref())?;
        // Policed frames do not wait.
        let ends = [(false, ends.egress), (true, ends.ingress && shaping.tx_police.is_none())];
        let queues =
            ends.into_iter().filter(|(_, used)| *used).map(move |(ingress, _)| Queue { index, ingress });
        let measured = move |queue: Queue| {
            // On the IFB the classifier writes it into each frame.
            let arrival = if queue.ingress { ArrivalSource::Address } else { ArrivalSource::of(link) };
            (queue, arrival)
        };
        Some(queues.map(measured))
    };
    shapings.iter().filter_map(of).flatten().collect()
}

/// Returns the counters of the class of all frames that a netdev sends. Its parts have drops and backlog.
fn sent(link: &Netdev) -> Option<Counters> {
    let all = link.class(owner::ROOT_CLASS)?.counters;
    let parts = link.classes.iter().filter(|c| c.parent == owner::ROOT_CLASS).map(|c| c.counters);
    Some(parts.fold(all, |all, part| Counters {
        drops: all.drops + part.drops,
        full: all.full + part.full,
        marked: all.marked + part.marked,
        flows: part.flows.map_or(all.flows, |flows| Some(all.flows.unwrap_or_default() + flows)),
        backlog: all.backlog + part.backlog,
        ..all
    }))
}

/// Returns the counters of a netdev's filters and classes.
fn counted(vnic: &Vnic, index: u32, link: &Netdev, seen: &Seen<'_>) -> VnicStats {
    let mut counted = limited(vnic, index, link, seen);
    let marks = dropped_at_marks(link).unwrap_or_default();
    let unknown_headers = marks.unknown_headers + policed(link).unwrap_or_default().unknown_headers;
    let dropped = [
        (NetdevDrop::OverBurst, marks.over_burst),
        (NetdevDrop::UnknownHeaders, unknown_headers),
        (NetdevDrop::DoubleTagged, seen.double_tagged(index)),
    ];
    let dropped = dropped.into_iter().filter(|(_, count)| *count > 0);
    counted.tx.dropped.extend(dropped.map(|(reason, count)| (reason.label().to_owned(), count)));
    counted
}

/// Returns the counters of an eBPF program among a netdev's filters; `read` picks the filter.
fn counted_by<T, E: std::fmt::Display>(
    link: &Netdev,
    read: impl Fn(&Rule) -> Option<Result<T, E>>,
) -> Option<T> {
    let counted = link.filters.iter().find_map(|filter| read(&filter.rule))?;
    counted.inspect_err(|why| tracing::debug!(link = link.name, "{why}")).ok()
}

/// Returns the drops of the marking filter.
fn dropped_at_marks(link: &Netdev) -> Option<Dropped> {
    counted_by(link, |rule| match rule {
        Rule::Mark { program, .. } => Some(Dropped::read(program.map)),
        _ => None,
    })
}

/// Returns the counters of its limits.
fn limited(vnic: &Vnic, index: u32, link: &Netdev, seen: &Seen<'_>) -> VnicStats {
    let marked_before = |parent: Handle, counters: Option<Counters>| {
        let marked = link.congestion_map(parent).and_then(|map| Marked::read(map).ok()).unwrap_or_default();
        counters.map(|counters| Counters { marked: counters.marked + marked.frames, ..counters })
    };
    let egress = marked_before(owner::ROOT_QDISC, sent(link));
    let ingress = seen.leaves.get(&index).and_then(|class| seen.counters.get(class)).copied();
    let ingress = marked_before(Handle::INGRESS, ingress);
    if let Some(policed) = policed(link) {
        return VnicStats {
            name: vnic.name.clone(),
            tx: Traffic {
                frames: policed.frames,
                wire_frames: policed.frames,
                wire_bytes: policed.bytes,
                dropped: (policed.dropped > 0)
                    .then(|| (NetdevDrop::Policed.label().to_owned(), policed.dropped))
                    .into_iter()
                    .collect(),
                ..Traffic::default()
            },
            rx: traffic(egress, DropReason::QueueFull),
            ..VnicStats::default()
        };
    }
    let macvtap = link.kind.as_deref() == Some("macvtap");
    let (tx, rx) = if macvtap { (egress, ingress) } else { (ingress, egress) };
    VnicStats {
        name: vnic.name.clone(),
        throttled: tx.is_some_and(|c| c.backlog > 0),
        tx: traffic(tx, DropReason::PoolFull),
        rx: traffic(rx, DropReason::QueueFull),
        ..VnicStats::default()
    }
}

/// Returns the counters of the policer at its ingress.
fn policed(link: &Netdev) -> Option<Policed> {
    counted_by(link, |rule| match rule {
        Rule::Police { program, .. } => Some(Policed::read(program.map)),
        _ => None,
    })
}

fn traffic(counters: Option<Counters>, full: DropReason) -> Traffic {
    let Counters { bytes, packets, drops, full: for_room, marked, flows, .. } = counters.unwrap_or_default();
    let full = if flows.is_some() { DropReason::FlowCap } else { full };
    let dropped = [(full, for_room), (DropReason::Codel, drops.saturating_sub(for_room))];
    let dropped = dropped.into_iter().filter(|(_, count)| *count > 0);
    Traffic {
        // The kernel counts segments only.
        frames: packets,
        wire_frames: packets,
        wire_bytes: bytes,
        dropped: dropped.map(|(reason, count)| (reason.label().to_owned(), count)).collect(),
        marked,
        flows_now: flows.unwrap_or_default(),
        ..Traffic::default()
    }
}
