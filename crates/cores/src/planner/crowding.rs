//! What the stages of a host lose at least because they share CPUs, wherever each is.
//!
//! Two stages with loads l and l' lose W min(l, l'), where W depends on their kinds, and min(l, l') = ∫ [l > x][l' > x] dx. So each level x
//! has a bound of its own, and their integral is the whole bound. Between two levels that are looked at, the stages above the upper one
//! count alone.
//!
//! At one level, let n be the numbers of stages by kind, m those on one of C CPUs, and f(m) what these lose in pairs:
//! Σ Wₖₖ mₖ(mₖ − 1) / 2 + Σ Wₖₖ' mₖmₖ'. For any prices y of a stage of each kind,
//!
//! ```text
//!   Σ CPUs f(m)  =  y·n + Σ CPUs (f(m) − y·m)  ≥  y·n + C min over m of (f(m) − y·m)
//! ```
//!
//! CPUs come in cores of one or two. If a and b stages are on the two CPUs of a core, the siblings' busy time is min(∫ a dx, ∫ b dx) ≥
//! ∫ min(a, b) dx, so each level also counts a price θ of it, and the minimum is that of both CPUs of a core.
//!
//! The minimum is found by trying all m: another stage of kind k cannot gain once Wₖₖ mₖ ≥ yₖ. The prices follow the subgradient n − C m.
//! This is the pigeonhole principle with kinds: that the kinds which bear each other worst keep apart is part of it.

use std::cmp::Reverse;
use std::collections::BTreeSet;

/// How many levels are looked at.
const LEVELS: usize = 64;
/// How many prices are tried at a level.
const PRICES: i32 = 90;
/// How many kinds are looked at, those that lose most.
const KINDS: usize = 4;

/// Stages that share CPUs.
pub struct Crowd<'a> {
    /// Loads and kinds, the largest load first.
    stages: Vec<(i64, usize)>,
    sharing: &'a [[i64; 7]; 7],
}

/// The CPUs that are shared.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Room {
    /// So many CPUs, whose siblings do not count.
    Cpus(i64),
    /// So many cores of two CPUs each, and the price of their siblings' time, thousandths.
    Cores(i64, i64),
}

impl<'a> Crowd<'a> {
    /// Stages by load, in millionths, and kind.
    pub fn new(mut stages: Vec<(i64, usize)>, sharing: &'a [[i64; 7]; 7]) -> Self {
        stages.retain(|(load, _)| *load > 0);
        stages.sort_unstable_by_key(|stage| Reverse(*stage));
        Self { stages, sharing }
    }

    /// Returns the least loss, ns a second, without that of the pairs of kinds in `elsewhere`.
    pub fn least(&self, room: Room, elsewhere: &BTreeSet<(usize, usize)>) -> i64 {
        let mut weight = [0; 7];
        self.stages.iter().for_each(|(load, kind)| weight[*kind] += load * self.sharing[*kind][*kind]);
        let mut kinds: Vec<usize> = (0..weight.len()).filter(|kind| weight[*kind] > 0).collect();
        kinds.sort_by_key(|kind| Reverse(weight[*kind]));
        kinds.truncate(KINDS);
        let mut costs = [[0; KINDS]; KINDS];
        for (one, first) in kinds.iter().enumerate() {
            for (other, second) in kinds.iter().enumerate() {
                let pair = (*first.min(second), *first.max(second));
                costs[one][other] = if first != second && elsewhere.contains(&pair) {
                    0
                } else {
                    self.sharing[*first][*second]
                };
            }
        }
        let mut level = Level { costs, room, count: [0; KINDS], kinds: kinds.len() };
        // After how many stages each level is: all with its load, and some more than the last.
        let step = self.stages.len().div_ceil(LEVELS).max(1);
        let mut ends: Vec<usize> = vec![0];
        while let Some(last) =
            self.stages.get(ends[ends.len() - 1] + step - 1).or(self.stages.last()).map(|at| at.0)
        {
            let end = self.stages.partition_point(|stage| stage.0 >= last);
            if end == ends[ends.len() - 1] {
                break;
            }
            ends.push(end);
        }
        let mut sum = 0;
        for (nth, range) in ends.windows(2).enumerate() {
            for (_, kind) in &self.stages[range[0]..range[1]] {
                if let Some(nth) = kinds.iter().position(|of| of == kind) {
                    level.count[nth] += 1;
                }
            }
            let load = |end: usize| self.stages[end - 1].0;
            sum += level.least() * (load(range[1]) - ends.get(nth + 2).map_or(0, |end| load(*end)));
        }
        sum
    }
}

