//! A token bucket that drops, in wire bytes: the program of `bpf/police.bpf.c`.
//!
//! ```text
//!  set(netdev, rate, burst) ─▶ map `policers` ◀─ ingress of each netdev (every frame)
//!                                  │
//!                                  └─▶ read(netdev) ─▶ Policed
//! ```

use libbpf_rs::{MapCore, MapFlags, MapHandle, Object, ObjectBuilder};
use std::fmt;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

const PROGRAM: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/police.bpf.o"));

/// `UNITS_PER_NS` of `bpf/police.h`.
const UNITS_PER_S: u128 = 64 * 1_000_000_000;
/// `struct policer`: lock, rate, burst, empty, and what was counted.
const VALUE: usize = 8 * 8;

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

/// Frames cannot be policed.
#[derive(Debug, thiserror::Error)]
#[error("cannot {what}: {source}")]
pub struct PoliceError {
    what: &'static str,
    source: libbpf_rs::Error,
}

fn failed(what: &'static str) -> impl FnOnce(libbpf_rs::Error) -> PoliceError {
    move |source| PoliceError { what, source }
}

/// The program, and the buckets of the netdevs at whose ingress it is.
pub struct Police {
    policers: MapHandle,
    program: OwnedFd,
    #[cfg_attr(not(test), expect(dead_code, reason = "the program and its maps are there while it is"))]
    object: Object,
}

impl Police {
    /// Loads the program. It does nothing before it is at an ingress, and passes what comes in by a netdev without a policer.
    ///
    /// # Errors
    /// No right to (`CAP_BPF` and `CAP_NET_ADMIN`), or a kernel that does not take it.
    pub fn load() -> Result<Self, PoliceError> {
        let mut builder = ObjectBuilder::default();
        let opened = builder.open_memory(PROGRAM).map_err(failed("read the eBPF policer"))?;
        let object = opened.load().map_err(failed("load the eBPF policer"))?;
        let map = object.maps().find(|map| map.name() == "policers");
        let map = map.expect("bpf/police.bpf.c has a map of this name");
        let policers = MapHandle::try_from(&map).map_err(failed("reach the map of the eBPF policer"))?;
        let program = object.progs().next().expect("bpf/police.bpf.c has one program");
        let program = program.as_fd().try_clone_to_owned().map_err(libbpf_rs::Error::from);
        let program = program.map_err(failed("hold the eBPF policer"))?;
        Ok(Self { policers, program, object })
    }

    /// The program, for a filter in direct action.
    pub fn program(&self) -> BorrowedFd<'_> {
        self.program.as_fd()
    }

    /// A full bucket of `burst` bytes for what comes in by a netdev, at `rate` bytes per second; one that it has keeps
    /// what was counted and starts full.
    ///
    /// # Errors
    /// The kernel has no memory, or 4096 netdevs are policed.
    pub fn set(&self, index: u32, rate: u64, burst: u64) -> Result<(), PoliceError> {
        let counted = self.read(index)?.unwrap_or_default();
        let burst = u128::from(burst) * UNITS_PER_S / u128::from(rate.max(1));
        // `lock` is not written; a bucket that is empty since ever is full.
        let burst = u64::try_from(burst).unwrap_or(u64::MAX);
        let Policed { frames, bytes, dropped, dropped_bytes } = counted;
        let words = [0, rate, burst, 0, frames, bytes, dropped, dropped_bytes];
        let value: Vec<u8> = words.iter().flat_map(|word| word.to_ne_bytes()).collect();
        let set = self.policers.update(&index.to_ne_bytes(), &value, MapFlags::ANY);
        set.map_err(failed("set the rate of an eBPF policer"))
    }

    /// What comes in by a netdev passes again; what was counted is forgotten.
    ///
    /// # Errors
    /// It was not policed.
    pub fn forget(&self, index: u32) -> Result<(), PoliceError> {
        self.policers.delete(&index.to_ne_bytes()).map_err(failed("remove the bucket of an eBPF policer"))
    }

    /// What was counted; `None` of a netdev that is not policed.
    ///
    /// # Errors
    /// The kernel does not answer.
    pub fn read(&self, index: u32) -> Result<Option<Policed>, PoliceError> {
        let value = self.policers.lookup(&index.to_ne_bytes(), MapFlags::LOCK);
        let value = value.map_err(failed("read the counters of an eBPF policer"))?;
        Ok(value.map(|bytes| {
            debug_assert_eq!(bytes.len(), VALUE);
            let mut words = bytes.as_chunks().0.iter().map(|word| u64::from_ne_bytes(*word)).skip(4);
            let mut next = || words.next().unwrap_or_default();
            Policed { frames: next(), bytes: next(), dropped: next(), dropped_bytes: next() }
        }))
    }
}

impl fmt::Debug for Police {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Police").finish_non_exhaustive()
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

    fn run(police: &Police, frame: &Frame) -> u32 {
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
    fn load() -> Option<Police> {
        let skip = |why| {
            assert!(std::env::var("CI").as_deref() != Ok("true"), "{why}");
            std::io::stderr().write_all(format!("skipped: {why}\n").as_bytes()).unwrap();
        };
        Police::load().map_err(skip).ok()
    }

    #[test]
    fn frames_pass_as_a_bucket_in_wire_bytes_says() {
        let Some(police) = load() else { return };
        let config = Config { cases: 200, ..Config::default() };
        let steps = (0u64..300, prop::collection::vec(frames(), 1..30));
        let tried = TestRunner::new(config).run(&steps, |(burst, frames)| {
            let burst = burst * UNIT;
            police.set(INDEX, RATE, burst).unwrap();
            let before = police.read(INDEX).unwrap().unwrap();
            let (mut level, mut expected) = (burst as i64, before);
            for frame in frames {
                let cost = frame.wire_bytes();
                // What comes back meanwhile could decide otherwise here.
                prop_assume!(level.abs_diff(cost.min(burst) as i64) > 20 || level == burst as i64);
                let passes = level >= cost.min(burst) as i64;
                prop_assert_eq!(run(&police, &frame), if passes { PASSES } else { DROPPED }, "{:?}", frame);
                if passes {
                    level -= cost as i64;
                    expected.frames += frame.segments() as u64;
                    expected.bytes += cost;
                } else {
                    expected.dropped += 1;
                    expected.dropped_bytes += cost;
                }
                prop_assert_eq!(police.read(INDEX).unwrap().unwrap(), expected);
            }
            Ok(())
        });
        tried.unwrap();
    }

    #[test]
    fn who_has_no_policer_passes() {
        let Some(police) = load() else { return };
        let frame = Frame { kind: Kind::Tcp4, payload: 1000, gso_size: 0 };
        assert_eq!((run(&police, &frame), police.read(INDEX).unwrap()), (PASSES, None));
        police.set(INDEX, RATE, 0).unwrap();
        assert_eq!(run(&police, &frame), PASSES, "a bucket of nothing is full");
        assert_eq!(run(&police, &frame), DROPPED, "and in debt then");
        police.forget(INDEX).unwrap();
        assert_eq!(run(&police, &frame), PASSES);
        assert!(police.forget(INDEX).is_err());
    }
}
