//! Weighted max-min shares above minima, with ceilings for members and for tenants. Rates are in units of the limit.
//!
//! ```text
//!  capacity ─▶ 1 unit each ─▶ minima, where wanted ─▶ tenants' minima ─▶ a probing share each
//!           ─▶ what is wanted, by weight ─▶ minima not wanted ─▶ all the rest, by weight
//! ```
//!
//! Each arrow is a [`fill`]: all limits grow together, each as fast as its weight, until one has what it shall have, its
//! tenant is full, or nothing is left (progressive filling: Bertsekas and Gallager, Data Networks, 6.5.2).

use super::terms::Lending;

/// Claim and limit of one member.
#[derive(Clone, Copy, Debug, Default)]
pub struct Claim {
    /// The rate that it would use alone.
    pub wanted: f64,
    /// Its minimum.
    pub min: f64,
    /// Its maximum; at least 1.
    pub max: f64,
    /// How fast it grows; above 0.
    pub weight: f64,
    /// Index of its tenant, where that has an aggregate.
    pub tenant: Option<usize>,
    /// Part of `limit` that meets its minimum.
    pub guaranteed: f64,
    /// Part of `limit` that it uses, its minimum included.
    pub fair: f64,
    /// Its limit.
    pub limit: f64,
    /// Room left in the present [`fill`].
    pub room: f64,
    /// How fast, in the present [`fill`].
    pub pace: f64,
}

/// A tenant's aggregate.
#[derive(Clone, Debug, Default)]
pub struct Aggregate {
    /// Sum of the minima of its members.
    pub min: f64,
    /// Maximum of all members together; infinite without an aggregate.
    pub max: f64,
    /// Its members, as indices of claims.
    pub members: Vec<usize>,
}

/// Divides `capacity`. `probe` is the extra that each member gets, capacity permitting, to show that it wants more.
pub fn share(capacity: f64, lending: Lending, probe: f64, claims: &mut [Claim], tenants: &[Aggregate]) {
    for claim in claims.iter_mut() {
        claim.limit = 1.0;
        claim.wanted = claim.wanted.min(claim.max).min(capacity);
    }
    let promised = |claim: &Claim| match lending {
        Lending::Lend => (claim.min.min(claim.wanted), claim.min),
        Lending::Reserve => (claim.min, claim.min),
    };
    fill(capacity, claims, tenants, promised);
    for tenant in tenants {
        let rooms = || tenant.members.iter().map(|&i| (claims[i].wanted - claims[i].limit, claims[i].weight));
        let missing = (tenant.min - together(claims, tenant)).min(unclaimed(capacity, claims));
        let level = level(missing, rooms);
        for &index in &tenant.members {
            let claim = &mut claims[index];
            claim.limit += (claim.wanted - claim.limit).clamp(0.0, claim.weight * level);
        }
    }
    for claim in claims.iter_mut() {
        claim.guaranteed = claim.limit;
    }
    fill(capacity, claims, tenants, |_| (probe, 1.0));
    fill(capacity, claims, tenants, |claim| (claim.wanted, claim.weight));
    for claim in claims.iter_mut() {
        claim.fair = claim.limit;
    }
    fill(capacity, claims, tenants, |claim| (claim.min, claim.min));
    fill(capacity, claims, tenants, |claim| (claim.max, claim.weight));
}

/// The part of `capacity` that no limit takes, in the unit of the limits.
pub fn unclaimed(capacity: f64, claims: &[Claim]) -> f64 {
    capacity - claims.iter().map(|claim| claim.limit).sum::<f64>()
}

/// The sum of the limits of a tenant's members.
pub fn together(claims: &[Claim], tenant: &Aggregate) -> f64 {
    tenant.members.iter().map(|&i| claims[i].limit).sum()
}

/// Raises each limit towards its goal, as fast as its pace: `(goal, pace)`.
fn fill(capacity: f64, claims: &mut [Claim], tenants: &[Aggregate], goal: impl Fn(&Claim) -> (f64, f64)) {
    for claim in claims.iter_mut() {
        let (goal, pace) = goal(claim);
        claim.pace = pace;
        claim.room = (goal.min(claim.max) - claim.limit).max(0.0);
    }
    // All grow together, so a tenant is full at the level at which its members alone would be.
    for tenant in tenants {
        let members = || tenant.members.iter().map(|&i| (claims[i].room, claims[i].pace));
        let level = level(tenant.max - together(claims, tenant), members);
        for &index in &tenant.members {
            let claim = &mut claims[index];
            claim.room = up_to(claim.room, claim.pace, level);
        }
    }
    let level = level(unclaimed(capacity, claims), || claims.iter().map(|claim| (claim.room, claim.pace)));
    for claim in claims.iter_mut() {
        claim.limit += up_to(claim.room, claim.pace, level);
    }
}

/// What one with `room` gets when all have grown to `level`.
fn up_to(room: f64, pace: f64, level: f64) -> f64 {
    // An infinite level times a pace of 0 is no number.
    if level == f64::INFINITY { room } else { room.min(pace * level) }
}

