//! What one front end said, checked, and turned into calls of [`PortControl`].
//!
//! ```text
//!  GET/SET_FEATURES ── SET_MEM_TABLE ── SET_VRING_NUM, BASE, ADDR ── SET_VRING_KICK
//!        │                  │                    (kept)                   │
//!   set_features        set_memory                                  start_queue
//!
//!  SET_VRING_ENABLE: kept while the queue is stopped, else enable_queue
//!  GET_VRING_BASE: stop_queue
//!  GET, SET_INFLIGHT_FD: the region that queues are started with
//! ```
//!
//! A queue starts at SET_VRING_KICK: front ends send it last, and a queue that
//! is polled for a moment too early finds nothing in its ring.

mod messages;

use super::features::{F_RING_PACKED, VHOST_F_LOG_ALL, VHOST_USER_F_PROTOCOL_FEATURES};
use super::kept::{Descriptors, Kept, KeptRegion, KeptVring, Number, Numbered};
use super::logging::Logging;
use super::shared;
use super::status::{ConnectionStatus, State};
use super::{PortControl, VringSetup, used_bytes};
use crate::eventfd;
use crate::virtio::memory::{GuestMemory, RegionSpec};
use crate::virtio::{Inflight, MAX_ENTRIES, Queue, QueueInflight};
use rustix::fs::{OFlags, fcntl_getfl, fcntl_setfl, fstatfs};
use rustix::io::Errno;
use std::fs::File;
use std::io;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use tidegate_contract::Mac;
use vhost::vhost_user::message::VhostUserVringAddrFlags;
use vhost::vhost_user::{Error, Result, VhostUserBackendReqHandlerMut, VhostUserProtocolFeatures};

/// What to tell whoever started a VM whose memory nobody else can see.
pub const NOT_SHARED: &str = "guest memory is not shared; add share=on: \
    `-object memory-backend-memfd,id=mem,size=...,share=on -machine memory-backend=mem`, \
    in libvirt's XML `<memoryBacking><access mode='shared'/></memoryBacking>`";

/// Regions a memory table may have; also the most descriptors one message can carry.
const MAX_REGIONS: usize = 32;

/// One virtqueue, as far as the front end has described it.
#[derive(Debug, Default)]
struct Vring {
    size: Option<u16>,
    addresses: Option<Addresses>,
    /// `None` until SET_VRING_BASE: the beginning, which depends on the layout.
    base: Option<u32>,
    /// SET_VRING_ADDR with VHOST_VRING_F_LOG: the used ring's guest address in the dirty log.
    log: Option<u64>,
    /// Of a running queue.
    kick: Option<Numbered>,
    call: Option<Numbered>,
    err: Option<Numbered>,
    enabled: bool,
    running: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Addresses {
    desc: u64,
    avail: u64,
    used: u64,
}

/// A front end's side of a port, from its first message to its last.
pub struct Connection<'a> {
    control: &'a mut (dyn PortControl + Send),
    status: &'a ConnectionStatus,
    queue_pairs: u16,
    /// `None` until SET_FEATURES. Without LOG_ALL, which comes and goes.
    features: Option<u64>,
    logging: Logging,
    protocol_features: u64,
    /// The table as it was sent: ADD_MEM_REG and REM_MEM_REG change it.
    regions: Vec<RegionSpec>,
    /// Their files, for whoever keeps them.
    files: Vec<Numbered>,
    /// What the workers have of it.
    memory: Option<Arc<GuestMemory>>,
    has_memory: bool,
    /// Something of the guest's was found in it.
    memory_is_alive: bool,
    vrings: Vec<Vring>,
    /// What the queues have in flight; made when the first starts, unless the front end asks for
    /// it or brings one.
    inflight: Option<Inflight>,
    /// The region's file, for whoever keeps it.
    inflight_file: Option<Numbered>,
}

/// A message that is refused, with the reason; ends the connection.
fn refuse<T>(reason: impl Into<String>) -> Result<T> {
    Err(Error::ReqHandlerError(io::Error::other(reason.into())))
}

