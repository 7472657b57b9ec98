//! A port's resources for its front ends, from one to the next.
//!
//! ```text
//!            ┌ errands   threads for work that may take long
//!  Service ──┼ account   what its front ends may take
//!            └ conduct   what their objects did; the quarantine ─▶ mailbox: the connection ends
//! ```

use super::conduct::{Conduct, Event};
use super::config::PortConfig;
use super::errands::Errands;
use super::mailbox::Mailbox;
use super::notifier::Report;
use super::saved::Numbered;
use crate::quota::Account;
use crate::stats::ThrownOut;
use crate::virtio::backing;
use crate::virtio::memory::RegionSpec;
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

/// The slow work, accounts and records of one port.
pub struct Service {
    /// The vNIC's name, for logs.
    pub name: String,
    /// The threads that do the port's slow work.
    pub errands: Errands,
    /// What front ends may use.
    pub account: Account,
    /// The record of their objects.
    pub conduct: Arc<Conduct>,
    /// Notes events in the record, and ends the connection when a quarantine begins.
    pub report: Report,
    /// The front end's shared memory.
    pub shared: Arc<Mutex<Shared>>,
}

/// A front end's shared files: they decide whether a page can be missing.
#[derive(Debug, Default)]
pub struct Shared {
    /// Files of its guest's memory.
    pub files: Vec<Numbered>,
    /// Some of it is on a disk.
    pub disk: bool,
    /// It has the in-flight region or a dirty log, from which it can take pages, too.
    pub other: bool,
}

impl Shared {
    /// Returns the files of these regions, and passes on whether some are on a disk.
    pub fn memory(regions: &[RegionSpec<Numbered>], disk: bool) -> (Vec<Numbered>, bool) {
        let mut files = BTreeMap::new();
        for region in regions {
            // QEMU cuts one file into several regions.
            let number = rustix::fs::fstat(&region.fd).map(|stat| (stat.st_dev, stat.st_ino));
            files.entry(number.ok()).or_insert_with(|| region.fd.clone());
        }
        (files.into_values().collect(), disk)
    }

    /// Whether pages of its memory may be missing now: a file [is not whole](backing::is_whole).
    pub fn has_holes(&self) -> bool {
        // No file system here can make us wait: checked before.
        let is_whole = |file: &Numbered| rustix::fs::fstat(file).is_ok_and(|stat| backing::is_whole(&stat));
        self.disk || self.other && !self.files.is_empty() || !self.files.iter().all(is_whole)
    }
}

impl Service {
    /// Returns the front end's shared memory.
    pub fn shared(&self) -> MutexGuard<'_, Shared> {
        self.shared.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns the service of front ends that are not served: with errands and an account of their own, so
    /// that their descriptors do not burden the served one. They have no objects in use, and no record.
    pub fn for_unserved(config: &PortConfig, mailbox: &Arc<Mailbox>) -> Self {
        let errands = Errands::new(&format!("aside {}", config.name));
        let mailbox = mailbox.clone();
        errands.set_idle_callback(move || mailbox.post(|_| ()));
        Self {
            name: config.name.clone(),
            errands,
            account: config.waiting.clone(),
            conduct: Arc::default(),
            report: Arc::new(|_| ()),
            shared: Arc::default(),
        }
    }

    /// Returns the service of a port whose thread reads `mailbox`.
    pub fn new(config: &PortConfig, mailbox: &Arc<Mailbox>) -> Self {
        let conduct = Arc::new(Conduct::default());
        let (name, record, mailbox) = (config.name.clone(), conduct.clone(), mailbox.clone());
        let report = move |event: Event| {
            tracing::warn!(
                port = name,
                "the front end's objects delayed a thread of the switch: the thread {event}"
            );
            if let Some(reason) = record.record(event, Instant::now()) {
                mailbox.post(|inbox| inbox.throw_out = Some((ThrownOut::Held, reason)));
            }
        };
        Self {
            name: config.name.clone(),
            errands: config.errands.clone(),
            account: config.account.clone(),
            conduct,
            report: Arc::new(report),
            shared: Arc::default(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::fs::{FallocateFlags, MemfdFlags, fallocate, memfd_create};

    const HALF: u64 = 1 << 20;

    #[test]
    fn pages_outside_the_shared_range_do_not_hide_a_hole() {
        let file = memfd_create("guest", MemfdFlags::CLOEXEC).unwrap();
        fallocate(&file, FallocateFlags::empty(), 0, 2 * HALF).unwrap();
        let fd = Numbered::free(file);
        let first = RegionSpec { guest_addr: 0, user_addr: 0, size: HALF, mmap_offset: 0, fd: fd.clone() };
        let (files, disk) = Shared::memory(&[first], false);
        let shared = Shared { files, disk, other: false };
        assert!(!shared.has_holes());
        let punch = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
        fallocate(&fd, punch, 0, HALF / 2).unwrap();
        assert!(shared.has_holes());
    }
}
