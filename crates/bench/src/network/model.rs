//! When each frame leaves the network, and where: a learning bridge with rules. Pure.
//!
//! ```text
//!  arrival ─▶ rule ─┬─ lost
//!                   └─▶ way out, by the address learned ─▶ rate, queue ─▶ delay, order ─▶ departure ─▶ copies
//! ```

use super::plan::{Plan, Rule};
use super::seen::Seen;
use std::collections::{HashMap, VecDeque};
use tidegate_testkit::simulation::random::Random;

/// What becomes of a frame at one way out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fate {
    /// It leaves at this time (ns) at this port. Copies are numbered from 1; the frame itself has 0.
    Leaves { at: u64, port: usize, copy: u32 },
    /// A rule lost it.
    Lost,
    /// The queue of this port was full.
    Full { port: usize },
}

/// The decision about one frame.
#[derive(Debug, PartialEq, Eq)]
pub struct Decided {
    /// The name of the rule that chose it, if that is recorded.
    pub rule: Option<String>,
    /// One or more for each way out; none for a frame whose receiver is where it came from.
    pub fates: Vec<Fate>,
}

/// A way out.
#[derive(Default)]
struct Egress {
    /// When frames that wait for the rate will have left (ns), the oldest first.
    waiting: VecDeque<u64>,
    /// The latest departure of a frame that keeps its order (ns).
    last: u64,
}

/// The network's state.
pub struct Model {
    plan: Plan,
    names: Vec<String>,
    random: Random,
    ways: Vec<Egress>,
    /// Where addresses were seen.
    learned: HashMap<[u8; 6], usize>,
}

impl Model {
    /// Makes a network with ports of these names.
    pub fn new(plan: Plan, names: Vec<String>) -> Self {
        let ways = names.iter().map(|_| Egress::default()).collect();
        Self { random: Random::new(plan.seed), plan, names, ways, learned: HashMap::new() }
    }

    /// Replaces the plan; frames that wait keep their times.
    pub fn set(&mut self, plan: Plan) {
        self.random = Random::new(plan.seed);
        self.plan = plan;
    }

    /// Decides about a frame that arrived at `at` (ns), and changes its bytes if its rule says so.
    pub fn arrive(&mut self, at: u64, from: usize, frame: &mut [u8], seen: &Seen) -> Decided {
        let Some((dst, src)) = addresses(frame) else { return Decided { rule: None, fates: vec![] } };
        if src[0] & 1 == 0 {
            self.learned.insert(src, from);
        }
        let random = &mut self.random;
        let name = &self.names[from];
        let rule =
            (self.plan.rules.iter()).find(|rule| rule.fits(name, seen) && random.chance(rule.share)).cloned();
        let record = rule.as_ref().filter(|rule| rule.record).map(|rule| rule.name.clone());
        let rule = rule.unwrap_or_default();
        if rule.lose {
            return Decided { rule: record, fates: vec![Fate::Lost] };
        }
        if let Some(place) = rule.flip {
            flip(frame, place, seen.checksum_at.filter(|_| rule.forge));
        }
        let ports: Vec<usize> = match self.learned.get(&dst) {
            Some(port) => (*port != from).then_some(*port).into_iter().collect(),
            None => (0..self.ways.len()).filter(|port| *port != from).collect(),
        };
        let fates = ports.into_iter().flat_map(|port| self.leave(at, port, frame.len(), &rule)).collect();
        Decided { rule: record, fates }
    }

