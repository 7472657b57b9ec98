//! From a contract to requests to the kernel, or all reasons against it. Pure.

use crate::ebpf::{Bucket, Marks};
use crate::tc::vlan;
use crate::tc::{Flows, Limit, Netdev, Network, Qdiscs, Shaping, Share, Ways};
use std::collections::HashMap;
use tidegate_contract::admission::priorities;
use tidegate_contract::{
    Allowed, Attach, Bytes, Discipline, Method, Nanos, Queueing, Rate, SUPER_FRAME, Vnic,
};

/// Returns the directions that a contract limits, and whether it sets the VLAN of its bridge port.
pub fn limited(vnic: &Vnic) -> Ways {
    Ways { tx: vnic.tx.max.is_some(), rx: vnic.rx.max.is_some(), segment: segment(vnic).is_some() }
}

/// Returns the VLAN of a contract's bridge port. [`shaping`] refuses one that is too high.
pub fn segment(vnic: &Vnic) -> Option<u16> {
    u16::try_from(vnic.segment.id()).ok().filter(|vid| (1..=vlan::LAST).contains(vid))
}

/// Senders with promises, by the receiving vNIC.
#[derive(Debug, Default)]
pub struct Senders<'a>(HashMap<&'a str, Vec<&'a Vnic>>);

impl<'a> Senders<'a> {
    /// Makes it from all contracts of this place.
    pub fn of(all: impl IntoIterator<Item = &'a Vnic>) -> Self {
        let mut senders = HashMap::<&str, Vec<&Vnic>>::new();
        for vnic in all.into_iter().filter(|v| has_share(v)) {
            for to in vnic.to.iter().filter(|to| **to != vnic.name) {
                senders.entry(to).or_default().push(vnic);
            }
        }
        Self(senders)
    }
}

/// Like [`shaping_among`], for one contract.
pub fn shaping(vnic: &Vnic, owned: Ways, all: &[&Vnic]) -> Result<Shaping, Vec<String>> {
    shaping_among(vnic, owned, &Senders::of(all.iter().copied()))
}

/// Returns the requests for this contract beside those of `senders`, or all reasons against it. `owned`:
/// the parts without foreign objects.
pub fn shaping_among(vnic: &Vnic, owned: Ways, senders: &Senders<'_>) -> Result<Shaping, Vec<String>> {
    let Attach::Netdev { name } = &vnic.attach else {
        return Err(vec!["it is not a netdev".into()]);
    };
    let mut refused = requests_not_kept(vnic);
    let frame = vnic.largest_frame();
    let mut limit = |way: &str, rate: Option<Rate>, burst: fn(&Vnic, Rate) -> Bytes, queue| {
        let rate = rate?;
        let limit = Limit::new(rate, burst(vnic, rate), queue, frame);
        limit.map_err(|e| refused.push(format!("{way}: {e}"))).ok()
    };
    let (waits, drops) = match vnic.tx.method {
        Method::Shape => (vnic.tx.max, None),
        Method::Police => (None, vnic.tx.max),
    };
    let tx = limit("tx", waits, |v, r| v.tx.burst_or_default(r), None);
    let rx = limit("rx", vnic.rx.max, |v, r| v.rx.burst_or_default(r), vnic.rx.queue);
    let bucket = |rate| Bucket::new(rate, vnic.tx.burst_or_default(rate));
    let tx_police = drops.and_then(|r| bucket(r).map_err(|e| refused.push(format!("tx: {e}"))).ok());
    let rx_shares = shares(vnic, senders, &mut refused);
    if refused.is_empty() {
        // The whole envelope: a frame larger than the burst would not fit.
        let burst =
            vnic.tx.max.filter(|_| vnic.is_realtime()).map(|rate| vnic.tx.burst_or_default(rate).get());
        let marks = Some(Marks::from_burst(burst.unwrap_or_default()));
        Ok(Shaping {
            netdev: name.clone(),
            tx,
            tx_police,
            realtime: vnic.is_realtime(),
            marks,
            promises: has_share(vnic) && !vnic.to.is_empty(),
            rx,
            rx_shares,
            flows: flows(vnic),
            rx_in_order: vnic.rx.discipline == Discipline::Fifo,
            segment: segment(vnic),
            owned,
        })
    } else {
        Err(refused)
    }
}

