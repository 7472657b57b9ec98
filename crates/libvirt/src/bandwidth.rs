//! libvirt's `<bandwidth>` as keys of a contract.
//!
//! ```text
//!  <inbound  average burst/>   to the domain    ──▶ rx.max, rx.burst
//!  <outbound average burst/>   from the domain  ──▶ tx.max, tx.burst
//!  peak, floor                                  ──▶ notes: no contract says it
//! ```
//!
//! # Units
//! libvirt calls them "kilobytes per second" and "kilobytes" (formatdomain, "Quality of service"), and gives them to tc as
//! `kbps` and `kb` (`virNetDevBandwidthSet`). In tc a rate counts in thousands, a size in powers of two: `1000kbps` is
//! 8 Mbit/s, `128kb` is 131072 bytes (tc(8), "Parameters"; measured with `tc class add ... htb rate 1000kbps burst
//! 128kb`). So 1 of `average` is 8000 bit/s, and 1 of `burst` 1024 bytes.

use crate::xml::{Source, child, children};
use roxmltree::Node;
use tidegate_contract::{Bytes, Error, Rate};

/// Bits per second in one of libvirt's kilobytes per second.
const BITS: u64 = 8000;
/// Bytes in one of libvirt's kilobytes.
const BYTES: u64 = 1024;

/// One direction's limits in libvirt's form; 0 counts as absent.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DirectionLimits {
    /// Sustained rate, 1000 bytes per second.
    pub average: Option<u64>,
    /// Rate of the burst, 1000 bytes per second.
    pub peak: Option<u64>,
    /// Depth of the bucket, 1024 bytes.
    pub burst: Option<u64>,
    /// Guaranteed rate, 1000 bytes per second.
    pub floor: Option<u64>,
}

/// A direction's limit in a contract.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Limit {
    /// `max`.
    pub max: Option<Rate>,
    /// `burst`.
    pub burst: Option<Bytes>,
}

/// The element and its values.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Bandwidth<'a> {
    pub node: Node<'a, 'a>,
    /// To the domain: its rx.
    pub inbound: DirectionLimits,
    /// From the domain: its tx.
    pub outbound: DirectionLimits,
    /// Whether the interface is on an Open vSwitch bridge, which keeps these limits in other units.
    pub open_vswitch: bool,
}

impl DirectionLimits {
    /// Returns the equivalent keys of a contract.
    ///
    /// # Errors
    /// A rate above 400 Gbit/s or a burst above 1 GB; the reason.
    pub fn limit(&self) -> Result<Limit, String> {
        let nonzero = |value: Option<u64>| value.filter(|v| *v > 0);
        let burst = nonzero(self.burst).map(|kilobytes| {
            let bytes = kilobytes.checked_mul(BYTES).filter(|b| *b <= 1_000_000_000);
            bytes.map(Bytes::new).ok_or_else(|| {
                format!("burst {kilobytes} is more than 1 GB, the most that a contract can have")
            })
        });
        let max = nonzero(self.average).map(|kilobytes| {
            let rate = kilobytes.checked_mul(BITS).and_then(Rate::from_bits);
            rate.ok_or_else(|| {
                format!("average {kilobytes} is more than 400 Gbit/s, the most that a contract can have")
            })
        });
        let (max, burst) = (max.transpose()?, burst.transpose()?);
        Ok(Limit { max, burst: burst.filter(|_| max.is_some()) })
    }

    /// Returns notes about values without a contract key. `way` is libvirt's name of the direction.
    pub fn untranslated_notes(&self, way: &str) -> Vec<String> {
        let mut notes = Vec::new();
        if let Some(peak) = self.peak.filter(|p| *p > 0 && Some(*p) != self.average) {
            let why = if way == "outbound" { " (libvirt ignores it too)" } else { "" };
            notes.push(format!(
                "{way} peak {peak} is not kept{why}: a contract has one rate, and a burst is sent at the speed of the line"
            ));
        }
        if let Some(floor) = self.floor.filter(|f| *f > 0) {
            notes.push(format!(
                "{way} floor {floor} is not kept: on the switch, the guaranteed rx rate of a VM follows from tx.min of the vNICs that send to it"
            ));
        }
        notes
    }
}

impl<'a> Bandwidth<'a> {
    pub(crate) fn read(source: Source<'a>, node: Node<'a, 'a>) -> Result<Self, Vec<Error>> {
        let mut errors = Vec::new();
        let mut ways = [DirectionLimits::default(); 2];
        for (name, way) in ["inbound", "outbound"].into_iter().zip(&mut ways) {
            if let Some(second) = children(node, name).nth(1) {
                errors.push(source.error_at_element(
                    second,
                    name,
                    format!("there are two <{name}> elements here; keep one of them"),
                ));
            }
            let Some(element) = child(node, name) else { continue };
            for attribute in element.attributes() {
                let value = attribute.value().trim().parse::<u64>();
                let key = match attribute.name() {
                    "average" => &mut way.average,
                    "peak" => &mut way.peak,
                    "burst" => &mut way.burst,
                    "floor" => &mut way.floor,
                    other => {
                        let message =
                            format!("<{name}> has no attribute {other}; known: average, peak, burst, floor");
                        errors.push(source.error_at_attribute(attribute, name, message));
                        continue;
                    }
                };
                match value {
                    Ok(value) => *key = Some(value),
                    Err(_) => {
                        let message =
                            format!("expected a whole number of kilobytes, not \"{}\"", attribute.value());
                        errors.push(source.error_at_attribute(attribute, name, message));
                    }
                }
            }
        }
        let [inbound, outbound] = ways;
        if errors.is_empty() {
            Ok(Self { node, inbound, outbound, open_vswitch: false })
        } else {
            Err(errors)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn rates_count_in_thousands_and_bursts_in_powers_of_two() {
        let way = DirectionLimits { average: Some(1000), peak: Some(2000), burst: Some(128), floor: None };
        let limit = way.limit().expect("in range");
        assert_eq!(limit.max, Rate::from_bits(8_000_000));
        assert_eq!(limit.burst, Some(Bytes::new(131_072)));
        assert_eq!(way.untranslated_notes("inbound").len(), 1);
        let floor = DirectionLimits { floor: Some(200), ..DirectionLimits::default() };
        assert_eq!(floor.limit(), Ok(Limit::default()));
        assert!(floor.untranslated_notes("inbound")[0].contains("floor 200 is not kept"));
        // `virsh domiftune` writes this for "no limit".
        let none = DirectionLimits { average: Some(0), peak: Some(0), burst: Some(0), floor: Some(0) };
        assert_eq!((none.limit(), none.untranslated_notes("outbound")), (Ok(Limit::default()), vec![]));
    }

    proptest! {
        /// Either exactly libvirt's request to tc, or a refusal.
        #[test]
        fn translated_limits_are_exact(average in 1_u64.., burst in 1_u64..) {
            let way = DirectionLimits { average: Some(average), burst: Some(burst), ..DirectionLimits::default() };
            let fits = u128::from(average) * 8000 <= 400_000_000_000 && u128::from(burst) * 1024 <= 1_000_000_000;
            match way.limit() {
                Ok(Limit { max: Some(max), burst: Some(bytes) }) => {
                    prop_assert!(fits);
                    prop_assert_eq!(u128::from(max.bits()), u128::from(average) * 8000);
                    prop_assert_eq!(u128::from(bytes.get()), u128::from(burst) * 1024);
                }
                Ok(other) => prop_assert!(false, "{other:?}"),
                Err(why) => prop_assert!(!fits, "{}", why),
            }
        }
    }
}
