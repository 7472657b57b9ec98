use super::*;
use proptest::prelude::*;
use std::net::Ipv4Addr;

const SECOND: u64 = 1_000_000_000;

fn peer(number: u16) -> (PeerIndex, IpAddr) {
    let address = Ipv4Addr::from(0xc000_0200 + u32::from(number));
    (PeerIndex::new(number).unwrap(), address.into())
}

fn vnic(number: u16) -> (Segment, Mac) {
    let [high, low] = number.to_be_bytes();
    (Segment::new(u32::from(number % 2)).unwrap(), Mac([2, 0, 0, 0, high, low]))
}

fn said(queue_pair: u32, since: u64, sent_ns: u64) -> Said {
    let queue_pair = QueuePair { number: queue_pair, longest: 4064, q_key: 7 };
    Said {
        queue_pair: (queue_pair.number != 0).then_some(queue_pair),
        since_ns: since,
        since: Some(since.into()),
        sent_ns,
    }
}

fn none_is_here(_: Segment, _: Mac) -> bool {
    false
}

fn all_hear(_: PeerIndex) -> bool {
    true
}

/// What happens to [`Members`].
#[derive(Clone, Debug)]
enum Event {
    Hear { peer: u16, vnic: u16, queue_pair: u32, q_key: u32, since: u64, sent_ns: u64 },
    Restart { peer: u16 },
    Rekey { segment: u32, q_key: u32 },
    Leave { peer: u16, segment: u32 },
    Here { vnic: Option<u16> },
    Deaf { peer: Option<u16> },
}

fn events() -> impl Strategy<Value = Vec<(Event, u64)>> {
    let hear = (0..3u16, 0..4u16, 0..4u32, 0..2u32, 0..5u64, 0..8u64).prop_map(
        |(peer, vnic, queue_pair, q_key, since, sent_ns)| Event::Hear {
            peer,
            vnic,
            queue_pair,
            q_key,
            since,
            sent_ns,
        },
    );
    let event = prop_oneof![
        12 => hear,
        1 => (0..3u16).prop_map(|peer| Event::Restart { peer }),
        1 => (0..2u32, 0..2u32).prop_map(|(segment, q_key)| Event::Rekey { segment, q_key }),
        1 => (0..3u16, 0..2u32).prop_map(|(peer, segment)| Event::Leave { peer, segment }),
        1 => prop::option::of(0..4u16).prop_map(|vnic| Event::Here { vnic }),
        1 => prop::option::of(0..3u16).prop_map(|peer| Event::Deaf { peer }),
    ];
    prop::collection::vec((event, 1..15u64), 1..60)
}

/// A list of what was said last, searched from one end to the other.
#[derive(Default)]
struct Model(Vec<Line>);

struct Line {
    peer: u16,
    vnic: u16,
    said: Said,
    heard_at: u64,
}

impl Model {
    fn hear(&mut self, peer: u16, vnic: u16, mut said: Said, now: u64) {
        let at = self.0.iter().position(|line| (line.peer, line.vnic) == (peer, vnic));
        if let Some(at) = at {
            let before = self.0[at].said;
            if said.sent_ns < before.sent_ns {
                return;
            }
            if said.since_ns == before.since_ns {
                said.since = before.since.or(said.since);
            }
            self.0.remove(at);
        }
        self.0.push(Line { peer, vnic, said, heard_at: now });
    }

    fn heard(&mut self, now: u64, here: Option<u16>, deaf: Option<u16>) -> Vec<Heard> {
        self.0.retain(|line| now - line.heard_at < FORGOTTEN_AFTER);
        let of = |number: u16| {
            let best = (self.0.iter())
                .filter(|line| line.vnic == number && Some(number) != here)
                .filter_map(|line| {
                    let is_fresh = now - line.heard_at < FRESH_FOR;
                    Some((is_fresh, line.said.since, line.peer, line.said.queue_pair?))
                })
                .max_by_key(|(is_fresh, since, peer, _)| (*is_fresh, *since, std::cmp::Reverse(*peer)))?;
            let (is_fresh, _, from, QueuePair { number: queue_pair, longest, q_key }) = best;
            let ((segment, mac), (peer, address)) = (vnic(number), peer(from));
            let is_fresh = is_fresh && deaf != Some(from);
            Some(Heard { segment, mac, peer, address, queue_pair, q_key, longest, is_fresh })
        };
        let mut all: Vec<_> = (0..4).filter_map(of).collect();
        all.sort_by_key(|heard| (heard.segment, heard.mac.0));
        all
    }
}

