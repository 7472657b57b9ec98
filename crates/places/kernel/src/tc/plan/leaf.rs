//! A root qdisc of ours, and a class of it with its queue: the steps that set them.

use crate::handle::Handle;
use crate::tc::class::HtbClass;
use crate::tc::network::{Class, Netdev, Qdisc, Setting};
use crate::tc::owner;
use crate::tc::queueing::Waiting;
use crate::tc::step::{Device, Step};

pub fn has_root(link: &Netdev, setting: &Setting) -> bool {
    link.root_is_ours() && link.root().is_some_and(|q| q.setting == *setting)
}

pub fn root(device: Device, setting: Setting, replace: bool) -> Step {
    Step::SetQdisc { device, parent: Handle::ROOT, handle: owner::ROOT_QDISC, setting, replace }
}

/// A wanted class with its queue.
pub struct Leaf {
    pub class: HtbClass,
    pub parent: Handle,
    pub waiting: Waiting,
}

/// Sets a class with its queue; `known` and `qdisc` are the observed ones.
pub fn set_leaf<'a>(
    steps: &mut Vec<Step>,
    device: &Device,
    known: Option<&Class>,
    qdisc: impl Fn(Handle) -> Option<&'a Qdisc>,
    id: Handle,
    leaf: &Leaf,
) {
    set_class(steps, device, known, id, leaf.parent, leaf.class);
    let there = |parent| qdisc(parent).filter(|_| known.is_some());
    let set = |parent, handle, setting: &Setting| {
        let (device, setting) = (device.clone(), setting.clone());
        Step::SetQdisc { device, parent, handle, setting, replace: true }
    };
    let Waiting { cut, queue, .. } = &leaf.waiting;
    let (parent, current) = match cut {
        None => match there(id) {
            // Another program gave our cutter's handle to a queue. The kernel would change a qdisc of the
            // same kind in place, with its handle, and the queue would look like a cutter without a queue.
            Some(q) if q.handle == owner::cutter(id) && q.setting.kind() == queue.kind() => {
                steps.push(Step::DeleteQdisc { device: device.clone(), parent: id, handle: q.handle });
                (id, None)
            }
            found => (id, found),
        },
        Some(cut) => {
            let handle = owner::cutter(id);
            let named = there(id).filter(|q| q.handle == handle);
            let changed = named.filter(|q| q.setting.kind() == cut.kind());
            if named.is_some() && changed.is_none() {
                // Another program gave its handle to a qdisc of another kind, which the kernel cannot
                // change into ours.
                steps.push(Step::DeleteQdisc { device: device.clone(), parent: id, handle });
            }
            if changed.is_none_or(|q| q.setting != *cut) {
                steps.push(set(id, handle, cut));
            }
            let below = owner::below(handle);
            // A remade cutter has none.
            (below, changed.and_then(|_| there(below)))
        }
    };
    if current.is_none_or(|q| q.setting != *queue) {
        steps.push(set(parent, Handle::default(), queue));
    }
}

/// Sets a class; `known` is the observed one.
pub fn set_class(
    steps: &mut Vec<Step>,
    device: &Device,
    known: Option<&Class>,
    id: Handle,
    parent: Handle,
    class: HtbClass,
) {
    if known.is_none_or(|known| (known.parent, known.htb) != (parent, Some(class))) {
        steps.push(Step::SetClass { device: device.clone(), id, parent, class });
    }
}
