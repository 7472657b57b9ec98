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
//!
//! What is not needed any more is [given up](super::errands): to close a descriptor or to unmap memory may
//! take long.

mod messages;

use super::conduct::{Event, LONG, Object};
use super::features::{F_RING_PACKED, VHOST_F_LOG_ALL, VHOST_USER_F_PROTOCOL_FEATURES};
use super::kept::{Descriptors, Kept, KeptRegion, KeptVring, Number, Numbered};
use super::kick::Kick;
use super::logging::Logging;
use super::notifier::{self, Call, Notifier, Report};
use super::service::{Service, Shared};
use super::status::{ConnectionStatus, State};
use super::{PortControl, VringSetup, door, shared, used_bytes};
use crate::quota::{Amounts, Exceeded};
use crate::virtio::memory::{GuestMemory, RegionSpec};
use crate::virtio::{Inflight, MAX_ENTRIES, Queue, QueueInflight};
use rustix::fs::{OFlags, fcntl_getfl, fcntl_setfl};
use rustix::io::Errno;
use std::fs::File;
use std::io;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::Duration;
use tidegate_contract::Mac;
use vhost::vhost_user::message::VhostUserVringAddrFlags;
use vhost::vhost_user::{Error, Result, VhostUserBackendReqHandlerMut, VhostUserProtocolFeatures};

/// For the person who started a VM whose memory no other process can map.
pub const NOT_SHARED: &str = "guest memory is not shared; add share=on: \
    `-object memory-backend-memfd,id=mem,size=...,share=on -machine memory-backend=mem`, \
    in libvirt's XML `<memoryBacking><access mode='shared'/></memoryBacking>`";

/// Regions a memory table may have; also the most descriptors one message can carry.
const MAX_REGIONS: usize = 32;

/// How long it may take to try an event counter.
const TRIAL: Duration = Duration::from_millis(500);

/// The queues of a connection that is over. When it is dropped, their error descriptors are signalled, up to the first
/// that takes long.
struct Parting {
    vrings: Vec<Vring>,
    blame: bool,
    report: Report,
}

impl Drop for Parting {
    fn drop(&mut self) {
        for err in self.vrings.iter().filter(|_| self.blame).filter_map(|vring| vring.err.as_ref()) {
            if let Some(took) = notifier::slow(err) {
                if took >= LONG {
                    (self.report)(Event { object: Object::Error, took });
                }
                return;
            }
        }
    }
}

/// One virtqueue: what the front end has said of it so far.
#[derive(Debug, Default)]
struct Vring {
    size: Option<u16>,
    addresses: Option<Addresses>,
    /// `None` until SET_VRING_BASE: the beginning, which depends on the layout.
    base: Option<u32>,
    /// SET_VRING_ADDR with VHOST_VRING_F_LOG: the used ring's guest address in the dirty log.
    log: Option<u64>,
    /// Of a running queue.
    kick: Option<Kick>,
    call: Option<Call>,
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
    service: &'a Service,
    notifier: &'a Notifier,
    queue_pairs: u16,
    /// `None` until SET_FEATURES. Without LOG_ALL, which comes and goes.
    features: Option<u64>,
    logging: Logging,
    protocol_features: u64,
    /// The table as it was sent: ADD_MEM_REG and REM_MEM_REG change it.
    regions: Vec<RegionSpec<Numbered>>,
    /// What the workers have of it.
    memory: Option<Arc<GuestMemory>>,
    has_memory: bool,
    /// Something of the guest's was found in it.
    memory_is_alive: bool,
    vrings: Vec<Vring>,
    /// What the queues have in flight; made when the first starts, unless the front end asks for
    /// it or brings one.
    inflight: Option<Inflight>,
    /// The region's file, for the agent, which keeps it for a restart.
    inflight_file: Option<Numbered>,
}

