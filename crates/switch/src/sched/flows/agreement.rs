//! Flow queues beside their [model]: every operation, in every order, step by step.

use super::model::Model;
use super::*;
use proptest::prelude::*;

#[derive(Clone, Debug)]
enum Step {
    /// A frame of this flow and size.
    Push(u32, u32),
    /// Take at most so many bytes.
    Take(u32),
    /// Take at most so many frames of a turn.
    TakeTurn(u32, u64),
    /// Judge the next frame, whose sender understands marks or not; then it leaves, in part or whole.
    Send(bool, u64),
    /// Judge the next frame, which then finds no buffer.
    Judge,
    /// The flow whose turn it is cannot send.
    Yield,
    DropHead(u32),
    DropLongest,
    Expire(u64),
    Pass(u64),
    Set(FlowConfig),
}

fn config() -> impl Strategy<Value = FlowConfig> {
    (100_000..100_000_000u64, 2..20u64, any::<bool>(), (300..9_100u32, 1514..9_100u32), 1_000..3_000_000u64)
        .prop_map(|(target, times, per_host, (quantum, frame), turn)| FlowConfig {
            target,
            interval: (times * target).min(2_000_000_000),
            per_host,
            quantum,
            frame,
            turn,
        })
}

fn size() -> impl Strategy<Value = u32> {
    prop_oneof![60..1515u32, 1515..9_000u32, 9_000..65_550u32]
}

fn step(flows: u32) -> impl Strategy<Value = Step> {
    let bytes = || prop_oneof![2 => Just(u32::MAX), 1 => 1..3_000u32];
    prop_oneof![
        40 => (0..flows, size()).prop_map(|(flow, bytes)| Step::Push(flow, bytes)),
        15 => bytes().prop_map(Step::Take),
        15 => (1..6u32, 0..100_000u64).prop_map(|(frames, most)| Step::TakeTurn(frames, most)),
        25 => (any::<bool>(), 0..100_000u64).prop_map(|(ect, most)| Step::Send(ect, most)),
        2 => bytes().prop_map(Step::DropHead),
        3 => Just(Step::Judge),
        5 => Just(Step::Yield),
        3 => Just(Step::DropLongest),
        2 => prop_oneof![Just(0u64), 0..2_000_000_000u64].prop_map(Step::Expire),
        20 => prop_oneof![0..100_000u64, 0..5_000_000u64, 0..300_000_000u64].prop_map(Step::Pass),
        1 => config().prop_map(Step::Set),
    ]
}