impl<'a> Connection<'a> {
    /// A front end that has said nothing yet, on a port of that many queue pairs.
    pub fn new(
        control: &'a mut (dyn PortControl + Send),
        status: &'a ConnectionStatus,
        queue_pairs: u16,
    ) -> Self {
        let vrings = (0..queue_pairs * 2).map(|_| Vring::default()).collect();
        Self {
            control,
            status,
            queue_pairs,
            features: None,
            logging: Logging::default(),
            protocol_features: 0,
            regions: Vec::new(),
            files: Vec::new(),
            memory: None,
            has_memory: false,
            memory_is_alive: false,
            vrings,
            inflight: None,
            inflight_file: None,
        }
    }

    /// What the queues have in flight, for whoever outlives this process; `None` before the first
    /// queue starts.
    pub fn inflight(&self) -> Option<&Inflight> {
        self.inflight.as_ref()
    }

    /// Goes on with a region of a predecessor: queues that it left in service are recovered when
    /// they start.
    ///
    /// # Errors
    /// A queue is running, or the region is for fewer queues than the port has.
    pub fn set_inflight(&mut self, inflight: Inflight) -> Result<()> {
        self.none_runs("SET_INFLIGHT_FD")?;
        if usize::from(inflight.queues()) < self.vrings.len() {
            return refuse(format!(
                "SET_INFLIGHT_FD: a region for {} queues, but the port has {}",
                inflight.queues(),
                self.vrings.len()
            ));
        }
        self.use_inflight(inflight)
    }

    fn use_inflight(&mut self, inflight: Inflight) -> Result<()> {
        let file = inflight.fd().try_clone_to_owned().map_err(Error::ReqHandlerError)?;
        self.inflight_file = Some(Numbered::new(file));
        self.inflight = Some(inflight);
        Ok(())
    }

    fn none_runs(&self, message: &str) -> Result<()> {
        match self.vrings.iter().position(|vring| vring.running) {
            Some(index) => refuse(format!("{message}: queue {index} is running")),
            None => Ok(()),
        }
    }

    /// The part of queue `index` in the region, which is made if there is none.
    fn queue_inflight(&mut self, index: u16, size: u16) -> Result<QueueInflight> {
        if self.inflight.is_none() {
            // Of any size: what no queue writes to takes no memory.
            let made = Inflight::create(self.queue_pairs * 2, MAX_ENTRIES);
            self.use_inflight(made.map_err(Error::ReqHandlerError)?)?;
        }
        let Some(inflight) = &mut self.inflight else { return refuse("no in-flight region") };
        let (queues, entries) = (inflight.queues(), inflight.entries());
        match inflight.queue(index).filter(|_| size <= entries) {
            Some(queue) => Ok(queue),
            None => refuse(format!(
                "SET_VRING_KICK: queue {index} of {size} entries, but the in-flight region is for \
                 {queues} queues of {entries}"
            )),
        }
    }

    /// SET_FEATURES has been seen.
    pub fn has_features(&self) -> bool {
        self.features.is_some()
    }

    /// The front end may ask for acknowledgements.
    pub fn acknowledges(&self) -> bool {
        self.protocol_features & VhostUserProtocolFeatures::REPLY_ACK.bits() != 0
    }

    /// The connection is over. If the front end is to blame, its error
    /// descriptors (SET_VRING_ERR) are signalled.
    pub fn close(&mut self, reason: &str, blame: bool) {
        self.control.disconnect(reason);
        if blame {
            for err in self.vrings.iter().filter_map(|vring| vring.err.as_ref()) {
                // Nobody has to listen.
                let _ = eventfd::signal(err);
            }
        }
        self.vrings.clear();
        self.regions.clear();
        self.files.clear();
        (self.memory, self.logging) = (None, Logging::default());
    }

