//! What an egress to a wire can promise.
//!
//! ```text
//!  sources ─▶ scheduler ─▶ tokens: C, burst ─▶ NIC's queue ▒▒▒ ─▶ wire: C
//!                                              at most burst
//! ```
//!
//! Tokens mirror the NIC's queue: while frames go when they conform, the bucket lacks what the NIC still
//! has to send. So the burst blocks like a frame: a real-time frame finds at most that much before it on
//! the wire, or the largest part taken at once if that is more. And the burst keeps the wire busy while the
//! worker is away.
//!
//! Both are what admission reckons with (`tidegate_contract::admission`: demand(t) + L <= C (t - H)), where the
//! burst is L + C H, in whole bytes: L the largest part, H the longest that the worker is away. For a real-time frame
//! that arrives at `a` and is due at D, let t0 be the last moment up to `a` before which no frame due by D waited.
//! The NIC holds at most L + C H at t0. From then on, until our frame is taken, only frames due by D are,
//! at most demand(D - t0). Whenever the worker goes away meanwhile it has taken all that conforms, so the bucket
//! lacks at least C H, and the wire has work until the worker is back; only at t0 may the wire have idled, for H at most.
//! So the last bit of our frame has left by t0 + H + (L + demand(D - t0)) / C, and that is at most D. Where C H is no
//! whole number of bytes, the burst is rounded up, and the frame may be late by the time of that part of a byte.
//!
//! Best effort is in that reasoning with what the NIC holds alone, so a part of it may be longer than L: a *train* of a
//! quarter of the burst, so that a super-frame is few parts instead of one for each segment. While the next train waits for
//! tokens, the NIC holds at least the rest of the burst: best effort alone keeps the wire busy in absences of three quarters
//! of H.
//!
//! Tokens that overflowed a full bucket are not restored for a frame that waited, unlike at a virtual
//! egress: frames would gather in the NIC.

use super::{EgressConfig, EgressKind};
use tidegate_contract::frame::SUPER_FRAME_ON_WIRE;
use tidegate_contract::{Bytes, Discipline, Rate};

