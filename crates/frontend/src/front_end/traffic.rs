//! Sending and receiving frames.

use super::{FrontEnd, MRG_RXBUF, borrow};
use crate::driver::Buffer;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use std::io;
use std::time::Duration;

/// Offset of num_buffers in a virtio_net_hdr (virtio 1.2, 5.1.6).
const NUM_BUFFERS: usize = 10;

impl FrontEnd {
    /// Queues a frame on transmit queue `pair` until [`flush`](Self::flush). Returns `false` without a free
    /// buffer.
    ///
    /// # Panics
    /// The frame is longer than a buffer.
    #[inline]
    pub fn push(&mut self, pair: usize, frame: &[u8]) -> bool {
        assert!(
            frame.len() <= self.options.buffer_size as usize,
            "a frame of {} bytes for buffers of {}",
            frame.len(),
            self.options.buffer_size
        );
        let queue = &mut self.queues[2 * pair + 1];
        let Some(buffer) = queue.take_buffer() else {
            return false;
        };
        let addr = queue.addr(buffer);
        self.memory.write(addr, frame);
        let chain = [Buffer::readable(addr, frame.len() as u32)];
        queue.add(buffer, &chain)
    }

    /// Publishes pushed frames, and kicks the back end if it asked for kicks.
    #[inline]
    pub fn flush(&mut self, pair: usize) {
        self.queues[2 * pair + 1].show();
    }

    /// Sends one frame. Returns `false` without a free buffer.
    ///
    /// # Panics
    /// The frame is longer than a buffer.
    pub fn send(&mut self, pair: usize, frame: &[u8]) -> bool {
        let sent = self.push(pair, frame);
        self.flush(pair);
        sent
    }

    /// Sends frames with one notification. Returns how many found a buffer.
    ///
    /// # Panics
    /// A frame is longer than a buffer.
    pub fn send_batch<'f>(&mut self, pair: usize, frames: impl IntoIterator<Item = &'f [u8]>) -> usize {
        let sent = frames.into_iter().take_while(|frame| self.push(pair, frame)).count();
        self.flush(pair);
        sent
    }

    /// Counts the frames of transmit queue `pair` in the back end.
    pub fn in_flight(&mut self, pair: usize) -> usize {
        let queue = &mut self.queues[2 * pair + 1];
        queue.reap_all();
        usize::from(queue.ring.size()) - queue.free.len()
    }

    /// Takes the next frame from receive queue `pair`, header first, merged from its buffers. Returns
    /// `false` if there is none.
    ///
    /// # Panics
    /// The back end reports a length beyond the buffer, or a num_buffers above the buffers that it gave
    /// back.
    pub fn receive_into(&mut self, pair: usize, frame: &mut Vec<u8>) -> bool {
        let (buffer_size, mergeable) = (self.options.buffer_size, self.features & MRG_RXBUF != 0);
        let queue = &mut self.queues[2 * pair];
        frame.clear();
        let mut wanted = 1;
        let mut got = 0;
        while got < wanted {
            let Some(used) = queue.ring.reap() else {
                assert_eq!(got, 0, "a frame of {wanted} buffers, of which {got} came");
                return false;
            };
            assert!(used.len <= buffer_size, "{} bytes in {buffer_size}", used.len);
            let buffer = queue.buffer_of[usize::from(used.head)];
            let start = frame.len();
            frame.resize(start + used.len as usize, 0);
            let addr = queue.addr(buffer);
            self.memory.read(addr, &mut frame[start..]);
            queue.free.push(buffer);
            if mergeable && got == 0 && used.len == 0 {
                // It came back unused, and is given again, as drivers do.
                queue.give_buffer();
                continue;
            }
            got += 1;
            if got == 1 && mergeable {
                let bytes = frame.get(NUM_BUFFERS..NUM_BUFFERS + 2);
                let bytes = bytes.expect("a frame shorter than its header");
                wanted = usize::from(u16::from_le_bytes([bytes[0], bytes[1]]));
                assert!(wanted > 0, "num_buffers is 0");
            }
        }
        for _ in 0..got {
            queue.give_buffer();
        }
        queue.show();
        true
    }

    /// Takes the next frame from receive queue `pair`.
    ///
    /// # Panics
    /// As [`receive_into`](Self::receive_into).
    pub fn receive(&mut self, pair: usize) -> Option<Vec<u8>> {
        let mut frame = Vec::new();
        self.receive_into(pair, &mut frame).then_some(frame)
    }

    /// Sleeps until a receive queue has a frame. Returns `false` after `timeout`.
    ///
    /// # Errors
    /// The kernel refused to wait.
    pub fn wait_receive(&mut self, timeout: Duration) -> io::Result<bool> {
        let mut ready = false;
        for queue in self.queues.iter_mut().step_by(2) {
            // The next look at the ring covers all earlier signals.
            let _ = queue.call.read();
            ready |= queue.ring.enable_interrupts();
        }
        if !ready {
            let calls = self.queues.iter().step_by(2).map(|queue| borrow(&queue.call));
            let calls: Vec<_> = calls.collect();
            let mut fds: Vec<_> = calls.iter().map(|call| PollFd::new(call, PollFlags::IN)).collect();
            let timeout = Timespec::try_from(timeout).map_err(io::Error::other)?;
            ready = poll(&mut fds, Some(&timeout))? > 0;
        }
        for queue in self.queues.iter_mut().step_by(2) {
            queue.ring.disable_interrupts();
        }
        Ok(ready)
    }
}
