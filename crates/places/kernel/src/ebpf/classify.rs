//! From a frame's netdev of origin to its class: the program of `classify.bpf.c`, loaded once for each root
//! qdisc with a class per netdev.
//!
//! ```text
//!  Classifier, with a map of its own ─▶ filter of the root qdisc, which keeps both
//!                                          │
//!         number of the map, in the filter's name ─▶ Classes::open ─▶ read, set, remove, double_tagged
//! ```
//!
//! No process needs to hold the map: it lives with the filter, whose name leads to it
//! ([`crate::tc::owner`]), so another agent reads the entries of this one.

use crate::handle::{Handle, MAJOR};
use libbpf_rs::{MapCore, MapFlags, MapHandle, Object, ObjectBuilder};
use std::collections::BTreeMap;
use std::os::fd::{AsFd, BorrowedFd};

const PROGRAM: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/classify.bpf.o"));

/// Entries per read: more than the map has. The kernel ends a batch before a bucket that does not fit its
/// rest, and libbpf-rs takes a partial batch for the last one.
const BATCH: u32 = 65536;

/// Frames cannot be classified, or a map cannot be read or changed.
#[derive(Debug, thiserror::Error)]
#[error("cannot {what}: {source}")]
pub struct ClassifyError {
    what: &'static str,
    source: libbpf_rs::Error,
}

impl ClassifyError {
    /// Whether the map is gone, with its filter.
    pub fn is_gone(&self) -> bool {
        self.source.kind() == libbpf_rs::ErrorKind::NotFound
    }
}

fn failed(what: &'static str) -> impl FnOnce(libbpf_rs::Error) -> ClassifyError {
    move |source| ClassifyError { what, source }
}

/// A loaded program with an empty map, at no qdisc yet.
#[derive(Debug)]
pub struct Classifier {
    object: Object,
}

impl Classifier {
    /// Loads it for the root qdisc of the IFB, where it drops and counts frames that would be damaged.
    ///
    /// # Errors
    /// No right to (`CAP_BPF` and `CAP_NET_ADMIN`), or the kernel refuses it.
    pub fn for_ifb() -> Result<Self, ClassifyError> {
        Self::load(true)
    }

    /// Loads it for the root qdisc of a netdev.
    ///
    /// # Errors
    /// As for [`Self::for_ifb`].
    pub fn for_egress() -> Result<Self, ClassifyError> {
        Self::load(false)
    }

    fn load(is_ifb: bool) -> Result<Self, ClassifyError> {
        let mut builder = ObjectBuilder::default();
        let mut opened = builder.open_memory(PROGRAM).map_err(failed("read the eBPF classifier"))?;
        let mut constants = opened.maps_mut().find(|map| map.name().to_string_lossy().ends_with(".rodata"));
        let constants = constants.as_mut().expect("classify.bpf.c has constants");
        let set = constants.set_initial_value(&u64::from(is_ifb).to_ne_bytes());
        set.map_err(failed("set the constants of the eBPF classifier"))?;
        let object = opened.load().map_err(failed("load the eBPF classifier"))?;
        Ok(Self { object })
    }

    /// Passes the program to `work`, for a filter in direct action.
    ///
    /// # Panics
    /// Never: it is in the loaded object.
    pub fn with_program<T>(&self, work: impl FnOnce(BorrowedFd<'_>) -> T) -> T {
        let program = self.object.progs().next().expect("classify.bpf.c has a program");
        work(program.as_fd())
    }

    /// Returns its map.
    ///
    /// # Errors
    /// The kernel refuses access.
    pub fn classes(&self) -> Result<Classes, ClassifyError> {
        let map = self.object.maps().find(|map| map.name() == "classes");
        let map = map.expect("classify.bpf.c has a map of this name");
        let map = MapHandle::try_from(&map).map_err(failed("reach the map of the eBPF classifier"))?;
        let info = map.info().map_err(failed("tell the number of an eBPF map"))?;
        Ok(Classes { number: info.info.id, map })
    }
}

/// The class of each netdev in a classifier's map.
#[derive(Debug)]
pub struct Classes {
    number: u32,
    map: MapHandle,
}

impl Classes {
    /// Opens the map with this number.
    ///
    /// # Errors
    /// It is gone, or no right to (`CAP_SYS_ADMIN`).
    pub fn open(number: u32) -> Result<Self, ClassifyError> {
        let map = MapHandle::from_map_id(number).map_err(failed("find the map of an eBPF classifier"))?;
        Ok(Self { number, map })
    }

