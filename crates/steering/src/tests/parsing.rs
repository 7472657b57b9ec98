use super::frames::{any_frame, peers, whole};
use super::run::{Parser, SHORTEST};
use crate::model::{self, No};
use proptest::prelude::*;
use proptest::strategy::ValueTree;
use proptest::test_runner::TestRunner;
use std::time::{Duration, Instant};

fn check_all(
    cases: u32,
    frames: impl Strategy<Value = Vec<u8>>,
    each: impl Fn(&Parser, &[u8]) -> Result<(), String>,
) {
    let Some(parser) = Parser::load() else { return };
    let config = ProptestConfig { cases, failure_persistence: None, ..ProptestConfig::default() };
    let result =
        TestRunner::new(config).run(&frames, |frame| each(&parser, &frame).map_err(TestCaseError::fail));
    result.unwrap();
}

#[test]
fn a_frame_has_the_flow_that_the_model_says() {
    check_all(3000, any_frame(), Parser::check);
}

#[test]
fn a_frame_that_is_cut_short_anywhere_has_the_flow_that_the_model_says() {
    check_all(60, whole(), |parser, frame| {
        (SHORTEST..frame.len()).try_for_each(|length| parser.check(&frame[..length]))
    });
}

#[test]
fn frames_of_each_kind_are_among_those_tested() {
    let mut runner = TestRunner::deterministic();
    let frames: Vec<Vec<u8>> =
        (0..3000).map(|_| any_frame().new_tree(&mut runner).expect("a frame").current()).collect();
    let parsed: Vec<_> = frames.iter().map(|frame| model::parse(frame, 4789, &peers())).collect();
    for tunnel in 0..5 {
        for family in [4, 6] {
            let like = |flow: &&crate::key::Fields| (flow.tunnel, flow.family) == (tunnel, family);
            let count = parsed.iter().flatten().filter(like).count();
            assert!(count >= 20, "tunnel {tunnel}, IPv{family}: {count}");
        }
    }
    for peer in [0, 1] {
        let like = |flow: &&crate::key::Fields| (flow.tunnel, flow.peer) == (1, peer);
        assert!(parsed.iter().flatten().filter(like).count() >= 20, "peer {peer}");
    }
    for no in [No::Fragment, No::Truncated, No::Unknown] {
        assert!(parsed.iter().filter(|parsed| **parsed == Err(no)).count() >= 20, "{no:?}");
    }
}

/// Runs for SECONDS_EACH seconds, as `scripts/nightly steering` sets them, or for one. Of each generated frame there are many damaged ones, which is faster.
#[test]
fn fuzz() {
    let Some(parser) = Parser::load() else { return };
    let seconds = std::env::var("SECONDS_EACH").ok().and_then(|text| text.parse().ok()).unwrap_or(1);
    let (begin, mut runner, mut frames) = (Instant::now(), TestRunner::default(), 0_u64);
    while begin.elapsed() < Duration::from_secs(seconds) {
        let whole = any_frame().new_tree(&mut runner).expect("a frame").current();
        for _ in 0..200 {
            let mut frame = whole.clone();
            for _ in 0..runner.rng().random_range(0..4) {
                // Headers are in front.
                let at = runner.rng().random_range(0..frame.len().min(160));
                frame[at] = runner.rng().random();
            }
            frame.truncate(runner.rng().random_range(SHORTEST..=2 * whole.len()));
            parser.check(&frame).unwrap_or_else(|why| panic!("frame {frames}: {why}"));
            frames += 1;
        }
    }
    println!("{frames} frames in {seconds} s as the model says");
}
