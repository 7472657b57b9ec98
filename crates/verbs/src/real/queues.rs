//! Completion queues.

use super::Device;
use super::layout::{COMPLETED, COMPLETED_FLUSHED, COMPLETED_RECEIVE, WorkCompletion};
use super::objects::Queue;
use crate::{Completion, Error, Status};
use std::os::fd::BorrowedFd;
use std::sync::Arc;

/// Completions taken at a time.
const AT_ONCE: usize = 32;

/// A completion queue.
#[derive(Debug)]
pub(crate) struct CompletionQueue {
    pub(super) queue: Arc<Queue>,
}

impl CompletionQueue {
    pub(crate) fn new(device: &Device, entries: u32) -> Result<Self, Error> {
        let entries = i32::try_from(entries).map_err(|_| Error::invalid("ibv_create_cq"))?;
        Ok(Self { queue: Queue::new(&device.domain, entries)? })
    }

    pub(crate) fn poll(&self, to: &mut [Completion]) -> Result<usize, Error> {
        // Zeroed: drivers write what a completion of its kind has, and no more.
        let mut raw = [WorkCompletion::default(); AT_ONCE];
        let mut taken = 0;
        for to in to.chunks_mut(AT_ONCE) {
            let found = self.queue.poll(&mut raw[..to.len()])?;
            for (to, raw) in to.iter_mut().zip(&raw[..found]) {
                *to = completion_of(raw);
            }
            taken += found;
            if found < to.len() {
                break;
            }
        }
        Ok(taken)
    }

    pub(crate) fn arm(&self) -> Result<(), Error> {
        self.queue.arm()
    }

    pub(crate) fn take_event(&self) {
        self.queue.take_event();
    }

    pub(crate) fn as_fd(&self) -> BorrowedFd<'_> {
        self.queue.fd()
    }
}

fn completion_of(raw: &WorkCompletion) -> Completion {
    let failed =
        |status| Completion { id: raw.wr_id, status, queue_pair: raw.qp_num, ..Completion::default() };
    match raw.status {
        COMPLETED => {}
        COMPLETED_FLUSHED => return failed(Status::Flushed),
        other => return failed(Status::Failed(other)),
    }
    Completion {
        id: raw.wr_id,
        status: Status::Success,
        is_receive: raw.opcode & COMPLETED_RECEIVE != 0,
        bytes: raw.byte_len,
        queue_pair: raw.qp_num,
        source: raw.src_qp,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn completions_say_what_became_of_requests() {
        let raw = WorkCompletion {
            wr_id: 7,
            opcode: COMPLETED_RECEIVE,
            byte_len: 100,
            qp_num: 17,
            src_qp: 18,
            ..WorkCompletion::default()
        };
        let expected = Completion {
            id: 7,
            status: Status::Success,
            is_receive: true,
            bytes: 100,
            queue_pair: 17,
            source: 18,
        };
        assert_eq!(completion_of(&raw), expected);
        for (number, status) in [(5, Status::Flushed), (1, Status::Failed(1))] {
            let expected = Completion { id: 7, status, queue_pair: 17, ..Completion::default() };
            assert_eq!(completion_of(&WorkCompletion { status: number, ..raw }), expected);
        }
    }
}
