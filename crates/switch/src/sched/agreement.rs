//! The scheduler beside its [model]: every operation, in every order, step by step.

use super::model::{Model, Source};
use super::sim::{egress, frame, minimum, size, source};
use super::*;
use proptest::prelude::*;

#[derive(Clone, Debug)]
enum Step {
    Enqueue(SourceId, u32),
    /// Frames of these sizes, in order.
    EnqueueRun(SourceId, Vec<u32>),
    /// Take at most so many bytes.
    Take(u32),
    /// Take at most so many frames of a run.
    TakeRun(usize),
    /// Time passes.
    Pass(u64),
    /// Time passes until the last `WaitUntil`.
    Wait,
    /// Judge the next frame; then it leaves or is dropped: at most so many bytes.
    Judge(bool, u32),
    Expire(u64),
    DropTail(SourceId),
    DropHead(SourceId),
    Clear(SourceId),
    Remove(SourceId),
    Set(SourceId, SourceConfig),
    Reconfigure(EgressConfig),
}

const SOURCES: u16 = 7;

fn rate() -> impl Strategy<Value = Rate> {
    prop_oneof![1_000..1_000_000u64, 1_000_000..1_000_000_000u64, Just(400_000_000_000)]
        .prop_map(|bits| Rate::from_bits(bits).expect("in range"))
}

fn source_config() -> impl Strategy<Value = SourceConfig> {
    (
        prop::option::weighted(0.3, 1_000..20_000_000u64),
        prop::option::weighted(0.6, rate()),
        prop_oneof![Just(0u64), 60..100_000u64],
        prop_oneof![0..4u32, 0..1001u32],
        prop_oneof![1 => 0..200_000u64, 3 => Just(10_000_000)],
        prop_oneof![1 => 0..20u32, 3 => Just(1000)],
    )
        .prop_map(|(deadline, min, min_burst, weight, cap_bytes, cap_frames)| SourceConfig {
            deadline,
            min,
            min_burst,
            weight,
            cap_bytes,
            cap_frames,
        })
}

fn egress_config() -> impl Strategy<Value = EgressConfig> {
    (
        prop::option::weighted(0.8, rate()),
        0..100_000u64,
        prop::bool::weighted(0.2),
        prop_oneof![1 => 0..400_000u64, 2 => Just(u64::MAX)],
        prop_oneof![
            Just(EgressKind::Virtual),
            (prop_oneof![0..100u32, 1_000..10_000u32], 0..20_000u32)
                .prop_map(|(quantum, train)| EgressKind::Physical { quantum, train }),
        ],
        prop::option::weighted(0.6, flow_config()),
    )
        .prop_map(|(rate, burst, fifo, queue, kind, flows)| EgressConfig {
            rate,
            kind,
            burst: Bytes::new(burst),
            discipline: if fifo { Discipline::Fifo } else { Discipline::Contract },
            queue,
            flows,
        })
}

fn flow_config() -> impl Strategy<Value = FlowConfig> {
    (100_000..20_000_000u64, any::<bool>(), (300..9_100u32, 1_514..9_100u32), 0..1_000_000u64).prop_map(
        |(target, per_host, (quantum, frame), turn)| FlowConfig {
            target,
            interval: 4 * target,
            per_host,
            quantum,
            frame,
            turn,
        },
    )
}

