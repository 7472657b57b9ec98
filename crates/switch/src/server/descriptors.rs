//! How many file descriptors there are, and how many a port may come to need: a switch that runs out
//! of them would lose those a front end passes, and its port would not come up, without a word.

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use tidegate_contract::{Attach, Vnic};

use crate::stats::layout::VNICS;

/// Left for the control socket, its connections, captures, workers, logs.
const OTHERS: u64 = 64;
/// Of a vhost-user port: listening socket twice, connection three times, the thread's event, inflight
/// region and dirty log twice. What is there once more is for whoever keeps it.
const PER_PORT: u64 = 10;
/// Kick and call twice and error, of both rings.
const PER_QUEUE_PAIR: u64 = 10;
/// Memory regions, and those of a message until they are mapped; QEMU passes up to 8 at once.
const REGIONS: u64 = 16;

/// Raises the soft limit to the hard one (RLIMIT_NOFILE), and says where that is too little for as
/// many ports as there can be. Returns the limit.
pub fn raise() -> u64 {
    let maximum = getrlimit(Resource::Nofile).maximum;
    if let Err(error) = setrlimit(Resource::Nofile, Rlimit { current: maximum, maximum }) {
        tracing::warn!(%error, "the limit on file descriptors cannot be raised to its maximum");
    }
    let limit = getrlimit(Resource::Nofile).current.unwrap_or(u64::MAX);
    let ports = limit.saturating_sub(OTHERS) / vhost_user(1);
    if ports < VNICS as u64 {
        tracing::warn!(
            limit,
            "file descriptors (RLIMIT_NOFILE; LimitNOFILE= of the unit) are enough for {ports} ports of one queue pair"
        );
    }
    limit
}

/// Descriptors that a port may come to need.
pub fn needed(vnic: &Vnic) -> u64 {
    match vnic.attach {
        Attach::Tap { .. } => 2 * u64::from(vnic.queues),
        _ => vhost_user(vnic.queues),
    }
}

fn vhost_user(queue_pairs: u16) -> u64 {
    PER_PORT + REGIONS + PER_QUEUE_PAIR * u64::from(queue_pairs)
}

/// Whether one more port fits beside those that are there, within `limit`.
///
/// # Errors
/// It does not, in words.
pub fn check<'a>(limit: u64, ports: impl Iterator<Item = &'a Vnic>, new: &Vnic) -> Result<(), String> {
    let (count, taken) = ports.fold((0, 0), |(count, taken), vnic| (count + 1, taken + needed(vnic)));
    let wanted = needed(new);
    if OTHERS + taken + wanted <= limit {
        return Ok(());
    }
    Err(format!(
        "{}: no file descriptors left: it may need {wanted}, the {count} ports there are {taken} and the switch \
         itself {OTHERS}, and it may have {limit} (RLIMIT_NOFILE): start the switch with a higher limit \
         (LimitNOFILE= of tidegate-switch.service)",
        new.name
    ))
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
        let limit = OTHERS + 3 * needed(&port);
        let there = [&port, &port];
        assert_eq!(check(limit, there.into_iter(), &port), Ok(()));
        assert_eq!(check(limit + 100, there.into_iter(), &port), Ok(()));
        let refused = check(limit - 1, there.into_iter(), &port).unwrap_err();
        assert!(refused.contains("web") && refused.contains("RLIMIT_NOFILE"), "{refused}");
        assert!(refused.contains("the 2 ports there are 72"), "{refused}");
    }

    #[test]
    fn queues_and_kinds_count() {
        let one = needed(&vnic("a", "vhost-user = \"/tmp/a.sock\"", 1));
        let four = needed(&vnic("a", "vhost-user = \"/tmp/a.sock\"", 4));
        assert_eq!(four - one, 3 * PER_QUEUE_PAIR);
        assert_eq!(needed(&vnic("a", "tap = \"a\"", 4)), 8);
    }

    #[test]
    fn the_soft_limit_becomes_the_hard_one() {
        assert_eq!(Some(raise()), getrlimit(Resource::Nofile).maximum.or(Some(u64::MAX)));
    }
}
