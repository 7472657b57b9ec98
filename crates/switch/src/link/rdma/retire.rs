//! The end of tables that were replaced: nothing is destroyed while the device uses it. Not for workers.
//!
//! ```text
//!  set_rdma(new) ─▶ old ─ retire ─▶ pairs that are not in the new one fail ─▶ sends under way end ─▶ old is freed
//! ```

use super::counters::Counters;
use super::members::Tables;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Longest wait for the ends of sends.
const LONGEST: Duration = Duration::from_secs(2);
/// Pause between looks.
const PAUSE: Duration = Duration::from_millis(1);

/// Frees replaced tables of a link, with the address handles and queue pairs that are not in `new`, once the device is
/// done with what was sent by them. The link's worker notes that within microseconds; waits up to 2 s. Returns `false`
/// if it took longer: then nothing is freed, since the device may still read it.
pub fn retire(old: Arc<Tables>, new: &Tables, counters: &Counters) -> bool {
    let stays = |port, number| new.pair(port).is_some_and(|pair| pair.number() == number);
    for pair in old.pairs().iter().filter(|pair| !stays(pair.port, pair.number())) {
        // A device that is gone completes nothing, and reads nothing.
        let _ = pair.fail();
    }
    let began = Instant::now();
    while counters.replaced.get() > 0 {
        if began.elapsed() > LONGEST {
            std::mem::forget(old);
            return false;
        }
        std::thread::sleep(PAUSE);
    }
    true
}