impl EgressConfig {
    /// Returns a wire of `rate` that keeps every deadline granted by admission with L = `largest`, the
    /// bytes of the largest uncut frame, and H = `host_latency`, the worker's longest absence (ns); except
    /// for the time of less than one byte. At most `queue` bytes without a promise wait.
    pub fn physical(rate: Rate, largest: u32, host_latency: u64, queue: u64) -> Self {
        // Rounded up: a burst that lacks a part of a byte of C H lets the wire idle for that long in each
        // absence.
        let meanwhile = (u128::from(rate.bits()) * u128::from(host_latency)).div_ceil(8_000_000_000);
        let burst = u64::from(largest).saturating_add(u64::try_from(meanwhile).unwrap_or(u64::MAX));
        let train = u32::try_from((burst / 4).min(SUPER_FRAME_ON_WIRE)).unwrap_or(0);
        Self {
            rate: Some(rate),
            burst: Bytes::new(burst),
            kind: EgressKind::Physical { quantum: largest, train },
            discipline: Discipline::Contract,
            queue,
            flows: None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::sim::*;
    use super::*;
    use proptest::{collection::vec, prelude::*};
    use tidegate_contract::testing::vnic;
    use tidegate_contract::{Admission, ContractSet, Host, Nanos, Vnic, admit};

    /// L: largest frame of an MTU of 1500 bytes.
    const LARGEST: u32 = tidegate_contract::frame::TAGGED_FRAME as u32;

    fn host(host_latency: u64) -> Host {
        Host { host_latency: Nanos::new(host_latency), ..Host::default() }
    }

    /// Returns a real-time vNIC towards the wire.
    fn urgent(name: &str, bits: u64, burst: u64, deadline: u64) -> Vnic {
        let mut vnic = vnic(name);
        (vnic.tx.max, vnic.tx.burst) = (Some(rate(bits)), Some(Bytes::new(burst)));
        (vnic.deadline, vnic.to) = (Some(Nanos::new(deadline)), vec!["wire".into()]);
        vnic
    }

    /// Returns the admission of a wire of `LINK` after raising deadlines until all are granted. A vNIC stands for the wire:
    /// the arithmetic is the same, and its frames do not grow.
    fn granted(host: &Host, vnics: &mut [Vnic]) -> Admission {
        let mut wire = vnic("wire");
        wire.rx.max = Some(rate(LINK));
        loop {
            let all = [&*vnics, &[wire.clone()]].concat();
            match admit(&ContractSet::local(host, &all)) {
                Ok(admission) => return admission,
                Err(_) => vnics.iter_mut().for_each(|vnic| {
                    vnic.deadline = vnic.deadline.map(|d| Nanos::new(d.get() + d.get() / 64 + 1));
                }),
            }
        }
    }

    /// Returns frames of these sizes, each as early as its envelope allows after a pause.
    fn frames(vnic: &Vnic, sizes: &[u32], pauses: &[u64], from: u64) -> Vec<(u64, u32)> {
        let (rate, burst) = vnic.tx.max.zip(vnic.tx.burst).expect("real-time");
        let mut bucket = TokenBucket::new(rate, burst);
        let mut now = from;
        let send = |(pause, size): (&u64, &u32)| {
            now = bucket.conforms_at(now + pause, (*size).into());
            bucket.charge(now, (*size).into());
            (now, *size)
        };
        pauses.iter().zip(sizes.iter().cycle()).map(send).collect()
    }

    /// Returns when the last bit of each frame has left a wire that sends them in order.
    fn ends(sent: &[Sent]) -> Vec<u64> {
        let mut end = 0;
        let send = |s: &Sent| {
            end = end.max(s.start) + u64::from(s.queued.bytes) * NS_PER_BYTE;
            end
        };
        sent.iter().map(send).collect()
    }

    /// Returns a wire that queues all frames at once.
    fn wire(host_latency: u64) -> Sim {
        let mut sim = Sim::new(EgressConfig::physical(rate(LINK), LARGEST, host_latency, u64::MAX));
        sim.link = false;
        sim
    }

    /// Returns the most bytes of best effort that the wire takes at once.
    fn train(host_latency: u64) -> u32 {
        match EgressConfig::physical(rate(LINK), LARGEST, host_latency, 0).kind {
            EgressKind::Physical { quantum, train } => quantum.max(train),
            EgressKind::Virtual => unreachable!("it is a wire"),
        }
    }

    /// Returns the worker's absences from `from` on, each after a pause.
    fn absences(from: u64, times: &[(u64, u64)]) -> Vec<(u64, u64)> {
        let mut now = from;
        let absence = |(pause, length): &(u64, u64)| {
            let begin = now + pause;
            now = begin + length;
            (begin, now)
        };
        times.iter().map(absence).collect()
    }

    fn size() -> impl Strategy<Value = u32> {
        prop_oneof![2 => 60..LARGEST + 1, 1 => LARGEST..20_000u32]
    }

    prop_compose! {
        /// H, and the worker's absences.
        fn latency()(
            host_latency in prop_oneof![Just(0u64), 1..100_000u64],
        )(
            times in vec((prop_oneof![Just(0u64), 0..50_000u64], 0..=host_latency), 0..200), host_latency in Just(host_latency),
        ) -> (u64, Vec<(u64, u64)>) {
            // Each absence is followed by a look.
            (host_latency, times.into_iter().map(|(pause, length)| (pause + 1, length)).collect())
        }
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(300))]

        /// Real-time vNICs and bulk, some with a minimum, under every absence that H allows: no frame's
        /// last bit leaves the wire later than its vNIC's admission bound.
        #[test]
        fn every_deadline_that_admission_grants_is_kept(
            senders in vec((1_000_000..400_000_000u64, vec(size(), 1..4), 1..4u64, 1_000..400_000u64,
                vec(prop_oneof![5 => Just(0u64), 1 => 0..1_000_000u64], 1..60)), 1..6),
            bulk in vec((vec(60..65_550u32, 1..4), any::<bool>()), 0..3),
            (host_latency, times) in latency(),
            segment in prop_oneof![Just(1u32), Just(LARGEST), 60..LARGEST],
        ) {
            let mut vnics = Vec::new();
            let mut sending = Vec::new();
            let mut left = LINK;
            for (number, (bits, sizes, frames, deadline, pauses)) in senders.into_iter().enumerate() {
                if bits > left {
                    continue;
                }
                left -= bits;
                let largest = u64::from(sizes.iter().copied().max().unwrap_or(0));
                vnics.push(urgent(&format!("rt{number}"), bits, frames * largest, deadline));
                sending.push((sizes, pauses));
            }
            let admission = granted(&host(host_latency), &mut vnics);

            let mut sim = wire(host_latency);
            sim.segment = segment;
            for (id, (sizes, promised)) in (100..).map(source).zip(&bulk) {
                sim.greedy(id, if *promised { minimum(LINK / 100, 3000) } else { share(1000) }, sizes);
            }
            let start = sim.now + 1_000_000;
            sim.away = absences(sim.now, &times).into();
            let mut arrivals = Vec::new();
            for ((id, vnic), (sizes, pauses)) in (1..).map(source).zip(&vnics).zip(&sending) {
                let deadline = vnic.deadline.map(|d| d.get());
                sim.sched.set_source(sim.now, id, real_time(deadline.unwrap_or(0)));
                let frames = frames(vnic, sizes, pauses, start);
                arrivals.extend(frames.into_iter().map(|(at, bytes)| (at, id, bytes, deadline)));
            }
            arrivals.sort_by_key(|a| a.0);
            let (count, end) = (arrivals.len(), arrivals.last().map_or(start, |a| a.0) + 20_000_000);
            sim.arrivals = arrivals.into();
            sim.run(end);

            let mut arrived = 0;
            for (sent, end) in sim.sent.iter().zip(ends(&sim.sent)) {
                let most = if sent.tier == Tier::Share { train(host_latency) } else { LARGEST };
                prop_assert!(sent.queued.bytes <= most, "taken in parts");
                if sent.tier != Tier::RealTime || !sent.last {
                    continue;
                }
                arrived += 1;
                let vnic = (1..).map(source).zip(&vnics).find(|(id, _)| *id == sent.source).expect("is known").1;
                let bound = admission.bounds_of(&vnic.name).next().expect("has one").bound.get();
                let delay = end - sent.queued.enqueued;
                prop_assert!(delay < bound + NS_PER_BYTE, "{}: {delay} ns, bound {bound} ns", vnic.name);
            }
            prop_assert_eq!(arrived, count);
        }

        /// While frames wait, the wire is busy despite repeated absences, of what the burst holds beyond a train; and the
        /// NIC holds at most the burst.
        #[test]
        fn a_backlog_keeps_the_wire_busy_and_the_queue_of_the_nic_short(
            senders in vec((1..1000u32, vec(60..65_550u32, 1..4)), 1..4),
            (host_latency, times) in latency(),
        ) {
            let mut sim = wire(host_latency);
            for (id, (weight, sizes)) in (0..).map(source).zip(&senders) {
                sim.greedy(id, share(*weight), sizes);
            }
            sim.run(sim.now + 1);
            let burst = u64::from(LARGEST) + host_latency.div_ceil(NS_PER_BYTE);
            let most = (burst - u64::from(train(host_latency))) * NS_PER_BYTE;
            let times: Vec<_> = times.iter().map(|(pause, length)| (*pause, *length.min(&most))).collect();
            sim.away = absences(sim.now, &times).into();
            sim.run(sim.now + 30_000_000);
            let ends = ends(&sim.sent);
            for (n, sent) in sim.sent.iter().enumerate().skip(1) {
                prop_assert!(sent.start <= ends[n - 1], "idle for {} ns", sent.start - ends[n - 1]);
                prop_assert!(ends[n] - sent.start <= burst * NS_PER_BYTE, "{} ns in the NIC", ends[n] - sent.start);
            }
        }
    }

