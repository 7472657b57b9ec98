//! One limit of the kernel's HTB: its rounding and its bounds.
//!
//! ```text
//!  Rate, bit/s ──▶ bytes/s ──▶ (mult, shift): time of a frame = len * mult >> shift, whole ns
//!  burst, bytes ─▶ time at that rate ──▶ ticks of 64 ns
//! ```
//!
//! HTB counts `qdisc_pkt_len`: wire bytes, every segment of a super-frame with its headers
//! (`qdisc_pkt_len_init`, net/core/dev.c), without preamble and FCS, as a contract does. A frame of any
//! size leaves when its class has no debt, and is charged then: a super-frame neither starves nor passes
//! for less.
//!
//! Tokens that come while the bucket is full are lost. It becomes full when a timer is later than the
//! burst's time at the rate, so a burst short *in time* makes HTB slow: its usual one of 1,600 bytes lasts
//! 13 us at 1 Gbit/s. The default of a contract lasts at least 1 ms. `ceil` has a bucket of its own, and
//! both count.

use tidegate_contract::{Bytes, Rate, SUPER_FRAME};

/// Length of a tick, in which netlink states bursts, ns (`PSCHED_SHIFT`, net/pkt_sched.h).
const TICK_SHIFT: u32 = 6;

/// HTB forgets a class's debt above this (ns; `mbuffer`, net/sched/sch_htb.c).
const LONGEST_DEBT: u64 = 60_000_000_000;

/// Largest deviation of the kernel's rate, as its reciprocal: 1 %.
const TOLERANCE: u128 = 100;

/// A burst shorter than this may cost tokens (ns): timers are late by tens of microseconds on a busy host.
const TIMERS_LATE: u64 = 130_000;

/// Longest wait in one queue for all, unless a contract states another (ns).
const QUEUE_TIME: u64 = 20_000_000;

/// The least such queue (bytes): two super-frames.
const SMALLEST_QUEUE: u64 = 2 * SUPER_FRAME;

/// A rate with its burst and its queue, in the kernel's units.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limit {
    /// Bytes per second.
    pub rate: u64,
    /// The bucket, in ticks of 64 ns at `rate`.
    pub burst: u32,
    /// Most waiting bytes, if a contract states them; further frames are dropped and counted.
    pub queue: Option<u32>,
}

/// Why the kernel cannot keep a limit.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum LimitError {
    /// The rate would differ.
    #[error(
        "the kernel would send at {actual} where {rate} is asked for, more than 1 % off, since it counts whole bytes \
         per second and whole nanoseconds per frame ({frame} bytes here); choose {advice}"
    )]
    Rounded {
        /// The requested rate.
        rate: Rate,
        /// The possible rate, such as `8bit`.
        actual: String,
        /// Length of the frame of the computation (bytes).
        frame: u64,
        /// A possible choice.
        advice: String,
    },
    /// A super-frame takes so long that part of it would not be charged.
    #[error(
        "at {0} a super-frame of 64 KiB takes more than 60 s, and the kernel remembers a debt of at most 60 s; choose \
         at least 8744bit"
    )]
    Slow(Rate),
    /// The burst does not fit.
    #[error(
        "a burst of {burst} lasts {seconds} s at {rate}; the kernel holds at most 274 s; choose a smaller burst"
    )]
    Burst {
        /// The requested burst.
        burst: Bytes,
        /// Its rate.
        rate: Rate,
        /// Its time.
        seconds: u64,
    },
    /// The queue does not fit.
    #[error("a queue of {0} is more than the kernel counts; choose at most 4294967295B")]
    Queue(Bytes),
}

