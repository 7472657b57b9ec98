//! Settings of a port's thread.

use super::errands::Errands;
use crate::quota::{self, Account, Ledger};
use std::time::Duration;

/// [`PortConfig::heir_timeout`] of a port of the switch: longer than a migrated guest needs to continue.
pub const HEIR_TIMEOUT: Duration = Duration::from_secs(10);

/// Settings of a port's thread.
#[derive(Clone, Debug)]
pub struct PortConfig {
    /// The vNIC's name, for logs and the thread.
    pub name: String,
    /// Queue pairs offered, 1 to 128 (a kick message has 8 bits for the queue).
    pub queue_pairs: u16,
    /// How long a message may take from its first byte to its last.
    pub message_timeout: Duration,
    /// How long a waiting front end may be silent at first, or want the port while another uses it.
    pub heir_timeout: Duration,
    /// Threads for slow work.
    pub errands: Errands,
    /// Account of the front end that is served.
    pub account: Account,
    /// Account of the one that waits.
    pub waiting: Account,
}

impl PortConfig {
    /// Returns settings with this name and number of queue pairs, for a port alone in the process; a
    /// message may take 2 s, and an heir [`HEIR_TIMEOUT`].
    ///
    /// # Panics
    /// Never: there are as many descriptors as it wants.
    pub fn new(name: impl Into<String>, queue_pairs: u16) -> Self {
        let ledger = Ledger::new(quota::PORT_MEMORY, u64::from(u32::MAX));
        let open = || ledger.open(0, 0, u64::from(u16::MAX)).expect("enough for both");
        let (account, waiting) = (open(), open());
        let name = name.into();
        let errands = Errands::new(&name);
        let message_timeout = Duration::from_secs(2);
        Self { name, queue_pairs, message_timeout, heir_timeout: HEIR_TIMEOUT, errands, account, waiting }
    }
}
