//! Host resources that several places take from: CPUs and budgets. Pure.
//!
//! ```text
//!  place 1: plan ─▶ claims ─┐
//!  place 2: plan ─▶ claims ─┼─▶ conflicts ─▶ none: the places act
//!  place 3: plan ─▶ claims ─┘        └▶ some: refused, naming both places, before any place acts
//! ```
//!
//! Places plan in their order. Each sees the claims of those before it in [`Wanted::claims`](crate::Wanted::claims), so a place that
//! hands resources out, such as CPUs, stands behind those that ask for them.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

/// A resource of the host.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Resource {
    /// A logical CPU, by the kernel's number.
    Cpu(usize),
    /// A budget with a unit of its own, such as locked memory in bytes.
    Budget {
        /// Its name in messages, with the unit.
        name: &'static str,
        /// Its size, in that unit.
        size: u64,
    },
}

impl fmt::Display for Resource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Cpu(number) => write!(f, "CPU {number}"),
            Self::Budget { name, .. } => f.write_str(name),
        }
    }
}

/// The part of a resource that a claim takes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Part {
    /// All of it, with no other place.
    All,
    /// A use that leaves room for others.
    Shared,
    /// This much of a budget.
    Amount(u64),
}

/// A place's claim to a host resource.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Claim {
    /// The resource.
    pub resource: Resource,
    /// The part of it.
    pub part: Part,
    /// The vNIC that needs it; `None` if the place as a whole does.
    pub vnic: Option<String>,
    /// The purpose, in words, such as `the worker of real-time vNICs`.
    pub purpose: String,
}

/// A resource that places need more than once.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Conflict<'a> {
    /// The places that claim the resource: none of them can act.
    pub places: BTreeSet<&'a str>,
    /// The resource and the claims, in words.
    pub reason: String,
}

/// Conflicts between the claims of places; empty if the places agree.
///
/// Claims of one place do not conflict with each other, except that their amounts add up.
pub fn conflicts<'a>(claims: impl IntoIterator<Item = (&'a str, &'a Claim)>) -> Vec<Conflict<'a>> {
    let mut by_resource = BTreeMap::<&Resource, Vec<(&str, &Claim)>>::new();
    for (place, claim) in claims {
        by_resource.entry(&claim.resource).or_default().push((place, claim));
    }
    let conflict = |(resource, claims): (&Resource, Vec<(&'a str, &Claim)>)| {
        let places = claims.iter().map(|(place, _)| *place).collect();
        Some(Conflict { places, reason: conflict(resource, &claims)? })
    };
    by_resource.into_iter().filter_map(conflict).collect()
}

fn conflict(resource: &Resource, claims: &[(&str, &Claim)]) -> Option<String> {
    let describe = |(place, claim): &(&str, &Claim)| {
        let vnic = claim.vnic.as_ref().map_or_else(String::new, |vnic| format!(" (vNIC {vnic})"));
        format!("place {place} for {}{vnic}", claim.purpose)
    };
    if let Some(owner) = claims.iter().find(|(_, claim)| claim.part == Part::All)
        && let Some(other) = claims.iter().find(|(place, _)| *place != owner.0)
    {
        return Some(format!(
            "{resource} is needed twice: by {}, which shares it with no other place, and by {}",
            describe(owner),
            describe(other)
        ));
    }
    let Resource::Budget { size, .. } = resource else { return None };
    let amount = |(_, claim): &(&str, &Claim)| if let Part::Amount(n) = claim.part { n } else { 0 };
    let sum: u64 = claims.iter().map(amount).fold(0, u64::saturating_add);
    (sum > *size).then(|| {
        let all: Vec<String> =
            claims.iter().map(|claim| format!("{} by {}", amount(claim), describe(claim))).collect();
        format!("{resource}: the host has {size}, and {sum} are needed: {}", all.join(", "))
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn cpu(number: usize, part: Part) -> Claim {
        Claim { resource: Resource::Cpu(number), part, vnic: None, purpose: "a test".into() }
    }

    #[test]
    fn a_cpu_that_one_place_needs_alone_is_refused_to_others() {
        let (alone, shared) = (cpu(3, Part::All), cpu(3, Part::Shared));
        assert!(conflicts([("a", &alone), ("a", &shared)]).is_empty());
        assert!(conflicts([("a", &shared), ("b", &shared)]).is_empty());
        assert!(conflicts([("a", &alone), ("b", &cpu(2, Part::All))]).is_empty());
        for claims in [[("a", &alone), ("b", &shared)], [("b", &shared), ("a", &alone)]] {
            let reason = "CPU 3 is needed twice: by place a for a test, which shares it with no other place, and by place b for a \
                          test";
            assert_eq!(conflicts(claims), [Conflict { places: ["a", "b"].into(), reason: reason.into() }]);
        }
    }

    proptest! {
        #[test]
        fn a_budget_is_not_overbooked(size in 0u64..20, amounts in prop::collection::vec((0u8..3, 0u64..10), 0..6)) {
            let budget = Resource::Budget { name: "locked memory (bytes)", size };
            let claim = |amount| Claim {
                resource: budget.clone(), part: Part::Amount(amount), vnic: Some("v".into()), purpose: "rings".into(),
            };
            let claims: Vec<(&str, Claim)> =
                amounts.iter().map(|(place, amount)| (["a", "b", "c"][usize::from(*place)], claim(*amount))).collect();
            let fits = amounts.iter().map(|(_, amount)| amount).sum::<u64>() <= size;
            prop_assert_eq!(conflicts(claims.iter().map(|(place, claim)| (*place, claim))).is_empty(), fits);
        }
    }
}
