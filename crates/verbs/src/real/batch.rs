//! Requests on the stack, chained for one call. Only those that were pushed are ever written: a batch of one costs no more.
//!
//! ```text
//!  push ─▶ requests │ a │ b │ c │ ...         chained: a ─ next ─▶ b ─ next ─▶ c
//!          elements │ a a │ b │ c c c │ ...            each names the first of its own
//! ```

use super::layout::{Element, ReceiveRequest, SendRequest};
use crate::{BATCH, ELEMENTS, Error};
use std::ffi::c_int;
use std::mem::MaybeUninit;
use std::ptr::null_mut;

/// A request that names the next one and its memory.
pub(super) trait Request: Copy {
    /// Sets how many elements it has.
    fn set_elements(&mut self, count: c_int);

    /// Sets the next one and the first element; returns how many elements it has.
    fn link(&mut self, next: *mut Self, first: *mut Element) -> c_int;
}

impl Request for SendRequest {
    fn set_elements(&mut self, count: c_int) {
        self.num_sge = count;
    }

    fn link(&mut self, next: *mut Self, first: *mut Element) -> c_int {
        (self.next, self.sg_list) = (next, first);
        self.num_sge
    }
}

impl Request for ReceiveRequest {
    fn set_elements(&mut self, count: c_int) {
        self.num_sge = count;
    }

    fn link(&mut self, next: *mut Self, first: *mut Element) -> c_int {
        (self.next, self.sg_list) = (next, first);
        self.num_sge
    }
}

/// Up to [`BATCH`] requests of up to [`ELEMENTS`] elements together.
pub(super) struct Batch<R> {
    requests: [MaybeUninit<R>; BATCH],
    elements: [MaybeUninit<Element>; ELEMENTS],
    len: usize,
    /// Elements of the first `len` requests.
    used: usize,
}

impl<R: Request> Batch<R> {
    pub(super) fn new() -> Self {
        Self {
            requests: [const { MaybeUninit::uninit() }; BATCH],
            elements: [const { MaybeUninit::uninit() }; ELEMENTS],
            len: 0,
            used: 0,
        }
    }

    pub(super) fn len(&self) -> usize {
        self.len
    }

    /// Forgets all.
    pub(super) fn clear(&mut self) {
        (self.len, self.used) = (0, 0);
    }

    /// Whether there is room for a request of so many elements.
    pub(super) fn has_room(&self, elements: usize) -> bool {
        self.len < BATCH && elements <= ELEMENTS - self.used
    }

    /// Adds a request, unless one of its elements is an error.
    ///
    /// # Errors
    /// That error.
    ///
    /// # Panics
    /// There is no room.
    pub(super) fn push(
        &mut self,
        mut request: R,
        elements: impl Iterator<Item = Result<Element, Error>>,
    ) -> Result<(), Error> {
        let mut used = self.used;
        for element in elements {
            self.elements[used].write(element?);
            used += 1;
        }
        request.set_elements((used - self.used) as c_int);
        self.requests[self.len].write(request);
        (self.len, self.used) = (self.len + 1, used);
        Ok(())
    }

    /// Returns the first request of the chain of all, or null. The chain is valid as long as the batch is borrowed.
    pub(super) fn chained(&mut self) -> *mut R {
        let first = self.requests.as_mut_ptr().cast::<R>();
        let mut element = self.elements.as_mut_ptr().cast::<Element>();
        for i in 0..self.len {
            let next = if i + 1 < self.len { first.wrapping_add(i + 1) } else { null_mut() };
            // SAFETY: the first `len` were written.
            let own = unsafe { (*first.add(i)).link(next, element) };
            element = element.wrapping_add(own as usize);
        }
        if self.len > 0 { first } else { null_mut() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Requests are numbered, and their elements, too: all in one row.
    fn chained(counts: &[usize]) -> Vec<(u64, Vec<u64>)> {
        let (mut batch, mut number) = (Batch::new(), 0);
        for (i, count) in counts.iter().enumerate() {
            assert!(batch.has_room(*count));
            let request =
                ReceiveRequest { wr_id: i as u64, next: null_mut(), sg_list: null_mut(), num_sge: 0 };
            let elements =
                (number..number + count).map(|addr| Ok(Element { addr: addr as u64, ..Element::default() }));
            batch.push(request, elements).unwrap();
            number += count;
        }
        let (mut at, mut seen) = (batch.chained(), Vec::new());
        while !at.is_null() {
            // SAFETY: a request of the chain.
            let request = unsafe { *at };
            // SAFETY: its elements.
            let own = unsafe { std::slice::from_raw_parts(request.sg_list, request.num_sge as usize) };
            seen.push((request.wr_id, own.iter().map(|element| element.addr).collect()));
            at = request.next;
        }
        seen
    }

    #[test]
    fn requests_are_chained_in_their_order_with_their_own_elements() {
        let all = [1; BATCH];
        for counts in [&[][..], &[1], &[1, 3, 2], &all, &[8; BATCH]] {
            let mut number = 0;
            let expected = counts.iter().enumerate().map(|(i, count)| {
                number += *count as u64;
                (i as u64, (number - *count as u64..number).collect())
            });
            assert_eq!(chained(counts), expected.collect::<Vec<_>>());
        }
    }

    #[test]
    fn room_ends_with_the_requests_or_with_the_elements() {
        let request = ReceiveRequest { wr_id: 0, next: null_mut(), sg_list: null_mut(), num_sge: 0 };
        let mut batch = Batch::new();
        for pushed in 0.. {
            if !batch.has_room(16) {
                assert_eq!(pushed, ELEMENTS / 16);
                break;
            }
            batch.push(request, (0..16).map(|_| Ok(Element::default()))).unwrap();
        }
        batch.clear();
        (0..BATCH).for_each(|_| batch.push(request, std::iter::once(Ok(Element::default()))).unwrap());
        assert!(!batch.has_room(1));
    }

    #[test]
    fn a_request_with_a_wrong_element_is_not_added() {
        let request = ReceiveRequest { wr_id: 0, next: null_mut(), sg_list: null_mut(), num_sge: 0 };
        let mut batch = Batch::new();
        let wrong = [Ok(Element::default()), Err(Error::invalid("wrong"))];
        assert!(batch.push(request, wrong.into_iter()).is_err());
        assert!(batch.len() == 0 && batch.has_room(ELEMENTS) && batch.chained().is_null());
    }
}
