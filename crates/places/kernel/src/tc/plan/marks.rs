//! The filter at the ingress that sets or clears priority marks.
//!
//! It decides nothing else, so without a tx limit foreign filters work beside it. Its preference must be
//! its own: a filter with a lower one may end the search before it.

use super::filters;
use crate::ebpf::mark::Marks;
use crate::handle::Handle;
use crate::tc::network::{ANY_PROTOCOL, Filter, Netdev, Rule};
use crate::tc::owner::{self, Cookie};
use crate::tc::shaping::{NetdevRefusal, Sides};
use crate::tc::step::{Device, Step};

/// Refuses marks that are impossible, or in whose way foreign filters are. At a limited ingress those are
/// refused anyway.
pub fn refuse(link: &Netdev, wanted: Option<Marks>, sides: Sides, owned: bool) -> Result<(), NetdevRefusal> {
    let name = &link.name;
    if sides.marks.is_none() && matches!(wanted, Some(Marks::Set { .. })) {
        return Err(NetdevRefusal::new(
            name,
            format!(
                "interface {name} is a macvtap: frames of its VM enter this host by no device, so they cannot be \
                 marked as real-time; leave the deadline out, or give its VM a tap"
            ),
        ));
    }
    match link.others_at_ingress().find(|f| is_in_the_way(f)) {
        Some(Filter { kind, preference, .. }) if sides.marks.is_some() && !owned => Err(NetdevRefusal::new(
            name,
            format!(
                "interface {name} has a {kind} filter of preference {preference} at its ingress, which another \
                 program made, and marks of real-time traffic have to be read before that filter; give it another \
                 preference, from {} on",
                owner::PREFERENCE
            ),
        )),
        _ => Ok(()),
    }
}

fn is_in_the_way(filter: &Filter) -> bool {
    filter.chain == 0 && filter.cookie().is_none() && filter.preference <= owner::MARK_PREFERENCE
}

/// Sets the right filter, and removes others that mark or are in its way.
pub fn set(steps: &mut Vec<Step>, device: &Device, link: &Netdev, sides: Sides, cookie: Cookie) {
    let Some(marks) = sides.marks else { return };
    let place = |f: &&Filter| f.marks() && f.place() == (0, owner::MARK_PREFERENCE, ANY_PROTOCOL);
    let there = link.filters_at(Handle::INGRESS).find(place);
    filters::delete(steps, device, link.filters_at(Handle::INGRESS), |f| {
        // At a limited ingress foreign filters have gone by now.
        let others = is_in_the_way(f) && !sides.limits_ingress();
        others || f.marks() && !there.is_some_and(|there| std::ptr::eq(there, f))
    });
    let instead = match there.map(|f| (&f.rule, f.handle)) {
        Some((Rule::Mark { marks: known, program, .. }, _)) if *known == marks && program.is_current() => {
            return;
        }
        Some((Rule::Mark { program, .. }, handle)) => Some((handle, program.map)),
        _ => None,
    };
    steps.push(Step::Mark { device: device.clone(), marks, cookie, instead });
}
