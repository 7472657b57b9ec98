//! A flow that asks for a path, the way it would take, and what it is granted.

use crate::frame::SMALLEST_FRAME;
use crate::{Bytes, Nanos, Rate};
use serde::{Deserialize, Serialize};

/// Most links of a route.
pub const MOST_HOPS: usize = 64;

/// Most routes that a reservation offers.
pub const MOST_ROUTES: usize = 64;

/// A real-time flow, as its frames enter the network: encapsulated and stamped, without the path's tag and FCS.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub struct Request {
    /// r.
    pub rate: Rate,
    /// b: with what the sending host adds by its own delays.
    pub burst: Bytes,
    /// The shortest frame: 60 bytes or more.
    pub smallest_frame: Bytes,
    /// The longest frame; at most the burst.
    pub largest_frame: Bytes,
    /// What the network may take of the deadline.
    pub budget: Nanos,
}

impl Request {
    /// Whether each number is in its range.
    pub(super) fn is_sound(&self) -> bool {
        let (smallest, largest) = (self.smallest_frame, self.largest_frame);
        smallest.get() >= SMALLEST_FRAME
            && smallest <= largest
            && largest <= self.burst
            && self.burst.get() <= MOST_BURST
    }
}

/// Largest burst of a request: 1 GB, far above what any queue holds. Sums of it stay in range.
pub(super) const MOST_BURST: u64 = 1_000_000_000;

/// A way through the network at one level.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub struct Route {
    /// Names of links, in order; 1 to [`MOST_HOPS`].
    pub links: Vec<String>,
    /// The same at each link: the mark of the frames, which chooses the queue.
    pub level: u8,
}

/// What was granted.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub struct Grant {
    /// The longest time in the network: fixed delays and cables. It never changes.
    pub bound: Nanos,
    /// The burst of the flow as it leaves the network.
    pub burst: Bytes,
    /// The links.
    pub hops: Vec<Hop>,
}

/// One link of a path.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub struct Hop {
    /// Its name.
    pub link: String,
    /// D: the fixed delay of the level.
    pub delay: Nanos,
    /// The delay that the level needs with this flow; at most D.
    pub needed: Nanos,
    /// The burst of the flow as it arrives.
    pub burst: Bytes,
}
