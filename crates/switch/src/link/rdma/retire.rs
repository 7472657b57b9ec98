//! The end of tables that were replaced: nothing is destroyed while the device uses it. Not for workers.
//!
//! ```text
//!  set_rdma(new) ─▶ old ─ retire ─▶ pairs that are in no new table fail ─▶ their sends end ─▶ old is freed
//! ```

use super::members::Tables;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Longest wait for the ends of sends.
const LONGEST: Duration = Duration::from_secs(2);
/// Pause between looks.
const PAUSE: Duration = Duration::from_millis(1);

/// Frees replaced tables once the device is done with what was sent by them: address handles and queue pairs that
/// are not in `new` are destroyed. Waits up to 2 s for that, as the link's worker completes them in microseconds.
/// Returns whether they were completed; if not, nothing was destroyed.
pub fn retire(old: Arc<Tables>, new: &Tables) -> bool {
    let stays = |port, number| new.pair(port).is_some_and(|pair| pair.number() == number);
    let posted: Vec<_> = old.pairs().iter().map(|pair| (pair, pair.posted.get())).collect();
    for (pair, _) in posted.iter().filter(|(pair, _)| !stays(pair.port, pair.number())) {
        // A device that is gone completes nothing, and uses nothing.
        let _ = pair.fail();
    }
    let began = Instant::now();
    while posted.iter().any(|(pair, posted)| pair.done.get() < *posted) {
        if began.elapsed() > LONGEST {
            // Leaked: the device may still read what they refer to.
            std::mem::forget(old);
            return false;
        }
        std::thread::sleep(PAUSE);
    }
    true
}
