//! The filter before a limit that marks congestion if frames wait in one queue for all.

use super::filters;
use crate::ebpf::congestion::VirtualQueue;
use crate::handle::Handle;
use crate::tc::network::{ANY_PROTOCOL, Filter, Netdev, Rule};
use crate::tc::owner::{self, Cookie};
use crate::tc::step::{Device, Step};

/// Sets the right filter of this qdisc, or none, and removes others of its preference; `link` if the qdisc
/// exists.
pub fn set(
    steps: &mut Vec<Step>,
    device: &Device,
    link: Option<&Netdev>,
    parent: Handle,
    wanted: Option<VirtualQueue>,
    cookie: Cookie,
) {
    let filters = || link.into_iter().flat_map(|link| link.filters_at(parent));
    let place = |f: &&Filter| f.marks_congestion() && f.place() == (0, owner::MARK_PREFERENCE, ANY_PROTOCOL);
    let there = filters().find(place).filter(|_| wanted.is_some());
    filters::delete(steps, device, filters(), |f| {
        // Our root qdisc is ours with all in it.
        let others = parent == owner::ROOT_QDISC && f.cookie().is_none();
        (others || f.marks_congestion()) && !there.is_some_and(|there| std::ptr::eq(there, f))
    });
    let Some(queue) = wanted else { return };
    let instead = match there.map(|f| (&f.rule, f.handle)) {
        Some((Rule::MarkCongestion { queue: known, program, .. }, _))
            if *known == queue && program.is_current() =>
        {
            return;
        }
        Some((Rule::MarkCongestion { program, .. }, handle)) => Some((handle, program.map)),
        _ => None,
    };
    steps.push(Step::MarkCongestion { device: device.clone(), parent, queue, cookie, instead });
}
