//! A guest's memory as the device may read it: its regions, registered.
//!
//! ```text
//!  GuestMemory │ region │ region │ ─ Registered ─▶ GuestRegions ─▶ Tables in force ─▶ Span ─ find ─▶ region, place in it
//!       ▲ kept mapped                   │                └ last drop: no device reads it
//!                                       └ last drop ─▶ deregistered by another thread ─▶ unmapped
//! ```
//!
//! As long as the regions are there, the memory is mapped, and no other memory has its addresses: a span of another memory
//! table is in none of them.

use super::counters::GuestCounters;
use crate::fdb::PortIndex;
use crate::virtio::{GuestMemory, Span};
use std::any::Any;
use std::fmt;
use std::sync::Arc;
use tidegate_verbs::Region;

/// Drops things elsewhere: deregistering unpins all pages, which may take long.
pub type GiveUp = Box<dyn FnOnce(Box<dyn Any + Send>) + Send + Sync>;

/// A guest's memory table, registered with a device.
pub struct Registered {
    /// By address in this process; disjoint. Before the memory: deregistered first.
    regions: Vec<Region>,
    memory: Arc<GuestMemory>,
    give_up: Option<GiveUp>,
}

/// The registered memory of a port's guest, while a link uses it.
#[derive(Debug)]
pub struct GuestRegions {
    /// The port.
    pub port: PortIndex,
    registered: Arc<Registered>,
    counters: Arc<GuestCounters>,
    /// Its drop tells that the device is done.
    _in_use: Option<Box<dyn Any + Send + Sync>>,
}

impl Registered {
    /// Returns `memory` with its regions, each registered.
    pub fn new(memory: Arc<GuestMemory>, mut regions: Vec<Region>) -> Self {
        regions.sort_by_key(|region| region.start().addr());
        Self { regions, memory, give_up: None }
    }

    /// Lets `give_up` deregister it, whichever thread drops the last reference.
    #[must_use]
    pub fn given_up_by(mut self, give_up: GiveUp) -> Self {
        self.give_up = Some(give_up);
        self
    }

    /// Returns the memory.
    pub fn memory(&self) -> &Arc<GuestMemory> {
        &self.memory
    }

    /// Returns how many bytes are registered.
    pub fn bytes(&self) -> u64 {
        self.regions.iter().map(|region| region.len() as u64).sum()
    }
}

impl GuestRegions {
    /// Returns the regions of `memory`, each registered.
    pub fn new(port: PortIndex, memory: Arc<GuestMemory>, regions: Vec<Region>) -> Self {
        let registered = Arc::new(Registered::new(memory, regions));
        Self { port, registered, counters: Arc::default(), _in_use: None }
    }

    /// Returns the regions of the memory of a port's guest, and drops `in_use` when no link and no device uses them any more.
    pub fn in_use(port: PortIndex, registered: Arc<Registered>, in_use: impl Any + Send + Sync) -> Self {
        Self { port, registered, counters: Arc::default(), _in_use: Some(Box::new(in_use)) }
    }

    /// Counts there what is not copied.
    #[must_use]
    pub fn counting(self, counters: &Arc<GuestCounters>) -> Self {
        Self { counters: counters.clone(), ..self }
    }

    /// Returns where it is counted what is not copied.
    #[inline]
    pub fn counters(&self) -> &Arc<GuestCounters> {
        &self.counters
    }

    /// Returns the region that has all bytes of a span, and the place of the first one in it.
    #[inline]
    pub fn find(&self, span: &Span) -> Option<(&Region, usize)> {
        let (number, from) = self.locate(span, 0)?;
        Some((self.region(number)?, from))
    }

    /// Returns the number of the region that has all bytes of a span, and the place of the first one in it; the region of the
    /// number `guess` is looked at first.
    #[inline]
    pub fn locate(&self, span: &Span, guess: u16) -> Option<(u16, usize)> {
        let has = |region: &Region| {
            let from = span.ptr.addr().checked_sub(region.start().addr())?;
            (span.len as usize <= region.len().checked_sub(from)?).then_some(from)
        };
        if let Some(from) = self.region(guess).and_then(has) {
            return Some((guess, from));
        }
        let behind =
            self.registered.regions.partition_point(|region| region.start().addr() <= span.ptr.addr());
        let number = u16::try_from(behind.checked_sub(1)?).ok()?;
        Some((number, has(self.region(number)?)?))
    }

