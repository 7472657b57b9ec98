//! Which of the stages that other places report are taken. Pure.
//!
//! A program such as the host switch may lie about its ports, and the settings of a stage are written on its word.

use tidegate_contract::{Attach, Vnic};
use tidegate_cores::stage::{Handle, Stage};

/// Whether a place may report a stage: a stack is that of a queue of a contract's tap, and no other interface of the host.
pub fn may_be_reported<'a>(stage: &Stage, contracts: impl IntoIterator<Item = &'a Vnic>) -> bool {
    let Handle::Receive(queue) = &stage.handle else { return true };
    let has = |vnic: &Vnic| {
        let Attach::Tap { name, netns } = &vnic.attach else { return false };
        stage.vnics.contains(&vnic.name)
            && (name, netns) == (&queue.device, &queue.netns)
            && queue.queue < vnic.queues
    };
    contracts.into_iter().any(has)
}

#[cfg(test)]
mod tests {
    use super::*;
    use tidegate_cores::cpus::Cpus;
    use tidegate_cores::stage::Queue;
    use tidegate_testkit::contract::{tap, vnic};

    #[test]
    fn a_place_reports_stacks_of_contracts_taps_alone() {
        let contracts = [Vnic { attach: tap("tg0"), queues: 2, ..vnic("a", 1) }, vnic("b", 2)];
        let stack = |vnic: &str, device: &str, queue, netns: Option<&str>| Stage {
            handle: Handle::Receive(Queue { netns: netns.map(Into::into), device: device.into(), queue }),
            vnics: vec![vnic.into()],
            realtime: false,
            load: 0,
            measured: false,
            present: Cpus::new(),
            pinned_by: None,
        };
        assert!(may_be_reported(&stack("a", "tg0", 1, None), &contracts));
        for wrong in [
            stack("a", "eth0", 0, None),
            stack("b", "tg0", 0, None),
            stack("a", "tg0", 2, None),
            stack("a", "tg0", 0, Some("/run/netns/x")),
        ] {
            assert!(!may_be_reported(&wrong, &contracts), "{}", wrong.handle);
        }
        let worker = Stage { handle: Handle::Worker(0), ..stack("", "", 0, None) };
        assert!(may_be_reported(&worker, &contracts));
    }
}
