//! Metrics of other hosts.

use super::families::{Families, Kind::Counter, Kind::Gauge, Labels, NANOS};
use std::fmt;
use tidegate_evidence::{PeerCounts, PeerStatus};

impl Families<'_, '_> {
    /// What is exchanged with other hosts.
    pub(super) fn peers(&mut self, peers: &[PeerStatus]) -> fmt::Result {
        fn labels(peer: &PeerStatus) -> Labels<'_> {
            vec![("peer", peer.name.as_str())]
        }
        let gauge = |of: fn(&PeerStatus) -> Option<f64>| {
            peers.iter().filter_map(move |peer| Some((labels(peer), of(peer)?)))
        };
        let count = |of: fn(&PeerCounts) -> u64| {
            peers.iter().map(move |peer| (labels(peer), of(&peer.counts) as f64))
        };
        let offset = gauge(|peer| Some(peer.clock?.offset_ns as f64 * NANOS));
        self.family(
            "peer_clock_offset_seconds",
            "The peer's clock less this host's, CLOCK_MONOTONIC_RAW",
            Gauge,
            offset,
        )?;
        let error = gauge(|peer| Some(peer.clock?.error_ns as f64 * NANOS));
        self.family("peer_clock_error_seconds", "Largest error of the offset", Gauge, error)?;
        let least = gauge(|peer| Some(peer.round_trip?.least_ns as f64 * NANOS));
        self.family("peer_round_trip_seconds", "Least round trip of the last 32 exchanges", Gauge, least)?;
        let asked = peers.iter().filter(|peer| peer.unasked.is_none());
        let reachable = asked.map(|peer| (labels(peer), f64::from(u8::from(peer.reachable))));
        self.family("peer_reachable", "1 where a peer whose clock is asked answers", Gauge, reachable)?;
        self.family("peer_exchanges", "Clock exchanges done", Counter, count(|c| c.exchanges))?;
        self.family(
            "peer_missing_replies",
            "Clock requests without an answer",
            Counter,
            count(|c| c.missing),
        )?;
        self.family(
            "peer_restarts",
            "Starts of another switch process at the peer",
            Counter,
            count(|c| c.restarts),
        )?;
        let refused = peers.iter().flat_map(|peer| {
            let of = |why| vec![("peer", peer.name.as_str()), ("reason", why)];
            peer.counts.refused.iter().map(move |(why, count)| (of(why.as_str()), *count as f64))
        });
        self.family(
            "peer_refused_notices",
            "Notices of the peer that were not taken, by reason",
            Counter,
            refused,
        )?;
        let help = "Frames of this host that the peer reported as late";
        self.family("peer_late_frames", help, Counter, count(|c| c.late_frames))
    }
}
