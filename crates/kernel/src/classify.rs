//! From the netdev that a frame came in by to its class: the program of `bpf/classify.bpf.c`, loaded once for each root
//! qdisc that has a class per netdev.
//!
//! ```text
//!  Classifier, with a map of its own ─▶ filter of the root qdisc, which keeps both
//!                                          │
//!         number of the map, in the filter's name ─▶ Classes::open ─▶ read, set, remove
//! ```
//!
//! Nobody has to hold the map: it goes with the filter, and is found by the filter's name ([`crate::owner`]), so another
//! agent reads in it what this one wrote.

use crate::handle::Handle;
use crate::owner;
use libbpf_rs::{MapCore, MapFlags, MapHandle, Object, ObjectBuilder};
use std::collections::BTreeMap;
use std::os::fd::{AsFd, BorrowedFd};

const PROGRAM: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/classify.bpf.o"));

/// Entries read at once.
const BATCH: u32 = 4096;

/// Frames cannot be classified, or a map not be read or changed.
#[derive(Debug, thiserror::Error)]
#[error("cannot {what}: {source}")]
pub struct ClassifyError {
    what: &'static str,
    source: libbpf_rs::Error,
}

impl ClassifyError {
    /// Whether it is gone, with the filter that kept it.
    pub fn is_gone(&self) -> bool {
        self.source.kind() == libbpf_rs::ErrorKind::NotFound
    }
}

fn failed(what: &'static str) -> impl FnOnce(libbpf_rs::Error) -> ClassifyError {
    move |source| ClassifyError { what, source }
}

/// A program that is loaded, with an empty map, and at no qdisc yet.
#[derive(Debug)]
pub struct Classifier {
    object: Object,
}

impl Classifier {
    /// Loads it.
    ///
    /// # Errors
    /// No right to (`CAP_BPF` and `CAP_NET_ADMIN`), or a kernel that does not take it.
    pub fn load() -> Result<Self, ClassifyError> {
        let mut builder = ObjectBuilder::default();
        let opened = builder.open_memory(PROGRAM).map_err(failed("read the eBPF classifier"))?;
        let object = opened.load().map_err(failed("load the eBPF classifier"))?;
        Ok(Self { object })
    }

    /// The program, for a filter in direct action.
    ///
    /// # Panics
    /// Never: it is in the object that was loaded.
    pub fn with_program<T>(&self, work: impl FnOnce(BorrowedFd<'_>) -> T) -> T {
        let program = self.object.progs().next().expect("bpf/classify.bpf.c has a program");
        work(program.as_fd())
    }

    /// Its map.
    ///
    /// # Errors
    /// The kernel does not give it out.
    pub fn classes(&self) -> Result<Classes, ClassifyError> {
        let map = self.object.maps().find(|map| map.name() == "classes");
        let map = map.expect("bpf/classify.bpf.c has a map of this name");
        let map = MapHandle::try_from(&map).map_err(failed("reach the map of the eBPF classifier"))?;
        let info = map.info().map_err(failed("tell the number of an eBPF map"))?;
        Ok(Classes { number: info.info.id, map })
    }
}

/// The class of each netdev, as a classifier sees it.
#[derive(Debug)]
pub struct Classes {
    number: u32,
    map: MapHandle,
}

impl Classes {
    /// The map with this number.
    ///
    /// # Errors
    /// It is gone, or no right to (`CAP_SYS_ADMIN`).
    pub fn open(number: u32) -> Result<Self, ClassifyError> {
        let map = MapHandle::from_map_id(number).map_err(failed("find the map of an eBPF classifier"))?;
        Ok(Self { number, map })
    }

    /// By which [`Classes::open`] finds it as long as its classifier is there.
    pub fn number(&self) -> u32 {
        self.number
    }

    /// Class by interface index.
    ///
    /// # Errors
    /// The kernel does not answer.
    pub fn read(&self) -> Result<BTreeMap<u32, Handle>, ClassifyError> {
        let entries = self.map.lookup_batch(BATCH, MapFlags::ANY, MapFlags::ANY);
        let entries = entries.map_err(failed("read the map of an eBPF classifier"))?;
        let number = |bytes: Vec<u8>| bytes.try_into().ok().map(u32::from_ne_bytes);
        let class = |minor: u32| Some(Handle::new(owner::MAJOR, minor.try_into().ok()?));
        Ok(entries.filter_map(|(from, minor)| Some((number(from)?, class(number(minor)?)?))).collect())
    }

    /// From now on what came in by this interface goes to this class.
    ///
    /// # Errors
    /// The kernel has no memory, or 65535 interfaces have classes.
    pub fn set(&self, from: u32, to: Handle) -> Result<(), ClassifyError> {
        let minor = u32::from(to.minor()).to_ne_bytes();
        let set = self.map.update(&from.to_ne_bytes(), &minor, MapFlags::ANY);
        set.map_err(failed("change the map of an eBPF classifier"))
    }

    /// From now on what came in by this interface goes to the default class.
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
    use std::io::Write;

    #[test]
    fn what_is_written_is_read_by_number_and_goes_with_the_program() {
        let classifier = match Classifier::load() {
            Ok(classifier) => classifier,
            Err(why) => {
                assert!(std::env::var("CI").as_deref() != Ok("true"), "{why}");
                std::io::stderr().write_all(format!("skipped: {why}\n").as_bytes()).unwrap();
                return;
            }
        };
        let classes = classifier.classes().unwrap();
        assert_eq!(classes.read().unwrap(), BTreeMap::new());
        // More than are read at once.
        let all: BTreeMap<u32, Handle> =
            (1..=5000).map(|n| (n * 3, Handle::new(owner::MAJOR, n as u16))).collect();
        for (from, to) in &all {
            classes.set(*from, *to).unwrap();
        }
        let again = Classes::open(classes.number()).unwrap();
        assert_eq!(again.read().unwrap(), all);
        again.set(3, Handle::new(owner::MAJOR, 9)).unwrap();
        again.remove(6).unwrap();
        assert!(again.remove(6).is_err(), "it had none any more");
        let read = classes.read().unwrap();
        assert_eq!((read.len(), read[&3].minor(), read.get(&6)), (4999, 9, None));

        let number = classes.number();
        drop((classifier, classes, again));
        // The kernel takes its time.
        let gone = (0..100).any(|_| {
            std::thread::sleep(std::time::Duration::from_millis(20));
            Classes::open(number).is_err()
        });
        assert!(gone, "nobody holds it any more");
    }
}
