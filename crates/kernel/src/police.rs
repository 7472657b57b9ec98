//! A token bucket that drops, in wire bytes: the program of `bpf/police.bpf.c`, loaded anew for each netdev.
//!
//! ```text
//!  Bucket (rate, burst) ─▶ Program, with a map of its own ─▶ filter at the netdev's ingress, which keeps both
//!                                                                │
//!                              number of the map, in the filter's name ─▶ Policed::read
//! ```
//!
//! Nobody has to hold a program: it goes with the filter. What it was loaded with is in the filter's name, so another
//! agent knows it too ([`crate::owner`]).

use libbpf_rs::{MapCore, MapFlags, MapHandle, Object, ObjectBuilder};
use std::os::fd::{AsFd, BorrowedFd};
use tidegate_contract::{Bytes, Rate};

const PROGRAM: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/police.bpf.o"));

/// `UNITS_PER_S` of `bpf/police.h`.
const UNITS_PER_S: u128 = 64 * 1_000_000_000;
/// The only key of a bucket's map.
const ONLY: [u8; 4] = [0; 4];
/// How far a rate in whole bytes may be from the one asked for, as its reciprocal: 1 %.
const TOLERANCE: u64 = 100;

/// A rate, and how much may pass at once.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Bucket {
    /// Bytes per second; not 0.
    pub rate: u64,
    /// Bytes.
    pub burst: u64,
}

/// Why no bucket keeps a rate.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum BucketError {
    /// It counts whole bytes.
    #[error(
        "a policer counts whole bytes per second, and would let {kept}bit pass where {rate} is asked for; choose a \
         multiple of 8bit"
    )]
    Rounded {
        /// Asked for.
        rate: Rate,
        /// What it would be, bit/s.
        kept: u64,
    },
    /// The bucket would not be full within nine years.
    #[error("a burst of {burst} takes years at {rate}; choose a smaller burst")]
    Burst {
        /// Asked for.
        burst: Bytes,
        /// At this rate.
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
        let kept = bucket.rate * 8;
        if kept == 0 || (rate.bits() - kept) * TOLERANCE > rate.bits() {
            return Err(BucketError::Rounded { rate, kept });
        }
        bucket.units().ok_or(BucketError::Burst { burst, rate })?;
        Ok(bucket)
    }

    /// How long the rate takes for the burst.
    fn units(self) -> Option<u64> {
        let units = u128::from(self.burst) * UNITS_PER_S / u128::from(self.rate.max(1));
        u64::try_from(units).ok().filter(|units| *units < 1 << 62)
    }
}

/// What was counted of a netdev since its policer was made.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Policed {
    /// Frames that passed; each segment of a super-frame is one.
    pub frames: u64,
    /// Their wire bytes.
    pub bytes: u64,
    /// Frames that were dropped; a super-frame is one.
    pub dropped: u64,
    /// Their wire bytes.
    pub dropped_bytes: u64,
}

/// Frames cannot be policed, or what was counted not be read.
#[derive(Debug, thiserror::Error)]
#[error("cannot {what}: {source}")]
pub struct PoliceError {
    what: &'static str,
    source: libbpf_rs::Error,
}

fn failed(what: &'static str) -> impl FnOnce(libbpf_rs::Error) -> PoliceError {
    move |source| PoliceError { what, source }
}

/// A program that is loaded, with a full bucket, and at no ingress yet.
pub struct Policer {
    object: Object,
}

impl Policer {
    /// Loads it, going on from what was `counted`.
    ///
    /// # Errors
    /// No right to (`CAP_BPF` and `CAP_NET_ADMIN`), or a kernel that does not take it.
    pub fn load(bucket: Bucket, counted: Policed) -> Result<Self, PoliceError> {
        let mut builder = ObjectBuilder::default();
        let mut opened = builder.open_memory(PROGRAM).map_err(failed("read the eBPF policer"))?;
        let mut constants = opened.maps_mut().find(|map| map.name().to_string_lossy().ends_with(".rodata"));
        let constants = constants.as_mut().expect("bpf/police.bpf.c has constants");
        let numbers = [bucket.rate, bucket.units().unwrap_or(u64::MAX)];
        let numbers: Vec<u8> = numbers.iter().flat_map(|n| n.to_ne_bytes()).collect();
        constants.set_initial_value(&numbers).map_err(failed("set the rate of an eBPF policer"))?;
        let object = opened.load().map_err(failed("load an eBPF policer"))?;
        let policer = Self { object };
        // After the lock: a bucket that is empty since ever is full.
        let Policed { frames, bytes, dropped, dropped_bytes } = counted;
        let value: Vec<u8> = [0, 0, frames, bytes, dropped, dropped_bytes]
            .iter()
            .flat_map(|word| word.to_ne_bytes())
            .collect();
        let set = policer.map().update(&ONLY, &value, MapFlags::ANY);
        set.map_err(failed("fill the bucket of an eBPF policer"))?;
        Ok(policer)
    }

