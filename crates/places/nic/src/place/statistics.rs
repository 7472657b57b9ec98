//! What a NIC counted of one function, as the agent shows it.

use crate::counters::{self, Counted};
use std::collections::BTreeMap;
use tidegate_contract::Vnic;
use tidegate_evidence::NicDrop;
use tidegate_evidence::{Figure, Quantity, Unknown};
use tidegate_evidence::{Traffic, VnicStats};

/// The counters, if any is known, with the reasons for unknown ones; and every figure with its source, also
/// unknown figures.
pub fn of(vnic: &Vnic, counted: &Counted) -> (Option<(VnicStats, Unknown)>, Vec<Figure>) {
    let uncounted = counted.unknown.clone().unwrap_or_else(|| "not counted".into());
    let figure = |name: String, figure: Option<counters::Figure>| Figure {
        name,
        value: figure.map(|f| f.total),
        source: figure.map_or_else(|| uncounted.clone(), |f| f.source.to_string()),
    };
    let way = |way: &str, traffic: &counters::Traffic| {
        let all = [
            ("frames", traffic.frames),
            ("bytes", traffic.bytes),
            ("multicast", traffic.multicast),
            ("dropped", traffic.dropped),
        ];
        // What is known of neither way is no figure of this NIC; frames and bytes everybody asks for.
        let known = all.into_iter().filter(|(name, f)| f.is_some() || matches!(*name, "frames" | "bytes"));
        known.map(|(name, f)| figure(format!("{way}.{name}"), f)).collect::<Vec<_>>()
    };
    let figures = way("tx", &counted.tx).into_iter().chain(way("rx", &counted.rx)).collect();
    let (tx, rx) = (traffic(&counted.tx), traffic(&counted.rx));
    if tx.is_none() && rx.is_none() {
        return (None, figures);
    }
    let drops = counted.tx.dropped.and(counted.rx.dropped);
    let missing = [
        (Quantity::Tx, tx.is_none(), uncounted.as_str()),
        (Quantity::Rx, rx.is_none(), uncounted.as_str()),
        (Quantity::Drops, drops.is_none(), uncounted.as_str()),
        (Quantity::SuperFrames, true, "a NIC counts their segments"),
        (Quantity::Delay, true, "a NIC does not report how long frames wait in it"),
        (Quantity::Throttled, true, "a NIC does not report how long frames wait in it"),
    ];
    let unknown = missing.into_iter().filter(|(_, is_missing, _)| *is_missing);
    let unknown = unknown.map(|(what, _, why)| (what, why.to_owned())).collect();
    let (tx, rx) = (tx.unwrap_or_default(), rx.unwrap_or_default());
    let stats = VnicStats { name: vnic.name.clone(), tx, rx, ..VnicStats::default() };
    (Some((stats, unknown)), figures)
}

/// Notes for a reader of the figures.
pub fn doubts(counted: &Counted) -> Vec<String> {
    let mut notes = Vec::new();
    let doubts = counted.doubts;
    if doubts.missed_wraps > 0 {
        notes.push(format!(
            "its counters were read too late {} times: they may have wrapped between two reads, and the totals may be \
             too low",
            doubts.missed_wraps
        ));
    }
    if doubts.resets > 0 {
        notes.push(format!(
            "its counters began again from 0 {} times: the last counts before each time are missing",
            doubts.resets
        ));
    }
    notes
}

fn traffic(counted: &counters::Traffic) -> Option<Traffic> {
    let frames = counted.frames?.total;
    let dropped = counted.dropped.map(|d| d.total).filter(|n| *n > 0);
    Some(Traffic {
        frames,
        wire_frames: frames,
        wire_bytes: counted.bytes?.total,
        dropped: dropped
            .map(|n| (NicDrop::Nic.label().to_owned(), n))
            .into_iter()
            .collect::<BTreeMap<_, _>>(),
        ..Traffic::default()
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::device::Source;
    use tidegate_testkit::contract::vf;

    #[test]
    fn zero_is_not_unknown() {
        let some = |total| Some(counters::Figure { total, source: Source::Registers });
        let mut counted = Counted::default();
        counted.tx.frames = some(0);
        counted.tx.bytes = some(0);
        counted.rx.frames = some(5);
        counted.rx.bytes = some(500);
        counted.rx.multicast = some(1);
        let vnic = vf("a", 1, "eth1", 0);
        let (stats, figures) = of(&vnic, &counted);
        let (stats, unknown) = stats.expect("both directions are known");
        assert_eq!((stats.tx.wire_bytes, stats.rx.wire_bytes), (0, 500));
        let names: Vec<&str> = figures.iter().map(|f| f.name.as_str()).collect();
        assert_eq!(names, ["tx.frames", "tx.bytes", "rx.frames", "rx.bytes", "rx.multicast"]);
        assert_eq!(figures[1].value, Some(0));
        use Quantity::{Delay, Drops, Rx, SuperFrames, Throttled};
        assert_eq!(unknown.into_keys().collect::<Vec<_>>(), [SuperFrames, Drops, Delay, Throttled]);

        // A NIC that counts one direction only.
        counted.rx = counters::Traffic::default();
        let ((stats, unknown), figures) =
            (of(&vnic, &counted).0.expect("one is known"), of(&vnic, &counted).1);
        assert_eq!((stats.rx.wire_bytes, unknown[&Rx].as_str()), (0, "not counted"));
        assert_eq!((figures[2].name.as_str(), figures[2].value), ("rx.frames", None));

        let unknown = Counted { unknown: Some("its driver counts nothing".into()), ..Counted::default() };
        let (stats, figures) = of(&vnic, &unknown);
        assert_eq!(stats, None);
        assert!(
            figures.iter().all(|f| f.value.is_none() && f.source == "its driver counts nothing"),
            "{figures:?}"
        );
        assert_eq!(figures.len(), 4);
    }
}
