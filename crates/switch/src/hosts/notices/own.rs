//! The queue pairs of this host's vNICs, and which of them each peer has still to be told.
//!
//! ```text
//!  vNICs ─▶ Own: numbered in the order of their changes ─▶ Telling, for each peer: at once, after 1 s and
//!            │                                                          10 s, and each 10 s
//!            └▶ lost its queue pair, or went: told as "none" for 30 s
//! ```
//!
//! A peer forgets a queue pair that it is not told of for 35 s. A change has a new number, so it is told at once.

use super::bucket::Bucket;
use super::members::OF_PEER;
use super::present::Present;
use super::rounds::{Rounds, Thing};
use super::setup::Local;
use std::collections::{BTreeMap, HashMap};
use tidegate_contract::{Mac, Segment};
use tidegate_uplink::notice::Member;

/// When a queue pair is announced, after it changed (ns).
const AFTER: [u64; 3] = [0, 1_000_000_000, 10_000_000_000];
/// Time between two announcements of all queue pairs (ns).
const EVERY: u64 = 10_000_000_000;
/// Announcements a second to one peer. With all other kinds they are fewer than a peer takes, 200.
const RATE: u64 = 80;
/// How long a vNIC is announced to have no queue pair (ns).
const GONE_FOR: u64 = 30_000_000_000;

/// The queue pairs of this host's vNICs: at most [`OF_PEER`]. vNICs beyond are not announced.
#[derive(Debug, Default)]
pub(super) struct Own {
    /// By number.
    claims: BTreeMap<u64, Claim>,
    numbers: HashMap<(Segment, Mac), u64>,
    next: u64,
}

/// What is told of a vNIC, and the Q_Key of its queue pair, if it has one.
type Announced = (Member, Option<u32>);

/// A vNIC that has a queue pair, or had one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Claim {
    pub(super) segment: Segment,
    /// What is told of it.
    pub(super) member: Member,
    /// Q_Key of the queue pair, if it has one.
    pub(super) q_key: Option<u32>,
    /// When it changed (ns).
    changed: u64,
}

impl Thing for Claim {
    fn segment(&self) -> Segment {
        self.segment
    }

    fn since(&self) -> u64 {
        self.changed
    }
}

impl Claim {
    fn key(&self) -> (Segment, Mac) {
        (self.segment, Mac(self.member.mac))
    }

    const fn is_gone(&self) -> bool {
        self.member.queue_pair == 0
    }
}

impl Own {
    /// Sets the vNICs of this host, as they are at `now` (ns). `present` knows since when they are up.
    pub(super) fn set(&mut self, locals: &[Local], present: &Present, now: u64) {
        let mut wanted: HashMap<(Segment, Mac), Announced> =
            locals.iter().filter_map(|local| claimed(local, present)).collect();
        let mut room = OF_PEER;
        for before in self.living() {
            let becomes = wanted.remove(&before.key());
            room -= usize::from(becomes.is_some());
            let gone = Member { queue_pair: 0, longest: 0, ..before.member };
            let becomes = becomes.unwrap_or((gone, None));
            if becomes != (before.member, before.q_key) {
                self.tell(before.segment, becomes, now);
            }
        }
        let new = locals.iter().filter_map(|local| {
            wanted.remove(&(local.segment, local.mac)).map(|member| (local.segment, member))
        });
        for (segment, member) in new.take(room) {
            self.tell(segment, member, now);
        }
        self.forget_gone(now);
    }

    /// Returns the vNICs that have a queue pair.
    fn living(&self) -> Vec<Claim> {
        self.claims.values().filter(|claim| !claim.is_gone()).copied().collect()
    }

    /// Gives what is told of a vNIC a new number.
    fn tell(&mut self, segment: Segment, (member, q_key): Announced, now: u64) {
        self.next += 1;
        self.claims.insert(self.next, Claim { segment, member, q_key, changed: now });
        let key = (segment, Mac(member.mac));
        if let Some(before) = self.numbers.insert(key, self.next) {
            self.claims.remove(&before);
        }
    }

    /// Forgets vNICs without a queue pair that every peer was told of often enough, and the first of too many.
    fn forget_gone(&mut self, now: u64) {
        let gone: Vec<_> = self.claims.iter().filter(|(_, claim)| claim.is_gone()).collect();
        let too_many = gone.len().saturating_sub(OF_PEER);
        let forgotten: Vec<_> = (gone.into_iter().enumerate())
            .filter(|(at, (_, claim))| *at < too_many || now.saturating_sub(claim.changed) >= GONE_FOR)
            .map(|(_, (number, claim))| (*number, claim.key()))
            .collect();
        for (number, key) in forgotten {
            self.claims.remove(&number);
            self.numbers.remove(&key);
        }
    }
}

