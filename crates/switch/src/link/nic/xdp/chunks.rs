//! Chunks of a queue on their way back to the kernel: of its owner at once, of other workers over the owner.
//!
//! ```text
//!  owner ─────────── give ──────────────────────▶ fill ring ─▶ kernel
//!  other worker ─ give ─▶ SPSC ring ─▶ collect ──────▲
//!                  └ after some: is_due, the owner is told          └ needs_call, if its driver waits for that
//! ```
//!
//! A chunk has one place: the kernel, a receive ring, a worker that copies its frame, or a ring here. Each ring has an entry for each chunk, so
//! none is ever full. A chunk without an entry, or outside of those to receive, has two places: the kernel or a worker has erred, and
//! [the link ends](Chunks::is_broken).

use super::form::{CHUNK, Form};
use super::ring::Ring;
use rtrb::{Consumer, Producer, RingBuffer};

/// The way back of the chunks of one queue, at one worker.
pub struct Chunks {
    way: Way,
    /// End of the chunks to receive in the memory.
    end: u64,
    /// A chunk was none of these, or had no entry.
    broken: bool,
}

enum Way {
    /// At the owner.
    Own(Own),
    /// At another worker.
    Lent(Lent),
}

/// The ways of all other workers end here.
struct Own {
    fill: Ring<u64>,
    /// Entries without chunks, at least.
    room: u32,
    returned: Vec<Consumer<u64>>,
}

/// One of these.
struct Lent {
    back: Producer<u64>,
    /// Given back since the owner was told.
    given: u32,
    /// So many, and it is told.
    told: u32,
}

impl Chunks {
    /// Gives the kernel all chunks to receive, and returns the ways back of the workers of a queue, the owner's first.
    pub fn of_queue(fill: Ring<u64>, form: Form) -> Vec<Self> {
        let rings = (1..form.sockets()).map(|_| RingBuffer::new(form.to_receive() as usize));
        let (back, returned): (Vec<_>, Vec<_>) = rings.unzip();
        let mut own = Own { room: fill.room(), fill, returned };
        let fit = form.received().all(|chunk| own.push(chunk));
        own.fill.publish();
        let lent = back.into_iter().map(|back| Way::Lent(Lent { back, given: 0, told: form.told() }));
        let end = u64::from(form.to_receive()) * CHUNK as u64;
        let chunks = |way| Self { way, end, broken: !fit };
        std::iter::once(Way::Own(own)).chain(lent).map(chunks).collect()
    }

    /// Gives back the chunk of a frame at `at`.
    #[inline]
    pub fn give(&mut self, at: u64) {
        let chunk = at - at % CHUNK as u64;
        let fits = chunk < self.end
            && match &mut self.way {
                Way::Own(own) => {
                    let fits = own.push(chunk);
                    own.fill.publish();
                    fits
                }
                Way::Lent(lent) => {
                    lent.given += 1;
                    lent.back.push(chunk).is_ok()
                }
            };
        self.broken |= !fits;
    }

    /// Gives the kernel the chunks that other workers gave back.
    #[inline]
    pub fn collect(&mut self) {
        let Way::Own(own) = &mut self.way else { return };
        let (mut some, mut fit) = (false, true);
        for place in 0..own.returned.len() {
            while let Ok(chunk) = own.returned[place].pop() {
                fit &= own.push(chunk);
                some = true;
            }
        }
        if some {
            own.fill.publish();
        }
        self.broken |= !fit;
    }

    /// Whether a chunk was in two places.
    #[inline]
    pub fn is_broken(&self) -> bool {
        self.broken
    }

    /// Whether the kernel takes the chunks that it was given only when it is called.
    #[inline]
    pub fn needs_call(&self) -> bool {
        matches!(&self.way, Way::Own(own) if own.fill.needs_wakeup() && own.fill.untaken() > 0)
    }

    /// Whether it gives the kernel chunks.
    pub fn is_own(&self) -> bool {
        matches!(self.way, Way::Own(_))
    }

    /// Whether the owner is to be told of chunks given back; it is told once of them.
    #[inline]
    pub fn is_due(&mut self) -> bool {
        match &mut self.way {
            Way::Lent(lent) if lent.given >= lent.told => {
                lent.given = 0;
                true
            }
            _ => false,
        }
    }
}

impl Own {
    /// Puts a chunk into the fill ring; `false` without room.
    #[inline]
    fn push(&mut self, chunk: u64) -> bool {
        if self.room == 0 {
            self.room = self.fill.room();
        }
        let fits = self.room > 0;
        if fits {
            self.fill.push(chunk);
            self.room -= 1;
        }
        fits
    }
}
