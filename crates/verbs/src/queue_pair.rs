//! Queue pairs of unreliable datagrams.
//!
//! ```text
//!  new ─▶ INIT ─▶ RTR ─▶ RTS ── fail ─▶ ERR: what was posted is flushed
//! ```

use crate::real::Pieces;
#[cfg(feature = "simulated")]
use crate::simulated;
use crate::{
    Address, CompletionQueue, Depths, Device, Error, Region, address, completion, device, real, region,
};
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

/// A queue pair, ready to send and to receive.
#[derive(Debug)]
pub struct QueuePair {
    inner: Inner,
    /// Most pieces of a request.
    pieces: u32,
}

#[derive(Debug)]
pub(crate) enum Inner {
    Real(real::QueuePair),
    #[cfg(feature = "simulated")]
    Simulated(simulated::QueuePair),
}

/// The largest Q_Key. Those with the top bit set belong to the kernel and to privileged processes (IBA, 3.5.3).
pub const LARGEST_Q_KEY: u32 = u32::MAX >> 1;

/// Bytes of a region.
#[derive(Clone, Copy, Debug)]
pub struct Piece<'a> {
    /// The memory.
    pub region: &'a Region,
    /// First byte in it.
    pub from: usize,
    /// Bytes: at least one, since some devices take none for 2 GiB.
    pub len: u32,
}

/// One datagram to send.
#[derive(Clone, Copy, Debug)]
pub struct Send<'a> {
    /// Returned in its completion.
    pub id: u64,
    /// Its bytes, in this order: 1 to [`Depths::pieces`] pieces, together at most the port's MTU.
    pub pieces: &'a [Piece<'a>],
    /// Whether its completion is to be told. At least every [`Depths::send`]th has to be; one that is told completes
    /// those before it.
    pub is_signalled: bool,
    /// The receiving host.
    pub to: &'a Address,
    /// The receiving queue pair there.
    pub queue_pair: u32,
    /// The receiver's Q_Key: at most [`LARGEST_Q_KEY`], since the top bit would stand for the sender's own.
    pub q_key: u32,
}

/// Room for one datagram behind its [`GRH`](crate::GRH).
#[derive(Clone, Copy, Debug)]
pub struct Receive<'a> {
    /// Returned in its completion.
    pub id: u64,
    /// Where its bytes go, in this order: 1 to [`Depths::pieces`] pieces of regions with [`Access::Write`](crate::Access).
    /// Together as many bytes as a datagram may have, also one of a hostile sender, and the GRH. A datagram that is longer
    /// costs the queue pair: it goes into the error state.
    pub pieces: &'a [Piece<'a>],
}

impl QueuePair {
    /// Makes a queue pair that receives datagrams with `q_key`, at most [`LARGEST_Q_KEY`].
    ///
    /// # Errors
    /// The device has no more; [`Error::QKey`]; [`Error::Pieces`].
    pub fn new(
        device: &Arc<Device>,
        sends: &Arc<CompletionQueue>,
        receives: &Arc<CompletionQueue>,
        depths: Depths,
        q_key: u32,
    ) -> Result<Self, Error> {
        checked(q_key)?;
        let Depths { pieces, .. } = depths;
        let most = device.pieces();
        if pieces == 0 || pieces > most {
            return Err(Error::Pieces { asked: pieces, most });
        }
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
        Ok(Self { inner, pieces })
    }

    /// Returns its number: 24 bits.
    pub fn number(&self) -> u32 {
        match &self.inner {
            Inner::Real(pair) => pair.number(),
            #[cfg(feature = "simulated")]
            Inner::Simulated(pair) => pair.number(),
        }
    }

