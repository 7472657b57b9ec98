//! The delay condition of an egress that serves by earliest deadline first (EDF).

use super::egress::{Egress, NANO, Point, Source};

/// Returns the condition at every distinct deadline, shortest first. Between two deadlines the slack has the slope C
/// minus the rates so far, so with a sum of rates of at most C these are its only minima.
pub(super) fn points(egress: &Egress) -> Vec<Point> {
    let mut sources: Vec<&Source> = egress.sources.iter().collect();
    sources.sort_unstable_by_key(|s| s.deadline);
    let (mut bursts, mut rates, mut offset) = (0i128, 0i128, 0i128);
    let mut points: Vec<Point> = Vec::with_capacity(sources.len());
    for source in sources {
        let (t, rate) = (i128::from(source.deadline), source.wire_rate() as i128);
        bursts += source.wire_burst() as i128 * NANO;
        rates += rate;
        offset += rate * t;
        let demand = bursts + rates * t - offset;
        let point = egress.point(source.deadline, demand);
        match points.last_mut() {
            Some(last) if last.t == point.t => *last = point,
            _ => points.push(point),
        }
    }
    points
}

/// Returns for each source the tightest condition from its deadline on.
pub(super) fn critical(egress: &Egress) -> Vec<Point> {
    let points = points(egress);
    let mut tightest = points.clone();
    for i in (1..points.len()).rev() {
        if tightest[i].slack < tightest[i - 1].slack {
            tightest[i - 1] = tightest[i];
        }
    }
    let of = |source: &Source| tightest[points.partition_point(|p| p.t < source.deadline)];
    egress.sources.iter().map(of).collect()
}
