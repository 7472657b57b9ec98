//! What a port has for its front ends, from one to the next.
//!
//! ```text
//!            ┌ errands   what may take long is done there
//!  Service ──┼ account   what its front ends may take
//!            └ conduct   what their objects did; the quarantine ─▶ mailbox: the connection ends
//! ```

use super::conduct::{Conduct, Event};
use super::errands::Errands;
use super::kept::Numbered;
use super::listener::PortConfig;
use super::mailbox::Mailbox;
use super::notifier::Report;
use crate::quota::Account;
use crate::stats::ThrownOut;
use crate::virtio::memory::RegionSpec;
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

/// Of one port.
pub struct Service {
    /// The vNIC's name, for logs.
    pub name: String,
    /// What may take long is done there.
    pub errands: Errands,
    /// What front ends may take.
    pub account: Account,
    /// What their objects did.
    pub conduct: Arc<Conduct>,
    /// Tells the conduct, and ends the connection where a quarantine begins.
    pub report: Report,
    /// The memory that the front end has shared.
    pub shared: Arc<Mutex<Shared>>,
}

/// What a front end has shared, as far as it matters whether its pages are there.
#[derive(Debug, Default)]
pub struct Shared {
    /// Files of its guest's memory, and how many bytes of each.
    pub files: Vec<(Numbered, u64)>,
    /// Some of it is on a disk.
    pub disk: bool,
    /// It has the in-flight region, or a dirty log: it can take pages from those, too.
    pub other: bool,
}

impl Shared {
    /// Memory of these regions, and whether some is on a disk.
    pub fn memory(regions: &[RegionSpec<Numbered>], disk: bool) -> (Vec<(Numbered, u64)>, bool) {
        let mut files: BTreeMap<_, (Numbered, u64)> = BTreeMap::new();
        for region in regions {
            // QEMU cuts one file into several regions.
            let number = rustix::fs::fstat(&region.fd).map(|stat| (stat.st_dev, stat.st_ino));
            let file = files.entry(number.ok()).or_insert_with(|| (region.fd.clone(), 0));
            file.1 = file.1.saturating_add(region.size);
        }
        (files.into_values().collect(), disk)
    }

    /// Whether there is memory of which pages may be missing now.
    pub fn has_holes(&self) -> bool {
        let is_whole = |(file, bytes): &(Numbered, u64)| {
            // Not of a file system that could keep us waiting: that was looked at.
            rustix::fs::fstat(file).is_ok_and(|stat| stat.st_blocks as u64 * 512 >= *bytes)
        };
        self.disk || self.other && !self.files.is_empty() || !self.files.iter().all(is_whole)
    }
}

impl Service {
    /// What the front end has shared.
    pub fn shared(&self) -> MutexGuard<'_, Shared> {
        self.shared.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// That of a port whose thread reads `mailbox`.
    pub fn new(config: &PortConfig, mailbox: &Arc<Mailbox>) -> Self {
        let conduct = Arc::new(Conduct::default());
        let (name, record, mailbox) = (config.name.clone(), conduct.clone(), mailbox.clone());
        let report = move |event: Event| {
            tracing::warn!(port = name, "a thread of the switch was held up: it {event}");
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
