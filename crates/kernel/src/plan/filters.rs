//! Filters that go.

use crate::network::Filter;
use crate::step::{Device, Step};

/// Deletes those of `there`, the filters at one place, that `go`. Where all of a preference do, the preference goes with
/// them: u32 would leave it behind, empty, while another of its kind is beside it (`u32_delete`, net/sched/cls_u32.c).
pub fn delete<'a>(
    steps: &mut Vec<Step>,
    device: &Device,
    there: impl Iterator<Item = &'a Filter> + Clone,
    go: impl Fn(&Filter) -> bool,
) {
    let group = |filter: &Filter| (filter.preference, filter.protocol);
    let mut whole = Vec::new();
    for filter in there.clone().filter(|f| go(f)) {
        let mut filter = filter.clone();
        if there.clone().filter(|f| group(f) == group(&filter)).all(&go) {
            if whole.contains(&group(&filter)) {
                continue;
            }
            whole.push(group(&filter));
            filter.handle = Filter::ALL;
        }
        steps.push(Step::DeleteFilter { device: device.clone(), filter });
    }
}
