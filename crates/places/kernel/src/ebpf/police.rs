//! A token bucket that drops, in wire bytes: the program of `police.bpf.c`, loaded anew for each netdev.
//!
//! ```text
//!  Bucket (rate, burst) ─▶ Program, with a map of its own ─▶ filter at the netdev's ingress, which keeps both
//!                                                                │
//!                              number of the map, in the filter's name ─▶ Policed::read
//! ```
//!
//! No process needs to hold a program: it lives with the filter, whose name has its parameters, so another
//! agent knows them ([`crate::tc::owner`]).

use crate::ebpf::program::{Program, ProgramError, Source};
use libbpf_rs::MapFlags;
use std::os::fd::BorrowedFd;
use tidegate_contract::{Bytes, Rate};

const SOURCE: Source = Source {
    name: "police",
    object: include_bytes!(concat!(env!("OUT_DIR"), "/police.bpf.o")),
    map: "bucket",
};

/// `UNITS_PER_S` of `police.h`.
const UNITS_PER_S: u128 = 64 * 1_000_000_000;
/// Largest deviation of a rate in whole bytes, as its reciprocal: 1 %.
const TOLERANCE: u64 = 100;
/// Least silence of a TCP connection of Linux after all its frames under way are lost (ms; `TCP_RTO_MIN`,
/// include/net/tcp.h).
const TCP_WAITS: u64 = 200;

/// A rate and its burst.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Bucket {
    /// Bytes per second; not 0.
    pub rate: u64,
    /// Bytes.
    pub burst: u64,
}

/// Why a bucket is impossible.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum BucketError {
    /// Rates are in whole bytes.
    #[error(
        "a policer counts whole bytes per second, and would let {actual}bit pass where {rate} is asked for; choose a \
         multiple of 8bit"
    )]
    Rounded {
        /// The requested rate.
        rate: Rate,
        /// The possible rate (bit/s).
        actual: u64,
    },
    /// The bucket would take more than nine years to fill.
    #[error("a burst of {burst} takes years at {rate}; choose a smaller burst")]
    Burst {
        /// The requested burst.
        burst: Bytes,
        /// Its rate.
        rate: Rate,
    },
}

impl Bucket {
    /// A bucket of `burst` that `rate` fills.
    ///
    /// # Errors
    /// The rate is more than 1 % off in whole bytes, or the burst lasts too long.
    pub fn new(rate: Rate, burst: Bytes) -> Result<Self, BucketError> {
        let bucket = Self { rate: rate.bits() / 8, burst: burst.get() };
        let actual = bucket.rate * 8;
        if actual == 0 || (rate.bits() - actual) * TOLERANCE > rate.bits() {
            return Err(BucketError::Rounded { rate, actual });
        }
        bucket.units().ok_or(BucketError::Burst { burst, rate })?;
        Ok(bucket)
    }

    /// Returns a note for people: TCP gets less than the rate with so short a burst.
    pub fn note(self) -> Option<String> {
        let enough = self.rate.saturating_mul(TCP_WAITS).div_ceil(1000);
        (self.burst < enough).then(|| {
            format!(
                "its burst lasts {} ms at its rate, and TCP sends nothing for {TCP_WAITS} ms after a policer has \
                 dropped all that was under way: a connection may get a small part of its rate; {enough} bytes are \
                 enough",
                self.burst.saturating_mul(1000) / self.rate.max(1)
            )
        })
    }

    /// Returns the burst's time at the rate.
    fn units(self) -> Option<u64> {
        let units = u128::from(self.burst) * UNITS_PER_S / u128::from(self.rate.max(1));
        u64::try_from(units).ok().filter(|units| *units < 1 << 62)
    }
}

/// Counters of a netdev's policer.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Policed {
    /// Passed frames; each segment of a super-frame is one.
    pub frames: u64,
    /// Their wire bytes.
    pub bytes: u64,
    /// Dropped frames; a super-frame is one.
    pub dropped: u64,
    /// Their wire bytes.
    pub dropped_bytes: u64,
    /// Super-frames dropped for unknown headers; their wire bytes are unknown.
    pub unknown_headers: u64,
}

/// A loaded program with a full bucket, at no ingress yet.
pub struct Policer {
    program: Program,
}

impl Policer {
    /// Loads it; it continues the counters of `counted`.
    ///
    /// # Errors
    /// No right to (`CAP_BPF` and `CAP_NET_ADMIN`), or the kernel refuses it.
    pub fn load(bucket: Bucket, counted: Policed) -> Result<Self, ProgramError> {
        // After the lock: a bucket last empty at time 0 is full.
        let Policed { frames, bytes, dropped, dropped_bytes, unknown_headers } = counted;
        let value: Vec<u8> = [0, 0, frames, bytes, dropped, dropped_bytes, unknown_headers]
            .iter()
            .flat_map(|word: &u64| word.to_ne_bytes())
            .collect();
        let constants = [bucket.rate, bucket.units().unwrap_or(u64::MAX)];
        Ok(Self { program: SOURCE.load(&constants, &value)? })
    }

