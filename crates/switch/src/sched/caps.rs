//! How much may wait: of one source, and of all that nothing was promised.

use super::arena::List;
use super::{EgressConfig, Full, SourceConfig};
use tidegate_contract::Discipline;

/// Room for frames of one source, which come one after the other.
#[derive(Clone, Copy, Debug)]
pub(super) struct Room {
    frames: u32,
    /// Bytes that the source may have wait besides.
    own: u64,
    /// Bytes that the egress has left for it ...
    shared: u64,
    /// ... and by how much that shrinks for each of its bytes.
    per_byte: u64,
}

impl Room {
    /// Room behind what waits of a source's `own`, where `total` bytes wait of all sources, and `unpromised` of those
    /// without a promise.
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
                // The source that is polled first would fill what is left at every turn, and the last never
                // find room. So, beside others, none holds more than is left (dynamic thresholds,
                // Choudhury and Hahne, 1998): some is always left for who has least.
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
    /// The cap that it would exceed; of several, the source's own come first.
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
