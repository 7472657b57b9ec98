//! The memory and rings of a queue, by the number of its sockets. Pure.
//!
//! ```text
//!  memory │ chunks to receive: as many as the fill ring has entries │ chunks to send │
//!
//!  receive rings │ first socket: the owner's │ one for each further worker: together a half of the chunks │
//! ```
//!
//! The other half is the owner's, whatever the other workers do: one that stands still holds the chunks in its ring, and some that
//! it gave back and did not tell of.

/// Bytes of a chunk: a frame.
pub const CHUNK: usize = 4096;
/// Entries of the owner's receive ring, and of those to send and of sent chunks.
pub const ENTRIES: u32 = 1024;
/// Most sockets of a queue: `SOCKETS` of `plain_nic.bpf.c`.
pub const MOST: usize = 16;

/// The form of a queue of which so many workers receive, each by a socket of its own.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Form {
    sockets: usize,
}

impl Form {
    /// Returns the form of a queue with so many sockets; `None` unless these are 1 to [`MOST`].
    pub fn new(sockets: usize) -> Option<Self> {
        (1..=MOST).contains(&sockets).then_some(Self { sockets })
    }

    /// Returns the number of sockets.
    pub fn sockets(self) -> usize {
        self.sockets
    }

    /// Returns the number of chunks to receive, and of entries of the fill ring.
    pub fn to_receive(self) -> u32 {
        if self.sockets == 1 { ENTRIES } else { 2 * ENTRIES }
    }

    /// Returns the entries of the receive ring of a socket by its place in the queue; the first is the owner's.
    pub fn entries(self, place: usize) -> u32 {
        let others = (self.sockets as u32).saturating_sub(1).max(1);
        // A power of two.
        if place == 0 { ENTRIES } else { 1 << (ENTRIES / others).ilog2() }
    }

    /// Returns after how many chunks given back a worker tells the owner.
    pub fn told(self) -> u32 {
        self.entries(1) / 4
    }

    /// Returns the length of the memory (bytes).
    pub fn memory(self) -> usize {
        (self.to_receive() + ENTRIES) as usize * CHUNK
    }

    /// Returns the places of chunks to receive.
    pub fn received(self) -> impl Iterator<Item = u64> {
        chunks(0, self.to_receive())
    }

    /// Returns the places of chunks to send.
    pub fn sent(self) -> impl Iterator<Item = u64> {
        chunks(self.to_receive(), self.to_receive() + ENTRIES)
    }
}

fn chunks(from: u32, to: u32) -> impl Iterator<Item = u64> {
    (from..to).map(|chunk| u64::from(chunk) * CHUNK as u64)
}

/// Returns the workers of a queue's sockets, in order: the owner, then the others by number. So many `sockets` there are at most.
pub fn workers(owner: usize, workers: usize, sockets: usize) -> impl Iterator<Item = usize> {
    std::iter::once(owner).chain((0..workers).filter(move |worker| *worker != owner)).take(sockets)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn workers_that_stand_still_leave_chunks_to_the_owner() {
        for form in (1..=MOST).map(|sockets| Form::new(sockets).unwrap()) {
            let others = form.sockets() as u32 - 1;
            assert!(form.entries(1).is_power_of_two() && form.to_receive().is_power_of_two());
            let held = others * (form.entries(1) + form.told());
            assert!(form.to_receive() - held >= ENTRIES / 2, "{form:?}: {held}");
            assert_eq!(form.received().chain(form.sent()).count() * CHUNK, form.memory());
        }
        assert_eq!((Form::new(0), Form::new(MOST + 1)), (None, None));
        assert_eq!(Form::new(1).unwrap().memory(), 8 << 20);
    }

    #[test]
    fn each_worker_has_one_place() {
        assert_eq!(workers(2, 4, 16).collect::<Vec<_>>(), [2, 0, 1, 3]);
        assert_eq!(workers(0, 4, 2).collect::<Vec<_>>(), [0, 1]);
        assert_eq!(workers(0, 1, 1).collect::<Vec<_>>(), [0]);
    }
}