    /// Everything the front end has said on `stream`, and the descriptors that came with it.
    pub fn kept(&self, stream: &Numbered) -> (Kept, Vec<Numbered>) {
        let mut descriptors = vec![stream.clone()];
        descriptors.extend(self.files.iter().cloned());
        let mut number = |fd: &Option<Numbered>| -> Option<Number> {
            descriptors.extend(fd.clone());
            fd.as_ref().map(Numbered::number)
        };
        let vrings = self.vrings.iter().map(|vring| KeptVring {
            size: vring.size,
            addresses: vring.addresses.map(|at| (at.desc, at.avail, at.used)),
            base: vring.base,
            log: vring.log,
            kick: number(&vring.kick),
            call: number(&vring.call),
            err: number(&vring.err),
            enabled: vring.enabled,
            running: vring.running,
        });
        let regions = self.regions.iter().zip(&self.files).map(|(region, file)| KeptRegion {
            guest_addr: region.guest_addr,
            user_addr: region.user_addr,
            size: region.size,
            mmap_offset: region.mmap_offset,
            file: file.number(),
        });
        let log = self.logging.kept();
        let logs = if self.logging.all { VHOST_F_LOG_ALL } else { 0 };
        let kept = Kept {
            stream: stream.number(),
            features: self.features.map(|features| features | logs),
            protocol_features: self.protocol_features,
            regions: regions.collect(),
            memory_is_alive: self.memory_is_alive,
            vrings: vrings.collect(),
            inflight: self.inflight_file.as_ref().map(Numbered::number),
            log: log.as_ref().map(|(log, _)| *log),
        };
        descriptors.extend(self.inflight_file.clone());
        descriptors.extend(log.map(|(_, file)| file));
        (kept, descriptors)
    }

    /// Takes up what a front end has said to a process that is gone: its memory, and its queues as far as it
    /// described them. Features come before, by their messages. Checked as the messages are.
    ///
    /// # Errors
    /// What does not hold; the front end has to be asked again, by closing the connection.
    pub fn restore_memory(&mut self, kept: &Kept, descriptors: &mut Descriptors) -> Result<()> {
        let (has, was) = (self.vrings.len(), kept.vrings.len());
        if has != was {
            return refuse(format!("the port has {has} queues, and had {was}"));
        }
        if kept.regions.len() > MAX_REGIONS {
            return refuse(format!("more than {MAX_REGIONS} memory regions"));
        }
        if let Some(log) = &kept.log {
            let file = take(descriptors, Some(log.file))?.expect("asked for one");
            if let Err(error) = self.logging.set_base(file.into(), log.size, log.offset) {
                return refuse(format!("kept dirty log: {error}"));
            }
        }
        if !kept.regions.is_empty() {
            let specs = kept.regions.iter().map(|region| {
                Ok(RegionSpec {
                    guest_addr: region.guest_addr,
                    user_addr: region.user_addr,
                    size: region.size,
                    mmap_offset: region.mmap_offset,
                    fd: take(descriptors, Some(region.file))?.expect("asked for one").into(),
                })
            });
            let specs = specs.collect::<Result<Vec<_>>>()?;
            self.set_regions("kept memory table", specs)?;
        }
        self.memory_is_alive = kept.memory_is_alive;
        if let Some(file) = take(descriptors, kept.inflight)? {
            match Inflight::open(file.into()) {
                Ok(inflight) => self.set_inflight(inflight)?,
                Err(error) => return refuse(format!("kept in-flight region: {error}")),
            }
        }
        for (index, vring) in (0..).zip(&kept.vrings) {
            if let Some(size) = vring.size {
                self.set_vring_num(index, size.into())?;
            }
            if let Some((desc, avail, used)) = vring.addresses {
                let log = vring
                    .log
                    .map_or(VhostUserVringAddrFlags::empty(), |_| VhostUserVringAddrFlags::VHOST_VRING_F_LOG);
                self.set_vring_addr(index, log, desc, used, avail, vring.log.unwrap_or(0))?;
            }
            if let Some(base) = vring.base {
                self.set_vring_base(index, base)?;
            }
            self.set_vring_call(index as u8, take(descriptors, vring.call)?)?;
            self.set_vring_err(index as u8, take(descriptors, vring.err)?)?;
            self.enable(index, vring.enabled)?;
        }
        Ok(())
    }