    /// The program, for a filter in direct action.
    ///
    /// # Panics
    /// Never: it is in the object that was loaded.
    pub fn with_program<T>(&self, work: impl FnOnce(BorrowedFd<'_>) -> T) -> T {
        let program = self.object.progs().next().expect("bpf/police.bpf.c has a program");
        work(program.as_fd())
    }

    /// Number of its map, by which [`Policed::read`] finds it as long as the program is there.
    ///
    /// # Errors
    /// The kernel does not say.
    pub fn number(&self) -> Result<u32, PoliceError> {
        let info = self.map().info().map_err(failed("tell the number of an eBPF map"))?;
        Ok(info.info.id)
    }

    fn map(&self) -> libbpf_rs::Map<'_> {
        self.object
            .maps()
            .find(|map| map.name() == "bucket")
            .expect("bpf/police.bpf.c has a map of this name")
    }
}

impl Policed {
    /// What the policer with this map has counted.
    ///
    /// # Errors
    /// It is gone, or no right to (`CAP_SYS_ADMIN`).
    pub fn read(number: u32) -> Result<Self, PoliceError> {
        let map = MapHandle::from_map_id(number).map_err(failed("find the counters of an eBPF policer"))?;
        let value = map.lookup(&ONLY, MapFlags::LOCK);
        let value = value.map_err(failed("read the counters of an eBPF policer"))?.unwrap_or_default();
        // After lock and level.
        let mut words = value.as_chunks().0.iter().map(|word| u64::from_ne_bytes(*word)).skip(2);
        let mut next = || words.next().unwrap_or_default();
        Ok(Self { frames: next(), bytes: next(), dropped: next(), dropped_bytes: next() })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use libbpf_rs::ProgramInput;
    use proptest::prelude::*;
    use proptest::test_runner::{Config, TestRunner};
    use std::io::Write;

    /// The loopback interface, on which the kernel tries programs.
    const INDEX: u32 = 1;
    const PASSES: u32 = u32::MAX;
    const DROPPED: u32 = 2;

    /// Slow enough that what comes back during a test is less than a byte of each [`UNIT`].
    const RATE: u64 = 20;
    const UNIT: u64 = 100;

    /// `struct __sk_buff` (linux/bpf.h), as far as a test sets it.
    struct Context([u8; 192]);

    impl Context {
        fn new(gso_size: u32) -> Self {
            let mut context = Self([0; 192]);
            context.put(40, INDEX);
            context.put(176, gso_size);
            context
        }

        fn put(&mut self, offset: usize, value: u32) {
            self.0[offset..offset + 4].copy_from_slice(&value.to_ne_bytes());
        }
    }

    /// How a frame looks.
    #[derive(Clone, Copy, Debug)]
    enum Kind {
        Tcp4,
        Tcp6,
        Udp4,
        /// IPv6, hop-by-hop options, UDP.
        Udp6Extended,
        /// In a VLAN, TCP with 12 bytes of options.
        TaggedTcp4,
    }

    impl Kind {
        /// Ethernet to transport header.
        fn headers(self) -> Vec<u8> {
            let ethernet = |types: &[u8]| [&[2; 12], types].concat();
            let ip4 = |protocol: u8| {
                let mut header = [0; 20];
                (header[0], header[9]) = (0x45, protocol);
                header.to_vec()
            };
            let ip6 = |next: u8| {
                let mut header = [0; 40];
                (header[0], header[6]) = (0x60, next);
                header.to_vec()
            };
            let tcp = |words: u8| {
                let mut header = vec![0; usize::from(words) * 4];
                header[12] = words << 4;
                header
            };
            match self {
                Self::Tcp4 => [ethernet(&[8, 0]), ip4(6), tcp(5)].concat(),
                Self::Tcp6 => [ethernet(&[0x86, 0xdd]), ip6(6), tcp(5)].concat(),
                Self::Udp4 => [ethernet(&[8, 0]), ip4(17), vec![0; 8]].concat(),
                Self::Udp6Extended => {
                    [ethernet(&[0x86, 0xdd]), ip6(0), vec![17, 0, 0, 0, 0, 0, 0, 0], vec![0; 8]].concat()
                }
                Self::TaggedTcp4 => [ethernet(&[0x81, 0, 0, 7, 8, 0]), ip4(6), tcp(8)].concat(),
            }
        }
    }

    /// A frame of some payload, in segments of `gso_size` where that is not 0.
    #[derive(Clone, Debug)]
    struct Frame {
        kind: Kind,
        payload: usize,
        gso_size: usize,
    }

    impl Frame {
        fn segments(&self) -> usize {
            if self.gso_size == 0 { 1 } else { self.payload.div_ceil(self.gso_size) }
        }

        fn wire_bytes(&self) -> u64 {
            (self.payload + self.segments() * self.kind.headers().len()) as u64
        }
    }

    fn frames() -> impl Strategy<Value = Frame> {
        let kinds = vec![Kind::Tcp4, Kind::Tcp6, Kind::Udp4, Kind::Udp6Extended, Kind::TaggedTcp4];
        let kind = prop::sample::select(kinds);
        (kind, 1usize..3000, prop::option::of(100usize..1500)).prop_map(|(kind, payload, gso)| Frame {
            kind,
            payload,
            gso_size: gso.unwrap_or(0),
        })
    }

    fn run(police: &Policer, frame: &Frame) -> u32 {
        let mut context = Context::new(frame.gso_size as u32);
        let data = [frame.kind.headers(), vec![0; frame.payload]].concat();
        let input = ProgramInput {
            context_in: Some(&mut context.0),
            data_in: Some(&data),
            ..ProgramInput::default()
        };
        let mut programs = police.object.progs_mut();
        programs.next().unwrap().test_run(input).unwrap().return_value
    }

    /// `None` with the reason said where the kernel does not let us: a failure in CI.
    fn load(rate: u64, burst: u64, counted: Policed) -> Option<Policer> {
        let skip = |why| {
            assert!(std::env::var("CI").as_deref() != Ok("true"), "{why}");
            std::io::stderr().write_all(format!("skipped: {why}\n").as_bytes()).unwrap();
        };
        Policer::load(Bucket { rate, burst }, counted).map_err(skip).ok()
    }

    #[test]
    fn frames_pass_as_a_bucket_in_wire_bytes_says() {
        if load(RATE, 0, Policed::default()).is_none() {
            return;
        }
        let config = Config { cases: 200, ..Config::default() };
        let before = Policed { frames: 7, bytes: 6, dropped: 5, dropped_bytes: 4 };
        let steps = (0u64..300, prop::collection::vec(frames(), 1..30));
        let tried = TestRunner::new(config).run(&steps, |(burst, frames)| {
            let burst = burst * UNIT;
            let police = load(RATE, burst, before).unwrap();
            let number = police.number().unwrap();
            let (mut level, mut expected) = (burst as i64, before);
            for frame in frames {
                let cost = frame.wire_bytes();
                // What comes back meanwhile could decide otherwise here.
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
    fn a_bucket_of_nothing_lets_one_frame_pass_and_owes_it() {
        let Some(police) = load(RATE, 0, Policed::default()) else { return };
        let frame = Frame { kind: Kind::Tcp4, payload: 1000, gso_size: 0 };
        assert_eq!([run(&police, &frame), run(&police, &frame)], [PASSES, DROPPED]);
        let number = police.number().unwrap();
        drop(police);
        // The kernel takes its time.
        let gone = (0..100).any(|_| {
            std::thread::sleep(std::time::Duration::from_millis(20));
            Policed::read(number).is_err()
        });
        assert!(gone, "nobody holds it any more");
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
