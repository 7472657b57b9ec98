//! How many file descriptors there are, and how many a port may come to need: a switch that runs out
//! of them would lose those a front end passes, and its port would not come up, without a word.

use crate::capacity::VNICS;
use crate::quota::MAX_REGIONS;
use crate::quota::{Account, Ledger};
use std::sync::Arc;
use tidegate_contract::{Attach, Vnic};
use tidegate_service::raise_descriptors;

/// Left for the control socket, its connections, captures, workers, logs; and for two messages that come with as
/// many descriptors as there can be, which are received before they are refused: 32 with the header, and 253 with a byte of
/// the payload.
const OTHERS: u64 = 64 + 2 * (32 + 253);
/// Of a vhost-user port: listening socket twice, connection twice, that of a front end that waits, one that is turned away,
/// the thread's event, an inflight region of our own.
const PER_PORT: u64 = 8;
/// For each queue pair, of ours: what listens to the kicks of both rings, old and new where they are replaced.
const LISTENING: u64 = 4;
/// What its front end passes, of an ordinary guest: memory, the inflight region, the dirty log ...
const PASSED: u64 = 16;
/// ... and kick, call and error of both rings, old and new where they are replaced.
const PER_QUEUE_PAIR: u64 = 12;
/// For each queue pair, of a front end that waits: call and error of both rings.
const WAITING: u64 = 4;

/// Raises the soft limit to the hard one (RLIMIT_NOFILE), and says where that is too little for as
/// many ports as there can be. Returns the limit.
pub fn raise() -> u64 {
    let limit = raise_descriptors();
    let ports = for_ports(limit) / (own(1) + passed(1) + WAITING);
    if ports < VNICS as u64 {
        tracing::warn!(
            limit,
            "file descriptors (RLIMIT_NOFILE; LimitNOFILE= of the unit) are enough for {ports} ports of one queue pair"
        );
    }
    limit
}

/// How many of so many there are for ports.
pub fn for_ports(limit: u64) -> u64 {
    limit.saturating_sub(OTHERS)
}

/// A new port's account, with descriptors for what an ordinary front end passes, and for the port itself. And that of
/// front ends that wait: whatever those pass, the one that is served has as many as before.
///
/// # Errors
/// So many are not left, in words.
pub fn open(ledger: &Arc<Ledger>, vnic: &Vnic) -> Result<(Account, Account), String> {
    let queues = u64::from(vnic.queues);
    let (itself, passed, waiting) = match vnic.attach {
        Attach::Tap { .. } => (2 * queues, 0, 0),
        _ => (own(vnic.queues), passed(vnic.queues), WAITING * queues),
    };
    // Beside it, two tables of as many regions as there may be: one takes the other's place.
    let most = passed + 2 * MAX_REGIONS as u64;
    // Both or none, and an error has what both want.
    let all = ledger.open(itself, passed + waiting, most).map(drop);
    all.and_then(|()| Ok((ledger.open(itself, passed, most)?, ledger.open(0, waiting, waiting)?)))
        .map_err(|exceeded| format!("{}: no file descriptors left for it: {exceeded}", vnic.name))
}

/// Descriptors that a vhost-user port has of itself.
fn own(queue_pairs: u16) -> u64 {
    PER_PORT + LISTENING * u64::from(queue_pairs)
}

/// Descriptors that an ordinary front end passes.
fn passed(queue_pairs: u16) -> u64 {
    PASSED + PER_QUEUE_PAIR * u64::from(queue_pairs)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn vnic(name: &str, attach: &str, queues: u16) -> Vnic {
        let toml = format!(
            "[vnic.{name}]\nattach = {{ {attach} }}\nmac = \"52:54:00:00:00:01\"\nsegment = 1\nqueues = {queues}\n"
        );
        tidegate_contract::parse(&toml, "test").unwrap().vnics.into_iter().next().unwrap().value
    }

    #[test]
    fn the_last_port_that_fits_is_taken_and_the_next_refused_with_the_reason() {
        let port = vnic("web", "vhost-user = \"/tmp/web.sock\"", 1);
        let ledger = Ledger::new(1 << 40, for_ports(OTHERS + 3 * (own(1) + passed(1) + WAITING) - 1));
        let there = [open(&ledger, &port).unwrap(), open(&ledger, &port).unwrap()];
        let refused = open(&ledger, &port).unwrap_err();
        assert!(refused.contains("web") && refused.contains("LimitNOFILE"), "{refused}");
        assert!(refused.contains("44 descriptors wanted"), "{refused}");
        drop(there);
        assert!(open(&ledger, &port).is_ok());
    }

    #[test]
    fn queues_and_kinds_count() {
        let needed = |attach: &str, queues| {
            let port = vnic("a", attach, queues);
            (0..500).find(|limit| open(&Ledger::new(1 << 40, *limit), &port).is_ok()).unwrap()
        };
        let (one, four) =
            (needed("vhost-user = \"/tmp/a.sock\"", 1), needed("vhost-user = \"/tmp/a.sock\"", 4));
        assert_eq!(four - one, 3 * (LISTENING + PER_QUEUE_PAIR + WAITING));
        assert_eq!(needed("tap = \"a\"", 4), 8);
    }
}
