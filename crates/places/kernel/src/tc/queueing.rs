//! How frames wait for a limit: the qdiscs below its class. Pure.
//!
//! ```text
//!  fifo:    class ── bfifo                        20 ms of the rate, at least two super-frames
//!
//!  flows:   class ── tbf ── fq_codel              tbf limits nothing: it cuts super-frames longer than 1 ms of the rate
//!           class ── fq_codel                     a rate at which no super-frame is longer
//!           class ── cake                         which cuts by itself; where hosts are kept apart, or for want of the above
//!           class ── tbf ── bfifo                 a kernel that has neither: flows are not kept apart, and 8 ms wait;
//!                                                 before it, where the kernel lets us, a filter marks (CE)
//! ```
//!
//! HTB sends a frame that exceeds its tokens, and is then in debt: 64 KiB at 20 Mbit/s are 26 ms, for which
//! a ping behind them waits, whatever is below the class. So super-frames are cut before they wait.

use crate::ebpf::congestion::VirtualQueue;
use crate::limit::Limit;
pub use crate::tc::qdisc::Host;
use crate::tc::qdisc::Setting;
use tidegate_contract::SUPER_FRAME;

/// The qdiscs for short queues that the running kernel has.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Qdiscs {
    /// `tbf`, which cuts super-frames.
    pub tbf: bool,
    /// `fq_codel`.
    pub fq_codel: bool,
    /// `cake`.
    pub cake: bool,
    /// The eBPF program that marks (CE) without either.
    pub congestion: bool,
}

/// Separate flows of a netdev, and their waiting times.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Flows {
    /// Acceptable standing wait (RFC 8289; ns).
    pub target: u64,
    /// How long frames may exceed it before one is marked or dropped (ns).
    pub interval: u64,
    /// The rate is shared between hosts first: between senders for tx, receivers for rx.
    pub per_host: bool,
    /// The largest frame of the contract on the wire, bytes.
    pub frame: u32,
    /// The kernel's qdiscs. Without any, all frames wait in one queue, as without flows.
    pub kernel: Qdiscs,
}

/// The objects below a class.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Waiting {
    /// Cuts super-frames before the queue.
    pub cut: Option<Setting>,
    /// The queue.
    pub queue: Setting,
    /// Marks frames that would wait for long, if the queue does not.
    pub congestion: Option<VirtualQueue>,
}

/// Longest time of a super-frame at its rate (ns).
const LONGEST: u64 = 1_000_000;

/// Longest wait if flows cannot be separated (ns): with the frame that is leaving, and a late timer, below
/// 10 ms. Full frames leave three quarters of one free: filled to the last byte, it would have no room for
/// another flow's small frame.
const SHORT: u64 = 8_000_000;

/// Header of an untagged frame (bytes).
const ETHERNET: u32 = tidegate_contract::frame::ETHERNET as u32;

/// A frame's bytes beyond its device's MTU: an Ethernet header and two VLAN tags.
const HEADERS: u32 = 22;

/// A flow's CoDel needs room for the frames of four intervals. Waiting frames take at least and at most so
/// much of the host's memory (bytes); frames beyond that are dropped from the longest flow.
const INTERVALS: u64 = 4;
const LEAST_MEMORY: u64 = 512 << 10;
const MOST_MEMORY: u64 = 32 << 20;

/// The kernel's count for a full frame, as a multiple of its length: its buffer is larger.
const OVERHEAD: u64 = 2;

/// ns per unit of CoDel's times in `fq_codel` (`CODEL_SHIFT`, include/net/codel.h).
const CODEL_SHIFT: u32 = 10;

impl Waiting {
    /// First come, first served.
    pub fn fifo(limit: Limit) -> Self {
        Self { cut: None, queue: Setting::Bfifo { limit: limit.fifo() }, congestion: None }
    }