    fn leave(&mut self, at: u64, port: usize, length: usize, rule: &Rule) -> Vec<Fate> {
        let way = &mut self.ways[port];
        let mut leaves = at;
        if self.plan.rate_bps > 0 {
            while way.waiting.front().is_some_and(|left| *left <= at) {
                way.waiting.pop_front();
            }
            if way.waiting.len() >= self.plan.queue {
                return vec![Fate::Full { port }];
            }
            leaves = way.waiting.back().map_or(at, |last| (*last).max(at))
                + (length as u64 * 8 * 1_000_000_000).div_ceil(self.plan.rate_bps);
            way.waiting.push_back(leaves);
        }
        leaves += between(&mut self.random, rule.delay_ns);
        if rule.in_order {
            leaves = leaves.max(way.last);
            way.last = leaves;
        }
        let mut fates = vec![Fate::Leaves { at: leaves, port, copy: 0 }];
        for copy in 1..=rule.copies {
            let at = leaves + between(&mut self.random, rule.copy_after_ns);
            fates.push(Fate::Leaves { at, port, copy });
        }
        fates
    }
}

fn addresses(frame: &[u8]) -> Option<([u8; 6], [u8; 6])> {
    let (dst, rest) = frame.split_first_chunk::<6>()?;
    Some((*dst, *rest.first_chunk()?))
}

fn between(random: &mut Random, [low, high]: [u64; 2]) -> u64 {
    low + random.below(high.saturating_sub(low) + 1)
}

/// Flips the bits of a byte; `checksum_at` is the place of a checksum that has to fit afterwards (RFC 1624).
fn flip(frame: &mut [u8], place: i64, checksum_at: Option<usize>) {
    let place = if place < 0 { frame.len() as i64 + place } else { place };
    let Some(place) = usize::try_from(place).ok().filter(|place| *place < frame.len()) else { return };
    frame[place] ^= 0xff;
    let Some(at) = checksum_at.filter(|at| place > at + 1) else { return };
    let checksum = u16::from_be_bytes([frame[at], frame[at + 1]]);
    if checksum == 0 {
        return;
    }
    // Words are counted from the UDP header, whose checksum lies at an even distance from its start.
    let word = |byte: u8| if (place - at).is_multiple_of(2) { u16::from(byte) << 8 } else { u16::from(byte) };
    let (new, old) = (word(frame[place]), word(!frame[place]));
    let mut sum = u32::from(!checksum) + u32::from(!old) + u32::from(new);
    sum = (sum & 0xffff) + (sum >> 16);
    sum = (sum & 0xffff) + (sum >> 16);
    let repaired = !(sum as u16);
    frame[at..at + 2].copy_from_slice(&(if repaired == 0 { 0xffff } else { repaired }).to_be_bytes());
}

#[cfg(test)]
mod tests {
    use super::super::seen::testing::stamped;
    use super::*;
    use proptest::prelude::*;

    fn model(plan: Plan, ports: usize) -> Model {
        Model::new(plan, (0..ports).map(|n| format!("eth{n}")).collect())
    }

    fn frame(from: u8, to: u8, length: usize) -> Vec<u8> {
        let mut frame = vec![2, 0, 0, 0, 0, to, 2, 0, 0, 0, 0, from];
        frame.resize(length, 0);
        frame
    }

    fn ports(decided: &Decided) -> Vec<usize> {
        let port = |fate: &Fate| match fate {
            Fate::Leaves { port, .. } | Fate::Full { port } => Some(*port),
            Fate::Lost => None,
        };
        decided.fates.iter().filter_map(port).collect()
    }

    fn arrive(model: &mut Model, at: u64, from: usize, mut frame: Vec<u8>) -> Decided {
        let seen = Seen::of(&frame);
        model.arrive(at, from, &mut frame, &seen)
    }

    #[test]
    fn addresses_are_learned() {
        let mut bridge = model(Plan::default(), 3);
        assert_eq!(ports(&arrive(&mut bridge, 0, 0, frame(1, 2, 60))), [1, 2], "flooded");
        assert_eq!(ports(&arrive(&mut bridge, 0, 1, frame(2, 1, 60))), [0]);
        assert_eq!(ports(&arrive(&mut bridge, 0, 0, frame(1, 2, 60))), [1]);
        assert_eq!(
            arrive(&mut bridge, 0, 1, frame(3, 2, 60)).fates,
            [],
            "its receiver is where it came from"
        );
    }

