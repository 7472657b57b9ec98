//! The kernel's qdiscs for short queues, at the last probe.
//!
//! A probe takes a network namespace, so its result is stored; but a module can be loaded later. So a
//! contract is called impossible only after another probe.

use crate::tc::{Flows, Qdiscs};
use std::cell::Cell;

pub(super) struct KnownQdiscs {
    probe: fn() -> Result<Qdiscs, String>,
    known: Cell<Option<Qdiscs>>,
}

impl KnownQdiscs {
    pub(super) fn new(probe: fn() -> Result<Qdiscs, String>) -> Self {
        Self { probe, known: Cell::new(None) }
    }

    /// Returns the last result; none if a probe is impossible.
    pub(super) fn get(&self) -> Qdiscs {
        self.known.get().unwrap_or_else(|| self.ask())
    }

    /// Probes the kernel once more if a coming contract's flows cannot wait in the known qdiscs.
    pub(super) fn check(&self, mut coming: impl Iterator<Item = Flows>) {
        let short = |flows: Flows| {
            let here = Flows { kernel: self.get(), ..flows };
            here.refusal().is_some() || here.note().is_some()
        };
        if self.known.get().is_some() && coming.any(short) {
            self.ask();
        }
    }

    fn ask(&self) -> Qdiscs {
        let has = (self.probe)().inspect_err(|why| tracing::warn!("{why}")).unwrap_or_default();
        self.known.set(Some(has));
        has
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn flows(per_host: bool) -> Flows {
        let kernel = Qdiscs::default();
        Flows { target: 5_000_000, interval: 100_000_000, per_host, frame: 1518, kernel }
    }

    thread_local! {
        static KERNEL: Cell<Qdiscs> = Cell::default();
        static ASKED: Cell<u32> = Cell::default();
    }

    fn probe() -> Result<Qdiscs, String> {
        ASKED.set(ASKED.get() + 1);
        if ASKED.get() == 1 { Err("no network namespace".into()) } else { Ok(KERNEL.get()) }
    }

    #[test]
    fn a_qdisc_loaded_later_is_found_by_the_next_contract_that_needs_it() {
        let known = KnownQdiscs::new(probe);
        let has = Qdiscs { tbf: true, fq_codel: true, ..Qdiscs::default() };
        KERNEL.set(has);
        assert_eq!(
            (known.get(), known.get(), ASKED.get()),
            (Qdiscs::default(), Qdiscs::default(), 1),
            "kept"
        );
        known.check([flows(false)].into_iter());
        assert_eq!((known.get(), ASKED.get()), (has, 2), "also a failure, until it matters");
        known.check([flows(false)].into_iter());
        assert_eq!(ASKED.get(), 2, "nothing is missing");
        KERNEL.set(Qdiscs { cake: true, ..has });
        known.check([flows(false), flows(true)].into_iter());
        assert!(known.get().cake, "modprobe sch_cake");
        known.check([flows(false), flows(true)].into_iter());
        assert_eq!(ASKED.get(), 3);
    }
}
