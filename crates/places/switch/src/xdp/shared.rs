//! How many workers get a socket of each queue, and why not all. Pure.
//!
//! ```text
//!  device: does its driver run the program, and copy frames? ─┐
//!  uplink's name, number of workers ──────────────────────────┴▶ sockets of a queue, and a note
//! ```
//!
//! Several sockets of a queue share its fill ring, so all frames of the queue have to come by one CPU at a time, and a socket without room must
//! leave the queue to the others. Both is so only where the driver runs the program and the kernel copies frames:
//!
//! - Outside of the driver several CPUs may bring frames of a queue. Kernels before the repair of 2025 lock a socket then, and not the fill ring.
//! - Drivers that work without copies stop a queue as soon as one receive ring is full.

use tidegate_switch::link::nic::xdp::form::MOST;
use tidegate_switch::stats::arms::UPLINK_NAME;

/// How frames of a device come to sockets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Way {
    /// By the driver, without copies.
    ZeroCopy,
    /// By the driver, and copied.
    Copy,
    /// Outside of the driver, which cannot run the program.
    Generic,
}

/// Returns the number of sockets of each queue for so many `workers`, 1 to [`MOST`], and why some workers have none.
pub(crate) fn sockets(way: Way, uplink: &str, workers: usize) -> (usize, Option<String>) {
    let one = |why: String| (1, Some(format!("only one worker receives, for all others: {why}")));
    match way {
        _ if workers <= 1 => (1, None),
        Way::ZeroCopy => one(
            "the driver works without copies, and would stop a queue of the device as soon as the ring of one worker is full"
                .into(),
        ),
        Way::Generic => one(
            "the device's driver cannot run XDP programs, and the kernel runs the uplink's program outside of it (generic XDP)"
                .into(),
        ),
        Way::Copy if uplink.len() > UPLINK_NAME => {
            one(format!("the uplink's name has more than {UPLINK_NAME} bytes"))
        }
        Way::Copy => {
            let left = workers.saturating_sub(MOST);
            let note = format!("{left} of {workers} workers get their frames by others: a queue has at most {MOST} sockets");
            (workers.min(MOST), (left > 0).then_some(note))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_queue_has_several_sockets_only_where_the_driver_copies() {
        let of = |way, name: &str, workers| {
            let (sockets, note) = sockets(way, name, workers);
            (sockets, note.unwrap_or_default())
        };
        assert_eq!(of(Way::Copy, "net0", 4), (4, String::new()));
        for way in [Way::ZeroCopy, Way::Copy, Way::Generic] {
            assert_eq!(of(way, "net0", 1), (1, String::new()));
            assert_eq!(of(way, "net0", 0), (1, String::new()));
        }
        for (way, why) in [(Way::ZeroCopy, "without copies"), (Way::Generic, "generic XDP")] {
            let (sockets, note) = of(way, "net0", 4);
            assert!(sockets == 1 && note.contains(why), "{note}");
        }
        let (sockets, note) = of(Way::Copy, "net0", 20);
        assert!(sockets == MOST && note.contains("4 of 20 workers"), "{note}");
        let (sockets, note) = of(Way::Copy, &"n".repeat(UPLINK_NAME + 1), 4);
        assert!(sockets == 1 && note.contains("name"), "{note}");
    }
}