/// The level at which `amount` is used up by all with `(room, pace)` together: infinite where there is more than that.
fn level<I: Iterator<Item = (f64, f64)>>(amount: f64, all: impl Fn() -> I) -> f64 {
    let mut level = 0.0;
    if amount <= 0.0 {
        return level;
    }
    // Those who are full below a level are so above it: the level only rises, and at most once for each.
    loop {
        let (mut spent, mut paces) = (0.0, 0.0);
        for (room, pace) in all() {
            if room <= pace * level {
                spent += room.max(0.0);
            } else {
                paces += pace;
            }
        }
        if paces == 0.0 {
            return f64::INFINITY;
        }
        let next = (amount - spent) / paces;
        if next <= level {
            return level;
        }
        level = next;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// Obviously right: a small step at a time, to the member that is furthest behind.
    fn slowly(capacity: f64, claims: &[Claim], tenants: &[Aggregate]) -> Vec<f64> {
        const STEP: f64 = 0.01;
        let mut limits: Vec<f64> = claims.iter().map(|c| c.min.min(c.wanted).max(1.0).min(c.max)).collect();
        let mut grown = vec![0.0; claims.len()];
        loop {
            let free = |i: &usize| {
                let claim = &claims[*i];
                let tenant_free = claim.tenant.is_none_or(|t| {
                    tenants[t].members.iter().map(|&m| limits[m]).sum::<f64>() + STEP <= tenants[t].max
                });
                limits[*i] + STEP <= claim.wanted.min(claim.max) && tenant_free
            };
            let behind = (0..claims.len()).filter(free).min_by(|&a, &b| {
                f64::total_cmp(&(grown[a] / claims[a].weight), &(grown[b] / claims[b].weight))
            });
            let Some(next) = behind.filter(|_| limits.iter().sum::<f64>() + STEP <= capacity) else {
                return limits;
            };
            limits[next] += STEP;
            grown[next] += STEP;
        }
    }

    prop_compose! {
        fn claim()(wanted in 0u32..60, min in 0u32..8, more in 1u32..50, weight in 1u32..6, tenant in 0usize..4)
            -> Claim {
            Claim {
                wanted: f64::from(wanted), min: f64::from(min), max: f64::from(min + more),
                weight: f64::from(weight), tenant: (tenant < 2).then_some(tenant), ..Claim::default()
            }
        }
    }

    prop_compose! {
        fn link()(mut claims in prop::collection::vec(claim(), 1..6), maxima in prop::array::uniform2(0u32..40))
            -> (Vec<Claim>, Vec<Aggregate>) {
            let tenants = (0..2).map(|t| {
                let members: Vec<usize> = (0..claims.len()).filter(|&i| claims[i].tenant == Some(t)).collect();
                let promised: f64 = members.iter().map(|&i| claims[i].min.max(1.0)).sum();
                Aggregate { min: 0.0, max: promised + f64::from(maxima[t]), members }
            }).collect();
            for claim in &mut claims {
                claim.wanted = claim.wanted.max(1.0);
            }
            (claims, tenants)
        }
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(64))]
        #[test]
        fn shares_equal_those_of_the_slow_model((mut claims, tenants) in link(), capacity in 60u32..120) {
            let capacity = f64::from(capacity);
            let wanted: Vec<f64> = claims.iter().map(|c| c.wanted).collect();
            let slow = slowly(capacity, &claims, &tenants);
            share(capacity, Lending::Lend, 0.0, &mut claims, &tenants);
            for (i, claim) in claims.iter().enumerate() {
                prop_assert!((claim.fair - slow[i]).abs() < 0.1, "{i}: {} by the model {}", claim.fair, slow[i]);
                prop_assert!(claim.limit <= claim.max + 1e-9);
                prop_assert!(claim.fair >= claim.min.min(wanted[i]) - 1e-9);
                prop_assert!(claim.limit >= claim.fair);
            }
            prop_assert!(unclaimed(capacity, &claims) >= -1e-6);
            for tenant in &tenants {
                prop_assert!(together(&claims, tenant) <= tenant.max + 1e-6);
            }
        }
    }

    #[test]
    fn a_tenant_gets_its_minimum_and_others_the_rest() {
        let claim = Claim { wanted: 100.0, max: 100.0, weight: 1.0, ..Claim::default() };
        let mut claims = [Claim { tenant: Some(0), ..claim }, Claim { weight: 9.0, ..claim }];
        let tenants = [Aggregate { min: 60.0, max: f64::INFINITY, members: vec![0] }];
        share(100.0, Lending::Lend, 0.0, &mut claims, &tenants);
        // 60 and 1 are promised; 39 are left, by weight.
        assert!((claims[0].limit - 63.9).abs() < 1e-9, "{}", claims[0].limit);
        assert!((claims[1].limit - 36.1).abs() < 1e-9, "{}", claims[1].limit);
    }

    #[test]
    fn unused_capacity_goes_to_the_vf_with_a_promise() {
        let claim = Claim { max: 100.0, weight: 1.0, ..Claim::default() };
        let mut claims = [Claim { wanted: 10.0, ..claim }, Claim { min: 70.0, ..claim }];
        share(100.0, Lending::Lend, 2.0, &mut claims, &[]);
        assert!((claims[1].limit - 80.0).abs() < 1e-9, "{}", claims[1].limit);
        claims[0].wanted = 100.0;
        share(100.0, Lending::Lend, 2.0, &mut claims, &[]);
        assert!((claims[1].limit - 2.0).abs() < 1e-9, "lent");
        share(100.0, Lending::Reserve, 2.0, &mut claims, &[]);
        assert!((claims[1].limit - 70.0).abs() < 1e-9, "reserved");
    }
}