proptest! {
    #[test]
    fn members_are_those_of_a_list(events in events()) {
        let (mut members, mut model) = (Members::default(), Model::default());
        let (mut now, mut told, mut here, mut deaf) = (0, vec![], None, None);
        for (event, seconds) in events {
            match event {
                Event::Hear { peer: from, vnic: of, queue_pair, q_key, since, sent_ns } => {
                    let mut said = said(queue_pair, since, sent_ns);
                    said.queue_pair.iter_mut().for_each(|queue_pair| queue_pair.q_key = q_key);
                    // The clock's estimate moves, or there is none.
                    let moves = now / SECOND % 4;
                    said.since = said.since.filter(|_| moves < 3).map(|since| since + i128::from(moves));
                    members.hear(peer(from), vnic(of), said, now).unwrap();
                    model.hear(from, of, said, now);
                }
                Event::Restart { peer: from } => {
                    members.forget(peer(from).0);
                    model.0.retain(|line| line.peer != from);
                }
                Event::Rekey { segment, q_key } => {
                    let is_valid = |of: Segment, with| of.id() != segment || with == Some(q_key);
                    members.keep_valid(|_, of, with| is_valid(of, with));
                    model.0.retain(|line| {
                        is_valid(vnic(line.vnic).0, line.said.queue_pair.map(|queue_pair| queue_pair.q_key))
                    });
                }
                Event::Leave { peer: from, segment } => {
                    members.keep_valid(|of, there, _| of != peer(from).0 || there.id() != segment);
                    model.0.retain(|line| line.peer != from || vnic(line.vnic).0.id() != segment);
                }
                Event::Here { vnic } => {
                    members.locals_changed();
                    here = vnic;
                }
                Event::Deaf { peer } => deaf = peer,
            }
            now += seconds * SECOND;
            let is_here = |segment, mac| here.is_some_and(|here| vnic(here) == (segment, mac));
            if let Some(new) = members.take(now, is_here, |of| deaf.map(|deaf| peer(deaf).0) != Some(of)) {
                prop_assert_ne!(&new, &told, "nothing changed");
                told = new;
            }
            prop_assert_eq!(&told, &model.heard(now, here, deaf));
            prop_assert_eq!(members.count, model.0.len());
            prop_assert_eq!(members.due().is_some(), members.count > 0);
        }
    }
}

#[test]
fn a_member_that_is_silent_for_35_seconds_may_only_send_and_after_80_it_is_forgotten() {
    let mut members = Members::default();
    members.hear(peer(1), vnic(2), said(17, 5, 1), 0).unwrap();
    assert_eq!(members.take(0, none_is_here, all_hear).unwrap().len(), 1);
    members.hear(peer(1), vnic(2), said(17, 5, 2), 20 * SECOND).unwrap();
    assert_eq!(members.take(54 * SECOND, none_is_here, all_hear), None);
    assert_eq!(members.due(), Some(55 * SECOND));
    let heard = members.take(55 * SECOND, none_is_here, all_hear).unwrap();
    assert!(heard.len() == 1 && !heard[0].is_fresh, "{heard:?}");
    members.hear(peer(2), vnic(2), said(18, 3, 1), 56 * SECOND).unwrap();
    let heard = members.take(56 * SECOND, none_is_here, all_hear).unwrap();
    assert_eq!(
        (heard[0].queue_pair, heard[0].is_fresh),
        (18, true),
        "one that still announces it comes before"
    );
    members.forget(peer(2).0);
    assert!(members.take(99 * SECOND, none_is_here, all_hear).is_some());
    assert_eq!(members.take(100 * SECOND, none_is_here, all_hear), Some(vec![]));
    assert_eq!(members.due(), None);
}

#[test]
fn an_earlier_announcement_brings_nothing_back() {
    let mut members = Members::default();
    members.hear(peer(1), vnic(2), said(0, 5, 20), 0).unwrap();
    members.hear(peer(1), vnic(2), said(17, 5, 10), 1).unwrap();
    assert_eq!(members.take(1, none_is_here, all_hear), None);
    members.hear(peer(1), vnic(2), said(18, 5, 20), 2).unwrap();
    assert_eq!(members.take(2, none_is_here, all_hear).unwrap()[0].queue_pair, 18);
}

#[test]
fn changes_are_told_ten_times_a_second_at_most() {
    let mut members = Members::default();
    let mut told = 0;
    for n in 0..1000u64 {
        let now = n * SECOND / 200;
        members.hear(peer(1), vnic(2), said(2 + n as u32, 5, n), now).unwrap();
        assert!(members.due().is_some_and(|due| due <= now + TELL_EVERY));
        told += usize::from(members.take(now, none_is_here, all_hear).is_some());
    }
    assert_eq!(told, 50, "200 changes a second for 5 s");
    let last = members.take(6 * SECOND, none_is_here, all_hear).unwrap();
    assert_eq!(last[0].queue_pair, 1001, "the last change is told");
}

#[test]
fn no_peer_has_more_members_than_its_share_and_all_have_a_limit() {
    let mut members = Members::default();
    let mut hear = |from, n: u16, queue_pair, sent_ns| {
        members.hear(peer(from), vnic(n), said(queue_pair, 5, sent_ns), sent_ns)
    };
    for n in 0..OF_PEER as u16 {
        hear(1, n, 17, 10).unwrap();
    }
    assert_eq!(hear(1, 5000, 17, 11), Err(Full));
    assert_eq!(hear(1, 3, 18, 12), Ok(()), "one that is known changes");
    assert_eq!((hear(1, 7, 0, 13), hear(1, 8, 0, 14)), (Ok(()), Ok(())));
    assert_eq!(hear(1, 5000, 17, 15), Ok(()), "in the place of one without a queue pair");
    assert_eq!((hear(1, 5001, 17, 16), hear(1, 5002, 17, 17)), (Ok(()), Err(Full)));
    let others = (IN_ALL / OF_PEER) as u16;
    for from in 2..=others {
        (0..OF_PEER as u16).for_each(|n| hear(from, n, 17, 20).unwrap());
    }
    assert_eq!(hear(others + 1, 1, 17, 20), Err(Full), "all places are taken");
    assert_eq!(members.count, IN_ALL);
    members.forget(peer(2).0);
    members.hear(peer(others + 1), vnic(1), said(17, 9, 20), 20).unwrap();
    let heard = members.take(SECOND, none_is_here, all_hear).unwrap();
    assert_eq!(heard.len(), OF_PEER + 2, "each vNIC once");
    assert_eq!(heard.iter().filter(|heard| heard.peer == peer(others + 1).0).count(), 1);
}
