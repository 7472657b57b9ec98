//! Memory of waiting frames: one arena of nodes per egress, and per source a doubly linked list through it.
//!
//! ```text
//!   nodes  [ a1 | b1 | -- | a2 | c1 | -- | a3 ]      source a: a1 ⇄ a2 ⇄ a3
//!                      └──── free ────┘
//! ```
//!
//! A freed node is the next to be used, so the arena stays as small, and as warm in the cache, as the
//! queues are. It doubles when more frames wait than ever before, and never shrinks.

use super::{Backlog, Queued};

const NIL: u32 = u32::MAX;
/// Nodes there is room for from the start.
const ROOM: usize = 1024;

#[derive(Clone, Copy, Debug)]
pub(super) struct Node<F> {
    pub(super) queued: Queued<F>,
    /// Number of the frame by arrival over all sources.
    pub(super) arrival: u64,
    next: u32,
    prev: u32,
}

#[derive(Debug)]
pub(super) struct Arena<F> {
    nodes: Vec<Node<F>>,
    /// First free node; the free ones are linked by `next`.
    free: u32,
}

/// The frames of one source, oldest first.
#[derive(Clone, Copy, Debug)]
pub(super) struct List {
    head: u32,
    tail: u32,
    pub(super) frames: u32,
    pub(super) bytes: u64,
}

impl Default for List {
    fn default() -> Self {
        Self { head: NIL, tail: NIL, frames: 0, bytes: 0 }
    }
}

impl List {
    #[inline]
    pub(super) fn is_empty(&self) -> bool {
        self.frames == 0
    }

    /// Adds frames stored elsewhere to the count.
    pub(super) fn count(&mut self, frames: u32, bytes: u64) {
        self.frames += frames;
        self.bytes += bytes;
    }

    /// Removes frames stored elsewhere from the count.
    pub(super) fn count_out(&mut self, frames: u32, bytes: u64) {
        self.frames -= frames;
        self.bytes -= bytes;
    }

    /// Returns the first frame's node.
    #[inline]
    pub(super) fn first(&self) -> Option<u32> {
        (self.head != NIL).then_some(self.head)
    }
}

impl<F: Copy> Arena<F> {
    pub(super) fn new() -> Self {
        Self::with_room(ROOM)
    }

    /// Returns an arena with room for so many frames.
    pub(super) fn with_room(frames: usize) -> Self {
        Self { nodes: Vec::with_capacity(frames), free: NIL }
    }

    /// Returns the most nodes ever in use at once.
    pub(super) fn most(&self) -> usize {
        self.nodes.len()
    }

    #[inline]
    pub(super) fn front(&self, list: &List) -> Option<&Node<F>> {
        self.nodes.get(list.head as usize)
    }

    /// Returns the frame's node.
    ///
    /// # Panics
    /// With 2^32 - 1 waiting frames; memory ends long before.
    #[inline]
    pub(super) fn push_back(&mut self, list: &mut List, queued: Queued<F>, arrival: u64) -> u32 {
        let node = Node { queued, arrival, next: NIL, prev: list.tail };
        let mut at = self.free;
        // NIL is no node's number.
        if let Some(free) = self.nodes.get_mut(at as usize) {
            self.free = free.next;
            *free = node;
        } else {
            at = self.nodes.len() as u32;
            assert!(at != NIL, "arena of an egress is full");
            self.nodes.push(node);
        }
        match self.nodes.get_mut(list.tail as usize) {
            None => list.head = at,
            Some(tail) => tail.next = at,
        }
        list.tail = at;
        list.frames += 1;
        list.bytes += u64::from(queued.bytes);
        at
    }

    /// Returns the next frame of its list.
    #[inline]
    pub(super) fn after(&self, node: &Node<F>) -> Option<&Node<F>> {
        self.nodes.get(node.next as usize)
    }

