//! The fate of frames that were posted to other hosts: a post ends before the kernel decides.

use super::trains::Left;
use tidegate_evidence::DropReason;
use tidegate_uplink::vxlan;

/// Counts since the link was made. A frame that goes to several peers counts for each.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Counters {
    /// Frames that the kernel took; each segment of a super-frame is one.
    pub frames: u64,
    /// Their bytes, without VXLAN and outer headers.
    pub bytes: u64,
    /// Frames that it did not take, by reason.
    pub dropped: [u64; DropReason::COUNT],
}

impl Default for Counters {
    fn default() -> Self {
        Self { frames: 0, bytes: 0, dropped: [0; DropReason::COUNT] }
    }
}

impl Counters {
    /// Notes datagrams that the kernel took.
    pub fn sent(&mut self, left: Left) {
        self.frames += left.datagrams;
        self.bytes += left.bytes - left.datagrams * vxlan::LEN as u64;
    }

    /// Notes datagrams that are not sent.
    pub fn drop(&mut self, reason: DropReason, datagrams: u64) {
        self.dropped[reason as usize] += datagrams;
    }

    /// Returns the drops since those in `reported`, which then has them, by reason.
    pub fn fresh_drops(
        &self,
        reported: &mut [u64; DropReason::COUNT],
    ) -> impl Iterator<Item = (DropReason, u64)> {
        let all = DropReason::ALL.iter().zip(self.dropped).zip(reported);
        all.filter_map(|((reason, dropped), reported)| {
            let fresh = dropped - std::mem::replace(reported, dropped);
            (fresh > 0).then_some((*reason, fresh))
        })
    }

    /// Returns the frames that were dropped for a reason.
    pub fn dropped(&self, reason: DropReason) -> u64 {
        self.dropped[reason as usize]
    }
}