    /// Returns the objects below a limit's class; on the path of a device with this MTU, 0 if unknown.
    pub fn new(limit: Limit, flows: Option<Flows>, host: Host, mtu: u32) -> Self {
        let Some(flows) = flows else { return Self::fifo(limit) };
        let has = flows.kernel;
        let cut = largest(limit, flows.frame, mtu);
        let (target, interval) = flows.patience(limit);
        let memory = memory(limit, interval);
        let cake = || Setting::Cake {
            target: micros(target),
            interval: micros(interval),
            memory,
            hosts: flows.per_host.then_some(host),
            split: cut.is_some(),
        };
        let tbf = || cut.filter(|_| has.tbf).map(|largest| Setting::Cut { largest });
        let is_cut = cut.is_none() || has.tbf;
        if has.cake && (flows.per_host || !has.fq_codel || !is_cut) {
            return Self { cut: None, queue: cake(), congestion: None };
        }
        if has.fq_codel {
            let units = |ns: u64| u32::try_from(ns >> CODEL_SHIFT).unwrap_or(u32::MAX);
            let queue = Setting::FqCodel { target: units(target), interval: units(interval), memory };
            return Self { cut: tbf(), queue, congestion: None };
        }
        if !is_cut || !has.tbf {
            // A short queue would have no room for a super-frame.
            return Self::fifo(limit);
        }
        let room = limit.queue.unwrap_or_else(|| {
            let least = 2 * u64::from(cut.unwrap_or(SUPER_FRAME as u32));
            let full = u64::from(if mtu > 0 { mtu + ETHERNET } else { flows.frame });
            let spare = full - full / 4;
            let room = limit.bytes_in(SHORT).saturating_sub(spare) / full * full;
            u32::try_from(room.max(least) + spare).unwrap_or(u32::MAX)
        });
        let congestion = has.congestion.then(|| VirtualQueue::new(limit, target, room));
        Self { cut: tbf(), queue: Setting::Bfifo { limit: room }, congestion }
    }
}

impl Flows {
    /// Returns target and interval at a rate (ns): if one frame took longer than the target, CoDel would
    /// mark each.
    fn patience(self, limit: Limit) -> (u64, u64) {
        let frame = limit.time_of(self.frame.into());
        let target = self.target.max(frame.saturating_mul(3) / 2);
        (target, self.interval.max(target.saturating_mul(2)))
    }

    /// Returns a note for people about the queueing: `None` if flows are separate as requested.
    pub fn note(self) -> Option<String> {
        let Qdiscs { tbf, fq_codel, cake, congestion } = self.kernel;
        if cake || fq_codel && tbf {
            return None;
        }
        let missing =
            "this kernel has neither qdisc fq_codel (CONFIG_NET_SCH_FQ_CODEL) nor cake (CONFIG_NET_SCH_CAKE)";
        Some(if fq_codel {
            "super-frames are not cut before they wait, since this kernel lacks qdisc tbf (CONFIG_NET_SCH_TBF): other flows wait \
             for each of them, up to 64 KiB of the rate"
                .into()
        } else if tbf {
            format!(
                "flows are not kept apart: {missing}; all frames wait in one queue of 8 ms of the rate, so a flow \
                 that fills it delays the others by that, and a frame that does not fit is dropped, whatever its flow \
                 is; {}",
                if congestion {
                    "frames of connections with ECN are marked where they would wait for half of that, or for queueing.target"
                } else {
                    "and no frame is marked (ECN), since the kernel does not run the eBPF program for that"
                }
            )
        } else {
            format!(
                "flows are not kept apart: {missing}, nor tbf (CONFIG_NET_SCH_TBF), which would cut super-frames; all frames wait \
                 in one queue, as with queueing = \"fifo\""
            )
        })
    }

    /// Returns why this kernel cannot keep it: hosts would not be separate.
    pub fn refusal(self) -> Option<&'static str> {
        (self.per_host && !self.kernel.cake).then_some(
            "queueing.per-host takes qdisc cake (CONFIG_NET_SCH_CAKE), which this kernel lacks; load its module (modprobe \
             sch_cake), or leave per-host out",
        )
    }
}

/// Returns the largest uncut frame (bytes): 1 ms at the rate, and at least a plain frame. `None` if no
/// super-frame is larger.
fn largest(limit: Limit, frame: u32, mtu: u32) -> Option<u32> {
    let whole = frame.max(mtu.saturating_add(HEADERS));
    let largest = limit.bytes_in(LONGEST).max(whole.into());
    (largest < SUPER_FRAME).then_some(largest as u32)
}