    /// The bound is reached: by the last frame of a burst that comes right after the worker passed on all
    /// it may, and went away for H.
    #[test]
    fn the_worst_case_takes_exactly_its_bound() {
        for host_latency in [0, 40_000] {
            let mut vnics = [urgent("rt", 100_000_000, 4_000, 1_000_000)];
            let bound = granted(&host(host_latency), &mut vnics).bounds[0].bound.get();
            let mut sim = wire(host_latency);
            sim.greedy(1, share(1), &[65_536]);
            sim.sched.set_source(sim.now, 2, real_time(1_000_000));
            sim.run(sim.now + 10_000_000);
            let last = sim.sent.iter().rev().find(|s| s.queued.bytes == train(host_latency));
            let last = last.expect("bulk was sent").start;
            sim.now = last;
            for _ in 0..4 {
                sim.arrivals.push_back((last + 1, SourceId::Port(2), 1_000, Some(1_000_000)));
            }
            sim.away = [(last + 1, last + 1 + host_latency)].into();
            sim.run(last + 1_000_000);
            let ends = ends(&sim.sent);
            let worst =
                sim.sent.iter().zip(ends).filter(|(s, _)| s.tier == Tier::RealTime).map(|(_, end)| end);
            let delay = worst.max().expect("it was sent") - last - 1;
            assert!(delay <= bound && delay + 20 >= bound, "{delay} ns, bound {bound} ns");
        }
    }

