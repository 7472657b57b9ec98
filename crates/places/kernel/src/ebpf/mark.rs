//! Priority marks in the IP header (DSCP, RFC 2474) of a VM's frames: the program of `mark.bpf.c`.
//!
//! ```text
//!  Marks ─▶ Marker, with a map of its own ─▶ filter at the netdev's ingress, which keeps both
//!                                               │
//!           number of the map, in the filter's name ─▶ Dropped::read
//! ```
//!
//! The network trusts marks. So a VM gets those of its contract: all frames of a real-time vNIC are marked
//! EF (46), and a vNIC without a deadline sends no real-time mark: EF, voice with admission (44), class
//! selectors 6 and 7. The host switch does the same. Other marks and the two ECN bits stay.
//!
//! A super-frame of a real-time vNIC that exceeds its burst on the wire would violate the envelope of the
//! admission; the kernel cannot cut it, so it is dropped here. So is one with unknown headers.

use crate::ebpf::program::{Program, ProgramError, Source};
use libbpf_rs::MapFlags;
use std::num::NonZeroU64;
use std::os::fd::BorrowedFd;

const SOURCE: Source =
    Source { name: "mark", object: include_bytes!(concat!(env!("OUT_DIR"), "/mark.bpf.o")), map: "dropped" };

/// Treatment of marks in a VM's frames.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Marks {
    /// Clears the marks of real-time traffic.
    Clear,
    /// Marks all frames as real-time.
    Set {
        /// Most wire bytes of one frame or super-frame.
        burst: NonZeroU64,
    },
}

impl Marks {
    /// 0 clears.
    pub fn from_burst(bytes: u64) -> Self {
        NonZeroU64::new(bytes).map_or(Self::Clear, |burst| Self::Set { burst })
    }

    /// The reverse.
    pub fn burst(self) -> u64 {
        match self {
            Self::Clear => 0,
            Self::Set { burst } => burst.get(),
        }
    }
}

/// A loaded program, at no ingress yet.
#[derive(Debug)]
pub struct Marker {
    program: Program,
}

impl Marker {
    /// Loads it; it continues the counters of `counted`.
    ///
    /// # Errors
    /// No right to (`CAP_BPF` and `CAP_NET_ADMIN`), or the kernel refuses it.
    pub fn load(marks: Marks, counted: Dropped) -> Result<Self, ProgramError> {
        let value = [counted.over_burst, counted.unknown_headers].map(u64::to_ne_bytes);
        Ok(Self { program: SOURCE.load(&[marks.burst()], value.as_flattened())? })
    }

    /// Passes the program to `work`, for a filter in direct action.
    pub fn with_program<T>(&self, work: impl FnOnce(BorrowedFd<'_>) -> T) -> T {
        self.program.with_descriptor(work)
    }

    /// Returns the number of its map, for [`Dropped::read`] while the program exists.
    ///
    /// # Errors
    /// The kernel does not tell.
    pub fn number(&self) -> Result<u32, ProgramError> {
        self.program.number()
    }
}

/// Frames of a real-time vNIC dropped by such a program; a super-frame is one.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Dropped {
    /// Frames larger than the burst.
    pub over_burst: u64,
    /// Super-frames with unknown headers, which may have been larger.
    pub unknown_headers: u64,
}

