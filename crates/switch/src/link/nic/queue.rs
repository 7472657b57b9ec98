//! Frames that wait to leave, in order, in one ring of bytes. Pure.
//!
//! ```text
//!  reserve ─▶ │ .... │ frame │ frame │ frame │ .... │ ─▶ remove: sent, or refused
//!             0                                   size      expire: waited too long
//! ```
//!
//! A frame is in one piece: where it does not fit before the end, it is at the beginning.

use super::wire::Size;
use crate::slots::NEVER;
use std::collections::VecDeque;

/// Frames that wait.
pub struct Queue {
    memory: Box<[u8]>,
    waiting: VecDeque<Waiting>,
    most: usize,
}

#[derive(Clone, Copy)]
struct Waiting {
    at: usize,
    len: usize,
    size: Size,
    /// When it must have left (ns), or [`NEVER`].
    deadline: u64,
    /// Since when it is known to wait (ns); 0: unknown.
    since: u64,
}

/// Frames that left the queue, as they are on the wire.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Left {
    /// Frames.
    pub frames: u64,
    /// Their bytes.
    pub bytes: u64,
}

impl Queue {
    /// Returns room for `most` frames with `bytes` bytes.
    pub fn new(bytes: usize, most: usize) -> Self {
        Self { memory: vec![0; bytes].into(), waiting: VecDeque::with_capacity(most), most }
    }

    /// Whether no frame waits.
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.waiting.is_empty()
    }

    /// Lets a frame of `len` bytes wait, which the caller then writes; `None` without room.
    #[inline]
    pub fn reserve(&mut self, len: usize, size: Size, deadline: u64) -> Option<&mut [u8]> {
        let at = self.place(len)?;
        self.waiting.push_back(Waiting { at, len, size, deadline, since: 0 });
        self.memory.get_mut(at..at + len)
    }

    /// Whether a frame of `len` bytes has room.
    #[inline]
    pub fn has_room(&self, len: usize) -> bool {
        self.place(len).is_some()
    }

    fn place(&self, len: usize) -> Option<usize> {
        if self.waiting.len() >= self.most {
            return None;
        }
        let (Some(first), Some(last)) = (self.waiting.front(), self.waiting.back()) else {
            return (len <= self.memory.len()).then_some(0);
        };
        let end = last.at + last.len;
        if last.at < first.at {
            return (end + len <= first.at).then_some(end);
        }
        if end + len <= self.memory.len() {
            return Some(end);
        }
        (len <= first.at).then_some(0)
    }

    /// Returns the frames, the first one first.
    #[inline]
    pub fn iter(&self) -> impl Iterator<Item = &[u8]> {
        self.waiting.iter().map(|frame| &self.memory[frame.at..frame.at + frame.len])
    }

    /// Removes the first frames.
    pub fn remove(&mut self, count: usize) -> Left {
        let mut left = Left::default();
        for frame in self.waiting.drain(..count.min(self.waiting.len())) {
            left.frames += u64::from(frame.size.frames);
            left.bytes += u64::from(frame.size.bytes);
        }
        left
    }

    /// Removes the first frames that must have left before `now`, or have waited for more than `hold` since a call
    /// saw them.
    pub fn expire(&mut self, now: u64, hold: u64) -> Left {
        for frame in self.waiting.iter_mut().rev() {
            if frame.since != 0 {
                break;
            }
            frame.since = now;
        }
        let is_old = |frame: &&Waiting| match frame.deadline {
            NEVER => now.saturating_sub(frame.since) > hold,
            deadline => now > deadline,
        };
        let old = self.waiting.iter().take_while(is_old).count();
        self.remove(old)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[derive(Clone, Debug)]
    enum Step {
        Reserve(usize),
        Remove(usize),
    }

    fn step() -> impl Strategy<Value = Step> {
        prop_oneof![3 => (1..60usize).prop_map(Step::Reserve), 1 => (0..4usize).prop_map(Step::Remove)]
    }

    proptest! {
        /// The model is a queue of frames.
        #[test]
        fn frames_stay_whole_and_in_order(steps in prop::collection::vec(step(), 1..200)) {
            let mut queue = Queue::new(200, 8);
            let mut model = VecDeque::<Vec<u8>>::new();
            for (number, step) in steps.into_iter().enumerate() {
                match step {
                    Step::Reserve(len) => {
                        let size = Size { frames: 1, bytes: len as u32 };
                        let bytes = vec![number as u8; len];
                        let used: usize = model.iter().map(Vec::len).sum();
                        match queue.reserve(len, size, NEVER) {
                            Some(room) => {
                                room.copy_from_slice(&bytes);
                                model.push_back(bytes);
                            }
                            // At most a frame's length is lost at the end.
                            None => prop_assert!(model.len() == 8 || used + 2 * 60 + len > 200),
                        }
                    }
                    Step::Remove(count) => {
                        let removed: Vec<_> = model.drain(..count.min(model.len())).collect();
                        let bytes = removed.iter().map(Vec::len).sum::<usize>() as u64;
                        prop_assert_eq!(queue.remove(count), Left { frames: removed.len() as u64, bytes });
                    }
                }
                prop_assert!(queue.iter().eq(model.iter().map(Vec::as_slice)));
                prop_assert_eq!(queue.is_empty(), model.is_empty());
            }
        }
    }

    #[test]
    fn what_waits_too_long_is_removed() {
        let mut queue = Queue::new(1000, 8);
        let size = |frames| Size { frames, bytes: 10 * frames };
        let left = |frames| Left { frames, bytes: 10 * frames };
        assert!(queue.reserve(10, size(1), NEVER).is_some());
        assert_eq!(queue.expire(1000, 50), left(0), "just seen");
        assert!(queue.reserve(10, size(2), NEVER).is_some());
        assert_eq!(queue.expire(1050, 50), left(0));
        assert_eq!(queue.expire(1051, 50), left(1));
        assert_eq!(queue.expire(1101, 50), left(2));
        assert!(queue.reserve(10, size(1), 2000).is_some());
        assert!(queue.reserve(10, size(1), 1900).is_some());
        assert_eq!((queue.expire(2000, 0), queue.expire(2001, 0)), (left(0), left(2)));
        assert!(queue.is_empty());
    }
}
