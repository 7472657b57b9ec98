//! Queue pairs of unreliable datagrams.
//!
//! ```text
//!  new ─▶ INIT ─▶ RTR ─▶ RTS ── fail ─▶ ERR: what was posted is flushed
//! ```

#[cfg(feature = "simulated")]
use crate::simulated;
use crate::{
    Address, CompletionQueue, Depths, Device, Error, Region, address, completion, device, real, region,
};
use std::sync::Arc;

/// A queue pair, ready to send and to receive.
#[derive(Debug)]
pub struct QueuePair {
    inner: Inner,
}

#[derive(Debug)]
pub(crate) enum Inner {
    Real(real::QueuePair),
    #[cfg(feature = "simulated")]
    Simulated(simulated::QueuePair),
}

/// The largest Q_Key. Those with the top bit set belong to the kernel and to privileged processes (IBA, 3.5.3).
pub const LARGEST_Q_KEY: u32 = u32::MAX >> 1;

/// One datagram to send: bytes of one region.
#[derive(Clone, Copy, Debug)]
pub struct Send<'a> {
    /// Returned in its completion.
    pub id: u64,
    /// The memory.
    pub region: &'a Region,
    /// First byte in it.
    pub from: usize,
    /// Bytes: at most the port's MTU.
    pub len: u32,
    /// Whether its completion is to be told. At least every `Depths::send`th has to be; one that is told completes those
    /// before it.
    pub is_signalled: bool,
    /// The receiving host.
    pub to: &'a Address,
    /// The receiving queue pair there.
    pub queue_pair: u32,
    /// The receiver's Q_Key: at most [`LARGEST_Q_KEY`], since the top bit would stand for the sender's own.
    pub q_key: u32,
}

/// One buffer for a datagram behind its [`GRH`](crate::GRH).
#[derive(Clone, Copy, Debug)]
pub struct Receive<'a> {
    /// Returned in its completion.
    pub id: u64,
    /// The memory.
    pub region: &'a Region,
    /// First byte in it.
    pub from: usize,
    /// Bytes: as many as a datagram may have, also one of a hostile sender, and the GRH. One that is longer costs the
    /// queue pair: it goes into the error state.
    pub len: u32,
}

impl QueuePair {
    /// Makes a queue pair that receives datagrams with `q_key`, at most [`LARGEST_Q_KEY`].
    ///
    /// # Errors
    /// The device has no more; [`Error::QKey`].
    pub fn new(
        device: &Arc<Device>,
        sends: &Arc<CompletionQueue>,
        receives: &Arc<CompletionQueue>,
        depths: Depths,
        q_key: u32,
    ) -> Result<Self, Error> {
        checked(q_key)?;
        let inner = match (&device.inner, &sends.inner, &receives.inner) {
            (
                device::Inner::Real(device),
                completion::Inner::Real(sends),
                completion::Inner::Real(receives),
            ) => Inner::Real(real::QueuePair::new(device, sends, receives, depths, q_key)?),
            #[cfg(feature = "simulated")]
            (
                device::Inner::Simulated(device),
                completion::Inner::Simulated(sends),
                completion::Inner::Simulated(receives),
            ) => Inner::Simulated(simulated::QueuePair::new(device, sends, receives, depths, q_key)?),
            #[cfg(feature = "simulated")]
            _ => return Err(Error::invalid("ibv_create_qp")),
        };
        Ok(Self { inner })
    }

    /// Returns its number: 24 bits.
    pub fn number(&self) -> u32 {
        match &self.inner {
            Inner::Real(pair) => pair.number(),
            #[cfg(feature = "simulated")]
            Inner::Simulated(pair) => pair.number(),
        }
    }

    /// Changes the key of datagrams that it receives.
    ///
    /// # Errors
    /// The queue pair is in the error state; [`Error::QKey`].
    pub fn set_q_key(&self, q_key: u32) -> Result<(), Error> {
        checked(q_key)?;
        match &self.inner {
            Inner::Real(pair) => pair.set_q_key(q_key),
            #[cfg(feature = "simulated")]
            Inner::Simulated(pair) => pair.set_q_key(q_key),
        }
    }

