//! What a network does with frames, as a line of JSON.
//!
//! ```json
//! {"seed": 1, "rate_bps": 1000000000, "queue": 1000, "rules": [
//!   {"name": "late", "stamped": true, "from": "eth1", "share": 0.5, "delay_ns": [2000000, 9000000]},
//!   {"name": "way", "delay_ns": [100000, 120000], "in_order": true}
//! ]}
//! ```
//!
//! The first rule that a frame fits, and that chooses it by its `share`, decides alone.

use super::seen::Seen;
use serde::Deserialize;

/// A whole plan.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Plan {
    /// Of the random choices: the same frames and the same seed give the same choices.
    pub seed: u64,
    /// The rate of each way out (bit/s, Ethernet frames without FCS); 0: no limit.
    pub rate_bps: u64,
    /// Most frames that wait for the rate at each way out; newer ones are lost.
    pub queue: usize,
    /// In this order. A frame that no rule chooses passes at once, and is not recorded.
    pub rules: Vec<Rule>,
}

impl Default for Plan {
    fn default() -> Self {
        Self { seed: 1, rate_bps: 0, queue: 1_000, rules: vec![] }
    }
}

/// Which frames, and their fate.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Rule {
    /// The name in records.
    pub name: String,
    /// Frames that arrive at this interface.
    pub from: Option<String>,
    /// Frames with this UDP destination port.
    pub udp_port: Option<u16>,
    /// Frames inside VXLAN, or others.
    pub vxlan: Option<bool>,
    /// Frames that end in what looks like a stamp, or others.
    pub stamped: Option<bool>,
    /// The source address inside VXLAN, written as `52:54:00:00:00:01`.
    pub src: Option<String>,
    /// Which part of those frames, at random.
    pub share: f64,
    /// Delay in the network: evenly distributed between the two (ns).
    pub delay_ns: [u64; 2],
    /// Frames of this rule do not overtake each other.
    pub in_order: bool,
    /// They are lost.
    pub lose: bool,
    /// Further copies of each.
    pub copies: u32,
    /// How much later than the frame each copy leaves (ns).
    pub copy_after_ns: [u64; 2],
    /// The byte whose bits are flipped: from the start of the frame, or counted from its end if negative.
    pub flip: Option<i64>,
    /// The UDP checksum fits the flipped byte: an attacker's change, not the network's.
    pub forge: bool,
    /// Whether frames of this rule are recorded.
    pub record: bool,
}

impl Default for Rule {
    fn default() -> Self {
        Self {
            name: String::new(),
            from: None,
            udp_port: None,
            vxlan: None,
            stamped: None,
            src: None,
            share: 1.0,
            delay_ns: [0, 0],
            in_order: false,
            lose: false,
            copies: 0,
            copy_after_ns: [0, 0],
            flip: None,
            forge: false,
            record: true,
        }
    }
}

impl Rule {
    /// Says whether a frame fits, without its share.
    pub fn fits(&self, from: &str, seen: &Seen) -> bool {
        let wants = |asked: Option<bool>, is: bool| asked.is_none_or(|asked| asked == is);
        self.from.as_deref().is_none_or(|name| name == from)
            && self.udp_port.is_none_or(|port| seen.udp_port == Some(port))
            && wants(self.vxlan, seen.vni.is_some())
            && wants(self.stamped, seen.stamp.is_some())
            && self.src.as_ref().is_none_or(|src| seen.src.as_ref() == Some(src))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_plan_is_read_and_mistakes_are_named() {
        let plan: Plan =
            serde_json::from_str(r#"{"rules": [{"name": "late", "stamped": true, "delay_ns": [1, 2]}]}"#)
                .unwrap();
        assert_eq!((plan.queue, plan.rules[0].share, plan.rules[0].delay_ns), (1_000, 1.0, [1, 2]));
        let error = serde_json::from_str::<Plan>(r#"{"rules": [{"dealy_ns": [1, 2]}]}"#).unwrap_err();
        assert!(error.to_string().contains("dealy_ns"), "{error}");
    }

    #[test]
    fn every_condition_has_to_hold() {
        let seen = Seen { udp_port: Some(4789), vni: Some(42), src: Some("a".into()), ..Seen::default() };
        let rule =
            Rule { from: Some("eth1".into()), udp_port: Some(4789), vxlan: Some(true), ..Rule::default() };
        assert!(rule.fits("eth1", &seen));
        for other in [
            Rule { from: Some("eth2".into()), ..rule.clone() },
            Rule { udp_port: Some(1), ..rule.clone() },
            Rule { vxlan: Some(false), ..rule.clone() },
            Rule { stamped: Some(true), ..rule.clone() },
            Rule { src: Some("b".into()), ..rule.clone() },
        ] {
            assert!(!other.fits("eth1", &seen), "{other:?}");
        }
    }
}
