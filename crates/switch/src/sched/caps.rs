//! How much may wait: of one source, and of all that nothing was promised.

use super::arena::List;
use super::{EgressConfig, Full, SourceConfig};
use tidegate_contract::Discipline;

/// Whether a frame of so many bytes may wait behind what waits of its `own` source, where `total` bytes wait of all sources,
/// and `unpromised` of those without a promise.
///
/// # Errors
/// The cap that it would exceed; of several, the source's own come first.
#[inline]
pub(super) fn has_room(
    config: &EgressConfig,
    source: &SourceConfig,
    own: &List,
    total: u64,
    unpromised: u64,
    bytes: u64,
) -> Result<(), Full> {
    if own.frames >= source.cap_frames {
        return Err(Full::SourceFrames);
    }
    if own.bytes + bytes > source.cap_bytes {
        return Err(Full::SourceBytes);
    }
    let room = match config.discipline {
        Discipline::Contract if source.promised() => u64::MAX,
        Discipline::Contract => {
            let left = config.queue.saturating_sub(unpromised);
            // The source that is polled first would fill what is left at every turn, and the last never
            // find room. So, beside others, none holds more than is left (dynamic thresholds,
            // Choudhury and Hahne, 1998): some is always left for who has least.
            let alone = unpromised == own.bytes;
            if alone { left } else { left.saturating_sub(own.bytes) }
        }
        Discipline::Fifo => config.queue.saturating_sub(total),
    };
    if bytes > room { Err(Full::EgressBytes) } else { Ok(()) }
}