/// Runs `steps` on both. Flow `n` has the key `key(n)`, and one of three hosts. `judged`: frames are
/// judged.
fn agree(
    config: FlowConfig,
    steps: Vec<Step>,
    key: impl Fn(u32) -> u32,
    judged: bool,
) -> Result<(), TestCaseError> {
    let mut now = 1_000_000_000_000;
    let (mut flows, mut model) = (Flows::new(config), Model::new(config));
    let (mut pushed, mut left) = (0, 0);
    for step in steps {
        match step {
            Step::Push(flow, bytes) => {
                let queued = Queued { frame: pushed, bytes, deadline: u64::MAX, enqueued: now };
                let flow = key(flow);
                let key = FlowKey { flow, host: flow % 3 * 77 };
                pushed += 1;
                flows.push(key, queued);
                model.push(key, queued);
            }
            Step::Take(bytes) => {
                let taken = flows.take(bytes);
                prop_assert_eq!(taken, model.take(bytes));
            }
            Step::TakeTurn(frames, most) => {
                let Some(mut turn) = flows.turn(now, most).filter(|_| judged) else { continue };
                let own = std::iter::successors(flows.first(), |node| flows.arena().after(node));
                let of_turn = own.take_while(|node| turn.allows(&node.queued)).count() as u32;
                // Frames that may be judged are not taken; all others of the turn are.
                let (first, mut credit) = (model.key(), flows.rounds.credit(flows.rounds.first().unwrap()));
                let mut expected = Vec::new();
                let ends = loop {
                    let Some(head) = model.head().filter(|_| model.key() == first) else { break true };
                    let may_be_told = now - head.enqueued >= model.target();
                    if expected.len() as u32 == frames.min(of_turn) {
                        break may_be_told || credit <= 0 || model.part(most) != Some(head.bytes);
                    }
                    credit -= i64::from(head.bytes);
                    prop_assert_eq!(model.part(most), Some(head.bytes), "whole");
                    prop_assert_eq!(model.judge(now, true), Verdict::Pass);
                    expected.extend(model.take(u32::MAX));
                };
                prop_assert!(ends || frames <= of_turn, "{of_turn} of {frames}");
                let mut taken = Vec::new();
                flows.take_turn(now, frames.min(of_turn), &mut |queued| taken.push(queued));
                prop_assert_eq!(taken, expected);
            }
            Step::Send(ect, most) => loop {
                let part = flows.part(most);
                prop_assert_eq!(part, model.part(most));
                let Some(part) = part else { break };
                let verdict = if judged { flows.judge(now, || ect) } else { Verdict::Pass };
                prop_assert_eq!(verdict, if judged { model.judge(now, ect) } else { Verdict::Pass });
                if verdict == Verdict::Mark {
                    prop_assert_eq!(flows.judge(now, || false), Verdict::Mark, "until it has left");
                }
                if verdict == Verdict::Drop {
                    prop_assert_eq!(flows.drop_head(part), model.drop_head(part));
                    continue;
                }
                prop_assert_eq!(flows.take(part), model.take(part));
                break;
            },
            Step::Judge if judged => prop_assert_eq!(flows.judge(now, || true), model.judge(now, true)),
            Step::Judge => {}
            Step::Yield => {
                flows.yield_turn();
                model.yield_turn();
            }
            Step::DropHead(bytes) => prop_assert_eq!(flows.drop_head(bytes), model.drop_head(bytes)),
            Step::DropLongest => {
                let dropped = flows.drop_longest();
                // Any flow of equal length: an entry may be in its second use.
                if judged {
                    prop_assert_eq!(dropped, model.drop_longest());
                } else {
                    prop_assert_eq!(dropped.is_some(), model.active() > 0);
                    return Ok(());
                }
            }
            Step::Expire(hold) => {
                let mut dropped = Vec::new();
                flows.expire(now, hold, |queued| dropped.push(queued));
                left += dropped.len();
                prop_assert_eq!(dropped, model.expire(now, hold));
            }
            Step::Pass(time) => now += time,
            Step::Set(config) => {
                if judged || config.per_host == flows.config().per_host {
                    flows.set_config(config);
                    model.set_config(config);
                }
            }
        }
        let (frames, bytes) = model.backlog();
        prop_assert_eq!(flows.backlog(), Backlog { frames: frames as u32, bytes });
        prop_assert_eq!(flows.active() as usize, model.active());
        prop_assert_eq!(flows.oldest(), model.oldest());
        let head = model.head();
        prop_assert_eq!(flows.head().copied(), head);
        prop_assert_eq!(flows.head().copied(), head, "asked again, the same");
    }
    // Every remaining frame leaves once, oldest first.
    let waits = flows.backlog().frames;
    let mut last = None;
    flows.drain(|queued| {
        assert!(last < Some(queued.frame));
        last = Some(queued.frame);
        left += 1;
    });
    prop_assert_eq!(flows.backlog(), Backlog::default());
    prop_assert!(left as u32 >= waits && left as u32 <= pushed);
    prop_assert!(flows.head().is_none());
    Ok(())
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(300))]

    /// Sixteen flows: the smallest table has a way for each.
    #[test]
    fn agrees_with_the_model_at_every_step(
        config in config(),
        steps in prop::collection::vec(step(16), 1..300),
    ) {
        agree(config, steps, |flow| flow, true)?;
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(60))]

    /// More flows, so that the table doubles and idle flows lose their entries; an entry remembers only
    /// CoDel's state of an idle flow.
    #[test]
    fn agrees_while_the_table_grows(
        config in config(),
        flows in 16..200u32,
        seed in any::<u32>(),
        steps in prop::collection::vec(step(200), 1..600),
    ) {
        agree(config, steps, |flow| (flow % flows).wrapping_mul(0x9e37_79b1) ^ seed, false)?;
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(20))]

    /// More flows than places: each keeps its order, in a shared place or one of its own.
    #[test]
    fn each_flow_keeps_its_order_where_flows_share_places(
        config in config(),
        seed in any::<u32>(),
        rounds in prop::collection::vec((0..2_000u32, 0..3_000usize), 4..12),
    ) {
        let mut flows = Flows::new(config);
        let mut last = std::collections::HashMap::new();
        let (mut number, mut random) = (0u32, u64::from(seed) | 1);
        for (pushes, takes) in std::iter::once((4_000, 0)).chain(rounds) {
            for _ in 0..pushes {
                random = random.wrapping_mul(0x5851_f42d_4c95_7f2d).wrapping_add(1);
                // A few flows have most of the frames.
                let flow = (random >> 40) as u32 % if random >> 63 == 0 { 40 } else { 3_000 };
                let key = (flow ^ seed).wrapping_mul(0x9e37_79b1);
                let queued = Queued { frame: (flow, number), bytes: 100, deadline: u64::MAX, enqueued: 0 };
                flows.push(FlowKey { flow: key, host: 0 }, queued);
                number += 1;
            }
            if number == 4_000 {
                prop_assert!(flows.rounds.flows.iter().any(|flow| flow.shared > 0), "some share");
            }
            let mut left = |queued: Queued<(u32, u32)>| {
                let (flow, number) = queued.frame;
                last.insert(flow, number) < Some(number)
            };
            for _ in 0..takes {
                let taken = flows.take(u32::MAX);
                prop_assert!(taken.is_none_or(&mut left), "{taken:?} overtook one of its flow");
            }
        }
    }
}