impl Dropped {
    /// Reads the counters of the program with this map.
    ///
    /// # Errors
    /// It is gone, or no right to (`CAP_SYS_ADMIN`).
    pub fn read(number: u32) -> Result<Self, ProgramError> {
        let value = SOURCE.read(number, MapFlags::ANY)?;
        // An older agent's program has only the first counter.
        let mut words = value.as_chunks().0.iter().map(|word| u64::from_ne_bytes(*word));
        let mut next = || words.next().unwrap_or_default();
        Ok(Self { over_burst: next(), unknown_headers: next() })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ebpf::testing::{DROPPED, PASSES, frames, run};
    use proptest::prelude::*;
    use proptest::test_runner::{Config, TestRunner};
    use tidegate_testkit::unless_skipped;

    /// The host switch's real-time marks (`crates/switch/src/frame/dscp.rs`).
    const REALTIME: [u8; 4] = [44, 46, 48, 56];

    /// The header of a markable frame.
    #[derive(Clone, Debug)]
    struct Header {
        /// Ethernet types of its tags.
        tags: Vec<u16>,
        ipv4: bool,
        dscp: u8,
        ecn: u8,
        /// The rest of the header, and the bytes after it.
        rest: Vec<u8>,
        /// Words of IPv4 options.
        options: usize,
    }

    impl Header {
        fn frame(&self) -> Vec<u8> {
            let tags = self.tags.iter().flat_map(|tag| [tag.to_be_bytes(), [0, 7]].concat());
            let kind: u16 = if self.ipv4 { 0x0800 } else { 0x86dd };
            let ethernet = [2; 12].into_iter().chain(tags).chain(kind.to_be_bytes());
            let mut ip = self.rest.clone();
            let class = self.dscp << 2 | self.ecn;
            if self.ipv4 {
                let length = 20 + 4 * self.options;
                (ip[0], ip[1]) = (0x40 | (length / 4) as u8, class);
                ip[10..12].fill(0);
                let check = !sum(&ip[..length]);
                ip[10..12].copy_from_slice(&check.to_be_bytes());
            } else {
                (ip[0], ip[1]) = (0x60 | class >> 4, class << 4 | ip[1] & 15);
            }
            ethernet.chain(ip).collect()
        }
    }

    /// The sum of 16-bit words in ones' complement (RFC 1071).
    fn sum(bytes: &[u8]) -> u16 {
        let words = bytes.chunks(2).map(|pair| u32::from(u16::from_be_bytes([pair[0], pair[1]])));
        words.fold(0, |sum, word| {
            let sum = u32::from(sum) + word;
            ((sum & 0xffff) + (sum >> 16)) as u16
        })
    }

    fn headers() -> impl Strategy<Value = Header> {
        let tags = prop::collection::vec(prop::sample::select(vec![0x8100, 0x88a8]), 0..3);
        let rest = prop::collection::vec(any::<u8>(), 60..200);
        let rest = (rest, 0_usize..11);
        (tags, any::<bool>(), 0_u8..64, 0_u8..4, rest).prop_map(|(tags, ipv4, dscp, ecn, (rest, options))| {
            Header { tags, ipv4, dscp, ecn, rest, options }
        })
    }

    fn programs() -> Option<[(Marks, Marker); 2]> {
        let load =
            |marks| unless_skipped(Marker::load(marks, Dropped::default())).map(|marker| (marks, marker));
        Some([load(Marks::Clear)?, load(Marks::from_burst(1_000_000))?])
    }

    fn wanted(marks: Marks, dscp: u8) -> u8 {
        match marks {
            Marks::Set { .. } => 46,
            Marks::Clear if REALTIME.contains(&dscp) => 0,
            Marks::Clear => dscp,
        }
    }

    #[test]
    fn a_frame_is_as_if_built_with_its_mark() {
        let Some(programs) = programs() else { return };
        let config = Config { cases: 500, ..Config::default() };
        let tried = TestRunner::new(config).run(&headers(), |header| {
            for (marks, marker) in &programs {
                // Each mark with this header.
                for dscp in [header.dscp, 44, 46, 48, 56] {
                    let before = Header { dscp, ..header.clone() };
                    let after = Header { dscp: wanted(*marks, dscp), ..header.clone() };
                    let expected = (PASSES, after.frame());
                    prop_assert_eq!(run(&marker.program, &before.frame(), 0), expected);
                }
            }
            Ok(())
        });
        tried.unwrap();
    }

    #[test]
    fn every_mark_is_known() {
        let Some(programs) = programs() else { return };
        for (dscp, ecn, ipv4) in (0..256).map(|n| (n as u8 & 63, n as u8 >> 6, n % 3 == 0)) {
            let header = Header { tags: vec![], ipv4, dscp, ecn, rest: vec![0; 60], options: 0 };
            for (marks, marker) in &programs {
                let marked = Header { dscp: wanted(*marks, dscp), ..header.clone() };
                assert_eq!(run(&marker.program, &header.frame(), 0).1, marked.frame(), "{header:?}");
            }
        }
    }

    #[test]
    fn a_frame_that_is_not_ip_or_is_cut_short_is_unchanged() {
        let Some(programs) = programs() else { return };
        let ethernet = |kind: [u8; 2], more: usize| [&[2; 12], &kind[..], &vec![0xff; more]].concat();
        let frames = [
            ethernet([8, 6], 46),
            ethernet([0x81, 0], 2),
            // The program does not look behind the third tag.
            [&[2; 12][..], &[0x81, 0, 0, 1, 0x81, 0, 0, 1, 0x81, 0, 0, 1, 8, 0], &[0xff; 40]].concat(),
            // One word is missing. (Without a tag the kernel does not try it.)
            [&[2; 12][..], &[0x81, 0, 0, 1, 8, 0], &[0xff; 10]].concat(),
            [&[2; 12][..], &[0x81, 0, 0, 1, 0x86, 0xdd], &[0xff; 10]].concat(),
        ];
        for frame in frames {
            for (_, marker) in &programs {
                assert_eq!(run(&marker.program, &frame, 0), (PASSES, frame.clone()));
            }
        }
    }

    #[test]
    fn a_frame_larger_than_the_burst_is_dropped_and_counted() {
        if programs().is_none() {
            return;
        }
        let config = Config { cases: 100, ..Config::default() };
        let steps = (1_u64..4_000, 0_u64..9, prop::collection::vec(frames(), 1..8));
        let tried = TestRunner::new(config).run(&steps, |(burst, before, frames)| {
            let before = Dropped { over_burst: before, unknown_headers: before + 1 };
            let set = Marker::load(Marks::from_burst(burst), before).unwrap();
            let clear = Marker::load(Marks::Clear, before).unwrap();
            let mut expected = before;
            for frame in &frames {
                let fits = frame.wire_bytes() <= burst;
                expected.over_burst += u64::from(!fits);
                let verdict = if fits { PASSES } else { DROPPED };
                prop_assert_eq!(run(&set.program, &frame.bytes(), frame.gso_size).0, verdict, "{:?}", frame);
                prop_assert_eq!(run(&clear.program, &frame.bytes(), frame.gso_size).0, PASSES);
            }
            prop_assert_eq!(Dropped::read(set.number().unwrap()).unwrap(), expected);
            prop_assert_eq!(Dropped::read(clear.number().unwrap()).unwrap(), before);
            Ok(())
        });
        tried.unwrap();
    }
}