    /// Returns what is set by its drop, before that returns, if the device does not destroy it: then all memory that was posted to it
    /// stays the device's, for as long as the process has the device.
    pub fn undestroyed(&self) -> Arc<AtomicBool> {
        match &self.inner {
            Inner::Real(pair) => pair.undestroyed(),
            #[cfg(feature = "simulated")]
            Inner::Simulated(pair) => pair.undestroyed(),
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

    /// Posts datagrams, [`BATCH`](crate::BATCH) by one write to the device, as long as these have no more than
    /// [`ELEMENTS`](crate::ELEMENTS) pieces.
    ///
    /// # Safety
    /// The bytes belong to the device until the completion of the request, or of a later one. Others may write to them
    /// meanwhile if it does not matter which bytes leave.
    ///
    /// # Errors
    /// How many were taken before, and why no more were: the queue is full, or it is in the error state; a request is not as
    /// [`Send`] says.
    pub unsafe fn post_send(&self, sends: &[Send<'_>]) -> Result<(), (usize, Error)> {
        match &self.inner {
            // SAFETY: the caller's promise.
            Inner::Real(pair) => unsafe { pair.post_send(sends.iter().map(|send| self.real_send(send))) },
            #[cfg(feature = "simulated")]
            // SAFETY: the caller's promise.
            Inner::Simulated(pair) => unsafe {
                pair.post_send(sends.iter().map(|send| self.simulated_send(send)))
            },
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
            Inner::Real(pair) => unsafe {
                pair.post_receive(receives.iter().map(|receive| self.real_receive(receive)))
            },
            #[cfg(feature = "simulated")]
            // SAFETY: the caller's promise.
            Inner::Simulated(pair) => unsafe {
                pair.post_receive(receives.iter().map(|receive| self.simulated_receive(receive)))
            },
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

    /// Returns the send of a simulated device's parts.
    ///
    /// # Errors
    /// A part is real; [`Error::QKey`]; as for [`check_pieces`].
    #[cfg(feature = "simulated")]
    fn simulated_send<'a>(&self, send: &Send<'a>) -> Result<simulated::Sending<'a>, Error> {
        checked(send.q_key)?;
        let call = "ibv_post_send";
        let Send { id, is_signalled, queue_pair, q_key, .. } = *send;
        let pieces = simulated_pieces(call, send.pieces, self.pieces)?;
        match &send.to.inner {
            address::Inner::Simulated(to) => {
                Ok(simulated::Sending { id, pieces, is_signalled, to, queue_pair, q_key })
            }
            address::Inner::Real(_) => Err(Error::invalid(call)),
        }
    }

    /// The same of buffers.
    #[cfg(feature = "simulated")]
    fn simulated_receive<'a>(&self, receive: &Receive<'a>) -> Result<simulated::Receiving<'a>, Error> {
        let pieces = simulated_pieces("ibv_post_recv", receive.pieces, self.pieces)?;
        Ok(simulated::Receiving { id: receive.id, pieces })
    }

    /// Returns the send of a real device's parts, and its pieces.
    ///
    /// # Errors
    /// The address is simulated; [`Error::QKey`]; as for [`check_pieces`].
    fn real_send<'a>(&self, send: &Send<'a>) -> Result<(real::Datagram<'a>, impl Pieces<'a>), Error> {
        checked(send.q_key)?;
        let call = "ibv_post_send";
        let Send { id, pieces, is_signalled, queue_pair, q_key, .. } = *send;
        check_pieces(call, pieces, self.pieces)?;
        match &send.to.inner {
            address::Inner::Real(to) => {
                let datagram = real::Datagram { id, is_signalled, to, queue_pair, q_key };
                Ok((datagram, pieces.iter().map(real_piece)))
            }
            #[cfg(feature = "simulated")]
            address::Inner::Simulated(_) => Err(Error::invalid(call)),
        }
    }

    /// Returns the id of a receive, and its pieces.
    ///
    /// # Errors
    /// As for [`check_pieces`].
    fn real_receive<'a>(&self, receive: &Receive<'a>) -> Result<(u64, impl Pieces<'a>), Error> {
        check_pieces("ibv_post_recv", receive.pieces, self.pieces)?;
        Ok((receive.id, receive.pieces.iter().map(real_piece)))
    }
}

fn checked(q_key: u32) -> Result<(), Error> {
    if q_key > LARGEST_Q_KEY { Err(Error::QKey(q_key)) } else { Ok(()) }
}

/// Checks how many pieces a request has, and that they are together no longer than a length in the device's words.
///
/// # Errors
/// [`Error::Pieces`]; a piece without bytes; all together have 4 GiB or more.
#[inline]
fn check_pieces(call: &'static str, pieces: &[Piece<'_>], most: u32) -> Result<(), Error> {
    let asked = u32::try_from(pieces.len()).unwrap_or(u32::MAX);
    if asked == 0 || asked > most {
        return Err(Error::Pieces { asked, most });
    }
    let mut sum = 0_u32;
    for piece in pieces {
        let added = sum.checked_add(piece.len).filter(|_| piece.len > 0);
        sum = added.ok_or_else(|| Error::invalid(call))?;
    }
    Ok(())
}

/// Returns a piece of a real region.
///
/// # Errors
/// The region is simulated.
#[inline]
fn real_piece<'a>(piece: &Piece<'a>) -> Result<real::Piece<'a>, Error> {
    let Piece { region, from, len } = *piece;
    match &region.inner {
        region::Inner::Real(region) => Ok(real::Piece { region, from, len }),
        #[cfg(feature = "simulated")]
        region::Inner::Simulated(_) => Err(Error::invalid("a request of a real device")),
    }
}

/// Returns pieces of simulated regions.
///
/// # Errors
/// A region is real; as for [`check_pieces`].
#[cfg(feature = "simulated")]
fn simulated_pieces<'a>(
    call: &'static str,
    pieces: &[Piece<'a>],
    most: u32,
) -> Result<Vec<simulated::Piece<'a>>, Error> {
    check_pieces(call, pieces, most)?;
    let of = |piece: &Piece<'a>| match &piece.region.inner {
        region::Inner::Simulated(region) => Ok(simulated::Piece { region, from: piece.from, len: piece.len }),
        region::Inner::Real(_) => Err(Error::invalid(call)),
    };
    pieces.iter().map(of).collect()
}
