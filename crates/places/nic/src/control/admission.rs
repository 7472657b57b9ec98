//! Whether all that is promised on a link fits on it.
//!
//! ```text
//!  link:    sum of what is promised  <=  capacity       promised to a segment: its own minimum, or its functions'
//!  segment: sum of its functions'    <=  its maximum    minima together, whichever is more
//!  function: unit <= min <= max                         one without a minimum counts as one unit: a limit is never 0
//! ```

use super::terms::{LinkTerms, Member, Tenant};
use std::collections::BTreeSet;
use tidegate_contract::{Rate, Segment};

/// A promise that does not fit: where, and the numbers.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[allow(missing_docs, reason = "each variant's text names its fields")]
pub enum TermsError {
    /// The same function twice.
    #[error("VF {id} has two contracts; give it one")]
    Twice { id: u16 },
    /// The same tenant twice.
    #[error("segment {segment} has two aggregates; write one")]
    TenantTwice { segment: Segment },
    /// A weight out of range.
    #[error("VF {id}: weight {weight}; it must be 1 to 1000")]
    Weight { id: u16, weight: u32 },
    /// More is promised to a function than it may send.
    #[error("VF {id}: tx.min {min} is above tx.max {max}; lower tx.min or raise tx.max")]
    MinAboveMax { id: u16, min: Rate, max: Rate },
    /// A limit that the NIC cannot express.
    #[error("VF {id}: tx.max {max} is below {unit}, the least limit this NIC can set; write at least {unit}")]
    MaxBelowUnit { id: u16, max: Rate, unit: Rate },
    /// More is promised to a tenant than it may send.
    #[error(
        "segment {segment}: its min {min} is above its max {max}, in steps of {unit}; lower the one or raise the \
         other"
    )]
    TenantMinAboveMax { segment: Segment, min: Rate, max: Rate, unit: Rate },
    /// The promises to the functions of a segment exceed the segment's maximum.
    #[error(
        "segment {segment}: its {members} VFs are promised {needed} together (at least {unit} each), above its max \
         {max}; lower tx.min or raise the segment's max"
    )]
    TenantFull { segment: Segment, members: usize, needed: Rate, max: Rate, unit: Rate },
    /// More is promised than the link carries.
    #[error(
        "{members} VFs are promised {needed} together (at least {unit} each), above the link's capacity {capacity}; \
         lower tx.min of some, or their segments' min"
    )]
    LinkFull { members: usize, needed: Rate, capacity: Rate, unit: Rate },
}

impl TermsError {
    /// The function whose own terms are wrong; `None` if the terms of a segment, or of all functions together, are.
    pub fn function(&self) -> Option<u16> {
        match self {
            Self::Twice { id }
            | Self::Weight { id, .. }
            | Self::MinAboveMax { id, .. }
            | Self::MaxBelowUnit { id, .. } => Some(*id),
            Self::TenantTwice { .. }
            | Self::TenantMinAboveMax { .. }
            | Self::TenantFull { .. }
            | Self::LinkFull { .. } => None,
        }
    }
}

/// Whether the link can keep all of this at once.
///
/// # Errors
/// Everything that does not fit.
pub fn admissible(link: &LinkTerms, members: &[Member], tenants: &[Tenant]) -> Result<(), Vec<TermsError>> {
    let unit = link.unit;
    let mut refusals = Vec::new();
    let mut seen = BTreeSet::new();
    for &Member { id, max, min, weight, .. } in members {
        if !seen.insert(id) {
            refusals.push(TermsError::Twice { id });
        }
        if !(1..=1000).contains(&weight) {
            refusals.push(TermsError::Weight { id, weight });
        }
        match (max, min) {
            (Some(max), _) if link.units(max) == 0 => {
                refusals.push(TermsError::MaxBelowUnit { id, max, unit });
            }
            (Some(max), Some(min)) if min > max => refusals.push(TermsError::MinAboveMax { id, min, max }),
            _ => {}
        }
    }
    let promised = |member: &Member| link.units_of_min(member).unwrap_or(1);
    let mut segments = BTreeSet::new();
    let mut needed: u64 = 0;
    for &Tenant { segment, max, min } in tenants {
        if !segments.insert(segment.id()) {
            refusals.push(TermsError::TenantTwice { segment });
            continue;
        }
        let own: Vec<u64> = members.iter().filter(|m| m.segment == segment).map(promised).collect();
        let together = own.iter().sum::<u64>();
        if let (Some(min), Some(max)) = (min, max)
            && link.units_up(min) > link.units(max)
        {
            refusals.push(TermsError::TenantMinAboveMax { segment, min, max, unit });
        }
        if let Some(max) = max
            && together > link.units(max)
        {
            let needed = link.rate(together);
            refusals.push(TermsError::TenantFull { segment, members: own.len(), needed, max, unit });
        }
        // A tenant without functions here is promised nothing here.
        let aggregate = min.filter(|_| !own.is_empty()).map_or(0, |min| link.units_up(min));
        needed = needed.saturating_add(together.max(aggregate));
    }
    needed += members.iter().filter(|m| !segments.contains(&m.segment.id())).map(promised).sum::<u64>();
    if needed > link.units(link.capacity) {
        let (needed, capacity) = (link.rate(needed), link.capacity);
        refusals.push(TermsError::LinkFull { members: members.len(), needed, capacity, unit });
    }
    if refusals.is_empty() { Ok(()) } else { Err(refusals) }
}
