//! A NIC as the last look showed it.

use super::shared_link::SharedLink;
use crate::device::{Abilities, Pf};
use std::time::Instant;

/// One NIC.
pub(crate) struct Seen {
    pub pf: Pf,
    pub abilities: Abilities,
    pub link: SharedLink,
    /// Time of the look.
    pub at: Instant,
}