/// Returns what is told of a vNIC that is up and has a queue pair.
fn claimed(local: &Local, present: &Present) -> Option<((Segment, Mac), Announced)> {
    let since_ns = present.since(local.segment, local.mac)?;
    let member = Member { mac: local.mac.0, since_ns, queue_pair: local.queue_pair?, longest: local.longest };
    (local.is_up && member.queue_pair != 0 && member.is_sound())
        .then_some(((local.segment, local.mac), (member, Some(local.q_key))))
}

/// What one peer was told.
#[derive(Debug)]
pub(super) struct Telling {
    changes: Rounds<{ AFTER.len() }>,
    all: Rounds<1>,
    bucket: Bucket,
}

impl Telling {
    /// Nothing was told to a peer that is one since `now` (ns).
    pub(super) const fn nothing(now: u64) -> Self {
        Self { changes: Rounds::new(AFTER, now), all: Rounds::new([EVERY], now), bucket: Bucket::new(RATE) }
    }

    /// Returns when the peer is to be told of the next queue pair (ns); `None` if there is none.
    pub(super) fn due(&self, own: &Own, now: u64) -> Option<u64> {
        // A turn may end with vNICs that do not concern the peer: the next one begins all the same.
        let turn = || (!own.claims.is_empty()).then_some(self.all.since() + EVERY);
        let all = self.all.due(&own.claims).or_else(turn);
        let next = self.changes.due(&own.claims).into_iter().chain(all).min()?;
        Some(next.max(self.bucket.next(now)))
    }