    /// Starts the queues that ran, after [`restore_memory`](Self::restore_memory): each where the in-flight
    /// region says it stood. Their drivers are called: what was completed last may not have been told.
    ///
    /// # Errors
    /// As there.
    pub fn restore_queues(&mut self, kept: &Kept, descriptors: &mut Descriptors) -> Result<()> {
        for (index, vring) in (0..).zip(&kept.vrings).filter(|(_, vring)| vring.running) {
            self.set_vring_kick(index, take(descriptors, vring.kick)?)?;
            if let Some(call) = &self.vrings[usize::from(index)].call {
                let _ = eventfd::signal(call);
            }
        }
        Ok(())
    }

    /// SET_VRING_ENABLE, which QEMU also sends before SET_FEATURES.
    ///
    /// # Errors
    /// No such queue.
    pub fn enable(&mut self, index: u32, enabled: bool) -> Result<()> {
        let (index, vring) = self.vring("SET_VRING_ENABLE", index)?;
        vring.enabled = enabled;
        if vring.running {
            self.control.enable_queue(index, enabled);
        }
        self.publish();
        Ok(())
    }

    fn vring(&mut self, message: &str, index: u32) -> Result<(u16, &mut Vring)> {
        let pairs = self.queue_pairs;
        match self.vrings.get_mut(index as usize) {
            Some(vring) => Ok((index as u16, vring)),
            None => refuse(format!(
                "{message}: queue index {index}, but the port has {pairs} queue pairs \
                 (0 to {}); raise `queues` in the contract or lower it in the VM",
                pairs * 2 - 1
            )),
        }
    }

    /// Rings are enabled only by message, if protocol features were negotiated
    /// (vhost-user, "Ring states").
    fn starts_enabled(&self) -> bool {
        self.features.unwrap_or(0) & VHOST_USER_F_PROTOCOL_FEATURES == 0
    }

    /// Rings are packed (virtio 1.2, 2.8).
    fn is_packed(&self) -> bool {
        self.features.unwrap_or(0) & F_RING_PACKED != 0
    }

    fn start(&mut self, index: u16, kick: Option<OwnedFd>) -> Result<()> {
        let missing = |what: &str| refuse(format!("SET_VRING_KICK for queue {index} before {what}"));
        if self.features.is_none() {
            return missing("SET_FEATURES");
        }
        if !self.has_memory {
            return missing(&format!("any memory: {NOT_SHARED}"));
        }
        let (starts_enabled, packed) = (self.starts_enabled(), self.is_packed());
        let vring = &mut self.vrings[usize::from(index)];
        let Some(size) = vring.size else {
            return missing("SET_VRING_NUM");
        };
        let Some(Addresses { desc, avail, used }) = vring.addresses else {
            return missing("SET_VRING_ADDR");
        };
        let entries = u64::from(size);
        let parts = match packed {
            true => [(desc, 16 * entries), (avail, 4), (used, 4)],
            false => [(desc, 16 * entries), (avail, 6 + 2 * entries), (used, used_bytes(packed, size))],
        };
        if !self.memory_is_alive && shared::is_blank(&self.regions, &parts) {
            return refuse(format!(
                "SET_VRING_KICK for queue {index}, but guest memory is all zeros here: {NOT_SHARED}"
            ));
        }
        self.memory_is_alive = true;
        let inflight = Some(self.queue_inflight(index, size)?);
        let vring = &mut self.vrings[usize::from(index)];
        // Kept here too: a front end may restart the queue without sending it again.
        let call = vring.call.as_ref().map(Numbered::duplicate).transpose();
        let kept = kick.map(Numbered::new);
        let kick = kept.as_ref().map(Numbered::duplicate).transpose();
        let setup = VringSetup {
            size,
            desc,
            avail,
            used,
            base: vring.base.unwrap_or(Queue::first_base(packed)),
            log: vring.log,
            kick: kick.map_err(Error::ReqHandlerError)?,
            call: call.map_err(Error::ReqHandlerError)?,
            inflight,
        };
        if let Err(reason) = self.control.start_queue(index, setup) {
            return refuse(format!("queue {index} cannot start: {reason}"));
        }
        vring.running = true;
        vring.kick = kept;
        vring.enabled |= starts_enabled;
        if vring.enabled {
            self.control.enable_queue(index, true);
        }
        self.publish();
        Ok(())
    }

