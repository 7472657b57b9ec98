//! Rows of a calibration, and costs from those that were told apart. Pure.

use super::judge::{FEWEST, Judged, judge, median};
use super::layout::Window;
use super::pairings::{Pair, Pairing, used};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use tidegate_cores::costs::{Costs, PairCost, Source};
use tidegate_cores::machine::Distance;

/// The largest sharing that costs may state, thousandths.
const MOST_SHARING: f64 = 10_000.0;
/// The largest handover that costs may state, ns.
const MOST_HANDOVER: f64 = 1_000_000.0;

/// A pairing's rounds.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Samples {
    rounds: Vec<(f64, f64)>,
    /// Frames a second.
    rates: [Vec<f64>; 2],
    /// CPU time of a frame at the smaller of the two stages while apart, ns.
    smaller: Vec<f64>,
    /// CPU time of a frame at worker and receiver together, ns: on one CPU, and apart.
    handed: [Vec<f64>; 2],
    lost: f64,
}

/// A pairing's result.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Row {
    /// The pair, in words.
    pub pair: String,
    /// Distance of the CPUs of the placement apart.
    pub distance: Distance,
    /// The original's finding.
    pub finding: String,
    /// Costs of a frame (or of a round trip, or of a copy), ns, of both placements.
    pub judged: Judged,
    /// Frames a second, together and apart; of flows alone.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub frames: Option<[f64; 2]>,
    /// Frames that were lost in all windows.
    pub lost: f64,
    /// What costs get of it; absent where the placements were not told apart, or it says nothing to the model.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub measured: Option<Measured>,
}

/// A measured part of a pair's costs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Measured {
    /// A handover, ns: on one CPU, and at the row's distance.
    Handover([u32; 2]),
    /// The loss of two stages on one CPU, thousandths of the smaller load.
    Sharing(u32),
    /// What a busy SMT sibling takes, thousandths.
    Sibling(u32),
}

impl Samples {
    /// Adds a round.
    pub fn push(
        &mut self,
        pairing: &Pairing,
        background: &BTreeMap<usize, f64>,
        together: Window,
        apart: Window,
    ) {
        let value = pairing.pair.value();
        let (Some(one), Some(other)) = (value.of(&together, background), value.of(&apart, background)) else {
            return;
        };
        self.rounds.push((one, other));
        for (rates, window) in self.rates.iter_mut().zip([&together, &apart]) {
            rates.push(window.frames / window.span * 1e9);
        }
        for (handed, window) in self.handed.iter_mut().zip([&together, &apart]) {
            handed.push(window.handed.iter().sum());
        }
        self.lost += together.lost + apart.lost;
        let flow = pairing.apart.flows.first();
        let alone = match pairing.pair {
            Pair::SoftSoft => flow.map(|flow| flow.soft),
            Pair::VcpuVcpu => flow.map(|flow| flow.receiver),
            _ => None,
        };
        let smaller = match alone {
            // Half of the frames are this CPU's.
            Some(cpu) => 2.0 * used(&apart, background, [&cpu]) / apart.frames,
            None => apart.handed[0].min(apart.handed[1]),
        };
        self.smaller.push(smaller);
    }
}

impl Row {
    /// Judges a pairing's rounds.
    pub fn of(pairing: &Pairing, samples: &Samples) -> Self {
        let judged = judge(&samples.rounds);
        let middle = |values: &[f64]| median(&mut values.to_vec());
        let [together, apart] = &samples.rates;
        let has_frames = !pairing.together.flows.is_empty() || pairing.together.handed.is_some();
        Self {
            pair: pairing.pair.words().into(),
            distance: pairing.distance,
            finding: pairing.pair.finding().into(),
            judged,
            frames: has_frames.then(|| [middle(together), middle(apart)]),
            lost: samples.lost,
            measured: measured(pairing.pair, &judged, samples),
        }
    }
}

/// Returns what the model gets of a pairing.
fn measured(pair: Pair, judged: &Judged, samples: &Samples) -> Option<Measured> {
    let middle = |values: &[f64]| median(&mut values.to_vec());
    let ns = |value: f64| value.clamp(0.0, MOST_HANDOVER).round() as u32;
    let thousandths = |part: f64| (1_000.0 * part).clamp(0.0, MOST_SHARING).round() as u32;
    let of_smaller = |loss: f64| {
        let smaller = middle(&samples.smaller);
        (smaller > 0.0).then(|| Measured::Sharing(thousandths(loss / smaller)))
    };
    if pair.is_compared() && !judged.told_apart {
        return None;
    }
    match pair {
        // The same work in both placements: what one of them takes more is its handover.
        Pair::TransmitSoft | Pair::SoftVcpu => {
            Some(Measured::Handover([ns(judged.difference), ns(-judged.difference)]))
        }
        Pair::SoftSoft | Pair::VcpuVcpu => of_smaller(judged.difference),
        // On one CPU the time of a frame is both stages' time, and what they lose beside it.
        Pair::WorkerVcpu => of_smaller(judged.together - middle(&samples.handed[0])),
        // A frame's descriptor and its header cross: two lines, each half a round trip.
        // Both windows of a round have the same layout: their difference is noise.
        Pair::WorkerWorker => (judged.rounds >= FEWEST && judged.spread < judged.apart / 4.0)
            .then(|| Measured::Handover([0, ns(judged.apart)])),
        Pair::WorkerSoft => None,
        Pair::Siblings => {
            Some(Measured::Sibling(thousandths(judged.difference / judged.together.max(1.0)).min(1_000)))
        }
    }
}

