//! Queue pairs: what is posted is checked, chained, and handed over by one call for each batch.

use super::batch::{Batch, Request};
use super::layout::{
    Capacities, InitAttributes, MASK_PKEY_INDEX, MASK_PORT, MASK_QKEY, MASK_SQ_PSN, MASK_STATE,
    PairAttributes, Piece, ReceiveRequest, SEND, SIGNALED, STATE_ERROR, STATE_INIT, STATE_READY_TO_RECEIVE,
    STATE_READY_TO_SEND, SendRequest, UNRELIABLE_DATAGRAM,
};
use super::objects::{Domain, PORT, Pair};
use super::{CompletionQueue, Device};
use crate::{BATCH, Depths, Error, LARGEST_Q_KEY, Receive, Send, address, region};
use std::ptr::null_mut;
use std::sync::Arc;

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
            max_send_sge: 1,
            max_recv_sge: 1,
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

    pub(crate) fn set_q_key(&self, q_key: u32) -> Result<(), Error> {
        self.pair.modify(PairAttributes { qkey: q_key, ..PairAttributes::default() }, MASK_QKEY)
    }

    pub(crate) fn fail(&self) -> Result<(), Error> {
        self.pair.modify(PairAttributes { qp_state: STATE_ERROR, ..PairAttributes::default() }, MASK_STATE)
    }

    /// # Safety
    /// As the public function.
    pub(crate) unsafe fn post_send(&self, sends: &[Send<'_>]) -> Result<(), (usize, Error)> {
        let request = |send: &Send<'_>| request_of(self.pair.domain(), send);
        // SAFETY: each piece is within its region, each address of this device; the rest is the caller's promise.
        in_batches(sends, request, |batch| unsafe { self.pair.send(batch) })
    }

    /// # Safety
    /// As the public function.
    pub(crate) unsafe fn post_receive(&self, receives: &[Receive<'_>]) -> Result<(), (usize, Error)> {
        let request = |receive: &Receive<'_>| buffer_of(self.pair.domain(), receive);
        // SAFETY: each piece is within its region; the rest is the caller's promise.
        in_batches(receives, request, |batch| unsafe { self.pair.receive(batch) })
    }
}

/// Calls `post` with each batch of requests for `items`, until one fails.
///
/// # Errors
/// How many were taken before, and why no more were.
fn in_batches<T, R: Request>(
    items: &[T],
    request: impl Fn(&T) -> Result<(R, Piece), Error>,
    post: impl Fn(&mut Batch<R>) -> Result<(), (usize, Error)>,
) -> Result<(), (usize, Error)> {
    let mut before = 0;
    for items in items.chunks(BATCH) {
        let mut batch = Batch::new();
        let mut refused = None;
        for item in items {
            match request(item) {
                Ok((request, piece)) => batch.push(request, piece),
                Err(error) => {
                    refused = Some(error);
                    break;
                }
            }
        }
        // Those before one that is refused are posted, as the library does with the ones that it refuses itself.
        if batch.len() > 0 {
            post(&mut batch).map_err(|(taken, error)| (before + taken, error))?;
        }
        before += batch.len();
        if let Some(error) = refused {
            return Err((before, error));
        }
    }
    Ok(())
}

/// Returns the request that sends a datagram, or what is wrong with that.
fn request_of(domain: &Arc<Domain>, send: &Send<'_>) -> Result<(SendRequest, Piece), Error> {
    let piece = piece_of(domain, send.region, send.from, send.len).ok_or_else(|| {
        Error::invalid("ibv_post_send: bytes beyond their region, or a region of another device")
    })?;
    let handle = match &send.to.inner {
        address::Inner::Real(address) if address.handle.is_of(domain) => &address.handle,
        _ => return Err(Error::invalid("ibv_post_send: an address of another device")),
    };
    if send.q_key > LARGEST_Q_KEY {
        return Err(Error::QKey(send.q_key));
    }
    let request = SendRequest {
        wr_id: send.id,
        next: null_mut(),
        sg_list: null_mut(),
        num_sge: 0,
        opcode: SEND,
        send_flags: if send.is_signalled { SIGNALED } else { 0 },
        imm_data: 0,
        ah: handle.raw(),
        remote_qpn: send.queue_pair,
        remote_qkey: send.q_key,
        rest_of_wr: [0; 2],
        qp_type: 0,
        bind_mw_or_tso: [0; 6],
    };
    Ok((request, piece))
}

/// Returns the request that offers a buffer, or what is wrong with that.
fn buffer_of(domain: &Arc<Domain>, receive: &Receive<'_>) -> Result<(ReceiveRequest, Piece), Error> {
    let piece = piece_of(domain, receive.region, receive.from, receive.len).ok_or_else(|| {
        Error::invalid("ibv_post_recv: bytes beyond their region, or a region of another device")
    })?;
    Ok((ReceiveRequest { wr_id: receive.id, next: null_mut(), sg_list: null_mut(), num_sge: 0 }, piece))
}

/// Returns the bytes of a region, unless some are beyond it, or it is none of this device.
fn piece_of(domain: &Arc<Domain>, region: &crate::Region, from: usize, len: u32) -> Option<Piece> {
    let memory = match &region.inner {
        region::Inner::Real(region) if region.memory.is_of(domain) => &region.memory,
        _ => return None,
    };
    let end = from.checked_add(usize::try_from(len).ok()?)?;
    let addr = memory.start().expose_provenance().checked_add(from)?;
    (end <= memory.len()).then_some(Piece { addr: addr as u64, length: len, lkey: memory.key() })
}
