//! Where remotes are that their hosts announced.
//!
//! ```text
//!  moved ─▶ (segment, MAC) ─▶ MovedRemote ─▶ pins, pairs
//! ```

use crate::fdb::{Destination, PeerIndex, SegmentIndex};
use std::collections::BTreeMap;
use tidegate_contract::Mac;

/// Remotes that their hosts announced, by segment and MAC.
pub(super) type Moves = BTreeMap<(SegmentIndex, Mac), MovedRemote>;

/// Where a remote is by its latest announcement.
pub(super) struct MovedRemote {
    /// The peer that its contract named then.
    pub(super) declared: PeerIndex,
    /// How frames reach the host that announced it.
    pub(super) to: Destination,
    /// Since when it is there (ns, this host's raw clock).
    pub(super) since: i128,
}
