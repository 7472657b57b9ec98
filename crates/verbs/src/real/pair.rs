//! Queue pairs: what is posted is checked, chained, and handed over by one call for each batch.

use super::batch::{Batch, Request};
use super::layout::{
    Capacities, Element, InitAttributes, MASK_PKEY_INDEX, MASK_PORT, MASK_QKEY, MASK_SQ_PSN, MASK_STATE,
    PairAttributes, ReceiveRequest, SEND, SIGNALED, STATE_ERROR, STATE_INIT, STATE_READY_TO_RECEIVE,
    STATE_READY_TO_SEND, SendRequest, UNRELIABLE_DATAGRAM,
};
use super::objects::{Domain, PORT, Pair};
use super::{Address, CompletionQueue, Device, Region};
use crate::{Access, Depths, Error};
use std::ptr::null_mut;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

/// A piece of memory, of parts of this crate's public type.
#[derive(Clone, Copy)]
pub(crate) struct Piece<'a> {
    pub region: &'a Region,
    pub from: usize,
    pub len: u32,
}

/// A datagram to send, without its pieces.
#[derive(Clone, Copy)]
pub(crate) struct Datagram<'a> {
    pub id: u64,
    pub is_signalled: bool,
    pub to: &'a Address,
    pub queue_pair: u32,
    pub q_key: u32,
}

/// The pieces of a request, one by one.
pub(crate) trait Pieces<'a>: ExactSizeIterator<Item = Result<Piece<'a>, Error>> {}

impl<'a, I: ExactSizeIterator<Item = Result<Piece<'a>, Error>>> Pieces<'a> for I {}

/// A queue pair of unreliable datagrams.
#[derive(Debug)]
pub(crate) struct QueuePair {
    pair: Pair,
}

impl QueuePair {
    pub(crate) fn new(
        device: &Device,
        sends: &CompletionQueue,
        receives: &CompletionQueue,
        depths: Depths,
        q_key: u32,
    ) -> Result<Self, Error> {
        if ![sends, receives].iter().all(|queue| queue.queue.is_of(&device.domain)) {
            return Err(Error::invalid("ibv_create_qp: completion queues of another device"));
        }
        let cap = Capacities {
            max_send_wr: depths.send,
            max_recv_wr: depths.receive,
            max_send_sge: depths.pieces,
            max_recv_sge: depths.pieces,
            max_inline_data: 0,
        };
        let attributes = InitAttributes {
            qp_context: null_mut(),
            send_cq: null_mut(),
            recv_cq: null_mut(),
            srq: null_mut(),
            cap,
            qp_type: UNRELIABLE_DATAGRAM,
            sq_sig_all: 0,
        };
        let pair = Self { pair: Pair::new(&device.domain, &sends.queue, &receives.queue, attributes)? };
        pair.make_ready(q_key)?;
        Ok(pair)
    }

    fn make_ready(&self, q_key: u32) -> Result<(), Error> {
        let to =
            |qp_state| PairAttributes { qp_state, qkey: q_key, port_num: PORT, ..PairAttributes::default() };
        self.pair.modify(to(STATE_INIT), MASK_STATE | MASK_PKEY_INDEX | MASK_PORT | MASK_QKEY)?;
        self.pair.modify(to(STATE_READY_TO_RECEIVE), MASK_STATE)?;
        self.pair.modify(to(STATE_READY_TO_SEND), MASK_STATE | MASK_SQ_PSN)
    }

    pub(crate) fn number(&self) -> u32 {
        self.pair.number()
    }

    pub(crate) fn undestroyed(&self) -> Arc<AtomicBool> {
        self.pair.undestroyed()
    }

    pub(crate) fn set_q_key(&self, q_key: u32) -> Result<(), Error> {
        self.pair.modify(PairAttributes { qkey: q_key, ..PairAttributes::default() }, MASK_QKEY)
    }

    pub(crate) fn fail(&self) -> Result<(), Error> {
        self.pair.modify(PairAttributes { qp_state: STATE_ERROR, ..PairAttributes::default() }, MASK_STATE)
    }