    /// Takes out the first `count` frames, or all if there are fewer, oldest first; returns their bytes.
    #[inline]
    pub(super) fn pop_front(
        &mut self,
        list: &mut List,
        count: u32,
        mut popped: impl FnMut(Queued<F>),
    ) -> Backlog {
        let (mut next, mut last) = (list.head, NIL);
        let mut gone = Backlog::default();
        while gone.frames < count
            && let Some(node) = self.nodes.get(next as usize)
        {
            popped(node.queued);
            gone.frames += 1;
            gone.bytes += u64::from(node.queued.bytes);
            (last, next) = (next, node.next);
        }
        if last != NIL {
            // They are linked already: all become free at once.
            self.nodes[last as usize].next = std::mem::replace(&mut self.free, list.head);
            list.head = next;
            match next {
                NIL => list.tail = NIL,
                next => self.nodes[next as usize].prev = NIL,
            }
            list.frames -= gone.frames;
            list.bytes -= gone.bytes;
        }
        gone
    }

    /// Takes `bytes` from the first frame, if it has more.
    pub(super) fn shrink_front(&mut self, list: &mut List, bytes: u32) -> Option<Queued<F>> {
        let node = self.nodes.get_mut(list.head as usize).filter(|node| node.queued.bytes > bytes)?;
        node.queued.bytes -= bytes;
        list.bytes -= u64::from(bytes);
        Some(Queued { bytes, ..node.queued })
    }

    pub(super) fn pop_back(&mut self, list: &mut List) -> Option<Queued<F>> {
        let at = list.tail;
        let node = *self.nodes.get(at as usize)?;
        list.tail = node.prev;
        match node.prev {
            NIL => list.head = NIL,
            prev => self.nodes[prev as usize].next = NIL,
        }
        self.nodes[at as usize].next = std::mem::replace(&mut self.free, at);
        list.frames -= 1;
        list.bytes -= u64::from(node.queued.bytes);
        Some(node.queued)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::VecDeque;

    fn queued(frame: u32) -> Queued<u32> {
        Queued { frame, bytes: frame * 7 + 2000, deadline: u64::MAX, enqueued: 0 }
    }

    proptest! {
        #[test]
        fn lists_agree_with_deques_and_nodes_are_used_again(
            steps in prop::collection::vec((0..3usize, 0..6u8, 1..5u32), 1..400),
        ) {
            let mut arena = Arena::new();
            let mut lists = [List::default(); 3];
            // Frames and their bytes.
            let mut model: [VecDeque<(u32, u32)>; 3] = Default::default();
            let (mut number, mut most) = (0, 0);
            for (i, what, count) in steps {
                match what {
                    0 => {
                        let mut popped = Vec::new();
                        let gone = arena.pop_front(&mut lists[i], count, |q| popped.push((q.frame, q.bytes)));
                        let expected = model[i].len().min(count as usize);
                        prop_assert_eq!(gone.frames as usize, expected);
                        prop_assert_eq!(gone.bytes, popped.iter().map(|(_, bytes)| u64::from(*bytes)).sum::<u64>());
                        prop_assert_eq!(popped, model[i].drain(..expected).collect::<Vec<_>>());
                    }
                    1 => prop_assert_eq!(arena.pop_back(&mut lists[i]).map(|q| (q.frame, q.bytes)), model[i].pop_back()),
                    2 => {
                        if let Some((_, bytes)) = model[i].front_mut() {
                            let part = arena.shrink_front(&mut lists[i], 300).map(|q| q.bytes);
                            prop_assert_eq!(part, (*bytes > 300).then_some(300));
                            *bytes -= part.unwrap_or(0);
                        }
                    }
                    _ => {
                        number += 1;
                        arena.push_back(&mut lists[i], queued(number), u64::from(number));
                        model[i].push_back((number, queued(number).bytes));
                    }
                }
                prop_assert_eq!(arena.front(&lists[i]).map(|n| (n.queued.frame, n.queued.bytes)), model[i].front().copied());
                let all = std::iter::successors(arena.front(&lists[i]), |node| arena.after(node));
                prop_assert_eq!(all.map(|n| n.queued.frame).collect::<Vec<_>>(), model[i].iter().map(|f| f.0).collect::<Vec<_>>());
                prop_assert_eq!(lists[i].frames as usize, model[i].len());
                prop_assert_eq!(lists[i].bytes, model[i].iter().map(|f| u64::from(f.1)).sum::<u64>());
                most = most.max(model.iter().map(VecDeque::len).sum());
                prop_assert_eq!(arena.nodes.len(), most);
            }
        }
    }
}