    /// Posts datagrams, [`BATCH`](crate::BATCH) by one write to the device.
    ///
    /// # Safety
    /// The bytes belong to the device until the completion of the request, or of a later one.
    ///
    /// # Errors
    /// How many were taken before, and why no more were: the queue is full, or it is in the error state.
    pub unsafe fn post_send(&self, sends: &[Send<'_>]) -> Result<(), (usize, Error)> {
        match &self.inner {
            // SAFETY: the caller's promise.
            Inner::Real(pair) => unsafe { pair.post_send(sends.iter().map(real_send)) },
            #[cfg(feature = "simulated")]
            // SAFETY: the caller's promise.
            Inner::Simulated(pair) => unsafe { pair.post_send(sends.iter().map(simulated_send)) },
        }
    }

    /// Posts buffers for datagrams, as [`post_send`](Self::post_send) does.
    ///
    /// # Safety
    /// The bytes belong to the device until the completion of the request.
    ///
    /// # Errors
    /// The same.
    pub unsafe fn post_receive(&self, receives: &[Receive<'_>]) -> Result<(), (usize, Error)> {
        match &self.inner {
            // SAFETY: the caller's promise.
            Inner::Real(pair) => unsafe { pair.post_receive(receives.iter().map(real_receive)) },
            #[cfg(feature = "simulated")]
            // SAFETY: the caller's promise.
            Inner::Simulated(pair) => unsafe { pair.post_receive(receives.iter().map(simulated_receive)) },
        }
    }

    /// Brings it into the error state: what is posted is flushed, and completes.
    ///
    /// # Errors
    /// The device went away.
    pub fn fail(&self) -> Result<(), Error> {
        match &self.inner {
            Inner::Real(pair) => pair.fail(),
            #[cfg(feature = "simulated")]
            Inner::Simulated(pair) => pair.fail(),
        }
    }
}

fn checked(q_key: u32) -> Result<(), Error> {
    if q_key > LARGEST_Q_KEY { Err(Error::QKey(q_key)) } else { Ok(()) }
}

/// Returns the send of a simulated device's parts.
///
/// # Errors
/// A part is real; [`Error::QKey`].
#[cfg(feature = "simulated")]
fn simulated_send<'a>(send: &Send<'a>) -> Result<simulated::Sending<'a>, Error> {
    checked(send.q_key)?;
    let Send { id, from, len, is_signalled, queue_pair, q_key, .. } = *send;
    match (&send.region.inner, &send.to.inner) {
        (region::Inner::Simulated(region), address::Inner::Simulated(to)) => {
            Ok(simulated::Sending { id, is_signalled, region, from, len, to, queue_pair, q_key })
        }
        _ => Err(Error::invalid("ibv_post_send")),
    }
}

/// The same of buffers.
///
/// # Errors
/// The region is real.
#[cfg(feature = "simulated")]
fn simulated_receive<'a>(receive: &Receive<'a>) -> Result<simulated::Receiving<'a>, Error> {
    let Receive { id, from, len, .. } = *receive;
    match &receive.region.inner {
        region::Inner::Simulated(region) => Ok(simulated::Receiving { id, region, from, len }),
        region::Inner::Real(_) => Err(Error::invalid("ibv_post_recv")),
    }
}

/// Returns the send of a real device's parts.
///
/// # Errors
/// A part is simulated; [`Error::QKey`].
fn real_send<'a>(send: &Send<'a>) -> Result<real::Datagram<'a>, Error> {
    checked(send.q_key)?;
    let Send { id, from, len, is_signalled, queue_pair, q_key, .. } = *send;
    match (&send.region.inner, &send.to.inner) {
        (region::Inner::Real(region), address::Inner::Real(to)) => {
            Ok(real::Datagram { id, region, from, len, is_signalled, to, queue_pair, q_key })
        }
        #[cfg(feature = "simulated")]
        _ => Err(Error::invalid("ibv_post_send")),
    }
}

/// The same of buffers.
///
/// # Errors
/// The region is simulated.
fn real_receive<'a>(receive: &Receive<'a>) -> Result<real::Buffer<'a>, Error> {
    let Receive { id, from, len, .. } = *receive;
    match &receive.region.inner {
        region::Inner::Real(region) => Ok(real::Buffer { id, region, from, len }),
        #[cfg(feature = "simulated")]
        region::Inner::Simulated(_) => Err(Error::invalid("ibv_post_recv")),
    }
}
