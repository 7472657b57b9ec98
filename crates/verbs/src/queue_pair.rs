//! Queue pairs of unreliable datagrams.
//!
//! ```text
//!  new ─▶ INIT ─▶ RTR ─▶ RTS ── fail ─▶ ERR: what was posted is flushed
//! ```

use crate::{Address, CompletionQueue, Device, Error, Region};
use std::sync::Arc;

/// A queue pair, ready to send and to receive.
#[derive(Debug)]
pub struct QueuePair {}

/// How many requests a queue pair holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Depths {
    /// Sends.
    pub send: u32,
    /// Receives.
    pub receive: u32,
}

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
    /// The receiver's Q_Key.
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
    /// Bytes.
    pub len: u32,
}

impl QueuePair {
    /// Makes a queue pair that receives datagrams with `q_key` (top bit clear: others need a privilege).
    ///
    /// # Errors
    /// The device has no more, or refuses the key.
    pub fn new(
        device: &Arc<Device>,
        sends: &Arc<CompletionQueue>,
        receives: &Arc<CompletionQueue>,
        depths: Depths,
        q_key: u32,
    ) -> Result<Self, Error> {
        let _ = (device, sends, receives, depths, q_key);
        todo!()
    }

    /// Returns its number: 24 bits.
    pub fn number(&self) -> u32 {
        todo!()
    }

    /// Changes the key of datagrams that it receives.
    ///
    /// # Errors
    /// It is in the error state.
    pub fn set_q_key(&self, q_key: u32) -> Result<(), Error> {
        let _ = q_key;
        todo!()
    }

    /// Posts datagrams, all by one write to the device, and returns how many it took: the first ones. Fewer than asked for
    /// only with an error.
    ///
    /// # Safety
    /// The bytes belong to the device until the completion of the request, or of a later one.
    ///
    /// # Errors
    /// How many were taken before, and why no more were: the queue is full, or it is in the error state.
    pub unsafe fn post_send(&self, sends: &[Send<'_>]) -> Result<(), (usize, Error)> {
        let _ = sends;
        todo!()
    }

    /// Posts buffers for datagrams, as [`post_send`](Self::post_send) does.
    ///
    /// # Safety
    /// The bytes belong to the device until the completion of the request.
    ///
    /// # Errors
    /// The same.
    pub unsafe fn post_receive(&self, receives: &[Receive<'_>]) -> Result<(), (usize, Error)> {
        let _ = receives;
        todo!()
    }

    /// Brings it into the error state: what is posted is flushed, and completes.
    ///
    /// # Errors
    /// The device went away.
    pub fn fail(&self) -> Result<(), Error> {
        todo!()
    }
}
