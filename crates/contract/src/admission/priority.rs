//! Strict priorities for an egress that cannot order frames by deadline: the shorter the deadline, the higher.
//!
//! A source's bound holds for any order within its level: all frames of the other sources of its level, and of higher
//! levels, are assumed to go first. This is the "blind" leftover service of network calculus (Le Boudec and Thiran,
//! Network Calculus, 6.2).

use super::egress::{Egress, NANO, Point, Source};

/// Levels for real-time traffic; the highest is 0. Other traffic needs one more, and HTB has eight
/// (`TC_HTB_NUMPRIO`, net/sched/sch_htb.c).
pub const LEVELS: u8 = 7;

/// Returns the level of each deadline (ns): its rank among the distinct ones; the longest share the last level.
pub fn priorities(deadlines: &[u64]) -> Vec<u8> {
    let mut distinct = deadlines.to_vec();
    distinct.sort_unstable();
    distinct.dedup();
    let rank = |deadline| distinct.partition_point(|d| d < deadline).min(usize::from(LEVELS) - 1);
    deadlines.iter().map(|deadline| u8::try_from(rank(deadline)).unwrap_or(LEVELS - 1)).collect()
}

/// Returns the condition of each source at its own deadline, in the order of the sources: the data that may go before
/// the last bit of its burst within d is at most C (d - H) - L.
pub(super) fn points(egress: &Egress) -> Vec<Point> {
    let deadlines: Vec<u64> = egress.sources.iter().map(|s| s.deadline).collect();
    let levels = priorities(&deadlines);
    // The kernel's bucket lets the frame through that exhausts it: an excess of one frame. That frame is no larger than
    // the burst, because marks drop such frames, nor than a super-frame.
    let over = |burst: u128| burst + burst.min(egress.blocking.into());
    // Data that the sources of a level and of higher levels may send: at once, and per second.
    let mut upto = [(0i128, 0i128); LEVELS as usize];
    for (source, level) in egress.sources.iter().zip(&levels) {
        for (bursts, rates) in &mut upto[usize::from(*level)..] {
            *bursts += over(source.wire_burst()) as i128 * NANO;
            *rates += source.wire_rate() as i128;
        }
    }
    let point = |(source, level): (&Source, &u8)| {
        let (bursts, rates) = upto[usize::from(*level)];
        let others = rates - source.wire_rate() as i128;
        egress.point(source.deadline, bursts + others * i128::from(source.deadline))
    };
    egress.sources.iter().zip(&levels).map(point).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_shorter_the_deadline_the_higher() {
        assert!(priorities(&[]).is_empty());
        assert_eq!(priorities(&[500, 100, 500, 300]), [2, 0, 2, 1]);
        let many: Vec<u64> = (1..=9).collect();
        assert_eq!(priorities(&many), [0, 1, 2, 3, 4, 5, 6, 6, 6]);
    }
}