/// Returns the nearest to [`shaping_among`] during an incomplete change: its own limits, without impossible
/// shares.
pub fn nearest(vnic: &Vnic, owned: Ways, senders: &Senders<'_>) -> Option<Shaping> {
    shaping_among(vnic, owned, senders).or_else(|_| shaping_among(vnic, owned, &Senders::default())).ok()
}

/// Whether its frames are separate from others', because of a promise.
pub fn has_share(vnic: &Vnic) -> bool {
    vnic.is_realtime() || vnic.tx.min.is_some() || vnic.weight != 1
}

/// Returns the shares of a vNIC's senders with promises.
fn shares(vnic: &Vnic, senders: &Senders<'_>, refused: &mut Vec<String>) -> Vec<Share> {
    let senders = senders.0.get(vnic.name.as_str()).map(Vec::as_slice).unwrap_or_default();
    let deadlines: Vec<u64> = senders.iter().filter_map(|v| v.deadline).map(Nanos::get).collect();
    let mut ranks = priorities(&deadlines).into_iter();
    let mut shares = Vec::new();
    for sender in senders {
        let Attach::Netdev { name: from } = &sender.attach else { continue };
        if vnic.rx.max.is_none() {
            refused.push(format!(
                "{} sends to this vNIC by weight, and this vNIC has no rx.max to share out; set rx.max",
                sender.name
            ));
        }
        // Real-time traffic comes within its envelope.
        let (key, rate) = match sender.deadline {
            Some(_) => ("tx.max", sender.tx.max),
            None => ("tx.min", sender.tx.min),
        };
        let burst =
            |rate| if sender.is_realtime() { sender.tx.burst_or_default(rate) } else { usual_burst(rate) };
        let limit = rate.map(|rate| Limit::new(rate, burst(rate), None, sender.largest_frame()));
        let guaranteed = match limit.transpose() {
            Ok(guaranteed) => guaranteed,
            Err(why) => {
                refused.push(format!("{key} of {}: {why}", sender.name));
                continue;
            }
        };
        let priority = sender.deadline.and_then(|_| ranks.next()).unwrap_or(Share::LAST);
        shares.push(Share { from: from.clone(), guaranteed, priority, weight: sender.weight });
    }
    shares
}

/// Returns the burst of a guarantee, for which a contract has no key: a super-frame, or 1 ms at its rate.
/// HTB passes it regardless of the egress's tokens, so all guarantees together may exceed the egress's rate
/// by it.
fn usual_burst(rate: Rate) -> Bytes {
    Bytes::new(SUPER_FRAME.max(rate.bits() / 8 / 1000))
}

/// Returns the flow settings of a contract for a kernel without qdiscs; [`set_kernel_qdiscs`] adds the running one's.
pub fn flows(vnic: &Vnic) -> Option<Flows> {
    let Queueing::Flows(asked) = vnic.queueing else { return None };
    Some(Flows {
        target: asked.target.get(),
        interval: asked.interval.get(),
        per_host: asked.per_host,
        frame: u32::try_from(vnic.largest_frame()).unwrap_or(u32::MAX),
        kernel: Qdiscs::default(),
    })
}

/// Adds a kernel's qdiscs to a request.
pub fn set_kernel_qdiscs(shaping: &mut Shaping, kernel: Qdiscs) {
    shaping.flows = shaping.flows.map(|flows| Flows { kernel, ..flows });
}

/// Returns the flow settings if frames wait.
pub fn waiting(shaping: &Shaping) -> Option<Flows> {
    let waits = shaping.rx.is_some() && !shaping.rx_in_order || shaping.tx.is_some() && !shaping.realtime;
    shaping.flows.filter(|_| waits)
}

/// Removes the clearing of marks for a kernel that cannot mark. A deadline needs marks.
pub fn leave_marks(shaping: &mut Shaping) {
    shaping.marks = shaping.marks.filter(|marks| *marks != Marks::Clear);
}