    /// Maps `regions` and gives them to the workers.
    fn set_regions(&mut self, message: &str, regions: Vec<RegionSpec>) -> Result<()> {
        let copies = regions
            .iter()
            .map(|region| Ok(RegionSpec { fd: region.fd.try_clone()?, ..*region }))
            .collect::<io::Result<Vec<_>>>();
        let memory = match GuestMemory::map(copies.map_err(Error::ReqHandlerError)?) {
            Ok(memory) => Arc::new(memory),
            Err(e) => return refuse(format!("{message}: {e}")),
        };
        let preallocated = memory.preallocated();
        if let Err(reason) = self.control.set_memory(memory.clone()) {
            return refuse(format!("{message}: {reason}"));
        }
        let files = regions.iter().map(|region| region.fd.try_clone().map(Numbered::new));
        self.files = files.collect::<io::Result<_>>().map_err(Error::ReqHandlerError)?;
        self.memory = Some(memory);
        self.regions = regions;
        self.has_memory = true;
        self.set_log(message)?;
        self.status.update(|now| now.memory_preallocated = Some(preallocated));
        Ok(())
    }

    /// Begins or ends logging, as far as is known where.
    fn set_log(&mut self, message: &str) -> Result<()> {
        let packed = self.is_packed();
        let used = |vring: &Vring| match (vring.log, vring.size) {
            (Some(at), Some(size)) => Some((at, used_bytes(packed, size))),
            _ => None,
        };
        let rings: Vec<_> = self.vrings.iter().filter_map(used).collect();
        match self.logging.log(self.memory.as_ref(), &rings) {
            Ok(None) if !self.logging.on => {}
            Ok(log) => {
                self.logging.on = log.is_some();
                self.control.set_log(log);
            }
            Err(error) => return refuse(format!("{message}: {error}")),
        }
        Ok(())
    }

    /// SEND_RARP: the front end asks for an announcement on behalf of a guest that makes none.
    ///
    /// # Errors
    /// Not negotiated.
    pub fn announce(&mut self, mac: Mac) -> Result<()> {
        if self.protocol_features & VhostUserProtocolFeatures::RARP.bits() == 0 {
            return refuse("SEND_RARP: protocol feature RARP was not negotiated");
        }
        if !self.control.announce(mac) {
            // QEMU asks for the address of its own configuration, which the guest need not use.
            tracing::debug!(%mac, "SEND_RARP: none of the contract's addresses (`mac`, `allowed.macs`); not announced");
        }
        Ok(())
    }

    fn publish(&self) {
        let carries = |vring: &Vring| vring.running && vring.enabled;
        let pairs = self.vrings.chunks(2).filter(|pair| pair.iter().all(carries)).count() as u16;
        self.status.update(|now| {
            now.queue_pairs = pairs;
            now.state = if pairs > 0 { State::Ready } else { State::Connected };
        });
    }
}

/// A descriptor that a worker polls or [signals](eventfd::signal): an eventfd, and made not to block, whatever
/// the front end has put behind it. A pipe that is full, or a file of FUSE, would stop every port.
fn event(message: &str, index: u16, file: Option<File>) -> Result<Option<OwnedFd>> {
    /// File system of eventfds and their like (linux/magic.h).
    const ANON_INODE_FS_MAGIC: u32 = 0x0904_1934;
    let Some(file) = file else { return Ok(None) };
    let system = |errno: Errno| Error::ReqHandlerError(errno.into());
    if fstatfs(&file).map_err(system)?.f_type as u32 != ANON_INODE_FS_MAGIC {
        return refuse(format!("{message}: the descriptor for queue {index} is not an eventfd"));
    }
    let flags = fcntl_getfl(&file).map_err(system)?;
    fcntl_setfl(&file, flags | OFlags::NONBLOCK).map_err(system)?;
    Ok(Some(file.into()))
}

/// The descriptor of that number, which is used once.
fn take(descriptors: &mut Descriptors, number: Option<Number>) -> Result<Option<File>> {
    let Some(number) = number else { return Ok(None) };
    match descriptors.remove(&number) {
        Some(fd) => Ok(Some(fd.into())),
        None => refuse(format!("descriptor {number} is missing")),
    }
}
