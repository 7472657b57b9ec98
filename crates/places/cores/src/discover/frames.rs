//! Frames of vNICs, as places count them. Pure.

use tidegate_evidence::{Evidence, Quantity, Traffic};

/// Frames a second of a vNIC.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Frames {
    /// That the VM sends.
    pub sent: u64,
    /// That it receives.
    pub received: u64,
}

impl Frames {
    /// Returns both ways together.
    pub const fn both(self) -> u64 {
        self.sent.saturating_add(self.received)
    }
}

/// Returns the frames so far that a place counted, by vNIC and direction: sent ones are `true`. A super-frame is one where it counts so.
pub fn so_far(evidence: &Evidence) -> Vec<((String, bool), u64)> {
    let mut found = vec![];
    for (name, stats) in &evidence.vnics {
        let unknown = evidence.unknown.get(name);
        let knows = |what| unknown.is_none_or(|unknown| !unknown.contains_key(&what));
        let frames = |traffic: &Traffic| {
            if knows(Quantity::SuperFrames) { traffic.frames } else { traffic.wire_frames }
        };
        let both = [(Quantity::Tx, true, &stats.tx), (Quantity::Rx, false, &stats.rx)];
        let known = both.into_iter().filter(|(what, ..)| knows(*what));
        found.extend(known.map(|(_, sent, traffic)| ((name.clone(), sent), frames(traffic))));
    }
    found
}
