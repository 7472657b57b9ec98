//! Posts that the link holds: their datagrams read a guest's memory. Pure.
//!
//! ```text
//!  post ─▶ buffers a, b, c ─▶ device ... each is free ─▶ the post is over ─ the oldest first ─▶ completed
//!                                └ lost: not posted, or completed with an error
//! ```
//!
//! A buffer belongs to one post until it is free, whatever becomes of the post: after [`give_up`](Held::give_up) it belongs to
//! none that is there.

use std::collections::VecDeque;

/// No post.
const NONE: u64 = u64::MAX;

/// Posts, in order.
pub struct Held {
    posts: VecDeque<Post>,
    /// Number of the oldest.
    first: u64,
    /// By buffer: the number of its post.
    of: Box<[u64]>,
    most: usize,
}

#[derive(Clone, Copy, Debug)]
struct Post {
    /// Buffers that are not free.
    left: u32,
    /// A datagram was not sent.
    is_lost: bool,
    /// The number of its queue pair.
    pair: u32,
}

impl Held {
    /// Returns room for at most `most` posts, of buffers below `buffers`: nothing is allocated later.
    pub fn new(buffers: u16, most: usize) -> Self {
        Self {
            posts: VecDeque::with_capacity(most),
            first: 0,
            of: vec![NONE; usize::from(buffers)].into(),
            most,
        }
    }

    /// Whether there is no post.
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.posts.is_empty()
    }

    /// Whether another post has a place.
    #[inline]
    pub fn has_room(&self) -> bool {
        self.posts.len() < self.most
    }

    /// Begins a post by the queue pair of this number, to which buffers are [added](Self::add).
    pub fn begin(&mut self, pair: u32) {
        debug_assert!(self.has_room(), "asked before");
        self.posts.push_back(Post { left: 0, is_lost: false, pair });
    }

    /// Adds a buffer to the newest post.
    pub fn add(&mut self, at: u16) {
        let Some(newest) = self.posts.back_mut() else { return };
        newest.left += 1;
        self.of[usize::from(at)] = self.first + self.posts.len() as u64 - 1;
    }

    /// Notes that a datagram is not sent; whether it is of a post.
    pub fn note_lost(&mut self, at: u16) -> bool {
        self.post(at).map(|post| post.is_lost = true).is_some()
    }

    /// Notes that a buffer is free.
    #[inline]
    pub fn release(&mut self, at: u16) {
        if self.of.get(usize::from(at)).is_none_or(|of| *of == NONE) {
            return;
        }
        if let Some(post) = self.post(at) {
            post.left -= 1;
        }
        self.of[usize::from(at)] = NONE;
    }

    /// Whether the oldest post is over.
    #[inline]
    pub fn is_over(&self) -> bool {
        self.posts.front().is_some_and(|post| post.left == 0)
    }

    /// Takes the oldest post if it is over; returns whether a datagram of it was lost.
    pub fn take(&mut self) -> Option<bool> {
        let post = if self.is_over() { self.posts.pop_front() } else { None }?;
        self.first += 1;
        Some(post.is_lost)
    }

    /// Returns the numbers of the queue pairs of posts that are not over.
    pub fn pairs(&self) -> impl Iterator<Item = u32> {
        self.posts.iter().filter(|post| post.left > 0).map(|post| post.pair)
    }

    /// Forgets all posts.
    pub fn give_up(&mut self) {
        self.first += self.posts.len() as u64;
        self.posts.clear();
    }

    fn post(&mut self, at: u16) -> Option<&mut Post> {
        let number = *self.of.get(usize::from(at)).filter(|number| **number != NONE)?;
        self.posts.get_mut(usize::try_from(number.checked_sub(self.first)?).ok()?)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[derive(Clone, Debug)]
    enum Step {
        /// A post of so many buffers.
        Post(usize),
        /// One of the buffers in use is free, after a loss.
        Free(prop::sample::Index, bool),
        Take,
        GiveUp,
    }

    fn steps() -> impl Strategy<Value = Vec<Step>> {
        let step = prop_oneof![
            4 => (1..5usize).prop_map(Step::Post),
            8 => (any::<prop::sample::Index>(), prop::bool::weighted(0.2)).prop_map(|(at, lost)| Step::Free(at, lost)),
            4 => Just(Step::Take),
            1 => Just(Step::GiveUp),
        ];
        prop::collection::vec(step, 1..200)
    }

    proptest! {
        /// Against lists of buffers: posts end in order, each when all its buffers are free.
        #[test]
        fn posts_end_in_order_when_their_buffers_are_free(steps in steps()) {
            const MOST: usize = 8;
            let mut held = Held::new(32, MOST);
            let mut free: Vec<u16> = (0..32).collect();
            // Number of the post, buffer; and posts that are there: number, lost.
            let (mut used, mut posts) = (Vec::<(u32, u16)>::new(), VecDeque::<(u32, bool)>::new());
            let mut next = 0;
            for step in steps {
                match step {
                    Step::Post(count) if held.has_room() && free.len() >= count => {
                        held.begin(next);
                        for at in free.split_off(free.len() - count) {
                            held.add(at);
                            used.push((next, at));
                        }
                        posts.push_back((next, false));
                        next += 1;
                    }
                    Step::Post(_) => {}
                    Step::Free(which, is_lost) if !used.is_empty() => {
                        let (number, at) = used.swap_remove(which.index(used.len()));
                        let post = posts.iter_mut().find(|(of, _)| *of == number);
                        if is_lost {
                            prop_assert_eq!(held.note_lost(at), post.is_some());
                            post.into_iter().for_each(|(_, lost)| *lost = true);
                        }
                        held.release(at);
                        held.release(at);
                        prop_assert!(!held.note_lost(at), "of none any more");
                        free.push(at);
                    }
                    Step::Free(..) => {}
                    Step::Take => {
                        let oldest = posts.front().copied().filter(|(of, _)| used.iter().all(|(other, _)| other != of));
                        prop_assert_eq!(held.is_over(), oldest.is_some());
                        prop_assert_eq!(held.take(), oldest.map(|(_, lost)| lost));
                        oldest.map(|_| posts.pop_front());
                    }
                    Step::GiveUp => {
                        held.give_up();
                        posts.clear();
                    }
                }
                prop_assert_eq!((held.is_empty(), held.has_room()), (posts.is_empty(), posts.len() < MOST));
                let open = |(number, _): &&(u32, bool)| used.iter().any(|(of, _)| of == number);
                let open: Vec<_> = posts.iter().filter(open).map(|(number, _)| *number).collect();
                prop_assert_eq!(held.pairs().collect::<Vec<_>>(), open);
            }
        }
    }
}
