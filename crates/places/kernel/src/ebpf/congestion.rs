//! Marks "congestion experienced" (CE, RFC 3168) if flows cannot be separated: the program of
//! `congestion.bpf.c`.
//!
//! ```text
//!  VirtualQueue ─▶ CongestionMarker, with a map of its own ─▶ filter before a limit, which keeps both
//!                                                                 │
//!                   number of the map, in the filter's name ─▶ Marked::read
//! ```
//!
//! It is at the ingress of a netdev, before its frames go to the IFB, or at its root qdisc, and computes
//! each frame's coming wait. Frames of connections without ECN stay unchanged.

use crate::ebpf::program::{Program, ProgramError, Source};
use crate::limit::Limit;
use libbpf_rs::MapFlags;
use std::os::fd::BorrowedFd;

const SOURCE: Source = Source {
    name: "congestion",
    object: include_bytes!(concat!(env!("OUT_DIR"), "/congestion.bpf.o")),
    map: "queue",
};

/// Offset of the counter in `struct virtual_queue` (`congestion.h`; bytes).
const MARKED: usize = 16;

/// The queue of a limit, from the view of a filter before it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct VirtualQueue {
    /// Bytes per second; not 0.
    pub rate: u64,
    /// How long the burst lasts at the rate, ns.
    pub burst: u64,
    /// Frames with a longer wait are marked (ns).
    pub target: u64,
    /// Longest wait (ns): frames beyond it are dropped.
    pub room: u64,
}

impl VirtualQueue {
    /// Makes it from a limit with a queue of so many bytes.
    pub fn new(limit: Limit, target: u64, bytes: u32) -> Self {
        let room = limit.time_of(bytes.into());
        // Marks come before drops.
        let target = target.min(room / 2);
        Self { rate: limit.rate, burst: limit.burst_time(), target, room }
    }
}

/// A loaded program, at no qdisc yet.
#[derive(Debug)]
pub struct CongestionMarker {
    program: Program,
}

impl CongestionMarker {
    /// Loads it; it continues the counter of `marked`.
    ///
    /// # Errors
    /// No right to (`CAP_BPF` and `CAP_NET_ADMIN`), or the kernel refuses it.
    pub fn load(queue: VirtualQueue, marked: Marked) -> Result<Self, ProgramError> {
        let VirtualQueue { rate, burst, target, room } = queue;
        let value = [0, 0, marked.frames].map(u64::to_ne_bytes);
        Ok(Self { program: SOURCE.load(&[rate, burst, target, room], value.as_flattened())? })
    }

    /// Passes the program to `work`, for a filter in direct action.
    pub fn with_program<T>(&self, work: impl FnOnce(BorrowedFd<'_>) -> T) -> T {
        self.program.with_descriptor(work)
    }

    /// Returns the number of its map, for [`Marked::read`] while the program exists.
    ///
    /// # Errors
    /// The kernel does not tell.
    pub fn number(&self) -> Result<u32, ProgramError> {
        self.program.number()
    }
}

/// The counter of such a program.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Marked {
    /// Frames on the wire: each segment of a super-frame is one.
    pub frames: u64,
}

