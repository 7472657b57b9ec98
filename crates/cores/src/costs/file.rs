//! Costs from a file, and measured costs in place of priors. A file may be damaged or hostile: each number has a bound.

use super::{Costs, PairCost, Source};
use crate::stage::Kind;

/// A longer file is none of ours.
const MOST_BYTES: usize = 64 * 1024;
/// A pair that loses more than ten times the smaller load was measured wrong.
const MOST_SHARING: u32 = 10_000;
/// A frame whose handover takes more than a millisecond was measured wrong.
const MOST_HANDOVER: u32 = 1_000_000;
const MOST_NAME: usize = 200;

impl Costs {
    /// Parses a file of [`Costs`] as JSON.
    ///
    /// # Errors
    /// The file is no JSON of this form, or a number is out of bounds; with the reason.
    pub fn from_json(text: &str) -> Result<Self, String> {
        if text.len() > MOST_BYTES {
            return Err(format!("the file has {} bytes; costs have at most {MOST_BYTES}", text.len()));
        }
        let costs: Self = serde_json::from_str(text).map_err(|e| format!("the file holds no costs: {e}"))?;
        costs.check()?;
        Ok(costs)
    }

    /// Formats as the JSON that [`Costs::from_json`] reads.
    pub fn to_json(&self) -> String {
        serde_json::to_string_pretty(self).expect("numbers and names are JSON")
    }

    /// Checks that each number is within its bounds, and each pair is stated once.
    ///
    /// # Errors
    /// The first number out of bounds, and its bounds.
    pub fn check(&self) -> Result<(), String> {
        let most = Kind::ALL.len() * (Kind::ALL.len() + 1) / 2;
        if self.pairs.len() > most {
            return Err(format!("{} pairs of kinds; there are only {most}", self.pairs.len()));
        }
        for (at, pair) in self.pairs.iter().enumerate() {
            let named = format!("{:?} and {:?}", pair.one, pair.other);
            if self.pairs[..at].iter().any(|earlier| earlier.is_of(pair.one, pair.other)) {
                return Err(format!("{named}: stated twice"));
            }
            if pair.sharing > MOST_SHARING {
                return Err(format!(
                    "{named}: sharing is {}; at most {MOST_SHARING} thousandths",
                    pair.sharing
                ));
            }
            if let Some(ns) = pair.handover.iter().find(|ns| **ns > MOST_HANDOVER) {
                return Err(format!("{named}: a handover of {ns} ns; at most {MOST_HANDOVER} ns"));
            }
        }
        if self.sibling > 1000 {
            return Err(format!("sibling is {}; at most 1000 thousandths", self.sibling));
        }
        match &self.source {
            Source::Measured { machine, kernel, .. } if machine.len().max(kernel.len()) > MOST_NAME => {
                Err(format!("the name of the machine or the kernel is longer than {MOST_NAME} bytes"))
            }
            _ => Ok(()),
        }
    }

    /// Replaces pairs by measured ones, and the loss to a busy SMT sibling where it was measured; the others stay.
    ///
    /// # Errors
    /// A measured number is out of bounds; with the reason.
    pub fn with_measured(
        mut self,
        measured: Vec<PairCost>,
        sibling: Option<u32>,
        source: Source,
    ) -> Result<Self, String> {
        for pair in measured {
            self.pairs.retain(|prior| !prior.is_of(pair.one, pair.other));
            self.pairs.push(pair);
        }
        self.sibling = sibling.unwrap_or(self.sibling);
        self.source = source;
        self.check()?;
        Ok(self)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn measured(one: Kind, other: Kind, sharing: u32) -> PairCost {
        PairCost { one, other, sharing, handover: [1, 2, 3, 4, 5] }
    }

    fn here() -> Source {
        Source::Measured { machine: "a processor, 4 CPUs".into(), kernel: "6.12.0".into(), at: 1_800_000_000 }
    }

    #[test]
    fn a_measured_pair_replaces_its_prior_in_either_order() {
        let priors = Costs::priors();
        let costs = priors
            .clone()
            .with_measured(vec![measured(Kind::Vcpu, Kind::Vhost, 7)], Some(123), here())
            .unwrap();
        assert_eq!(costs.pair(Kind::Vhost, Kind::Vcpu).unwrap().sharing, 7);
        assert_eq!(costs.pairs.len(), priors.pairs.len());
        assert_eq!(costs.pair(Kind::Vhost, Kind::Vhost), priors.pair(Kind::Vhost, Kind::Vhost));
        assert_eq!((costs.sibling, &costs.source), (123, &here()));
        assert_eq!(Costs::from_json(&costs.to_json()), Ok(costs));
        assert!(priors.with_measured(vec![measured(Kind::Vcpu, Kind::Vhost, 10_001)], None, here()).is_err());
    }

    #[test]
    fn a_damaged_file_is_an_error_with_its_reason() {
        let good = Costs::priors();
        let refused = |change: &dyn Fn(&mut Costs)| {
            let mut costs = good.clone();
            change(&mut costs);
            Costs::from_json(&costs.to_json()).unwrap_err()
        };
        assert!(
            refused(&|c| c.pairs.push(measured(Kind::Vcpu, Kind::Vhost, 1))).contains("there are only 28")
        );
        assert!(refused(&|c| c.pairs[1] = c.pairs[0].clone()).contains("twice"));
        assert!(refused(&|c| c.pairs[0].sharing = u32::MAX).contains("sharing is"));
        assert!(refused(&|c| c.pairs[0].handover[4] = 2_000_000).contains("2000000 ns"));
        assert!(refused(&|c| c.sibling = 1001).contains("sibling is 1001"));
        let long = Source::Measured { machine: "x".repeat(201), kernel: String::new(), at: 0 };
        assert!(refused(&|c| c.source = long.clone()).contains("longer than 200"));
        assert!(Costs::from_json(&" ".repeat(65 * 1024)).unwrap_err().contains("bytes"));
        let json = good.to_json();
        assert!(Costs::from_json(&json.replace("\"sharing\": ", "\"sharing\": -")).is_err());
    }

    proptest! {
        /// A file cut short, or with other bytes, is an error or within bounds.
        #[test]
        fn no_file_passes_out_of_bounds(cut in 0_usize..6000, at in 0_usize..6000, byte in 32_u8..127) {
            let mut json = Costs::priors().to_json().into_bytes();
            json.truncate(cut);
            if let Some(place) = json.get_mut(at) {
                *place = byte;
            }
            if let Ok(costs) = Costs::from_json(&String::from_utf8(json).unwrap()) {
                prop_assert_eq!(costs.check(), Ok(()));
            }
        }
    }
}
