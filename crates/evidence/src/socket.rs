//! Frames of a NIC's queue that its program sent to a worker's socket.

use serde::{Deserialize, Serialize};

/// The socket of one worker at one queue. What it got, less what it lost, the worker receives.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct SocketCounts {
    /// The queue of the device.
    pub queue: usize,
    /// The worker.
    pub worker: usize,
    /// Frames sent to it.
    pub frames: u64,
    /// Of these, how many found its ring full: the worker is behind. Absent where the kernel cannot be asked: another agent made the
    /// socket.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ring_full: Option<u64>,
    /// Of these, how many found no free memory in the queue; absent as above.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub no_chunk: Option<u64>,
}