    /// Takes the next one that `concerns` the peer and that it is to be told of at `now` (ns).
    pub(super) fn next(&mut self, own: &Own, now: u64, concerns: impl Fn(Segment) -> bool) -> Option<Claim> {
        let Self { changes, all, bucket } = self;
        changes
            .next(&own.claims, now, bucket, &concerns)
            .or_else(|| all.next(&own.claims, now, bucket, &concerns))
            .or_else(|| {
                // What changed during a turn waits for the next one: no change delays that.
                let is_told = all.due(&own.claims).is_none_or(|at| at > now);
                if !is_told || now.saturating_sub(all.since()) < EVERY {
                    return None;
                }
                *all = Rounds::new([EVERY], (all.since() + EVERY).max(now.saturating_sub(EVERY)));
                all.next(&own.claims, now, bucket, &concerns)
            })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: u64 = 1_000_000_000;

    fn local(mac: u16, queue_pair: Option<u32>) -> Local {
        let [high, low] = mac.to_be_bytes();
        Local {
            name: format!("v{mac}"),
            segment: Segment::new(u32::from(mac % 2)).unwrap(),
            mac: Mac([2, 0, 0, 0, high, low]),
            is_up: true,
            queue_pair,
            q_key: 5,
            longest: 4064,
        }
    }

    /// A host that tells one peer of segment 0.
    struct Host {
        present: Present,
        own: Own,
        telling: Telling,
    }

    impl Host {
        fn new() -> Self {
            Self { present: Present::default(), own: Own::default(), telling: Telling::nothing(0) }
        }

        fn has(&mut self, locals: &[Local], now: u64) {
            self.present.set(locals, now);
            self.own.set(locals, &self.present, now);
        }

        /// Returns MAC and queue pair of what the peer is told at `now`.
        fn tells(&mut self, now: u64) -> Vec<(u8, u32)> {
            let next = || self.telling.next(&self.own, now, |segment| segment.id() == 0);
            std::iter::from_fn(next).map(|claim| (claim.member.mac[5], claim.member.queue_pair)).collect()
        }

        /// Returns when the peer is told anything up to `end`, and what.
        fn tells_until(&mut self, mut now: u64, end: u64) -> Vec<(u64, u8, u32)> {
            let mut all = Vec::new();
            while now <= end {
                all.extend(self.tells(now).into_iter().map(|(mac, pair)| (now / SECOND, mac, pair)));
                let Some(due) = self.telling.due(&self.own, now) else { break };
                assert!(due > now, "what is due was told");
                now = due;
            }
            all
        }
    }

    #[test]
    fn a_queue_pair_is_told_at_once_after_a_second_and_each_ten() {
        let mut host = Host::new();
        assert_eq!(host.telling.due(&host.own, 0), None);
        host.has(&[local(2, Some(17)), local(3, Some(18)), local(4, None)], 5 * SECOND);
        assert_eq!(host.telling.due(&host.own, 0), Some(5 * SECOND));
        let told = host.tells_until(5 * SECOND, 60 * SECOND);
        let times: Vec<_> = told.iter().map(|(at, ..)| *at).collect();
        assert!(told.iter().all(|(_, mac, pair)| (*mac, *pair) == (2, 17)), "{told:?}");
        assert_eq!(times[..3], [5, 6, 15]);
        assert!(times.windows(2).all(|pair| pair[1] - pair[0] <= 10), "{times:?}");
        assert!((8..=10).contains(&times.len()), "{times:?}");
    }

    #[test]
    fn a_change_is_told_at_once_and_so_is_the_end() {
        let mut host = Host::new();
        host.has(&[local(2, Some(17))], SECOND);
        assert_eq!(host.tells(SECOND), [(2, 17)]);
        host.has(&[local(2, Some(17))], SECOND + 1);
        assert_eq!(host.tells(SECOND + 1), [], "nothing changed");
        host.has(&[local(2, Some(19))], SECOND + 2);
        assert_eq!(host.tells(SECOND + 2), [(2, 19)], "another queue pair");
        host.has(&[Local { q_key: 6, ..local(2, Some(19)) }], SECOND + 3);
        assert_eq!(host.tells(SECOND + 3), [(2, 19)], "another Q_Key");
        let down = Local { is_up: false, ..local(2, Some(19)) };
        host.has(&[down], 2 * SECOND);
        let told = host.tells_until(2 * SECOND, 25 * SECOND);
        assert!(told.len() >= 4 && told.iter().all(|(_, mac, pair)| (*mac, *pair) == (2, 0)), "{told:?}");
        host.has(&[local(2, Some(20))], 26 * SECOND);
        assert_eq!(host.tells(26 * SECOND), [(2, 20)], "it came back, and is no more said to be gone");
        host.has(&[], 27 * SECOND);
        assert_eq!(host.tells(27 * SECOND), [(2, 0)]);
        host.has(&[], 58 * SECOND);
        assert_eq!((host.own.claims.len(), host.own.numbers.len()), (0, 0));
        assert_eq!(host.telling.due(&host.own, 58 * SECOND), None);
    }

    #[test]
    fn changes_without_end_do_not_keep_others_from_being_told_again() {
        let mut host = Host::new();
        let mut told = Vec::new();
        for tenth in 10..1000u64 {
            let now = tenth * SECOND / 10;
            host.has(&[local(2, Some(17)), local(4, Some(100 + tenth as u32))], now);
            told.extend(host.tells(now).into_iter().filter(|(mac, _)| *mac == 2).map(|_| tenth));
        }
        assert!(told.windows(2).all(|pair| pair[1] - pair[0] <= 102), "{told:?}");
        assert!(told.len() >= 10);
    }

    #[test]
    fn many_are_told_at_a_bounded_rate_and_too_many_are_left_out() {
        let mut host = Host::new();
        let all: Vec<_> = (0..2 * OF_PEER as u16 + 20).map(|n| local(2 * n, Some(100))).collect();
        host.has(&all[10..], SECOND);
        assert_eq!(host.tells(SECOND).len(), RATE as usize);
        assert_eq!(host.tells(SECOND * 3 / 2).len(), RATE as usize / 2);
        let places: Vec<_> = host.own.claims.values().map(Claim::key).collect();
        assert_eq!(places.len(), OF_PEER);
        host.has(&all, 2 * SECOND);
        assert_eq!(
            host.own.claims.values().map(Claim::key).collect::<Vec<_>>(),
            places,
            "who was there stays"
        );
        host.has(&all[OF_PEER + 10..], 3 * SECOND);
        assert_eq!(host.own.claims.len(), 2 * OF_PEER, "others came, and those that left are told");
        host.has(&all[..10], 4 * SECOND);
        assert_eq!(host.own.claims.len(), OF_PEER + 10);
        // Each of them all is told in time for a peer that misses one announcement.
        let mut last = HashMap::new();
        let mut host = Host::new();
        host.has(&all, SECOND);
        for ms in (1000..120_000).step_by(5) {
            let now = ms * SECOND / 1000;
            while let Some(Claim { member, .. }) = host.telling.next(&host.own, now, |_| true) {
                let before = last.insert(member.mac, ms).unwrap_or(1000);
                assert!(ms - before < 17_500, "{:?}: {} ms", member.mac, ms - before);
            }
        }
        assert_eq!(last.len(), OF_PEER);
    }

    #[test]
    fn a_queue_pair_that_none_can_use_is_not_told() {
        let mut host = Host::new();
        for (queue_pair, longest) in [(0, 4064), (1, 4064), (1 << 24, 4064), (17, 13)] {
            host.has(&[Local { longest, ..local(2, Some(queue_pair)) }], SECOND);
            assert_eq!(host.tells(SECOND), [], "{queue_pair} {longest}");
        }
    }
}
