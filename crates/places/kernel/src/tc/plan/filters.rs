//! Removal of filters.

use crate::tc::network::Filter;
use crate::tc::step::{Device, Step};

/// Deletes the filters of `there`, which are of one qdisc, that `go` selects. If all of a preference in a
/// chain go, the preference goes too: u32 would leave it behind, empty, while another of its kind is beside
/// it (`u32_delete`, net/sched/cls_u32.c).
pub fn delete<'a>(
    steps: &mut Vec<Step>,
    device: &Device,
    there: impl Iterator<Item = &'a Filter> + Clone,
    go: impl Fn(&Filter) -> bool,
) {
    let mut whole = Vec::new();
    for filter in there.clone().filter(|f| go(f)) {
        let mut filter = filter.clone();
        if there.clone().filter(|f| f.place() == filter.place()).all(&go) {
            if whole.contains(&filter.place()) {
                continue;
            }
            whole.push(filter.place());
            filter.handle = Filter::ALL;
        }
        steps.push(Step::DeleteFilter { device: device.clone(), filter });
    }
}
