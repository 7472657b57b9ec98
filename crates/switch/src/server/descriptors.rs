//! The number of file descriptors, and how many a port may need. A switch that ran out of them would silently
//! lose those that a front end passes, and the port would not come up.

use crate::capacity::VNICS;
use crate::quota::MAX_REGIONS;
use crate::quota::{Account, Ledger};
use std::sync::Arc;
use tidegate_contract::{Attach, Vnic};
use tidegate_service::raise_descriptors;

/// For the control socket, its connections, captures, workers and logs; and for two messages with the most
/// descriptors, received before they are refused: 32 with the header, 253 with a byte of the payload.
const OTHERS: u64 = 64 + 2 * (32 + 253);
/// Per vhost-user port: listening socket twice, connection twice, connections of a waiting and of a refused
/// front end, the thread's event, our own inflight region.
const PER_PORT: u64 = 8;
/// Per queue pair: our listeners to the kicks of both rings, old and new while they are replaced.
const LISTENING: u64 = 4;
/// Passed by the front end of an ordinary guest: memory, the inflight region, the dirty log ...
const PASSED: u64 = 16;
/// ... and, per queue pair, kick, call and error of both rings, old and new while they are replaced.
const PER_QUEUE_PAIR: u64 = 12;
/// Per queue pair of a waiting front end: call and error of both rings.
const WAITING: u64 = 4;

/// Raises the soft limit to the hard one (RLIMIT_NOFILE), and warns if it is too low for all ports. Returns the limit.
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

/// Returns how many descriptors of `limit` are for ports.
pub fn for_ports(limit: u64) -> u64 {
    limit.saturating_sub(OTHERS)
}

/// Opens a new port's account, and one for front ends that wait: these never reduce the connected front end's
/// descriptors.
///
/// # Errors
/// Too few descriptors remain; the text says how many.
pub fn open(ledger: &Arc<Ledger>, vnic: &Vnic) -> Result<(Account, Account), String> {
    let queues = u64::from(vnic.queues);
    let (itself, passed, waiting) = match vnic.attach {
        Attach::Tap { .. } => (2 * queues, 0, 0),
        _ => (own(vnic.queues), passed(vnic.queues), WAITING * queues),
    };
    // Two full memory tables may exist at once, while one replaces the other.
    let most = passed + 2 * MAX_REGIONS as u64;
    // Tries the sum first: both accounts or none, and an error names the sum.
    let all = ledger.open(itself, passed + waiting, most).map(drop);
    all.and_then(|()| Ok((ledger.open(itself, passed, most)?, ledger.open(0, waiting, waiting)?)))
        .map_err(|exceeded| format!("{}: no file descriptors are left for this port: {exceeded}", vnic.name))
}

/// Returns the descriptors of a vhost-user port itself.
fn own(queue_pairs: u16) -> u64 {
    PER_PORT + LISTENING * u64::from(queue_pairs)
}

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
        assert!(refused.contains("44 descriptors requested"), "{refused}");
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