/// Returns a note for people about uncleared marks; `cannot` is the kernel's missing feature.
pub fn note_of_marks(kind: Option<&str>, cannot: Option<&str>) -> Option<String> {
    let why = match (kind, cannot) {
        (Some("macvtap"), _) => {
            "frames of a macvtap do not pass the point where marks are cleared".to_owned()
        }
        (_, Some(lacking)) => format!("this kernel lacks {lacking}"),
        _ => return None,
    };
    Some(format!("tx: marks of real-time traffic (DSCP) are not cleared: {why}"))
}

/// Returns the foreign rules that waiting frames would skip.
fn bypassed_rules(shaping: &Shaping, link: &Netdev, network: &Network) -> Option<String> {
    let chains = network.rules_at(&link.name).filter(|_| shaping.redirects(link.kind.as_deref()));
    let chains: Vec<_> = chains.map(ToString::to_string).collect();
    (!chains.is_empty()).then(|| chains.join("; "))
}

/// Returns the refusal if frames would skip foreign rules.
pub fn refuse_rules(shaping: &Shaping, link: &Netdev, network: &Network) -> Option<String> {
    let rules = bypassed_rules(shaping, link, network)?;
    let name = &link.name;
    // A macvtap's VM receives at the ingress, which is not policed.
    let (key, police) = match link.kind.as_deref() {
        Some("macvtap") => ("rx.max", ""),
        _ => (
            "tx.max",
            "write tx.method = \"police\", which limits before these rules and skips none of them, or ",
        ),
    };
    Some(format!(
        "interface {name} has nftables rules at its ingress, and frames that wait for {key} would skip them: {rules}; \
         {police}take {name} out of that chain"
    ))
}

/// Returns a note for people about rules that came after the limit.
pub fn note_of_rules(shaping: &Shaping, link: &Netdev, network: &Network) -> Option<String> {
    let rules = bypassed_rules(shaping, link, network)?;
    let what = if link.kind.as_deref() == Some("macvtap") { "receives" } else { "sends" };
    Some(format!("frames that it {what} skip {rules}, because they wait for their limit before these rules"))
}

/// Returns a note for people about foreign programs before the limit.
pub fn note_of_earlier(link: &Netdev) -> Option<String> {
    let programs: Vec<_> = link.foreign_programs.iter().map(ToString::to_string).collect();
    let name = &link.name;
    (!programs.is_empty()).then(|| {
        format!(
            "frames that {name} receives pass a filter of another program first, and frames that this filter takes \
             are not counted: {}",
            programs.join(", ")
        )
    })
}

/// Returns the requests of a contract that this place does not keep.
fn requests_not_kept(vnic: &Vnic) -> Vec<String> {
    let mut refused = Vec::new();
    let mut refuse = |asked: bool, why: &str| {
        if asked {
            refused.push(why.to_owned());
        }
    };
    refuse(
        vnic.segment.id() > vlan::LAST.into(),
        "the segment of a netdev is a VLAN of its bridge port, 1 to 4094; take one of those, or write segment = 0, which \
         promises nothing here, or attach it to the switch",
    );
    refuse(
        vnic.weight != 1 && vnic.to.is_empty(),
        "place kernel shares out by weight only towards the vNICs in `to`; name vNICs of this place there, or leave \
         weight out",
    );
    refuse(
        vnic.is_realtime() && vnic.tx.method == Method::Police,
        "a deadline counts from the moment in which a frame conforms, and a policer lets no frame wait for that; \
         leave tx.method out",
    );
    refuse(
        vnic.allowed != Allowed::default(),
        "place kernel checks neither the addresses nor the kinds of frames that are sent, so `allowed` would not be kept; leave it out, or attach it to the switch",
    );
    refuse(vnic.queues != 1, "a netdev has the queues it was made with; leave queues out");
    refused
}