    #[test]
    fn the_first_rule_that_chooses_decides() {
        let late = Rule { name: "late".into(), share: 0.25, delay_ns: [500, 900], ..Rule::default() };
        let way = Rule { name: "way".into(), delay_ns: [10, 10], record: false, ..Rule::default() };
        let mut bridge = model(Plan { rules: vec![late, way], ..Plan::default() }, 2);
        let mut chosen = 0;
        for number in 0..4_000u64 {
            let decided = arrive(&mut bridge, number, 0, frame(1, 2, 60));
            let [Fate::Leaves { at, port: 1, copy: 0 }] = decided.fates[..] else { panic!("{decided:?}") };
            if decided.rule.as_deref() == Some("late") {
                chosen += 1;
                assert!((500..=900).contains(&(at - number)));
            } else {
                assert_eq!((decided.rule, at - number), (None, 10));
            }
        }
        assert!((900..1_100).contains(&chosen), "{chosen} of 4000");
    }

    #[test]
    fn copies_and_losses() {
        let twice = Rule { stamped: Some(true), copies: 2, copy_after_ns: [5, 5], ..Rule::default() };
        let lose = Rule { lose: true, ..Rule::default() };
        let mut bridge = model(Plan { rules: vec![twice, lose], ..Plan::default() }, 2);
        let leaves = |at, copy| Fate::Leaves { at, port: 1, copy };
        assert_eq!(
            arrive(&mut bridge, 7, 0, stamped(1, 60)).fates,
            [leaves(7, 0), leaves(12, 1), leaves(12, 2)]
        );
        assert_eq!(arrive(&mut bridge, 7, 0, frame(1, 2, 60)).fates, [Fate::Lost]);
    }

    #[test]
    fn a_forged_byte_fits_its_checksum() {
        let sum = |frame: &[u8]| {
            let sum: u32 = (frame[34..].chunks(2))
                .map(|word| u32::from(word[0]) << 8 | u32::from(*word.get(1).unwrap_or(&0)))
                .sum();
            let sum = (sum & 0xffff) + (sum >> 16);
            (sum & 0xffff) + (sum >> 16)
        };
        for place in [-9, -10, 60, 61] {
            let mut forged = stamped(1, 61);
            let before = (forged.clone(), sum(&forged));
            flip(&mut forged, place, Some(40));
            assert_ne!(forged, before.0);
            assert_eq!(sum(&forged), before.1, "{place}");
        }
        let mut plain = stamped(1, 61);
        flip(&mut plain, -9, None);
        assert_eq!(plain[40..42], [0x12, 0x34]);
        flip(&mut plain, 5_000, None);
    }

    proptest! {
        /// The rate's queue is a FIFO of at most so many frames, and jitter in order overtakes nothing.
        #[test]
        fn a_paced_way_out_is_a_fifo(
            gaps in prop::collection::vec((0u64..30_000, 60usize..1_514), 1..200),
            queue in 1usize..20,
        ) {
            let rule = Rule { delay_ns: [0, 50_000], in_order: true, ..Rule::default() };
            let rate = 1_000_000_000;
            let mut bridge = model(Plan { rate_bps: rate, queue, rules: vec![rule], ..Plan::default() }, 2);
            let (mut now, mut free, mut last) = (0, 0, 0);
            let mut leaving: Vec<u64> = vec![];
            for (gap, length) in gaps {
                now += gap;
                leaving.retain(|left| *left > now);
                let decided = arrive(&mut bridge, now, 0, frame(1, 2, length));
                if leaving.len() == queue {
                    prop_assert_eq!(decided.fates, vec![Fate::Full { port: 1 }]);
                    continue;
                }
                free = now.max(free) + length as u64 * 8;
                leaving.push(free);
                let [Fate::Leaves { at, .. }] = decided.fates[..] else { panic!("{decided:?}") };
                prop_assert!(at >= last && at >= free && at <= last.max(free + 50_000));
                last = at;
            }
        }
    }
}