/// Returns the priors with what was measured in their place.
///
/// # Errors
/// A measured number is out of the model's bounds.
pub fn costs(pairings: &[(Pair, Row)], source: Source) -> Result<Costs, String> {
    let priors = Costs::priors();
    let (mut pairs, mut sibling) = (Vec::<PairCost>::new(), None);
    for (pair, row) in pairings {
        let Some(measured) = row.measured else { continue };
        let [one, other] = pair.kinds();
        if let Measured::Sibling(lost) = measured {
            sibling = Some(lost);
            continue;
        }
        let at = pairs.iter().position(|known| known.is_of(one, other)).unwrap_or_else(|| {
            let none = || PairCost { one, other, sharing: 0, handover: Default::default() };
            pairs.push(priors.pair(one, other).cloned().unwrap_or_else(none));
            pairs.len() - 1
        });
        match measured {
            Measured::Sharing(sharing) => pairs[at].sharing = sharing,
            Measured::Handover([same, apart]) => {
                pairs[at].handover[Distance::Same as usize] = same;
                pairs[at].handover[row.distance as usize] = apart;
            }
            Measured::Sibling(_) => {}
        }
    }
    priors.with_measured(pairs, sibling, source)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::calibrate::layout::{Flow, Layout};
    use tidegate_cores::stage::Kind;

    fn source() -> Source {
        Source::Measured { machine: "m".into(), kernel: "k".into(), at: 1 }
    }

    fn pairing(pair: Pair) -> Pairing {
        let flow = |soft, receiver| Flow { transmit: 0, soft, receiver };
        Pairing {
            pair,
            distance: Distance::Cache,
            together: Layout::flows(&[flow(1, 1)]),
            apart: Layout::flows(&[flow(1, 2)]),
        }
    }

    /// Nine rounds of these costs of a frame, a little apart from each other.
    fn row(pair: Pair, together: f64, apart: f64) -> Row {
        let pairing = pairing(pair);
        let mut samples = Samples::default();
        for round in 0..9 {
            let window = |cost: f64| Window {
                span: 1e9,
                frames: 1e6,
                used: [(1, (cost + f64::from(round)) * 1e6)].into(),
                turns: 1e9 / cost,
                handed: [100.0, 50.0],
                ..Window::default()
            };
            samples.push(&pairing, &BTreeMap::new(), window(together), window(apart));
        }
        Row::of(&pairing, &samples)
    }

    #[test]
    fn what_is_told_apart_replaces_its_prior_and_nothing_else_does() {
        let rows = [
            (Pair::TransmitSoft, row(Pair::TransmitSoft, 1_000.0, 1_400.0)),
            (Pair::SoftVcpu, row(Pair::SoftVcpu, 1_000.0, 1_000.0)),
            (Pair::WorkerWorker, row(Pair::WorkerWorker, 90.0, 90.0)),
        ];
        assert_eq!(rows[0].1.measured, Some(Measured::Handover([0, 400])));
        assert_eq!(rows[1].1.measured, None);
        let (priors, costs) = (Costs::priors(), costs(&rows, source()).unwrap());
        let handover = |costs: &Costs, one, other| costs.pair(one, other).unwrap().handover;
        let measured = handover(&costs, Kind::SoftIrq, Kind::Transmit);
        assert_eq!((measured[0], measured[2]), (0, 400));
        assert_eq!(measured[3..], handover(&priors, Kind::SoftIrq, Kind::Transmit)[3..]);
        let sharing = |costs: &Costs| costs.pair(Kind::SoftIrq, Kind::Transmit).unwrap().sharing;
        assert_eq!(sharing(&costs), sharing(&priors));
        assert_eq!(costs.pair(Kind::SoftIrq, Kind::Vcpu), priors.pair(Kind::SoftIrq, Kind::Vcpu));
        assert_eq!(handover(&costs, Kind::Worker, Kind::Worker)[2], 90);
        assert_eq!(costs.source, source());
    }

    #[test]
    fn siblings_take_a_part() {
        let Some(Measured::Sibling(lost)) = row(Pair::Siblings, 100.0, 60.0).measured else { panic!() };
        assert!((390..=410).contains(&lost), "{lost}");
    }

    #[test]
    fn of_a_cpu_that_others_fill_nothing_is_said() {
        let pairing = pairing(Pair::SoftVcpu);
        let window =
            || Window { span: 1e9, frames: 1e3, used: [(1, 1e9), (2, 1e8)].into(), ..Window::default() };
        for (background, rounds) in [(0.5, 1), (0.99, 0), (1.0, 0)] {
            let mut samples = Samples::default();
            samples.push(&pairing, &[(1, background)].into(), window(), window());
            assert_eq!(Row::of(&pairing, &samples).judged.rounds, rounds, "{background}");
        }
    }

    #[test]
    fn windows_without_a_frame_are_no_rounds() {
        let pairing = pairing(Pair::SoftVcpu);
        let mut samples = Samples::default();
        samples.push(&pairing, &BTreeMap::new(), Window::default(), Window::default());
        assert_eq!(Row::of(&pairing, &samples).judged.rounds, 0);
    }
}