/// Returns notes about frames above a contract's limits, and too short bursts; `kernel` returns its qdiscs,
/// and is called only if they matter.
pub fn how_limits_are_kept(vnic: &Vnic, kernel: impl FnOnce() -> Qdiscs) -> Vec<String> {
    let Attach::Netdev { name } = &vnic.attach else { return vec![] };
    let shaping = shaping(vnic, Ways::NONE, &[]).ok();
    let flows = shaping.as_ref().and_then(waiting).map(|flows| Flows { kernel: kernel(), ..flows });
    let waits = match flows {
        Some(flows) if flows.note().is_none() => "wait, each flow for itself",
        _ => "wait in a queue, first come, first served",
    };
    let how = match vnic.tx.method {
        Method::Shape => format!("frames above a limit {waits}"),
        Method::Police => {
            format!("frames above tx.max are dropped, no frame waits there; frames above rx.max {waits}")
        }
    };
    let mut notes = vec![format!("limits of {name} are kept by the kernel: {how}")];
    notes.extend(flows.and_then(Flows::note));
    // Impossible limits are refused with reasons.
    notes.extend(shaping.iter().flat_map(short_bursts));
    notes
}

/// Returns how the kernel keeps a contract's deadline, if any.
pub fn how_its_deadline_is_kept(vnic: &Vnic) -> Option<String> {
    let deadline = vnic.deadline?;
    Some(format!(
        "its deadline of {deadline} is kept by strict priority at its receivers, the shorter one first; etf is not used"
    ))
}

/// Returns notes about bursts too short for their rates.
fn short_bursts(shaping: &Shaping) -> impl Iterator<Item = String> + use<> {
    let tx = shaping.tx_police.map_or_else(|| shaping.tx.and_then(|limit| limit.note()), Bucket::note);
    let rx = shaping.rx.and_then(|limit| limit.note());
    [("tx", tx), ("rx", rx)].into_iter().filter_map(|(way, note)| Some(format!("{way}: {}", note?)))
}

/// Returns notes for people about a contract in force.
pub fn notes(shaping: &Shaping) -> impl Iterator<Item = String> {
    let policed = shaping.tx_police.map(|_| "tx: frames above tx.max are dropped, no frame waits".to_owned());
    let unlimited = |way: &str, is_limited: bool| {
        (!is_limited).then(|| format!("{way}: not limited, and so not counted"))
    };
    let tx = unlimited("tx", shaping.tx.is_some() || shaping.tx_police.is_some());
    let rx = unlimited("rx", shaping.rx.is_some());
    let segment = shaping.segment.map(|vid| {
        format!("segment: VLAN {vid} of its bridge; which other ports are in it is up to the administrator of the bridge")
    });
    let queues = waiting(shaping).and_then(Flows::note);
    policed
        .into_iter()
        .chain(queues)
        .chain(short_bursts(shaping))
        .chain([tx, rx, segment].into_iter().flatten())
}

#[cfg(test)]
mod tests {
    use super::*;
    use tidegate_testkit::contract::netdev;

    #[test]
    fn only_a_vnic_with_a_deadline_gets_a_note_about_deadlines() {
        let mut vnic = netdev("web", 1, "vnet3");
        assert_eq!(how_its_deadline_is_kept(&vnic), None);
        vnic.deadline = Some(Nanos::new(500_000));
        let notes_text = how_its_deadline_is_kept(&vnic).expect("a note");
        assert!(notes_text.starts_with("its deadline of 500us is kept by strict priority"), "{notes_text}");
    }

    #[test]
    fn limits_become_shaping() {
        let mut vnic = netdev("web", 1, "vnet3");
        vnic.tx.max = None;
        vnic.rx.max = Rate::from_bits(8_000_000);
        vnic.rx.queue = Some(Bytes::new(20_000));
        vnic.queueing = Queueing::Fifo;
        vnic.segment = tidegate_contract::Segment::new(4094).expect("in range");
        let shaping = shaping(&vnic, Ways::BOTH, &[]).expect("kept");
        assert_eq!((shaping.netdev.as_str(), shaping.tx, shaping.owned), ("vnet3", None, Ways::BOTH));
        assert_eq!(shaping.segment, Some(4094));
        let rx = shaping.rx.expect("a limit");
        assert_eq!((rx.rate, rx.queue), (1_000_000, Some(20_000)));
        let noted: Vec<_> = notes(&shaping).collect();
        assert_eq!(noted[0], "tx: not limited, and so not counted");
        assert!(noted.len() == 2 && noted[1].starts_with("segment: VLAN 4094 of its bridge"), "{noted:?}");
    }