    /// The worker goes away for H just as the next part conforms, and C H is no whole number of bytes.
    #[test]
    fn the_wire_has_work_in_the_longest_absence() {
        for host_latency in 0..50 {
            let mut sim = wire(host_latency);
            sim.greedy(1, share(1), &[65_536]);
            sim.run(sim.now + 1_000_000);
            let (conforms, begun) = (sim.now, sim.sent.len());
            sim.away = [(conforms, conforms + host_latency)].into();
            sim.run(conforms + 1_000_000);
            assert_eq!(sim.sent[begun].start, conforms + host_latency);
            let before = ends(&sim.sent)[begun - 1];
            assert!(
                before >= conforms + host_latency,
                "H {host_latency} ns: the wire idled from {before} ns on"
            );
        }
    }

    #[test]
    fn idle_time_of_the_wire_is_not_made_up_for() {
        let host_latency = 100_000;
        let mut sim = wire(host_latency);
        sim.sched.set_source(sim.now, 1, share(1));
        let begin = sim.now;
        sim.arrivals.push_back((begin + 1, SourceId::Port(1), 65_536, None));
        sim.away = [(begin, begin + host_latency)].into();
        sim.run(begin + 1_000_000);
        let burst = sim.sent.iter().filter(|s| s.start == begin + host_latency);
        let handed: u64 = burst.map(|s| u64::from(s.queued.bytes)).sum();
        assert!(handed > host_latency / NS_PER_BYTE, "{handed}");
        assert!(handed <= u64::from(LARGEST) + host_latency / NS_PER_BYTE, "{handed}");
    }

    #[test]
    fn a_super_frame_lets_a_more_urgent_one_in_after_each_part() {
        let mut sim = wire(0);
        sim.sched.set_source(sim.now, 1, share(1));
        sim.sched.set_source(sim.now, 2, real_time(500_000));
        sim.sched.set_source(sim.now, 3, real_time(20_000));
        let begin = sim.now;
        sim.arrivals =
            [(0, 1, 4 * LARGEST, None), (1, 2, 3 * LARGEST, Some(500_000)), (20_000, 3, 60, Some(20_000))]
                .map(|(at, port, bytes, deadline)| (begin + at, SourceId::Port(port), bytes, deadline))
                .into();
        sim.run(begin + 1_000_000);
        let order: Vec<_> = sim.sent.iter().map(|s| (s.source, s.queued.bytes, s.last)).collect();
        let part = |port, bytes, last| (SourceId::Port(port), bytes, last);
        assert_eq!(
            order,
            [
                part(1, LARGEST, false),
                part(2, LARGEST, false),
                part(3, 60, true),
                part(2, LARGEST, false),
                part(2, LARGEST, true),
                part(1, LARGEST, false),
                part(1, LARGEST, false),
                part(1, LARGEST, true),
            ]
        );
        assert_eq!(sim.sched.backlog_total(), Backlog::default());
    }

    #[test]
    fn the_burst_covers_what_the_wire_carries_while_the_worker_is_away() {
        let ten = rate(10_000_000_000);
        assert_eq!(EgressConfig::physical(ten, 1518, 100_000, 1).burst, Bytes::new(126_518));
        assert_eq!(EgressConfig::physical(ten, 1518, 100_001, 1).burst, Bytes::new(126_520));
        assert_eq!(
            EgressConfig::physical(rate(400_000_000_000), 1518, u64::MAX, 1).burst,
            Bytes::new(u64::MAX)
        );
    }
}