    /// Passes the program to `work`, for a filter in direct action.
    pub fn with_program<T>(&self, work: impl FnOnce(BorrowedFd<'_>) -> T) -> T {
        self.program.with_descriptor(work)
    }

    /// Returns the number of its map, for [`Policed::read`] while the program exists.
    ///
    /// # Errors
    /// The kernel does not tell.
    pub fn number(&self) -> Result<u32, ProgramError> {
        self.program.number()
    }
}

impl Policed {
    /// Reads the counters of the policer with this map.
    ///
    /// # Errors
    /// It is gone, or no right to (`CAP_SYS_ADMIN`).
    pub fn read(number: u32) -> Result<Self, ProgramError> {
        let value = SOURCE.read(number, MapFlags::LOCK)?;
        // After lock and level.
        let mut words = value.as_chunks().0.iter().map(|word| u64::from_ne_bytes(*word)).skip(2);
        let mut next = || words.next().unwrap_or_default();
        Ok(Self {
            frames: next(),
            bytes: next(),
            dropped: next(),
            dropped_bytes: next(),
            unknown_headers: next(),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ebpf::testing::{self, DROPPED, Frame, Kind, PASSES, frames};
    use proptest::prelude::*;
    use proptest::test_runner::{Config, TestRunner};

    /// So slow that less than a byte of each [`UNIT`] comes back during a test.
    const RATE: u64 = 20;
    const UNIT: u64 = 100;

    fn run(police: &Policer, frame: &Frame) -> u32 {
        testing::run(&police.program, &frame.bytes(), frame.gso_size).0
    }

    fn load(rate: u64, burst: u64, counted: Policed) -> Option<Policer> {
        tidegate_testkit::unless_skipped(Policer::load(Bucket { rate, burst }, counted))
    }

    #[test]
    fn frames_pass_as_a_bucket_in_wire_bytes_says() {
        if load(RATE, 0, Policed::default()).is_none() {
            return;
        }
        let config = Config { cases: 200, ..Config::default() };
        let before = Policed { frames: 7, bytes: 6, dropped: 5, dropped_bytes: 4, unknown_headers: 3 };
        let steps = (0u64..300, prop::collection::vec(frames(), 1..30));
        let tried = TestRunner::new(config).run(&steps, |(burst, frames)| {
            let burst = burst * UNIT;
            let police = load(RATE, burst, before).unwrap();
            let number = police.number().unwrap();
            let (mut level, mut expected) = (burst as i64, before);
            for frame in frames {
                let cost = frame.wire_bytes();
                // Tokens that come back meanwhile could change the result here.
                prop_assume!(!(-20..0).contains(&level));
                let passes = level >= 0;
                prop_assert_eq!(run(&police, &frame), if passes { PASSES } else { DROPPED }, "{:?}", frame);
                if passes {
                    level -= cost as i64;
                    expected.frames += frame.segments() as u64;
                    expected.bytes += cost;
                } else {
                    expected.dropped += 1;
                    expected.dropped_bytes += cost;
                }
                prop_assert_eq!(Policed::read(number).unwrap(), expected);
            }
            Ok(())
        });
        tried.unwrap();
    }

    #[test]
    fn an_empty_bucket_passes_one_frame_on_credit() {
        let Some(police) = load(RATE, 0, Policed::default()) else { return };
        let frame = Frame { kind: Kind::Tcp4, payload: 1000, gso_size: 0 };
        assert_eq!([run(&police, &frame), run(&police, &frame)], [PASSES, DROPPED]);
        let number = police.number().unwrap();
        drop(police);
        // The kernel takes some time.
        let gone = (0..100).any(|_| {
            std::thread::sleep(std::time::Duration::from_millis(20));
            Policed::read(number).is_err()
        });
        assert!(gone, "nobody holds it any more");
    }

    #[test]
    fn a_burst_too_short_for_tcp_is_noted() {
        let note = Bucket { rate: 1_000_000, burst: 65_536 }.note().unwrap();
        assert!(note.contains("lasts 65 ms") && note.contains("200000 bytes are enough"), "{note}");
        assert!(Bucket { rate: 1_000_000, burst: 199_999 }.note().is_some());
        let tx = tidegate_contract::Tx { method: tidegate_contract::Method::Police, ..Default::default() };
        for bits in [8_000, 1_000_000, 37_000_000, 5_000_000_000, Rate::MAX.bits()] {
            let rate = Rate::from_bits(bits).unwrap();
            let bucket = Bucket::new(rate, tx.burst_or_default(rate)).unwrap();
            assert_eq!(bucket.note(), None, "the default of a contract, at {bits}");
        }
    }

    #[test]
    fn a_rate_in_whole_bytes_is_close_or_refused() {
        let bucket = |bits, burst| Bucket::new(Rate::from_bits(bits).unwrap(), Bytes::new(burst));
        assert_eq!(bucket(8_000_007, 5), Ok(Bucket { rate: 1_000_000, burst: 5 }));
        assert_eq!(bucket(800, 5), Ok(Bucket { rate: 100, burst: 5 }));
        for bits in [1, 9, 15] {
            assert!(matches!(bucket(bits, 5), Err(BucketError::Rounded { .. })), "{bits}");
        }
        assert!(matches!(bucket(8, 1_000_000_000), Err(BucketError::Burst { .. })));
    }
}