    /// Posts datagrams, up to the first one that is refused.
    ///
    /// # Safety
    /// As the public function.
    pub(crate) unsafe fn post_send<'a, P: Pieces<'a>>(
        &self,
        sends: impl Iterator<Item = Result<(Datagram<'a>, P), Error>>,
    ) -> Result<(), (usize, Error)> {
        let domain = self.pair.domain();
        let requests = sends.map(|send| {
            let (send, pieces) = send?;
            Ok((request_of(domain, &send)?, pieces.map(|piece| sent(domain, &piece?))))
        });
        // SAFETY: each piece is within its region, each address of this device; the rest is the caller's promise.
        in_batches(requests, |batch| unsafe { self.pair.send(batch) })
    }

    /// Posts buffers, up to the first one that is refused.
    ///
    /// # Safety
    /// As the public function.
    pub(crate) unsafe fn post_receive<'a, P: Pieces<'a>>(
        &self,
        receives: impl Iterator<Item = Result<(u64, P), Error>>,
    ) -> Result<(), (usize, Error)> {
        let domain = self.pair.domain();
        let requests = receives.map(|receive| {
            let (id, pieces) = receive?;
            let request = ReceiveRequest { wr_id: id, next: null_mut(), sg_list: null_mut(), num_sge: 0 };
            Ok((request, pieces.map(|piece| received(domain, &piece?))))
        });
        // SAFETY: each piece is within its region; the rest is the caller's promise.
        in_batches(requests, |batch| unsafe { self.pair.receive(batch) })
    }
}

/// Calls `post` with each batch of requests, until one fails or a request is refused. Those before that are posted, as the
/// library does with requests that it refuses itself.
///
/// # Errors
/// How many were taken before, and why no more were.
fn in_batches<R: Request, E: ExactSizeIterator<Item = Result<Element, Error>>>(
    requests: impl Iterator<Item = Result<(R, E), Error>>,
    post: impl Fn(&mut Batch<R>) -> Result<(), (usize, Error)>,
) -> Result<(), (usize, Error)> {
    let (mut batch, mut before, mut refused) = (Batch::new(), 0, None);
    for request in requests {
        let pushed = match request {
            Ok((request, elements)) => {
                if !batch.has_room(elements.len()) {
                    post(&mut batch).map_err(|(taken, error)| (before + taken, error))?;
                    before += batch.len();
                    batch.clear();
                }
                batch.push(request, elements)
            }
            Err(error) => Err(error),
        };
        if let Err(error) = pushed {
            refused = Some(error);
            break;
        }
    }
    if batch.len() > 0 {
        post(&mut batch).map_err(|(taken, error)| (before + taken, error))?;
    }
    refused.map_or(Ok(()), |error| Err((before + batch.len(), error)))
}

/// Returns the request that sends a datagram, or what is wrong with that.
fn request_of(domain: &Arc<Domain>, send: &Datagram<'_>) -> Result<SendRequest, Error> {
    if !send.to.handle.is_of(domain) {
        return Err(Error::invalid("ibv_post_send: an address of another device"));
    }
    Ok(SendRequest {
        wr_id: send.id,
        next: null_mut(),
        sg_list: null_mut(),
        num_sge: 0,
        opcode: SEND,
        send_flags: if send.is_signalled { SIGNALED } else { 0 },
        imm_data: 0,
        ah: send.to.handle.raw(),
        remote_qpn: send.queue_pair,
        remote_qkey: send.q_key,
        rest_of_wr: [0; 2],
        qp_type: 0,
        bind_mw_or_tso: [0; 6],
    })
}

/// Returns the element of a piece to send.
///
/// # Errors
/// Some bytes are beyond their region, or that is of another device.
#[inline]
fn sent(domain: &Arc<Domain>, piece: &Piece<'_>) -> Result<Element, Error> {
    element_of(domain, piece, Access::Read).ok_or_else(|| {
        Error::invalid("ibv_post_send: bytes beyond their region, or a region of another device")
    })
}

/// Returns the element of a piece that is written to.
///
/// # Errors
/// The same, or the device only reads the region.
#[inline]
fn received(domain: &Arc<Domain>, piece: &Piece<'_>) -> Result<Element, Error> {
    element_of(domain, piece, Access::Write).ok_or_else(|| {
        Error::invalid(
            "ibv_post_recv: bytes beyond their region, a region of another device, or one that is only read",
        )
    })
}

#[inline]
fn element_of(domain: &Arc<Domain>, piece: &Piece<'_>, access: Access) -> Option<Element> {
    let Piece { region, from, len } = *piece;
    let memory = &region.memory;
    let end = from.checked_add(usize::try_from(len).ok()?)?;
    let may = memory.is_of(domain) && end <= memory.len();
    let may = may && (access == Access::Read || memory.access() == Access::Write);
    let addr = memory.start().expose_provenance().checked_add(from)?;
    may.then_some(Element { addr: addr as u64, length: len, lkey: memory.key() })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::BATCH;
    use std::cell::RefCell;

    /// Posts so many requests, of which one is refused by us, or by the device in the batch that has it.
    fn posted(count: usize, ours: usize, device: usize) -> (Vec<usize>, Result<(), usize>) {
        let request = |i| match i == ours {
            true => Err(Error::invalid("ours")),
            false => Ok((
                ReceiveRequest { wr_id: i as u64, next: null_mut(), sg_list: null_mut(), num_sge: 0 },
                std::iter::once(Ok(Element::default())),
            )),
        };
        let batches = RefCell::new(vec![]);
        let before = || batches.borrow().iter().sum::<usize>();
        let post = |batch: &mut Batch<ReceiveRequest>| {
            let first = before();
            batches.borrow_mut().push(batch.len());
            let refused = device.checked_sub(first).filter(|taken| *taken < batch.len());
            refused.map_or(Ok(()), |taken| Err((taken, Error::invalid("the device's"))))
        };
        let done = in_batches((0..count).map(request), post).map_err(|(taken, _)| taken);
        (batches.into_inner(), done)
    }

    const NONE: usize = usize::MAX;

    #[test]
    fn requests_are_posted_in_batches() {
        assert_eq!(posted(0, NONE, NONE), (vec![], Ok(())));
        assert_eq!(posted(1, NONE, NONE), (vec![1], Ok(())));
        assert_eq!(posted(BATCH, NONE, NONE), (vec![BATCH], Ok(())));
        assert_eq!(posted(2 * BATCH + 1, NONE, NONE), (vec![BATCH, BATCH, 1], Ok(())));
    }

    #[test]
    fn those_before_a_refused_one_are_taken() {
        assert_eq!(posted(9, 0, NONE), (vec![], Err(0)));
        assert_eq!(posted(9, 4, NONE), (vec![4], Err(4)));
        assert_eq!(posted(3 * BATCH, BATCH, NONE), (vec![BATCH], Err(BATCH)));
        assert_eq!(posted(3 * BATCH, BATCH + 2, NONE), (vec![BATCH, 2], Err(BATCH + 2)));
        assert_eq!(posted(3 * BATCH, NONE, BATCH + 2), (vec![BATCH, BATCH], Err(BATCH + 2)));
        assert_eq!(posted(9, 6, 3), (vec![6], Err(3)), "the device's comes first");
    }
}
