//! Limits on waiting frames: of one source, and of all without a promise.

use super::arena::List;
use super::{EgressConfig, Full, SourceConfig};
use tidegate_contract::Discipline;

/// Room for consecutive frames of one source.
#[derive(Clone, Copy, Debug)]
pub(super) struct Room {
    frames: u32,
    /// Bytes that the source's own cap allows.
    own: u64,
    /// Bytes that the egress allows it ...
    shared: u64,
    /// ... and their decrease for each of its bytes.
    per_byte: u64,
}

impl Room {
    /// Returns the room behind a source's `own` frames, with `total` waiting bytes of all sources, and
    /// `unpromised` of those without a promise.
    #[inline]
    pub(super) fn of(
        config: &EgressConfig,
        source: &SourceConfig,
        own: &List,
        total: u64,
        unpromised: u64,
    ) -> Self {
        let (shared, per_byte) = match config.discipline {
            Discipline::Contract if source.promised() => (u64::MAX, 0),
            Discipline::Contract => {
                let left = config.queue.saturating_sub(unpromised);
                // The source polled first would take all room at every turn, and the last would never find
                // any. So, beside others, none holds more than what remains (dynamic thresholds, Choudhury
                // and Hahne, 1998): the smallest always finds some.
                let alone = unpromised == own.bytes;
                if alone { (left, 1) } else { (left.saturating_sub(own.bytes), 2) }
            }
            Discipline::Fifo => (config.queue.saturating_sub(total), 1),
        };
        let frames = source.cap_frames.saturating_sub(own.frames);
        Self { frames, own: source.cap_bytes.saturating_sub(own.bytes), shared, per_byte }
    }

    /// Takes the room of a frame of so many bytes, at least one.
    ///
    /// # Errors
    /// The exceeded cap; of several, the source's own come first.
    #[inline]
    pub(super) fn take(&mut self, bytes: u64) -> Result<(), Full> {
        if self.frames == 0 {
            return Err(Full::SourceFrames);
        }
        if bytes > self.own {
            return Err(Full::SourceBytes);
        }
        if bytes > self.shared {
            return Err(Full::EgressBytes);
        }
        self.frames -= 1;
        self.own -= bytes;
        self.shared = self.shared.saturating_sub(bytes * self.per_byte);
        Ok(())
    }
}
