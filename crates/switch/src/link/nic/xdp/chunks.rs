//! Chunks of a queue on their way back to the kernel: of its owner at once, of other workers over the owner.
//!
//! ```text
//!  owner ─────────── give ──────────────────────▶ fill ring ─▶ kernel
//!  other worker ─ give ─▶ SPSC ring ─▶ collect ──────▲
//!                  └ after some: is_due, the owner is told
//! ```
//!
//! A chunk has one place: the kernel, a receive ring, a worker that copies its frame, or a ring here. Each ring has an entry for each chunk, so
//! none is ever full.

use super::form::{CHUNK, Form};
use super::ring::Ring;
use rtrb::{Consumer, Producer, RingBuffer};

/// The way back of the chunks of one queue, at one worker.
pub enum Chunks {
    /// At the owner.
    Own(Own),
    /// At another worker.
    Lent(Lent),
}

/// The ways of all other workers end here.
pub struct Own {
    fill: Ring<u64>,
    returned: Vec<Consumer<u64>>,
}

/// One of these.
pub struct Lent {
    back: Producer<u64>,
    /// Given back since the owner was told.
    given: u32,
    /// So many, and it is told.
    told: u32,
}

impl Chunks {
    /// Gives the kernel all chunks to receive, and returns the ways back of the workers of a queue, the owner's first.
    pub fn of_queue(mut fill: Ring<u64>, form: Form) -> Vec<Self> {
        form.received().for_each(|chunk| fill.push(chunk));
        fill.publish();
        let rings = (1..form.sockets()).map(|_| RingBuffer::new(form.to_receive() as usize));
        let (back, returned): (Vec<_>, Vec<_>) = rings.unzip();
        let lent = back.into_iter().map(|back| Self::Lent(Lent { back, given: 0, told: form.told() }));
        std::iter::once(Self::Own(Own { fill, returned })).chain(lent).collect()
    }

    /// Gives back the chunk of a frame at `at`.
    #[inline]
    pub fn give(&mut self, at: u64) {
        let chunk = at - at % CHUNK as u64;
        match self {
            Self::Own(own) => {
                own.push(chunk);
                own.fill.publish();
            }
            Self::Lent(lent) => {
                let fits = lent.back.push(chunk).is_ok();
                debug_assert!(fits, "it has a place for each chunk");
                lent.given += 1;
            }
        }
    }

    /// Gives the kernel the chunks that other workers gave back.
    #[inline]
    pub fn collect(&mut self) {
        let Self::Own(own) = self else { return };
        let mut some = false;
        for place in 0..own.returned.len() {
            while let Ok(chunk) = own.returned[place].pop() {
                own.push(chunk);
                some = true;
            }
        }
        if some {
            own.fill.publish();
        }
    }

    /// Whether the owner is to be told of chunks given back; it is told once of them.
    #[inline]
    pub fn is_due(&mut self) -> bool {
        match self {
            Self::Lent(lent) if lent.given >= lent.told => {
                lent.given = 0;
                true
            }
            _ => false,
        }
    }

    /// Whether other workers give chunks back to it.
    pub fn is_shared(&self) -> bool {
        matches!(self, Self::Own(own) if !own.returned.is_empty())
    }
}

impl Own {
    #[inline]
    fn push(&mut self, chunk: u64) {
        debug_assert!(self.fill.room() > 0, "it has a place for each chunk");
        self.fill.push(chunk);
    }
}
