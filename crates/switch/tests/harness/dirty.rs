//! A guest's dirty log, on its front end's side (vhost-user, "Migration").

use std::collections::BTreeSet;
use std::os::fd::AsRawFd;
use std::sync::atomic::Ordering;
use tidegate_frontend::front_end::{FrontEnd, Options};
use tidegate_frontend::memory::SharedMemory;
use tidegate_switch::virtio::log::PAGE;
use vhost::vhost_user::VhostUserProtocolFeatures;
use vhost::{VhostBackend, VhostUserDirtyLogRegion};

/// VHOST_F_LOG_ALL.
const LOG_ALL: u64 = 1 << 26;

pub type Pages = BTreeSet<u64>;

pub fn migrating(options: Options) -> Options {
    let more = VhostUserProtocolFeatures::LOG_SHMFD | VhostUserProtocolFeatures::RARP;
    Options { protocol_features: options.protocol_features | more, ..options }
}

pub struct Log {
    pub memory: SharedMemory,
    /// Size that the front end passes to the back end (bytes).
    pub size: u64,
}

impl Log {
    /// Makes a log for all guest memory, less `short` bytes.
    pub fn new(front: &FrontEnd, short: u64) -> Self {
        let size = front.memory().size().div_ceil(8 * PAGE) - short;
        let memory = SharedMemory::new(0, (size as usize).next_multiple_of(PAGE as usize)).unwrap();
        Self { memory, size }
    }

    /// Sends SET_LOG_BASE.
    pub fn pass(&self, front: &mut FrontEnd) -> Result<(), String> {
        let mmap_handle = self.memory.fd().as_raw_fd();
        let region = VhostUserDirtyLogRegion { mmap_size: self.size, mmap_offset: 0, mmap_handle };
        let protocol = front.protocol().unwrap();
        protocol.set_log_base(0, Some(region)).map_err(|error| error.to_string())
    }

    /// Sends SET_LOG_BASE, then sets LOG_ALL while the queues run, as QEMU does.
    pub fn start(&self, front: &mut FrontEnd) -> Result<(), String> {
        self.pass(front)?;
        let features = front.features();
        front.protocol().unwrap().set_features(features | LOG_ALL).map_err(|error| error.to_string())
    }

    pub fn stop(front: &mut FrontEnd) {
        let features = front.features();
        front.protocol().unwrap().set_features(features).unwrap();
    }

    /// Clears the bits and returns their pages; the back end may set bits at the same time.
    pub fn take(&self) -> Pages {
        let words = (0..self.memory.size() / 2).filter_map(|word| {
            let bits = self.memory.word(2 * word).swap(0, Ordering::AcqRel);
            (bits != 0).then_some((word, bits))
        });
        let pages = |(word, bits): (u64, u16)| {
            (0..16).filter(move |bit| bits >> bit & 1 == 1).map(move |bit| 16 * word + bit)
        };
        words.flat_map(pages).collect()
    }
}

pub fn snapshot(front: &FrontEnd) -> Vec<u8> {
    front.memory().bytes(0, front.memory().size() as usize)
}

pub fn changed(before: &[u8], front: &FrontEnd) -> Pages {
    let after = snapshot(front);
    let pages = before.chunks(PAGE as usize).zip(after.chunks(PAGE as usize));
    (0..).zip(pages).filter(|(_, (before, after))| before != after).map(|(page, _)| page).collect()
}

pub fn copy(front: &FrontEnd, pages: &Pages, to: &mut [u8]) {
    for page in pages {
        let at = (page * PAGE) as usize;
        front.memory().read(page * PAGE, &mut to[at..at + PAGE as usize]);
    }
}