impl Marked {
    /// Reads the counter of the program with this map.
    ///
    /// # Errors
    /// It is gone, or no right to (`CAP_SYS_ADMIN`).
    pub fn read(number: u32) -> Result<Self, ProgramError> {
        let value = SOURCE.read(number, MapFlags::LOCK)?;
        let frames = value.get(MARKED..).and_then(|rest| rest.first_chunk().copied());
        Ok(Self { frames: frames.map(u64::from_ne_bytes).unwrap_or_default() })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ebpf::testing::{PASSES, run};
    use tidegate_testkit::unless_skipped;

    const CE: u8 = 3;

    /// At 1 byte per second, every second frame waits for long.
    fn slow(target: u64) -> Option<CongestionMarker> {
        let queue = VirtualQueue { rate: 1, burst: 0, target, room: u64::MAX / 4 };
        unless_skipped(CongestionMarker::load(queue, Marked::default()))
    }

    /// Returns a UDP frame behind some VLAN tags, with these ECN bits under another DSCP.
    fn frame(tags: usize, ipv4: bool, ecn: u8) -> Vec<u8> {
        let tags = [0x81, 0, 0, 7].repeat(tags);
        let class = 10 << 2 | ecn;
        let ip = if ipv4 {
            let mut header = [0x45, class, 0, 28, 1, 2, 0, 0, 64, 17, 0, 0, 10, 0, 0, 1, 10, 0, 0, 2];
            let sum: u32 =
                header.chunks(2).map(|pair| u32::from(u16::from_be_bytes([pair[0], pair[1]]))).sum();
            let check = !((sum & 0xffff) + (sum >> 16)) as u16;
            header[10..12].copy_from_slice(&check.to_be_bytes());
            [&[8, 0], &header[..], &[0; 8]].concat()
        } else {
            let header = [0x60 | class >> 4, class << 4 | 5, 1, 2, 0, 8, 17, 64];
            [&[0x86, 0xdd], &header[..], &[9; 32], &[0; 8]].concat()
        };
        [&[2; 12], &tags[..], &ip[..]].concat()
    }

    #[test]
    fn a_waiting_frame_is_as_if_built_with_its_mark() {
        let Some(marker) = slow(1_000) else { return };
        run(&marker.program, &frame(0, true, 0), 0);
        let mut marked = 0;
        for (tags, ipv4, ecn) in (0..3)
            .flat_map(|t| [true, false].map(|v| (t, v)))
            .flat_map(|(t, v)| (0..4).map(move |e| (t, v, e)))
        {
            let after = if ecn == 0 { 0 } else { CE };
            let expected = (PASSES, frame(tags, ipv4, after));
            assert_eq!(run(&marker.program, &frame(tags, ipv4, ecn), 0), expected, "{tags} {ipv4} {ecn}");
            marked += u64::from(ecn == 1 || ecn == 2);
        }
        assert_eq!(Marked::read(marker.number().unwrap()).unwrap().frames, marked);
    }

    #[test]
    fn a_frame_that_does_not_wait_is_unchanged() {
        let queue = VirtualQueue { rate: 1_000_000_000, burst: 1_000_000_000, target: 0, room: 1_000_000 };
        let Some(marker) = unless_skipped(CongestionMarker::load(queue, Marked { frames: 7 })) else {
            return;
        };
        for _ in 0..100 {
            assert_eq!(run(&marker.program, &frame(0, true, 1), 0), (PASSES, frame(0, true, 1)));
        }
        assert_eq!(Marked::read(marker.number().unwrap()).unwrap().frames, 7, "it goes on from there");
    }

    #[test]
    fn a_frame_that_waits_longer_than_the_target_is_marked() {
        // A frame of 42 bytes takes 42 ms; the burst is 1 s, and the target 200 ms: frame 29 is the first
        // with a longer wait; later ones while this test waits for a processor.
        let queue = VirtualQueue { rate: 1_000, burst: 1_000_000_000, target: 200_000_000, room: 1 << 40 };
        let Some(marker) = unless_skipped(CongestionMarker::load(queue, Marked::default())) else { return };
        let begin = std::time::Instant::now();
        let is_marked = |_| run(&marker.program, &frame(0, true, 1), 0).1 == frame(0, true, CE);
        let first = (0..1000).position(is_marked).expect("one of them");
        let late = begin.elapsed().as_millis().div_ceil(42) as usize;
        assert!((29..=29 + late).contains(&first), "{first}, {late}");
    }

    #[test]
    fn a_frame_that_does_not_fit_does_not_count_as_waiting() {
        // The first frame fills it for 1 ms; it is empty after that, whatever came.
        let queue = VirtualQueue { rate: 1, burst: 0, target: 0, room: 1_000_000 };
        let Some(marker) = unless_skipped(CongestionMarker::load(queue, Marked::default())) else { return };
        for _ in 0..20 {
            run(&marker.program, &frame(0, false, 0), 0);
        }
        std::thread::sleep(std::time::Duration::from_millis(3));
        assert_eq!(run(&marker.program, &frame(0, false, 2), 0), (PASSES, frame(0, false, 2)));
    }

    #[test]
    fn a_frame_that_is_not_ip_or_is_cut_short_is_unchanged() {
        let Some(marker) = slow(0) else { return };
        run(&marker.program, &frame(0, true, 0), 0);
        let frames = [
            [&[2; 12][..], &[8, 6], &[0xff; 46]].concat(),
            [&[2; 12][..], &[0x81, 0, 0, 1, 0x81, 0, 0, 1, 0x81, 0, 0, 1, 8, 0], &[0xff; 40]].concat(),
            [&[2; 12][..], &[0x81, 0, 0, 1, 8, 0], &[0xff; 10]].concat(),
        ];
        for frame in frames {
            assert_eq!(run(&marker.program, &frame, 0), (PASSES, frame.clone()));
        }
        assert_eq!(Marked::read(marker.number().unwrap()).unwrap().frames, 0);
    }

    #[test]
    fn marks_come_before_drops() {
        let rate = tidegate_contract::Rate::from_bits(20_000_000).unwrap();
        let limit = Limit::new(rate, tidegate_contract::Bytes::new(65_536), None, 1518).unwrap();
        let queue = VirtualQueue::new(limit, 5_000_000, 20_000);
        assert_eq!((queue.target, queue.room), (4_000_000, 8_000_000));
        assert_eq!(VirtualQueue::new(limit, 1_000_000, 20_000).target, 1_000_000);
    }
}
