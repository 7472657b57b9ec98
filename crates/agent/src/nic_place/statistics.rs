//! What a NIC counted of one function, as the agent shows it.

use crate::api::types::Figure;
use std::collections::BTreeMap;
use tidegate_contract::Vnic;
use tidegate_nic::counters::{self, Counted};
use tidegate_switch::stats::{Traffic, VnicStats};

/// The counters, where all of them are known; each figure with its source; and those that nobody counts.
pub fn of(vnic: &Vnic, counted: &Counted) -> (Option<VnicStats>, Vec<Figure>) {
    let nobody = counted.unknown.clone().unwrap_or_else(|| "nobody counts it".into());
    let figure = |name: String, figure: Option<counters::Figure>| Figure {
        name,
        value: figure.map(|f| f.total),
        source: figure.map_or_else(|| nobody.clone(), |f| f.source.to_string()),
    };
    let way = |way: &str, traffic: &counters::Traffic| {
        let all = [
            ("frames", traffic.frames),
            ("bytes", traffic.bytes),
            ("multicast", traffic.multicast),
            ("dropped", traffic.dropped),
        ];
        // What is known of neither way is no figure of this NIC; frames and bytes everybody asks for.
        let told = all.into_iter().filter(|(name, f)| f.is_some() || matches!(*name, "frames" | "bytes"));
        told.map(|(name, f)| figure(format!("{way}.{name}"), f)).collect::<Vec<_>>()
    };
    let figures = way("tx", &counted.tx).into_iter().chain(way("rx", &counted.rx)).collect();
    let stats = || {
        Some(VnicStats {
            name: vnic.name.clone(),
            tx: traffic(&counted.tx)?,
            rx: traffic(&counted.rx)?,
            ..VnicStats::default()
        })
    };
    (stats(), figures)
}

/// What a reader of figures should know.
pub fn doubts(counted: &Counted) -> Vec<String> {
    let mut notes = Vec::new();
    let doubts = counted.doubts;
    if doubts.missed_wraps > 0 {
        notes.push(format!(
            "its counters were looked at too late {} times: they may have wrapped unseen, and totals be too low",
            doubts.missed_wraps
        ));
    }
    if doubts.resets > 0 {
        notes.push(format!(
            "its counters began anew {} times: what was counted last before each is missing",
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
        dropped: dropped.map(|n| ("nic".to_owned(), n)).into_iter().collect::<BTreeMap<_, _>>(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::vf;
    use tidegate_nic::counters::Source;

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
        let stats = stats.expect("all is known");
        assert_eq!((stats.tx.wire_bytes, stats.rx.wire_bytes), (0, 500));
        let names: Vec<&str> = figures.iter().map(|f| f.name.as_str()).collect();
        assert_eq!(names, ["tx.frames", "tx.bytes", "rx.frames", "rx.bytes", "rx.multicast"]);
        assert_eq!(figures[1].value, Some(0));

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
