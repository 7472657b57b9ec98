//! Frames that are read one by one into own memory: common to links without rings.
//!
//! ```text
//!  read ─▶ frame ─┬─ take ───▶ worker
//!                 └─ absorb ─▶ waits in the store ─ take ─▶ worker
//! ```

use super::store::{self, Store};
use super::{Absorbed, Taken};
use crate::slots::{Arrival, FrameRef};
use tidegate_evidence::DropReason;

/// The result of reading.
pub enum Read {
    /// A frame, and when it arrived.
    Frame(FrameRef, Arrival),
    /// An invalid frame, or one without room.
    Dropped(DropReason),
    /// Nothing.
    Empty,
    /// The link is gone; the reason.
    Gone(String),
}

/// A link whose frames are read into a [`Store`].
pub trait Reads {
    /// Returns where its frames wait.
    fn store(&mut self) -> &mut Store;

    /// Reads the next frame.
    fn read(&mut self) -> Read;

    /// Takes the frame that waits first, or the next one.
    fn take(&mut self) -> Taken {
        if let Some(waiting) = self.store().take_waiting() {
            return waiting;
        }
        match self.read() {
            Read::Frame(frame, arrival) => store::new(frame, arrival),
            Read::Dropped(reason) => Taken::Dropped(reason, 1),
            Read::Empty => Taken::Nothing,
            Read::Gone(why) => Taken::Broken(why),
        }
    }

    /// Lets up to `most` frames wait behind those that were read before.
    fn absorb(&mut self, most: usize) -> Absorbed {
        let mut absorbed = Absorbed::default();
        while absorbed.frames < most {
            match self.read() {
                Read::Frame(frame, arrival) => {
                    absorbed.bytes += frame.get().len as usize;
                    self.store().absorb(frame, arrival);
                }
                Read::Dropped(reason) => absorbed.dropped[reason as usize] += 1,
                Read::Empty => break,
                Read::Gone(why) => {
                    absorbed.broken = Some(why);
                    break;
                }
            }
            absorbed.frames += 1;
        }
        absorbed
    }
}
