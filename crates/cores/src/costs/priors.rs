//! Costs before anything was measured: the findings of VSE's CPU allocation model as numbers.
//!
//! Only the order of the numbers is from there; the tests at the end of this file state each finding as an inequality of the planner's
//! cost. Their sizes are of the order of a cache miss (100 ns), a wake-up of another CPU (1 us), and a context switch (2 us).
//!
//! Finding | Number
//! ---|---
//! vhost-net apart from HW-IRQ and SW-IRQ, together with its VM: fastest | `Vhost`-`Vcpu` shares well, and hands over dearly between CPUs
//! SW-IRQ and vhost-net on one core: slower | `SoftIrq`-`Vhost`
//! SW-IRQ and VM on one core: under 5 Gbit/s, the worst | `SoftIrq`-`Vcpu`
//! two SW-IRQs on one core hurt more than two vhost-nets | `SoftIrq`-`SoftIrq` above `Vhost`-`Vhost`
//! two flows of one VM on two cores do no harm | no cost: their stages hand nothing to each other
//!
//! The first finding holds for vhost-net, which sleeps while its guest runs. A worker of the host switch polls: it and a vCPU on one
//! CPU take turns of whole time slices.

use super::{Costs, PairCost, Source};
use crate::stage::Kind::{self, Emulator, HardIrq, SoftIrq, Transmit, Vcpu, Vhost, Worker};

/// One, the other, sharing, handover.
type Row = (Kind, Kind, u32, [u32; 5]);

/// What a handover costs where nothing better is known: a cache line or two, from farther and farther away.
const LINES: [u32; 5] = [60, 100, 180, 300, 600];
/// A wake-up of the other thread, and its cache lines.
const WAKE: [u32; 5] = [200, 500, 800, 1100, 2000];
/// A frame between a thread that polls, and one that finds it in memory.
const POLLED: [u32; 5] = [200, 120, 200, 350, 800];

const ROWS: [Row; 28] = [
    // A NIC's interrupt and its softirq: the softirq runs where the interrupt hit, unless it is sent to another CPU (RPS, cpumap).
    (HardIrq, HardIrq, 100, LINES),
    (HardIrq, SoftIrq, 50, [50, 200, 350, 600, 1200]),
    (HardIrq, Vhost, 400, LINES),
    (HardIrq, Vcpu, 600, LINES),
    (HardIrq, Emulator, 50, LINES),
    (HardIrq, Transmit, 50, LINES),
    // Two flows' SW-IRQ on one core hurts more than two vhost-nets; SW-IRQ and VM is the worst pair, SW-IRQ and vhost-net is slower.
    (SoftIrq, SoftIrq, 800, LINES),
    (SoftIrq, Vhost, 600, [150, 300, 500, 800, 1500]),
    (SoftIrq, Vcpu, 1500, [150, 300, 500, 800, 1500]),
    (SoftIrq, Emulator, 100, LINES),
    (SoftIrq, Transmit, 100, LINES),
    // vhost-net and its VM together: fastest.
    (Vhost, Vhost, 200, LINES),
    (Vhost, Vcpu, 50, WAKE),
    (Vhost, Emulator, 50, LINES),
    (Vhost, Transmit, 30, LINES),
    // Not from the paper: threads that the scheduler switches between.
    (Vcpu, Vcpu, 200, WAKE),
    (Vcpu, Emulator, 100, WAKE),
    (Vcpu, Transmit, 50, LINES),
    (Emulator, Emulator, 30, WAKE),
    (Emulator, Transmit, 30, LINES),
    (Transmit, Transmit, 30, LINES),
    // Not from the paper: a thread that polls beside another leaves it turns of whole time slices.
    (HardIrq, Worker, 800, POLLED),
    (SoftIrq, Worker, 2500, POLLED),
    (Vhost, Worker, 2500, POLLED),
    (Vcpu, Worker, 4000, POLLED),
    (Emulator, Worker, 500, POLLED),
    (Worker, Transmit, 100, [20, 60, 120, 250, 500]),
    // Within one worker a frame goes from ring to ring; between two it crosses, and its fate comes back.
    (Worker, Worker, 4000, [0, 150, 250, 400, 800]),
];

impl Costs {
    /// Returns the findings of the paper on VSE's CPU allocation model as numbers.
    pub fn priors() -> Self {
        let pairs = ROWS.iter().map(|(one, other, sharing, handover)| PairCost {
            one: *one,
            other: *other,
            sharing: *sharing,
            handover: *handover,
        });
        // Two busy threads of one core get about 1.3 times as much done as one: each loses a third.
        Self { pairs: pairs.collect(), sibling: 350, source: Source::Priors }
    }
}