/// A message that is refused, with the reason; ends the connection.
fn refuse<T>(reason: impl Into<String>) -> Result<T> {
    Err(Error::ReqHandlerError(io::Error::other(reason.into())))
}

/// A message that wants more than the port may have; ends the connection.
fn exceeded(message: &str, exceeded: Exceeded) -> Error {
    let reason = format!("{message}: {exceeded}");
    Error::ReqHandlerError(io::Error::new(io::ErrorKind::QuotaExceeded, reason))
}

impl<'a> Connection<'a> {
    /// A front end that has said nothing yet, on a port of that many queue pairs.
    pub fn new(
        control: &'a mut (dyn PortControl + Send),
        status: &'a ConnectionStatus,
        service: &'a Service,
        notifier: &'a Notifier,
        queue_pairs: u16,
    ) -> Self {
        let vrings = (0..queue_pairs * 2).map(|_| Vring::default()).collect();
        Self {
            control,
            status,
            service,
            notifier,
            queue_pairs,
            features: None,
            logging: Logging::default(),
            protocol_features: 0,
            regions: Vec::new(),
            memory: None,
            has_memory: false,
            memory_is_alive: false,
            vrings,
            inflight: None,
            inflight_file: None,
        }
    }

    /// What the queues have in flight, for the process after this one; `None` before the first
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
        self.service.shared().other = true;
        self.use_inflight(inflight)
    }

    fn use_inflight(&mut self, inflight: Inflight) -> Result<()> {
        let file = inflight.fd().try_clone_to_owned().map_err(Error::ReqHandlerError)?;
        let file = self.numbered("in-flight region", file)?;
        let before = (self.inflight_file.replace(file), self.inflight.replace(inflight));
        self.service.errands.give_up(before);
        Ok(())
    }

    /// Charges a descriptor to the port.
    fn numbered(&self, message: &str, fd: OwnedFd) -> Result<Numbered> {
        Numbered::charged(fd, &self.service.account).map_err(|(fd, why)| {
            self.service.errands.give_up(fd);
            exceeded(message, why)
        })
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
        let vrings = std::mem::take(&mut self.vrings);
        let regions = std::mem::take(&mut self.regions);
        let inflight = (self.inflight.take(), self.inflight_file.take());
        let memory = (self.memory.take(), std::mem::take(&mut self.logging));
        let calls = self.notifier.forget();
        let shared = std::mem::take(&mut *self.service.shared());
        self.service.errands.give_up(Parting { vrings, blame, report: self.service.report.clone() });
        self.service.errands.give_up((regions, shared, inflight, memory, calls));
    }

    /// Everything the front end has said on `stream`, and the descriptors that came with it.
    pub fn kept(&self, stream: &Numbered) -> (Kept, Vec<Numbered>) {
        let mut descriptors = vec![stream.clone()];
        descriptors.extend(self.regions.iter().map(|region| region.fd.clone()));
        let mut number = |fd: Option<&Numbered>| -> Option<Number> {
            descriptors.extend(fd.cloned());
            fd.map(Numbered::number)
        };
        let vrings = self.vrings.iter().map(|vring| KeptVring {
            size: vring.size,
            addresses: vring.addresses.map(|at| (at.desc, at.avail, at.used)),
            base: vring.base,
            log: vring.log,
            kick: number(vring.kick.as_ref().map(Kick::event)),
            call: number(vring.call.as_ref().map(Call::event)),
            err: number(vring.err.as_ref()),
            enabled: vring.enabled,
            running: vring.running,
        });
        let regions = self.regions.iter().map(|region| KeptRegion {
            guest_addr: region.guest_addr,
            user_addr: region.user_addr,
            size: region.size,
            mmap_offset: region.mmap_offset,
            file: region.fd.number(),
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

    /// Takes up what a front end has said to a process that is gone: its memory, and what it said of its
    /// queues. Features come before, by their messages. Checked as the messages are.
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
            self.set_log_file("kept dirty log", file, log.size, log.offset)?;
        }
        if !kept.regions.is_empty() {
            let specs = kept.regions.iter().map(|region| {
                let file = take(descriptors, Some(region.file))?.expect("asked for one");
                Ok(RegionSpec {
                    guest_addr: region.guest_addr,
                    user_addr: region.user_addr,
                    size: region.size,
                    mmap_offset: region.mmap_offset,
                    fd: self.numbered("kept memory table", file.into())?,
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
                call.signal();
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

    fn start(&mut self, index: u16, kick: Option<Kick>) -> Result<()> {
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
        let setup = VringSetup {
            size,
            desc,
            avail,
            used,
            base: vring.base.unwrap_or(Queue::first_base(packed)),
            log: vring.log,
            kick: kick.clone(),
            // Kept here too: a front end may restart the queue without sending it again.
            call: vring.call.clone(),
            inflight,
        };
        if let Err(reason) = self.control.start_queue(index, setup) {
            return refuse(format!("queue {index} cannot start: {reason}"));
        }
        vring.running = true;
        vring.kick = kick;
        vring.enabled |= starts_enabled;
        if vring.enabled {
            self.control.enable_queue(index, true);
        }
        self.publish();
        Ok(())
    }

    /// Maps `regions` and gives them to the workers.
    fn set_regions(&mut self, message: &str, regions: Vec<RegionSpec<Numbered>>) -> Result<()> {
        let bytes = regions.iter().fold(0u64, |sum, region| sum.saturating_add(region.size));
        let need = Amounts { bytes, regions: regions.len() as u64, descriptors: 0 };
        let charge = self.service.account.charge(need).map_err(|why| exceeded(message, why))?;
        let memory = match GuestMemory::map(&regions) {
            Ok(memory) => Arc::new(memory.charged(charge)),
            Err(e) => return refuse(format!("{message}: {e}")),
        };
        if let Some(disk) = memory.disk() {
            if self.status.has_deadline() {
                return refuse(format!(
                    "{message}: guest memory is on a disk ({disk}), where no deadline can be kept: use \
                     memory-backend-memfd, or memory-backend-file on tmpfs or hugetlbfs; or take the deadline out of \
                     the contract"
                ));
            }
            tracing::warn!(
                port = self.service.name,
                "guest memory is on a disk ({disk}): whenever a page has to be read from there, all frames wait; use \
                 memory-backend-memfd, or memory-backend-file on tmpfs or hugetlbfs"
            );
        }
        if let Err(reason) = self.control.set_memory(memory.clone()) {
            return refuse(format!("{message}: {reason}"));
        }
        let preallocated = memory.preallocated();
        let (files, disk) = Shared::memory(&regions, memory.disk().is_some());
        let shared = {
            let mut shared = self.service.shared();
            shared.disk = disk;
            std::mem::replace(&mut shared.files, files)
        };
        let before = (shared, self.memory.replace(memory), std::mem::replace(&mut self.regions, regions));
        self.service.errands.give_up(before);
        self.has_memory = true;
        self.set_log(message)?;
        self.status.update(|now| now.memory_preallocated = Some(preallocated));
        Ok(())
    }

    /// SET_LOG_BASE.
    fn set_log_file(&mut self, message: &str, file: File, size: u64, offset: u64) -> Result<()> {
        let need = Amounts { bytes: size, regions: 1, descriptors: 0 };
        let charge = self.service.account.charge(need).map_err(|why| exceeded(message, why))?;
        let file = self.numbered(message, file.into())?;
        match self.logging.set_base(file, size, offset, charge) {
            Ok(before) => {
                self.service.errands.give_up(before);
                self.service.shared().other = true;
                Ok(())
            }
            Err(error) => refuse(format!("{message}: {error}")),
        }
    }

    /// Begins or ends logging, once the front end has said where the log is.
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

impl Connection<'_> {
    /// A descriptor that a worker polls or signals: an event counter, made not to block.
    fn event(&self, message: &str, index: u16, file: Option<File>) -> Result<Option<Numbered>> {
        let Some(file) = file else { return Ok(None) };
        // Looked at where it came in, too; what comes from another process did not come in there.
        door::counter(message, index, &file).or_else(refuse)?;
        let system = |errno: Errno| Error::ReqHandlerError(errno.into());
        let flags = fcntl_getfl(&file).map_err(system)?;
        fcntl_setfl(&file, flags | OFlags::NONBLOCK).map_err(system)?;
        self.numbered(message, file.into()).map(Some)
    }

    /// Tries an event counter out in the port's errands: `trial` says how much CPU time that took, ns. Too much is an
    /// event, also where the message is refused before the time is known. A trial without an answer in time is no event:
    /// the host may be busy.
    fn try_out(
        &self,
        message: &str,
        object: Object,
        trial: impl FnOnce() -> io::Result<u64> + Send + 'static,
    ) -> Result<()> {
        let report = self.service.report.clone();
        let measured = move || {
            let event = Event { object, took: trial()? };
            let is_long = event.took >= LONG;
            if is_long {
                report(event);
            }
            io::Result::Ok(is_long.then_some(event))
        };
        match self.service.errands.ask(TRIAL, measured) {
            Some(Ok(None)) => Ok(()),
            Some(Ok(Some(event))) => refuse(format!("{message}: tried out, it {event}")),
            Some(Err(error)) => refuse(format!("{message}: the eventfd cannot be tried out: {error}")),
            None => refuse(format!(
                "{message}: the eventfd could not be tried out within {} ms: this host is too busy, or many wait for \
                 the eventfd",
                TRIAL.as_millis()
            )),
        }
    }

    /// How the driver of queue `index` is called from now on.
    fn call(&self, index: u16, file: Option<File>) -> Result<Option<Call>> {
        const MESSAGE: &str = "SET_VRING_CALL";
        let Some(event) = self.event(MESSAGE, index, file)? else { return Ok(None) };
        let tried = event.clone();
        if let Err(error) =
            self.try_out(MESSAGE, Object::Call, move || Ok(notifier::slow(tried).unwrap_or(0)))
        {
            self.service.errands.give_up(event);
            return Err(error);
        }
        self.notifier.call(index as u8, event).map(Some).map_err(Error::ReqHandlerError)
    }

    /// How queue `index` is kicked from now on.
    fn kick(&mut self, index: u16, file: Option<File>) -> Result<Option<Kick>> {
        const MESSAGE: &str = "SET_VRING_KICK";
        let Some(event) = self.event(MESSAGE, index, file)? else { return Ok(None) };
        let kick = Kick::new(event).map_err(Error::ReqHandlerError)?;
        match self.hear(MESSAGE, index, &kick) {
            Ok(()) => Ok(Some(kick)),
            Err(error) => {
                self.forget(kick);
                Err(error)
            }
        }
    }

    /// First the worker listens to what is empty still, then it is filled: what takes long of that is not the worker's.
    fn hear(&mut self, message: &str, index: u16, kick: &Kick) -> Result<()> {
        self.control.listen(kick).or_else(|why| refuse(format!("{message}: queue {index}: {why}")))?;
        let tried = kick.clone();
        self.try_out(message, Object::Kick, move || tried.hear())
    }

    /// Ends listening to a kick that no queue has any more.
    fn forget(&mut self, kick: Kick) {
        self.control.forget(&kick);
        self.service.errands.give_up(kick);
    }
}

/// The descriptor of that number, which is used once.
fn take(descriptors: &mut Descriptors, number: Option<Number>) -> Result<Option<File>> {
    let Some(number) = number else { return Ok(None) };
    match descriptors.remove(&number) {
        Some(fd) => Ok(Some(fd.into())),
        None => refuse(format!("descriptor {number} is missing")),
    }
}
