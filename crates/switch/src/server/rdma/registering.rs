//! Registers a guest's memory with a device, on a thread of its own: the kernel pins all pages, which takes long.
//!
//! ```text
//!  Offer ─▶ begin ─▶ thread: whole? ─ each region ─▶ Pinned, or why not ─▶ Registering::look
//!              └ dropped: the thread ends after the present region, and gives back what it has
//! ```
//!
//! A thread for each guest, at most one at a time: the registration of a large guest, or of one whose front end is slow, holds up
//! no other.

use super::guests::{Offer, Use};
use crate::fdb::PortIndex;
use crate::link::rdma::Registered;
use crate::virtio::GuestMemory;
use rustix::process::{Resource, getrlimit};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, TryRecvError, sync_channel};
use std::sync::{Arc, Weak};
use tidegate_service::housekeeping;
use tidegate_verbs::{Access, Device, Error, Region};

/// What the device does with the memory: it sends from it, and frames land there.
const ACCESS: Access = Access::Write;

/// Why the memory of some guests is of no use.
pub(super) const NOT_WHOLE: &str = "guest memory is not preallocated in memory (memfd, tmpfs or hugetlbfs), and a device would have other pages than the guest: \
     use memory-backend-memfd with prealloc=on, without a balloon (libvirt: <memoryBacking><source type='memfd'/>\
     <allocation mode='immediate'/></memoryBacking>, <memballoon model='none'/>)";

/// Memory that a device has.
#[derive(Debug)]
pub(super) struct Pinned {
    pub(super) registered: Arc<Registered>,
    /// Its memory table.
    pub(super) memory: Weak<GuestMemory>,
    /// The blocks of its files when it was registered.
    blocks: Vec<i64>,
}

impl Pinned {
    /// Whether pages were taken out of its files since, or may have been.
    pub(super) fn has_holes(&self) -> bool {
        let now = self.registered.memory().blocks();
        now.is_none_or(|now| now.iter().zip(&self.blocks).any(|(now, before)| now < before))
    }
}

/// A registration under way. Its drop gives it up.
#[derive(Debug)]
pub(super) struct Registering {
    pub(super) memory: Weak<GuestMemory>,
    is_given_up: Arc<AtomicBool>,
    outcome: Receiver<Result<Pinned, String>>,
}

impl Registering {
    /// Begins to register memory that a port's guest offers, as the use that was begun.
    pub(super) fn begin(device: &Arc<Device>, port: PortIndex, offer: Offer, of: Use) -> Self {
        let memory = offer.memory.clone();
        let is_given_up = Arc::new(AtomicBool::new(false));
        let (tell, outcome) = sync_channel(1);
        let (device, flag) = (device.clone(), is_given_up.clone());
        let work = move || {
            housekeeping::follow();
            // Without a receiver it is given back.
            let _ = tell.send(register(&device, offer, of, &flag));
        };
        if let Err(error) = std::thread::Builder::new().name(format!("pin {port}")).spawn(work) {
            tracing::error!(%error, "no thread to register a guest's memory");
        }
        Self { memory, is_given_up, outcome }
    }

    /// Gives it up: the thread ends after the present region.
    pub(super) fn give_up(&self) {
        self.is_given_up.store(true, Ordering::Relaxed);
    }

    /// Returns the outcome if it is there.
    pub(super) fn look(&self) -> Option<Result<Pinned, String>> {
        match self.outcome.try_recv() {
            Ok(outcome) => Some(outcome),
            Err(TryRecvError::Empty) => None,
            Err(TryRecvError::Disconnected) => {
                Some(Err("there was no thread to register guest memory".into()))
            }
        }
    }
}

impl Drop for Registering {
    fn drop(&mut self) {
        self.give_up();
    }
}

fn register(
    device: &Arc<Device>,
    offer: Offer,
    mut of: Use,
    is_given_up: &AtomicBool,
) -> Result<Pinned, String> {
    const GONE: &str = "the front end has other memory";
    let Offer { memory, errands, .. } = offer;
    let mapped = memory.upgrade().ok_or(GONE)?;
    let locked = of.take_locked(size(&mapped));
    let mut regions = vec![];
    let outcome = match &locked {
        Ok(_) => pin(device, &mapped, &mut regions, is_given_up),
        Err(limit) => {
            Err(too_much(size(&mapped), Some(*limit), "other guests and queue pairs need the rest"))
        }
    };
    let is_wanted = of.is_registered(&memory);
    // Whatever comes of it, the port's closing thread drops what there is: unpinning and unmapping take long, too.
    let give_up = Box::new(move |memory| errands.give_up((memory, locked, of)));
    let registered = Registered::new(mapped, regions).given_up_by(give_up);
    let blocks = outcome?;
    match is_wanted {
        true => Ok(Pinned { registered: Arc::new(registered), memory, blocks }),
        false => Err(GONE.into()),
    }
}

fn size(memory: &GuestMemory) -> u64 {
    memory.regions().map(|(_, len)| len as u64).sum()
}

/// Registers each region, and returns the blocks of the memory's files before.
fn pin(
    device: &Arc<Device>,
    memory: &Arc<GuestMemory>,
    regions: &mut Vec<Region>,
    is_given_up: &AtomicBool,
) -> Result<Vec<i64>, String> {
    let blocks = memory.blocks().filter(|_| memory.preallocated() && !memory.is_lost()).ok_or(NOT_WHOLE)?;
    for (start, len) in memory.regions() {
        if is_given_up.load(Ordering::Relaxed) {
            return Err("the registration was given up".into());
        }
        // SAFETY: the memory's regions are mapped as long as the memory, which is its own owner here.
        let region = unsafe { Region::over(device, start, len, memory.clone(), ACCESS) };
        regions.push(region.map_err(|error| refusal(&error, memory))?);
    }
    Ok(blocks)
}

/// Says why a device does not take memory, and what to do.
fn refusal(error: &Error, memory: &GuestMemory) -> String {
    let number = match error {
        Error::Call { error, .. } => error.raw_os_error(),
        _ => None,
    };
    match number {
        Some(libc::ENOMEM | libc::EAGAIN | libc::EPERM) => {
            too_much(size(memory), getrlimit(Resource::Memlock).current, &error.to_string())
        }
        _ => format!("the device does not take the guest's memory, {}: {error}", mib(size(memory))),
    }
}

fn too_much(bytes: u64, limit: Option<u64>, why: &str) -> String {
    let todo = match limit {
        Some(limit) => format!(
            "it counts as locked memory (RLIMIT_MEMLOCK), of which the switch may have {}: LimitMEMLOCK=infinity in its unit",
            mib(limit)
        ),
        None => "the limit on locked memory is none, so the device or the host lacks memory: try huge pages"
            .into(),
    };
    format!("the device does not take the guest's memory, {}: {why}; {todo}", mib(bytes))
}

fn mib(bytes: u64) -> String {
    format!("{} MiB", bytes.div_ceil(1 << 20))
}