    #[test]
    fn promises_become_shares() {
        let rate = Rate::from_bits;
        let sends = |name: &str, mac| Vnic { to: vec!["web".into()], ..netdev(name, mac, name) };
        let mut web = netdev("web", 1, "vnet3");
        web.rx.max = rate(100_000_000);
        let mut minimum = sends("vnet4", 4);
        minimum.tx.min = rate(20_000_000);
        let mut voices = [("vnet5", 5, 900_000), ("vnet6", 6, 500_000)].map(|(name, mac, deadline)| {
            let mut voice = Vnic { deadline: Some(Nanos::new(deadline)), ..sends(name, mac) };
            (voice.tx.max, voice.tx.burst) = (rate(1_000_000), Some(Bytes::new(2_000)));
            voice
        });
        let heavy = Vnic { weight: 7, ..sends("vnet7", 7) };
        let plain = sends("vnet8", 8);
        let all = [&web, &minimum, &voices[0], &voices[1], &heavy, &plain];
        let shaped = shaping(&web, Ways::NONE, &all).expect("kept");
        let shown = |s: &Share| (s.from.clone(), s.guaranteed.map(|g| g.rate), s.priority, s.weight);
        assert_eq!(
            shaped.rx_shares.iter().map(shown).collect::<Vec<_>>(),
            [
                ("vnet4".into(), Some(2_500_000), Share::LAST, 1),
                ("vnet5".into(), Some(125_000), 1, 1),
                ("vnet6".into(), Some(125_000), 0, 1),
                ("vnet7".into(), None, Share::LAST, 7),
            ]
        );
        let voice = shaping(&voices[0], Ways::NONE, &all).expect("kept");
        assert!(voice.realtime && voice.promises && voice.rx_shares.is_empty());
        assert!(!shaping(&plain, Ways::NONE, &all).expect("kept").promises);

        web.rx.max = None;
        let refused = shaping(&web, Ways::NONE, &[&heavy]).expect_err("refused");
        let kept = nearest(&web, Ways::NONE, &Senders::of([&heavy])).expect("its limits");
        assert!(kept.tx.is_some() && kept.rx_shares.is_empty());
        assert!(
            refused[0].starts_with("vnet7 sends to this vNIC by weight, and this vNIC has no rx.max"),
            "{refused:?}"
        );
        voices[0].tx.method = Method::Police;
        let refused = shaping(&voices[0], Ways::NONE, &[]).expect_err("refused");
        assert!(refused[0].starts_with("a deadline counts from the moment"), "{refused:?}");
    }

    #[test]
    fn marks_are_set_with_a_deadline_and_cleared_without_one() {
        let mut vnic = netdev("web", 1, "vnet3");
        let marks = |vnic: &Vnic| shaping(vnic, Ways::BOTH, &[]).expect("kept").marks;
        assert_eq!(marks(&vnic), Some(Marks::Clear));
        vnic.deadline = Some(tidegate_contract::Nanos::new(1_000_000));
        vnic.tx.burst = Some(Bytes::new(3_000));
        assert_eq!(marks(&vnic), Some(Marks::from_burst(3_000)));
        let realtime = shaping(&vnic, Ways::BOTH, &[]).expect("kept");

        // On a kernel that cannot, requests that need a mark stay.
        let after = |marks| {
            let mut shaping = Shaping { marks: Some(marks), ..realtime.clone() };
            leave_marks(&mut shaping);
            shaping.marks
        };
        assert_eq!(after(Marks::from_burst(3_000)), realtime.marks);
        assert_eq!(after(Marks::Clear), None);
        assert_eq!(note_of_marks(Some("tun"), None), None);
        assert!(note_of_marks(Some("tun"), Some("eBPF")).is_some_and(|note| note.ends_with("lacks eBPF")));
        assert!(
            note_of_marks(Some("macvtap"), None).is_some_and(|note| note.contains("frames of a macvtap"))
        );
    }