/// Returns the most bytes of host memory for waiting frames: as in the contract, else enough for CoDel.
fn memory(limit: Limit, interval: u64) -> u32 {
    let bytes = limit.queue.map_or_else(
        || limit.bytes_in(interval).saturating_mul(INTERVALS).clamp(LEAST_MEMORY, MOST_MEMORY),
        |queue| u64::from(queue) * OVERHEAD,
    );
    // fq_codel takes no more.
    u32::try_from(bytes.min(1 << 31)).unwrap_or(u32::MAX)
}

fn micros(ns: u64) -> u32 {
    u32::try_from(ns / 1000).unwrap_or(u32::MAX)
}

/// Returns the microseconds for `fq_codel` that become so many units (1,024 ns).
pub fn codel_micros(units: u32) -> u32 {
    u32::try_from((u64::from(units) << CODEL_SHIFT).div_ceil(1000)).unwrap_or(u32::MAX)
}

/// Returns its units if it reports so many microseconds: it rounds down both ways.
pub fn codel_units(micros: u32) -> u32 {
    u32::try_from((u64::from(micros) * 1000).div_ceil(1 << CODEL_SHIFT)).unwrap_or(u32::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use tidegate_contract::{Bytes, Rate};

    const ALL: Qdiscs = Qdiscs { tbf: true, fq_codel: true, cake: true, congestion: true };

    fn limit(bits: u64, queue: Option<u64>) -> Limit {
        let rate = Rate::from_bits(bits).expect("a rate");
        Limit::new(rate, Bytes::new(65_536), queue.map(Bytes::new), 1518).expect("a limit")
    }

    fn flows(kernel: Qdiscs) -> Flows {
        Flows { target: 5_000_000, interval: 100_000_000, per_host: false, frame: 1518, kernel }
    }

    fn at(bits: u64, flows: Flows) -> Waiting {
        Waiting::new(limit(bits, None), Some(flows), Host::Source, 1500)
    }

    const MBIT: u64 = 1_000_000;

    #[test]
    fn flows_wait_in_fq_codel_behind_a_qdisc_that_cuts_super_frames() {
        let waiting = at(20 * MBIT, flows(ALL));
        assert_eq!(waiting.cut, Some(Setting::Cut { largest: 2_500 }), "1 ms at 20 Mbit/s");
        let queue = Setting::FqCodel { target: 4882, interval: 97_656, memory: 1_000_000 };
        assert_eq!(waiting.queue, queue);
        assert_eq!(at(5 * MBIT, flows(ALL)).cut, Some(Setting::Cut { largest: 1522 }), "one frame");
        assert_eq!(at(1000 * MBIT, flows(ALL)).cut, None, "64 KiB take half a millisecond");
    }

    #[test]
    fn flows_of_hosts_wait_in_cake() {
        let asked = Flows { per_host: true, ..flows(ALL) };
        let cake = |host, split| {
            let memory = if split { 1_000_000 } else { MOST_MEMORY as u32 };
            Setting::Cake { target: 5000, interval: 100_000, memory, hosts: Some(host), split }
        };
        let right = Waiting { cut: None, queue: cake(Host::Source, true), congestion: None };
        assert_eq!(at(20 * MBIT, asked), right);
        assert_eq!(at(1000 * MBIT, asked).queue, cake(Host::Source, false));
        let received = Waiting::new(limit(20 * MBIT, None), Some(asked), Host::Destination, 1500);
        assert_eq!(received.queue, cake(Host::Destination, true));
        let without = Flows { kernel: Qdiscs { cake: false, ..ALL }, ..asked };
        assert!(asked.refusal().is_none() && without.refusal().is_some());
    }

    #[test]
    fn a_kernel_without_either_has_a_short_queue() {
        let only_tbf = flows(Qdiscs { tbf: true, ..Qdiscs::default() });
        let waiting = at(20 * MBIT, only_tbf);
        assert_eq!(waiting.queue, Setting::Bfifo { limit: 12 * 1514 + 1136 }, "8 ms");
        assert_eq!(waiting.cut, Some(Setting::Cut { largest: 2_500 }));
        assert_eq!(waiting.congestion, None);
        let marks = flows(Qdiscs { congestion: true, ..only_tbf.kernel });
        let queue = at(20 * MBIT, marks).congestion.expect("marks");
        assert_eq!((queue.rate, queue.target, queue.room), (2_500_000, 3_860_800, 7_721_600));
        assert_ne!(only_tbf.note(), marks.note());
        assert_eq!(at(MBIT, only_tbf).queue, Setting::Bfifo { limit: 3_044 + 1136 }, "two frames");
        assert_eq!(at(1000 * MBIT, only_tbf).queue, Setting::Bfifo { limit: 659 * 1514 + 1136 });
        assert!(only_tbf.note().is_some_and(|note| note.contains("flows are not kept apart")));
        let nothing = flows(Qdiscs::default());
        assert_eq!(at(20 * MBIT, nothing), Waiting::fifo(limit(20 * MBIT, None)));
        assert_eq!(flows(ALL).note(), None);
    }

    #[test]
    fn a_slow_rate_has_a_longer_target() {
        // A frame of 1518 bytes takes 12.144 ms.
        let Setting::FqCodel { target, interval, .. } = at(MBIT, flows(ALL)).queue else {
            panic!("fq_codel")
        };
        assert_eq!((target, interval), (18_216_000 >> 10, 100_000_000 >> 10));
    }

    proptest! {
        #[test]
        fn codel_keeps_the_units_that_it_was_configured_with(units in 0_u32..4_000_000) {
            let configured = codel_micros(units);
            // fq_codel_change and codel_time_to_us.
            let stored = (u64::from(configured) * 1000) >> 10;
            prop_assert_eq!(stored, u64::from(units));
            let said = (stored << 10) / 1000;
            prop_assert_eq!(codel_units(said as u32), units);
        }

        /// On any kernel: no plain frame is cut, an uncut frame takes 1 ms or is a single one, and there is
        /// room for two of the largest.
        #[test]
        fn no_frame_in_a_queue_takes_long(
            bits in 100_000_u64..20_000_000_000,
            frame in 64_u32..9100,
            mtu in 0_u32..9100,
            has in any::<(bool, bool, bool, bool)>(),
            per_host: bool,
            queue in prop::option::of(10_000_u64..10_000_000),
        ) {
            let kernel = Qdiscs { tbf: has.0, fq_codel: has.1, cake: has.2, congestion: has.3 };
            let limit = limit(bits, queue);
            let asked = Flows { per_host, frame, kernel, ..flows(ALL) };
            let waiting = Waiting::new(limit, Some(asked), Host::Source, mtu);
            let whole = u64::from(frame.max(mtu + HEADERS));
            if let Some(cut) = &waiting.cut {
                let Setting::Cut { largest } = *cut else { panic!("{cut:?}") };
                let largest = u64::from(largest);
                prop_assert!(kernel.tbf && largest >= whole);
                prop_assert!(largest == whole || largest <= limit.bytes_in(LONGEST));
            }
            let longest = match (&waiting.cut, &waiting.queue) {
                (Some(Setting::Cut { largest }), _) => u64::from(*largest),
                (None, Setting::Cake { split: true, .. }) => whole,
                _ => SUPER_FRAME,
            };
            if let Some(marks) = waiting.congestion {
                let Setting::Bfifo { limit: room } = waiting.queue else { panic!("{waiting:?}") };
                prop_assert!(marks.target < marks.room && marks.room == limit.time_of(room.into()));
            }
            match waiting.queue {
                Setting::Bfifo { limit: room } => {
                    prop_assert!(!kernel.cake && !kernel.fq_codel);
                    prop_assert!(queue.is_some() || u64::from(room) >= 2 * longest);
                    let full = if mtu > 0 { mtu + ETHERNET } else { frame };
                    let short = limit.bytes_in(SHORT).max(2 * longest + u64::from(full));
                    prop_assert!(queue.is_some() || !kernel.tbf || u64::from(room) <= short);
                }
                Setting::FqCodel { target, interval, memory } => {
                    prop_assert!(kernel.fq_codel && interval >= 2 * target - 1 && memory > 0);
                    prop_assert!(!(per_host && kernel.cake));
                }
                Setting::Cake { hosts, memory, .. } => {
                    prop_assert!(kernel.cake && memory > 0);
                    prop_assert_eq!(hosts.is_some(), per_host);
                }
                other => panic!("{other:?}"),
            }
        }
    }
}