/// The stages above one level.
struct Level {
    costs: [[i64; KINDS]; KINDS],
    room: Room,
    count: [i64; KINDS],
    kinds: usize,
}

/// The least of f(m) − y·m, and its m.
type Least = (i64, [i64; KINDS]);

impl Level {
    fn least(&self) -> i64 {
        let (rooms, cpus) = match self.room {
            Room::Cpus(cpus) => (cpus, cpus),
            Room::Cores(cores, _) => (cores, 2 * cores),
        };
        let part = |kind: usize| self.count[kind] as f64 / cpus as f64;
        let mut scale = [0.0; KINDS];
        for (kind, scale) in scale.iter_mut().enumerate().take(self.kinds) {
            *scale = self.costs[kind][kind] as f64 * part(kind).max(0.5);
        }
        let mut prices = scale;
        let mut best = 0;
        for turn in 0..PRICES {
            let whole = prices.map(|price| price.max(0.0) as i64);
            let (lost, there) = self.cheapest(&whole);
            let paid: i64 = (0..self.kinds).map(|kind| whole[kind] * self.count[kind]).sum();
            best = best.max(paid + rooms * lost);
            let pace = 0.5 * 0.94_f64.powi(turn);
            for kind in 0..self.kinds {
                let wanted = part(kind);
                let there = there[kind] as f64 * rooms as f64 / cpus as f64;
                prices[kind] += pace * scale[kind].max(1.0) * (wanted - there) / wanted.max(0.5);
                prices[kind] = prices[kind].max(0.0);
            }
        }
        best
    }

    /// Returns the least of a CPU, or of both CPUs of a core.
    fn cheapest(&self, prices: &[i64; KINDS]) -> Least {
        // By the number of stages on the CPU.
        let mut best: Vec<Least> = vec![(0, [0; KINDS])];
        self.descend(prices, 0, 0, &mut [0; KINDS], &mut best);
        let Room::Cores(_, sibling) = self.room else {
            return best.into_iter().min().expect("no stage is a possibility");
        };
        let mut both = (0, [0; KINDS]);
        for (fewer, one) in (0..).zip(&best) {
            let rest = best.iter().skip(fewer as usize);
            if let Some(other) = rest.min()
                && one.0 + other.0 + sibling * fewer < both.0
            {
                both = (
                    one.0 + other.0 + sibling * fewer,
                    std::array::from_fn(|kind| one.1[kind] + other.1[kind]),
                );
            }
        }
        both
    }

    fn descend(
        &self,
        prices: &[i64; KINDS],
        kind: usize,
        cost: i64,
        there: &mut [i64; KINDS],
        best: &mut Vec<Least>,
    ) {
        if kind == self.kinds {
            let number = there.iter().sum::<i64>() as usize;
            if best.len() <= number {
                best.resize(number + 1, (i64::MAX / 4, [0; KINDS]));
            }
            best[number] = best[number].min((cost, *there));
            return;
        }
        let beside: i64 = (0..kind).map(|other| self.costs[kind][other] * there[other]).sum();
        let mut cost = cost;
        for number in 0..=self.count[kind] {
            there[kind] = number;
            self.descend(prices, kind + 1, cost, there, best);
            let next = beside + self.costs[kind][kind] * number - prices[kind];
            if next >= 0 {
                break;
            }
            cost += next;
        }
        there[kind] = 0;
    }
}