    #[test]
    fn one_refusal_names_every_key_that_is_not_kept() {
        let mut vnic = netdev("web", 1, "vnet3");
        vnic.segment = tidegate_contract::Segment::new(4095).expect("in range");
        vnic.weight = 3;
        vnic.queues = 4;
        vnic.allowed.control = true;
        vnic.tx.max = Rate::from_bits(1);
        let refused = shaping(&vnic, Ways::NONE, &[]).expect_err("refused");
        assert_eq!(refused.len(), 5, "{refused:#?}");
        assert!(refused.iter().any(|why| why.contains("so `allowed` would not be kept")), "{refused:#?}");
        assert!(refused[4].starts_with("tx: at 1bit"), "{refused:#?}");
    }

    #[test]
    fn a_burst_too_short_for_timers_is_noted() {
        let mut vnic = netdev("web", 1, "vnet3");
        vnic.tx.max = Rate::from_bits(1_000_000_000);
        vnic.tx.burst = Some(Bytes::new(1_600));
        vnic.queueing = Queueing::Fifo;
        let noted: Vec<_> = notes(&shaping(&vnic, Ways::BOTH, &[]).expect("kept")).collect();
        assert!(noted[0].starts_with("tx: its burst lasts 12 us"), "{noted:?}");
        assert_eq!(how_limits_are_kept(&vnic, Qdiscs::default)[1], noted[0], "before it is in force, too");
    }

    #[test]
    fn a_note_says_what_each_method_does_with_excess_frames() {
        let mut vnic = netdev("web", 1, "vnet3");
        vnic.queueing = Queueing::Fifo;
        let how_limits_are_kept = |vnic: &Vnic| how_limits_are_kept(vnic, || panic!("nothing to ask for"));
        assert_eq!(
            how_limits_are_kept(&vnic),
            [
                "limits of vnet3 are kept by the kernel: frames above a limit wait in a queue, first come, first served"
            ]
        );
        vnic.tx.method = Method::Police;
        let [how] = &how_limits_are_kept(&vnic)[..] else { panic!("the default burst needs no note") };
        assert!(
            how.contains("frames above tx.max are dropped, no frame waits there; frames above rx.max wait"),
            "{how}"
        );
        vnic.tx.burst = Some(Bytes::new(1_000));
        let entry = how_limits_are_kept(&vnic);
        assert!(entry[1].starts_with("tx: its burst lasts 8 ms"), "{entry:?}");
        let noted: Vec<_> = notes(&shaping(&vnic, Ways::BOTH, &[]).expect("kept")).collect();
        assert_eq!(
            noted[..2],
            ["tx: frames above tx.max are dropped, no frame waits".into(), entry[1].clone()]
        );
    }

    #[test]
    fn a_note_says_how_flows_wait_in_this_kernel() {
        let mut vnic = netdev("web", 1, "vnet3");
        let all = Qdiscs { tbf: true, fq_codel: true, cake: true, congestion: false };
        let how = "limits of vnet3 are kept by the kernel: frames above a limit wait, each flow for itself";
        assert_eq!(how_limits_are_kept(&vnic, || all), [how]);
        let entry = how_limits_are_kept(&vnic, || Qdiscs { tbf: true, ..Qdiscs::default() });
        assert!(entry[0].ends_with("first come, first served"), "{entry:?}");
        assert!(entry[1].starts_with("flows are not kept apart: this kernel has neither"), "{entry:?}");
        let mut shaped = shaping(&vnic, Ways::NONE, &[]).expect("kept");
        set_kernel_qdiscs(&mut shaped, all);
        assert_eq!(shaped.flows.map(|flows| (flows.kernel, flows.frame)), Some((all, 1518)));
        assert_eq!(waiting(&shaped), shaped.flows);
        // Frames with a deadline wait in order; policed or unlimited ones do not wait.
        shaped.rx = None;
        assert_eq!(waiting(&Shaping { realtime: true, ..shaped.clone() }), None);
        assert_eq!(waiting(&Shaping { tx: None, ..shaped }), None);
        vnic.queueing = Queueing::Fifo;
        assert_eq!(flows(&vnic), None);
    }
}
