//! Requests on the stack, chained for one call. Only those that were pushed are ever written: a batch of one costs no more.

use super::layout::{Piece, ReceiveRequest, SendRequest};
use crate::BATCH;
use std::mem::MaybeUninit;
use std::ptr::null_mut;

/// A request that names the next one and its memory.
pub(super) trait Request: Copy {
    /// Sets both.
    fn link(&mut self, next: *mut Self, piece: *mut Piece);
}

impl Request for SendRequest {
    fn link(&mut self, next: *mut Self, piece: *mut Piece) {
        (self.next, self.sg_list, self.num_sge) = (next, piece, 1);
    }
}

impl Request for ReceiveRequest {
    fn link(&mut self, next: *mut Self, piece: *mut Piece) {
        (self.next, self.sg_list, self.num_sge) = (next, piece, 1);
    }
}

/// Up to [`BATCH`] requests of one piece of memory each.
pub(super) struct Batch<R> {
    requests: [MaybeUninit<R>; BATCH],
    pieces: [MaybeUninit<Piece>; BATCH],
    len: usize,
}

impl<R: Request> Batch<R> {
    pub(super) fn new() -> Self {
        Self {
            requests: [const { MaybeUninit::uninit() }; BATCH],
            pieces: [const { MaybeUninit::uninit() }; BATCH],
            len: 0,
        }
    }

    pub(super) fn len(&self) -> usize {
        self.len
    }

    /// Forgets all.
    pub(super) fn clear(&mut self) {
        self.len = 0;
    }

    /// Adds a request.
    ///
    /// # Panics
    /// There are [`BATCH`] of them.
    pub(super) fn push(&mut self, request: R, piece: Piece) {
        self.requests[self.len].write(request);
        self.pieces[self.len].write(piece);
        self.len += 1;
    }

    /// Returns the first request of the chain of all, or null. The chain is valid as long as the batch is borrowed.
    pub(super) fn chained(&mut self) -> *mut R {
        let (first, pieces) =
            (self.requests.as_mut_ptr().cast::<R>(), self.pieces.as_mut_ptr().cast::<Piece>());
        for i in 0..self.len {
            let next = if i + 1 < self.len { first.wrapping_add(i + 1) } else { null_mut() };
            // SAFETY: the first `len` of both were written.
            unsafe { (*first.add(i)).link(next, pieces.wrapping_add(i)) };
        }
        if self.len > 0 { first } else { null_mut() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn requests_are_chained_in_their_order() {
        for len in [0, 1, 2, BATCH] {
            let mut batch = Batch::new();
            for i in 0..len {
                let request =
                    ReceiveRequest { wr_id: i as u64, next: null_mut(), sg_list: null_mut(), num_sge: 0 };
                batch.push(request, Piece { addr: 1000 + i as u64, length: 1, lkey: 2 });
            }
            let (mut at, mut seen) = (batch.chained(), Vec::new());
            while !at.is_null() {
                // SAFETY: a request of the chain, and its piece.
                let (request, piece) = unsafe { (*at, *(*at).sg_list) };
                assert_eq!(request.num_sge, 1);
                seen.push((request.wr_id, piece.addr));
                at = request.next;
            }
            let expected: Vec<_> = (0..len as u64).map(|i| (i, 1000 + i)).collect();
            assert_eq!(seen, expected);
        }
    }
}