    /// Returns the number for [`Classes::open`] while its classifier exists.
    pub fn number(&self) -> u32 {
        self.number
    }

    /// Returns classes by interface index.
    ///
    /// # Errors
    /// The kernel does not answer.
    pub fn read(&self) -> Result<BTreeMap<u32, Handle>, ClassifyError> {
        let entries = self.map.lookup_batch(BATCH, MapFlags::ANY, MapFlags::ANY);
        let entries = entries.map_err(failed("read the map of an eBPF classifier"))?;
        let number = |bytes: &[u8]| bytes.first_chunk().copied().map(u32::from_ne_bytes);
        let class = |minor: u32| Some(Handle::new(MAJOR, minor.try_into().ok()?));
        Ok(entries.filter_map(|(from, value)| Some((number(&from)?, class(number(&value)?)?))).collect())
    }

    /// Returns the number of super-frames with several VLAN tags that came from this interface, and were
    /// dropped on the IFB.
    ///
    /// # Errors
    /// The kernel does not answer.
    pub fn double_tagged(&self, from: u32) -> Result<u64, ClassifyError> {
        let value = self.map.lookup(&from.to_ne_bytes(), MapFlags::ANY);
        let value = value.map_err(failed("read the map of an eBPF classifier"))?.unwrap_or_default();
        Ok(value.last_chunk().copied().map(u64::from_ne_bytes).unwrap_or_default())
    }

    /// Sends frames from this interface to this class from now on.
    ///
    /// # Errors
    /// The kernel has no memory, or 65535 interfaces have classes.
    pub fn set(&self, from: u32, to: Handle) -> Result<(), ClassifyError> {
        // `struct class` of the program: the minor, and a zero counter.
        let mut class = [0; 16];
        class[..4].copy_from_slice(&u32::from(to.minor()).to_ne_bytes());
        let set = self.map.update(&from.to_ne_bytes(), &class, MapFlags::ANY);
        set.map_err(failed("change the map of an eBPF classifier"))
    }

    /// Sends frames from this interface to the default class from now on.
    ///
    /// # Errors
    /// It had none.
    pub fn remove(&self, from: u32) -> Result<(), ClassifyError> {
        let removed = self.map.delete(&from.to_ne_bytes());
        removed.map_err(failed("remove from the map of an eBPF classifier"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn written_classes_are_read_by_map_number_and_vanish_with_the_program() {
        let Some(classifier) = tidegate_testkit::unless_skipped(Classifier::for_ifb()) else { return };
        let classes = classifier.classes().unwrap();
        assert_eq!(classes.read().unwrap(), BTreeMap::new());
        // Some of them share a bucket.
        let all: BTreeMap<u32, Handle> = (1..=5000).map(|n| (n * 3, Handle::new(MAJOR, n as u16))).collect();
        for (from, to) in &all {
            classes.set(*from, *to).unwrap();
        }
        let again = Classes::open(classes.number()).unwrap();
        assert_eq!(again.read().unwrap(), all);
        again.set(3, Handle::new(MAJOR, 9)).unwrap();
        again.remove(6).unwrap();
        assert!(again.remove(6).is_err(), "it had none any more");
        let read = classes.read().unwrap();
        assert_eq!((read.len(), read[&3].minor(), read.get(&6)), (4999, 9, None));
        assert_eq!((classes.double_tagged(3).unwrap(), classes.double_tagged(6).unwrap()), (0, 0));

        let number = classes.number();
        drop((classifier, classes, again));
        // The kernel takes some time.
        let gone = (0..100).any(|_| {
            std::thread::sleep(std::time::Duration::from_millis(20));
            Classes::open(number).is_err()
        });
        assert!(gone, "nobody holds it any more");
    }
}
