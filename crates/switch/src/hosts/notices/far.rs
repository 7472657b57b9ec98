//! Late frames as notices tell them: those of peers' vNICs here, and those of this host's vNICs at peers.
//!
//! ```text
//!  Late ─ report ─▶ LateReport ─▶ │ network │ ─▶ LateReport ─ far_miss ─▶ FarMiss ─▶ FarMisses: the last of an uplink
//! ```

use crate::clock::clock;
use crate::hosts::Late;
use crate::hosts::late::Where;
use std::collections::{BTreeMap, VecDeque};
use tidegate_contract::Mac;
use tidegate_evidence::{FAR_MISSES, FarMiss, MissCause};
use tidegate_uplink::notice::{Cause, LateReport};

/// The latest late frames that the peers of one uplink reported.
#[derive(Default)]
pub(super) struct FarMisses {
    /// The oldest first.
    misses: VecDeque<FarMiss>,
    reported: u64,
}

impl FarMisses {
    /// Numbers a late frame, and keeps it.
    pub(super) fn remember(&mut self, miss: FarMiss) {
        self.reported += 1;
        if self.misses.len() == FAR_MISSES {
            self.forget_one();
        }
        self.misses.push_back(FarMiss { number: self.reported, ..miss });
    }

    /// Returns all, the oldest first.
    pub(super) fn all(&self) -> Vec<FarMiss> {
        self.misses.iter().cloned().collect()
    }

    /// Forgets the oldest late frame of the peer that reported most: no peer drives out what others reported.
    fn forget_one(&mut self) {
        let mut counts = BTreeMap::<&str, usize>::new();
        self.misses.iter().for_each(|miss| *counts.entry(&miss.peer).or_default() += 1);
        let most = counts.into_iter().max_by_key(|(_, count)| *count).map(|(peer, _)| peer);
        let oldest = self.misses.iter().position(|miss| Some(&*miss.peer) == most);
        self.misses.remove(oldest.unwrap_or_default());
    }
}

/// Returns the report of a late frame that stands for so many others.
pub(super) fn report(late: &Late, others: u32) -> LateReport {
    LateReport {
        src: late.src.0,
        dst: late.dst.0,
        sequence: late.sequence,
        deadline_us: late.deadline_us,
        late_ns: late.late_ns,
        error_ns: late.error_ns,
        hold_ns: late.hold_ns,
        network_ns: late.network_ns,
        here_ns: late.here_ns,
        cause: match late.cause {
            Where::Sender | Where::Receiver(MissCause::Sender) => Cause::Sender,
            Where::Network | Where::Receiver(MissCause::Network) => Cause::Network,
            Where::Receiver(MissCause::Tokens) => Cause::Tokens,
            Where::Receiver(MissCause::Queue) => Cause::Queue,
            Where::Receiver(MissCause::Buffers) => Cause::Buffers,
            Where::Receiver(MissCause::Worker) => Cause::Worker,
            Where::Receiver(MissCause::Dropped) => Cause::Dropped,
        },
        dropped: late.dropped,
        others,
    }
}

/// Returns a late frame of `vnic` that a peer has reported, without a number.
pub(super) fn far_miss(vnic: &str, peer: &str, report: &LateReport) -> FarMiss {
    let cause = match report.cause {
        Cause::Sender => MissCause::Sender.label(),
        Cause::Network => MissCause::Network.label(),
        Cause::Tokens => MissCause::Tokens.label(),
        Cause::Queue => MissCause::Queue.label(),
        Cause::Buffers => MissCause::Buffers.label(),
        Cause::Worker => MissCause::Worker.label(),
        Cause::Dropped => MissCause::Dropped.label(),
    };
    FarMiss {
        number: 0,
        at: clock(),
        vnic: vnic.to_owned(),
        peer: peer.to_owned(),
        dst: Mac(report.dst),
        sequence: report.sequence,
        cause: cause.to_owned(),
        dropped: report.dropped,
        deadline_ns: u64::from(report.deadline_us) * 1000,
        late_ns: report.late_ns,
        error_ns: report.error_ns,
        hold_ns: u64::from(report.hold_ns),
        network_ns: report.network_ns,
        there_ns: report.here_ns,
        others: report.others,
    }
}
