//! How the arrival time of frames in a device's queues is known, by its qdiscs. Pure.

use crate::ebpf::ArrivalSource;
use crate::handle::Handle;
use crate::tc::network::Netdev;
use crate::tc::owner;
use crate::tc::qdisc::Setting;

impl ArrivalSource {
    /// Returns it for the queue below a class of a device.
    pub fn to(link: &Netdev, class: Handle) -> Self {
        let Some(leaf) = link.leaf(class) else { return Self::Address };
        let cutter = owner::cutter(class);
        let (queue, is_cut) = match link.leaf(owner::below(cutter)) {
            Some(below) if leaf.handle == cutter => (below, true),
            _ => (leaf, false),
        };
        match queue.setting {
            Setting::FqCodel { .. } => Self::FqCodel,
            Setting::Cake { .. } => Self::Cake,
            Setting::Bfifo { .. } if link.congestion_map(owner::ROOT_QDISC).is_some() => Self::Stamped,
            _ if is_cut => Self::Unknown,
            _ => Self::Address,
        }
    }

    /// Returns it for a device; its classes' queues may differ.
    pub fn of(link: &Netdev) -> Self {
        let mut all = link.classes.iter().map(|class| class.id).filter(|id| link.leaf(*id).is_some());
        let first = all.next().map(|class| Self::to(link, class)).unwrap_or_default();
        if all.all(|class| Self::to(link, class) == first) { first } else { Self::Unknown }
    }
}