    /// Returns the region of a number.
    #[inline]
    pub fn region(&self, number: u16) -> Option<&Region> {
        self.registered.regions.get(usize::from(number))
    }

    /// Returns the memory.
    pub fn memory(&self) -> &Arc<GuestMemory> {
        &self.registered.memory
    }
}

impl Drop for Registered {
    fn drop(&mut self) {
        if let Some(give_up) = self.give_up.take() {
            give_up(Box::new((std::mem::take(&mut self.regions), self.memory.clone())));
        }
    }
}

impl fmt::Debug for Registered {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Registered").field("regions", &self.regions).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::super::testing::side;
    use super::*;
    use crate::virtio::memory::RegionSpec;
    use proptest::prelude::*;
    use std::sync::atomic::{AtomicUsize, Ordering};
    use tidegate_frontend::memory::SharedMemory;
    use tidegate_verbs::simulated::Fabric;

    const SIZE: usize = 4 << 12;

    fn memory() -> Arc<GuestMemory> {
        let shared = SharedMemory::new(0, SIZE).unwrap();
        let fd = shared.fd().try_clone_to_owned().unwrap();
        let spec = RegionSpec { guest_addr: 0, user_addr: 0, size: SIZE as u64, mmap_offset: 0, fd };
        Arc::new(GuestMemory::map(vec![spec]).unwrap())
    }

    fn regions(count: usize) -> Vec<Region> {
        let side = side(&Fabric::new(), [127, 0, 0, 1].into());
        let region = |_| Arc::into_inner(Region::new(&side.setup.device, SIZE).unwrap()).unwrap();
        (0..count).map(region).collect()
    }

    proptest! {
        /// Against a look at each region.
        #[test]
        fn a_span_is_in_the_region_that_has_all_of_it(
            count in 0..5usize,
            which in 0..5usize,
            from in -64..(SIZE as isize + 64),
            len in prop_oneof![0..64u32, 0..2 * SIZE as u32, Just(u32::MAX)],
        ) {
            let regions = regions(count);
            let places: Vec<usize> = regions.iter().map(|region| region.start().addr()).collect();
            let guest = GuestRegions::new(3, memory(), regions);
            let start = places.get(which).copied().unwrap_or(SIZE);
            let ptr = start.wrapping_add_signed(from);
            let span = Span { ptr: std::ptr::without_provenance_mut(ptr), len };
            let has_all = |place: &&usize| ptr >= **place && ptr + len as usize <= **place + SIZE;
            let expected: Vec<_> = places.iter().filter(has_all).map(|place| (*place, ptr - place)).collect();
            let found = guest.find(&span).map(|(region, from)| (region.start().addr(), from));
            // An empty span may be at the end of one and the beginning of the next.
            prop_assert!(expected.is_empty() == found.is_none() && found.is_none_or(|found| expected.contains(&found)));
            for guess in 0..6 {
                let located = guest.locate(&span, guess);
                let located = located.map(|(number, from)| (guest.region(number).unwrap().start().addr(), from));
                prop_assert!(expected.is_empty() == located.is_none());
                prop_assert!(located.is_none_or(|found| expected.contains(&found)));
            }
        }
    }

    #[test]
    fn they_are_given_up_with_the_last_reference_and_keep_the_memory_mapped() {
        static GIVEN_UP: AtomicUsize = AtomicUsize::new(0);
        let memory = memory();
        let give_up = |thing| {
            GIVEN_UP.fetch_add(1, Ordering::Relaxed);
            drop::<Box<dyn Any + Send>>(thing);
        };
        let registered = Registered::new(memory.clone(), regions(1)).given_up_by(Box::new(give_up));
        let used = Arc::new(());
        let guest = Arc::new(GuestRegions::in_use(3, Arc::new(registered), used.clone()));
        let other = guest.clone();
        drop(guest);
        let now = || (GIVEN_UP.load(Ordering::Relaxed), Arc::strong_count(&used), Arc::strong_count(&memory));
        assert_eq!(now(), (0, 2, 2));
        drop(other);
        assert_eq!(now(), (1, 1, 1));
    }
}