impl Limit {
    /// Returns a limit of `rate` with `burst`, for frames of up to `frame` bytes on the wire; `queue`
    /// bounds the waiting bytes.
    ///
    /// The kernel's rate exceeds the requested one only by the rounding of a frame's time to whole
    /// nanoseconds.
    ///
    /// # Errors
    /// The kernel's rate would differ by more than 1 %, or the burst or queue.
    pub fn new(rate: Rate, burst: Bytes, queue: Option<Bytes>, frame: u64) -> Result<Self, LimitError> {
        let bytes = rate.bits() / 8;
        if bytes == 0 || SUPER_FRAME * 1_000_000_000 / bytes > LONGEST_DEBT {
            return Err(LimitError::Slow(rate));
        }
        let actual = actual_rate(bytes, frame);
        if actual.is_none_or(|actual| {
            u128::from(actual.abs_diff(rate.bits())) * TOLERANCE > u128::from(rate.bits())
        }) {
            let actual = actual.map_or_else(|| "no limit at all".into(), |bits| format!("{bits}bit"));
            let advice = "a lower rate, or larger frames (mtu)".into();
            return Err(LimitError::Rounded { rate, actual, frame, advice });
        }
        let lasts = time_of(burst.get(), bytes);
        let ticks = u32::try_from(lasts.div_ceil(1 << TICK_SHIFT)).map_err(|_| LimitError::Burst {
            burst,
            rate,
            seconds: u64::try_from(lasts / 1_000_000_000).unwrap_or(u64::MAX),
        })?;
        let queue = queue.map(|bytes| u32::try_from(bytes.get()).map_err(|_| LimitError::Queue(bytes)));
        let queue = queue.transpose()?;
        Ok(Self { rate: bytes, burst: ticks, queue })
    }

    /// Returns the most waiting bytes in one queue for all: as in the contract, else 20 ms at the rate, and
    /// at least two super-frames.
    pub fn fifo(&self) -> u32 {
        let bytes = || self.bytes_in(QUEUE_TIME).max(SMALLEST_QUEUE);
        self.queue.unwrap_or_else(|| u32::try_from(bytes()).unwrap_or(u32::MAX))
    }

    /// Returns the bytes that the rate carries in some ns.
    pub fn bytes_in(&self, ns: u64) -> u64 {
        u64::try_from(u128::from(self.rate) * u128::from(ns) / 1_000_000_000).unwrap_or(u64::MAX)
    }

    /// Returns the time of some bytes at the rate (ns).
    pub fn time_of(&self, bytes: u64) -> u64 {
        u64::try_from(time_of(bytes, self.rate)).unwrap_or(u64::MAX)
    }

    /// Returns the burst's time at the rate (ns).
    pub fn burst_time(&self) -> u64 {
        u64::from(self.burst) << TICK_SHIFT
    }

    /// Returns a note for people: so short a burst may cost part of the rate.
    pub fn note(&self) -> Option<String> {
        let lasts = self.burst_time();
        (lasts < TIMERS_LATE).then(|| {
            format!(
                "its burst lasts {} us at its rate, and timers of the kernel may be later than that: it may get less \
                 than its rate; {} bytes are enough",
                lasts / 1000,
                u128::from(self.rate) * u128::from(TIMERS_LATE) / 1_000_000_000
            )
        })
    }
}

/// Returns the time of `bytes` at `rate` bytes per second (ns).
fn time_of(bytes: u64, rate: u64) -> u128 {
    (u128::from(bytes) * 1_000_000_000).div_ceil(u128::from(rate))
}