fn step() -> impl Strategy<Value = Step> {
    let id = || (0..SOURCES + 1).prop_map(source); // the last is never set
    prop_oneof![
        40 => (id(), size()).prop_map(|(id, bytes)| Step::Enqueue(id, bytes)),
        15 => (id(), prop::collection::vec(size(), 1..8)).prop_map(|(id, sizes)| Step::EnqueueRun(id, sizes)),
        15 => prop_oneof![1..4usize, Just(usize::MAX)].prop_map(Step::TakeRun),
        30 => prop_oneof![2 => Just(u32::MAX), 1 => 1..3_000u32].prop_map(Step::Take),
        15 => (any::<bool>(), prop_oneof![Just(u32::MAX), 1..3_000u32]).prop_map(|(ect, most)| Step::Judge(ect, most)),
        10 => prop_oneof![0..100u64, 0..100_000u64, 0..5_000_000u64, 0..10_000_000_000u64].prop_map(Step::Pass),
        15 => Just(Step::Wait),
        3 => prop_oneof![Just(0u64), 0..20_000_000u64, Just(u64::MAX)].prop_map(Step::Expire),
        3 => id().prop_map(Step::DropTail),
        1 => id().prop_map(Step::DropHead),
        1 => id().prop_map(Step::Clear),
        1 => id().prop_map(Step::Remove),
        4 => ((0..SOURCES).prop_map(source), source_config()).prop_map(|(id, config)| Step::Set(id, config)),
        1 => egress_config().prop_map(Step::Reconfigure),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(500))]

    #[test]
    fn agrees_with_the_model_at_every_step(
        egress in egress_config(),
        sources in prop::collection::vec(source_config(), SOURCES as usize),
        steps in prop::collection::vec(step(), 1..300),
    ) {
        // Late enough that owed time does not reach back before the clock's start.
        let mut now = 10_000_000_000_000_000;
        let mut sched = Scheduler::new(egress);
        let mut model = Model::new(egress);
        for (id, config) in (0..).map(source).zip(sources) {
            sched.set_source(now, id, config);
            model.set_source(now, id, config);
        }
        let mut number = 0;
        let mut next = |model: &Model, now, id, bytes| {
            number += 1;
            let relative = model.sources.get(&id).and_then(|s| s.config.deadline);
            Queued { frame: number, bytes, deadline: relative.map_or(u64::MAX, |d| now + d), enqueued: now }
        };
        let (mut entered, mut left) = (0, 0);
        for step in steps {
            let mut gone = Vec::new();
            match step {
                Step::Enqueue(id, bytes) => {
                    let queued = next(&model, now, id, bytes);
                    let said = sched.enqueue(now, id, queued);
                    prop_assert_eq!(said, model.enqueue(now, id, queued));
                    entered += u64::from(said.is_ok());
                    let mut said = said;
                    while said.is_err() {
                        let dropped = sched.make_room(id, bytes.into());
                        prop_assert_eq!(dropped, model.make_room(id, bytes));
                        if dropped.is_none() {
                            break;
                        }
                        left += 1;
                        said = sched.enqueue(now, id, queued);
                        prop_assert_eq!(said, model.enqueue(now, id, queued));
                        entered += u64::from(said.is_ok());
                    }
                }
                Step::EnqueueRun(id, sizes) => {
                    let run: Vec<_> = sizes.iter().map(|bytes| next(&model, now, id, *bytes)).collect();
                    let (accepted, last) = sched.enqueue_run(now, id, run.iter().copied());
                    prop_assert_eq!(accepted < run.len(), last.is_err());
                    for (n, queued) in run.into_iter().take(accepted + 1).enumerate() {
                        let expected = if n < accepted { Ok(()) } else { last };
                        prop_assert_eq!(model.enqueue(now, id, queued), expected);
                    }
                    entered += accepted as u64;
                }
                Step::TakeRun(most) => {
                    let is_ready = matches!(sched.head(now), Head::Ready { .. });
                    let run: Vec<_> = sched.run(now).take(most).copied().collect();
                    if run.is_empty() {
                        // A frame of a flow that is to be cut, or may be judged.
                        prop_assert!(!is_ready || sched.is_of_flows(now));
                    } else {
                        let mut taken = Vec::new();
                        let said = sched.take_run(now, run.len() as u32, |queued| taken.push(queued));
                        prop_assert_eq!(&taken, &run);
                        left += run.len() as u64;
                        for queued in run {
                            if let Some(verdict) = model.judge(now, false) {
                                prop_assert_eq!(verdict, Verdict::Pass);
                                prop_assert!(model.head(now).is_ok_and(|(.., part)| part == queued.bytes));
                            }
                            let expected = said.map(|(id, tier)| (id, tier, queued));
                            prop_assert_eq!(expected, model.take(now, u32::MAX));
                        }
                    }
                }
                Step::Take(bytes) => {
                    let before = model.waiting();
                    prop_assert_eq!(sched.take_part(now, bytes), model.take(now, bytes));
                    left += before - model.waiting();
                }
                Step::Judge(ect, bytes) => {
                    let before = model.waiting();
                    let verdict = sched.judge(now, || ect);
                    prop_assert_eq!(verdict, model.judge(now, ect));
                    if verdict == Some(Verdict::Drop) {
                        prop_assert_eq!(sched.drop_part(now, bytes), model.drop_part(now, bytes));
                    } else {
                        prop_assert_eq!(sched.take_part(now, bytes), model.take(now, bytes));
                    }
                    left += before - model.waiting();
                }
                Step::Pass(ns) => now += ns,
                Step::Wait => {
                    if let Head::WaitUntil(t) = sched.head(now) {
                        prop_assert!(t > now);
                        // No frame was ready earlier.
                        prop_assert_eq!(model.head(t - 1), Err(true));
                        now = t;
                    }
                }
                Step::Expire(hold) => {
                    sched.expire(now, hold, |id, queued| gone.push((id, queued)));
                    left += gone.len() as u64;
                    gone.sort_by_key(|(id, q)| (*id, q.frame));
                    prop_assert_eq!(gone, model.expire(now, hold));
                }
                Step::DropTail(id) => {
                    let dropped = sched.drop_tail(id);
                    prop_assert_eq!(dropped, model.drop_one(id, true));
                    left += u64::from(dropped.is_some());
                }
                Step::DropHead(id) => {
                    let dropped = sched.drop_head(id);
                    prop_assert_eq!(dropped, model.drop_one(id, false));
                    left += u64::from(dropped.is_some());
                }
                Step::Clear(id) | Step::Remove(id) => {
                    if matches!(step, Step::Remove(_)) {
                        sched.remove_source(id, |queued| gone.push((id, queued)));
                    } else {
                        sched.clear_source(id, |queued| gone.push((id, queued)));
                    }
                    left += gone.len() as u64;
                    for (id, queued) in gone {
                        prop_assert_eq!(Some(queued), model.drop_one(id, false));
                    }
                    prop_assert_eq!(sched.backlog(id), Backlog::default());
                    if matches!(step, Step::Remove(_)) {
                        model.remove(id);
                    }
                }
                Step::Set(id, config) => {
                    sched.set_source(now, id, config);
                    model.set_source(now, id, config);
                }
                Step::Reconfigure(config) => {
                    sched.reconfigure(now, config);
                    model.reconfigure(now, config);
                }
            }

            let head = sched.head(now);
            prop_assert_eq!(head, sched.head(now), "asking changes nothing");
            match model.head(now) {
                Ok((source, tier, queued, part)) => {
                    prop_assert_eq!(head, Head::Ready { source, tier, queued, part });
                }
                Err(true) => prop_assert!(matches!(head, Head::WaitUntil(_)), "{head:?}"),
                Err(false) => prop_assert_eq!(head, Head::Empty),
            }
            for id in (0..=SOURCES).map(source) {
                let waiting = model.sources.get(&id);
                let frames = waiting.map_or(0, Source::waiting);
                let bytes = waiting.map_or(0, Source::bytes);
                prop_assert_eq!(sched.backlog(id), Backlog { frames, bytes });
            }
            prop_assert_eq!(sched.active_flows(), model.active_flows());
            // No frame is lost or doubled.
            prop_assert_eq!(u64::from(sched.backlog_total().frames), entered - left);
        }
    }
}

/// A large frame beyond a source's minimum leaves in tier 3; the small one behind it may be within the
/// minimum.
#[test]
fn a_run_ends_where_the_next_frame_may_be_of_another_tier() {
    let now = 1_000_000;
    let mut sched = Scheduler::new(egress(None, 0));
    sched.set_source(now, source(0), minimum(1_000, 1_000));
    for bytes in [600, 1_500, 100] {
        sched.enqueue(now, source(0), frame(now, bytes, None)).expect("room");
    }
    for (bytes, tier) in [(600, Tier::Minimum), (1_500, Tier::Share), (100, Tier::Minimum)] {
        assert!(matches!(sched.head(now), Head::Ready { .. }));
        let run: Vec<_> = sched.run(now).map(|queued| queued.bytes).collect();
        assert_eq!(run, [bytes]);
        let taken = sched.take(now).map(|(_, tier, queued)| (tier, queued.bytes));
        assert_eq!(taken, Some((tier, bytes)));
    }
}