/// Returns the real rate of frames of `frame` bytes (bit/s): as `psched_ratecfg_precompute` and
/// `psched_l2t_ns` compute it (net/sched/sch_generic.c, net/sch_generic.h). `None` if a frame takes no
/// time.
fn actual_rate(rate: u64, frame: u64) -> Option<u64> {
    let (mut mult, mut shift, mut factor) = (1_u64, 0, 1_000_000_000_u64);
    for _ in 0..64 {
        // 32 bits, as in the kernel.
        mult = (factor / rate) & u64::from(u32::MAX);
        if mult & (1 << 31) != 0 || factor & (1 << 63) != 0 {
            break;
        }
        factor <<= 1;
        shift += 1;
    }
    let ns = (u128::from(frame) * u128::from(mult)) >> shift;
    let bits = (u128::from(frame) * 8_000_000_000).checked_div(ns)?;
    u64::try_from(bits).ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const FRAME: u64 = tidegate_contract::frame::TAGGED_FRAME;

    fn rate(bits: u64) -> Rate {
        Rate::from_bits(bits).expect("a rate")
    }

    fn limit(bits: u64, burst: u64) -> Result<Limit, LimitError> {
        Limit::new(rate(bits), Bytes::new(burst), None, FRAME)
    }

    #[test]
    fn a_gigabit_is_exact() {
        let limit = limit(1_000_000_000, 16_000).expect("a limit");
        assert_eq!((limit.rate, limit.burst), (125_000_000, 2000));
        assert_eq!(limit.burst_time(), 128_000);
        assert_eq!(limit.fifo(), 2_500_000, "20 ms");
        assert_eq!(actual_rate(125_000_000, FRAME), Some(1_000_000_000));
    }

    #[test]
    fn a_burst_that_is_short_in_time_is_noted() {
        let default = 1600;
        let note = limit(1_000_000_000, default).expect("a limit").note().expect("a note");
        assert!(note.contains("lasts 12 us") && note.contains("16250 bytes are enough"), "{note}");
        assert_eq!(limit(10_000_000, default).expect("a limit").note(), None, "1.28 ms");
        for bits in [1_000_000, 1_000_000_000, 5_000_000_000, 100_000_000_000] {
            let burst = tidegate_contract::Tx::default().burst_or_default(rate(bits));
            let limit = Limit::new(rate(bits), burst, None, FRAME).expect("a limit");
            assert_eq!(limit.note(), None, "the default of a contract, at {bits}");
        }
    }

    #[test]
    fn a_rate_that_the_kernel_would_round_is_refused() {
        // 1518 bytes take 30.36 ns at 400 Gbit/s, counted as 30.
        let refused = limit(400_000_000_000, 65_536).expect_err("1.2 % off").to_string();
        assert!(refused.contains("would send at 404800000000bit where 400gbit is asked for"), "{refused}");
        assert!(limit(100_000_000_000, 65_536).is_ok());
        let large = Limit::new(rate(400_000_000_000), Bytes::new(400_000), None, 9018);
        assert!(large.is_ok(), "180.36 ns");
        let refused = Limit::new(rate(200_000_000_000), Bytes::new(400_000), None, 20).expect_err("0 ns");
        assert!(refused.to_string().contains("no limit at all"), "{refused}");
    }

    #[test]
    fn limits_outside_the_range_of_the_kernel_are_refused() {
        let text = |bits, burst| limit(bits, burst).expect_err("refused").to_string();
        assert!(text(1, 0).starts_with("at 1bit a super-frame"));
        assert!(text(8_000, 0).contains("choose at least 8744bit"));
        assert!(limit(8_744, 0).is_ok());
        assert!(text(10_000, 1_000_000).contains("lasts 800 s at 10kbit"));
        let queue = Limit::new(rate(1_000_000), Bytes::new(0), Some(Bytes::new(1 << 32)), FRAME);
        assert!(queue.expect_err("refused").to_string().contains("at most 4294967295B"));
    }

    #[test]
    fn a_queue_holds_two_super_frames() {
        assert_eq!(limit(8_000_000, 0).expect("a limit").fifo(), 131_072);
        let asked = Limit::new(rate(8_000_000), Bytes::new(0), Some(Bytes::new(10_000)), FRAME);
        assert_eq!(asked.expect("a limit").fifo(), 10_000);
    }

    proptest! {
        #[test]
        fn an_accepted_limit_is_kept_within_a_percent(bits in 1..Rate::MAX.bits(), burst in 0_u64..10_000_000, frame in 60_u64..70_000) {
            if let Ok(limit) = Limit::new(rate(bits), Bytes::new(burst), None, frame) {
                let actual = actual_rate(limit.rate, frame).expect("a rate");
                prop_assert!(actual.abs_diff(bits) * 100 <= bits, "{actual} for {bits}");
                let owned = u128::from(limit.burst_time()) * u128::from(limit.rate) / 1_000_000_000;
                prop_assert!(owned + 1 >= u128::from(burst), "the bucket holds the burst");
                prop_assert!(owned <= u128::from(burst) + u128::from(limit.rate) * 65 / 1_000_000_000 + 1);
            }
        }
    }
}
