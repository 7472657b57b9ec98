//! Properties of the loop, over made-up members and demands.
//!
//! Most are shown on a plant without dynamics: a member sends the lesser of its demand and its limit, and its counter is
//! a period late at most. Those of senders with dynamics use the simulation.

use proptest::prelude::*;
use std::time::Duration;
use tidegate_contract::{Bytes, Rate, Segment};
use tidegate_place_nic::control::{
    Change, Controller, Lending, LimitReason, LinkTerms, Member, Tenant, Usage, admissible,
};
use tidegate_testkit::simulation::{self, Activity, Control, Kind, Scenario, Sender, Timing, Trace};

/// Periods within which a member has its minimum: one that its demand fills only in part, and one to see it. Counters
/// that are late by a period add one.
const MINIMUM: usize = 2;
/// Periods after which nothing changes any more at steady demand: two windows of three until what was used before is
/// forgotten, doublings from a probing share to the capacity, and the same once more for what the others leave over.
const SETTLED: usize = 30;
const PERIOD: Duration = Duration::from_millis(100);

fn mbit(units: u64) -> Rate {
    Rate::from_bits(units.max(1) * 1_000_000).expect("in range")
}

fn segment(id: u32) -> Segment {
    Segment::new(id).expect("in range")
}

/// Members that do as their demand and their limits say.
struct Plant {
    controller: Controller,
    members: Vec<Member>,
    tenants: Vec<Tenant>,
    capacity: u64,
    /// In force, Mbit/s, by member.
    limits: Vec<u64>,
    /// What counters say, one period late.
    late: Option<Vec<u64>>,
}

impl Plant {
    fn new(link: LinkTerms, members: &[Member], tenants: &[Tenant], late: bool) -> Self {
        let mut controller = Controller::new(link, members, tenants).expect("admissible");
        let limits = controller.step(&[]).iter().map(|change| change.to.bits() / 1_000_000).collect();
        let late = late.then(|| vec![0; members.len()]);
        let capacity = link.capacity.bits() / 1_000_000;
        Self { controller, members: members.to_vec(), tenants: tenants.to_vec(), capacity, limits, late }
    }

    /// One period of these demands, Mbit/s; how many limits changed. `blind` says whose counters cannot be read.
    fn turn(&mut self, demands: &[u64], blind: impl Fn(usize) -> bool) -> usize {
        let sent = self.sent(demands);
        let seen = match &mut self.late {
            Some(late) => std::mem::replace(late, sent),
            None => sent,
        };
        let usage: Vec<Option<Usage>> = seen
            .iter()
            .enumerate()
            .map(|(i, mbit)| {
                (!blind(i)).then_some(Usage { bytes: mbit * 1_000_000 / 8 / 10, elapsed: PERIOD })
            })
            .collect();
        let changes: Vec<Change> = self.controller.step(&usage).to_vec();
        for change in &changes {
            let index = self.members.iter().position(|m| m.id == change.id).expect("a member");
            assert_eq!(change.from, Some(mbit(self.limits[index])));
            self.limits[index] = change.to.bits() / 1_000_000;
            // After each single change, in the order they are set.
            self.check();
        }
        changes.len()
    }

    fn sent(&self, demands: &[u64]) -> Vec<u64> {
        demands.iter().zip(&self.limits).map(|(&demand, &limit)| demand.min(limit)).collect()
    }

    /// What holds always.
    fn check(&self) {
        assert!(self.limits.iter().sum::<u64>() <= self.capacity, "{:?}", self.limits);
        for (member, &limit) in self.members.iter().zip(&self.limits) {
            assert!(limit >= 1);
            assert!(member.max.is_none_or(|max| mbit(limit) <= max), "{member:?} {limit}");
        }
        for tenant in &self.tenants {
            let together = self.of(tenant, &self.limits);
            assert!(tenant.max.is_none_or(|max| mbit(together) <= max), "{tenant:?} {together}");
        }
    }

    fn of(&self, tenant: &Tenant, values: &[u64]) -> u64 {
        self.members.iter().zip(values).filter(|(m, _)| m.segment == tenant.segment).map(|(_, v)| v).sum()
    }
}

/// A link of 1000 Mbit/s, members whose promises fit on it, and as many demands as asked for.
#[derive(Clone, Debug)]
struct Case {
    members: Vec<Member>,
    tenants: Vec<Tenant>,
    /// Mbit/s, by phase, by member.
    demands: Vec<Vec<u64>>,
}

const CAPACITY: u64 = 1000;

fn link() -> LinkTerms {
    LinkTerms::new(mbit(CAPACITY))
}

fn demand() -> impl Strategy<Value = u64> {
    prop_oneof![2 => Just(0), 1 => 1u64..20, 3 => 1u64..600, 2 => Just(100_000)]
}

fn case(phases: usize) -> impl Strategy<Value = Case> {
    let member = (prop::option::of(5u64..500), prop::option::of(0u64..100), 1u32..=8, 1u32..4, 0u64..100);
    let members = prop::collection::vec(member, 1..9);
    let tenants = prop::option::of((0u64..400, 0u64..100));
    (members, tenants).prop_flat_map(move |(members, tenant)| {
        let count = members.len() as u64;
        let members: Vec<Member> = members
            .into_iter()
            .zip(0..)
            .map(|((max, min, weight, of, _), id)| {
                // Shares of what one member may be promised at most, so that all fit.
                let min = min.map(|percent| (CAPACITY / count * percent / 100).min(max.unwrap_or(CAPACITY)));
                Member { id, max: max.map(mbit), min: min.map(mbit), weight, segment: segment(of) }
            })
            .collect();
        let tenants = tenant.map(|(more, min)| {
            let own = members.iter().filter(|m| m.segment == segment(1));
            let promised: u64 = own.map(|m| m.min.map_or(1, |min| min.bits() / 1_000_000)).sum();
            let others: u64 = members
                .iter()
                .filter(|m| m.segment != segment(1))
                .map(|m| m.min.map_or(1, |min| min.bits() / 1_000_000))
                .sum();
            let max = (promised + more).max(1);
            let min = ((CAPACITY - others) * min / 100).clamp(1, max);
            Tenant { segment: segment(1), max: Some(mbit(max)), min: Some(mbit(min)) }
        });
        let tenants: Vec<Tenant> = tenants.into_iter().collect();
        let demands = prop::collection::vec(prop::collection::vec(demand(), members.len()), phases);
        demands.prop_map(move |demands| Case { members: members.clone(), tenants: tenants.clone(), demands })
    })
}

/// What each member has of the link before weights count, Mbit/s: a hundredth, all together a twentieth at most.
fn probe(members: usize) -> u64 {
    (CAPACITY / 100).min(CAPACITY / 20 / members as u64)
}

/// Weighted max-min shares above minima and above `probe` for each, a quarter of a Mbit/s at a time to the member that is
/// furthest behind; Mbit/s.
fn water_filling(case: &Case, demands: &[u64], probe: u64) -> Vec<f64> {
    const STEP: f64 = 0.25;
    let units = |rate: Option<Rate>| rate.map(|rate| rate.bits() as f64 / 1e6);
    let most = |i: usize| (demands[i] as f64).min(units(case.members[i].max).unwrap_or(1e9));
    let base: Vec<f64> =
        (0..demands.len()).map(|i| most(i).min(units(case.members[i].min).unwrap_or(0.0))).collect();
    let (mut got, mut promised, mut grown) = (base, vec![0.0; demands.len()], vec![0.0; demands.len()]);
    let own = |i: usize, t: &Tenant| case.members[i].segment == t.segment;
    loop {
        let sum = |got: &[f64], t: &Tenant| {
            got.iter().enumerate().filter(|(i, _)| own(*i, t)).map(|(_, g)| g).sum::<f64>()
        };
        let free = |&i: &usize| {
            got[i] + STEP <= most(i)
                && case
                    .tenants
                    .iter()
                    .all(|t| !own(i, t) || sum(&got, t) + STEP <= units(t.max).unwrap_or(f64::INFINITY))
        };
        // A tenant's minimum goes first.
        let short =
            |&i: &usize| case.tenants.iter().any(|t| own(i, t) && sum(&got, t) < units(t.min).unwrap_or(0.0));
        let behind = |all: &[usize], grown: &[f64]| {
            let at = |i: &usize| grown[*i] / f64::from(case.members[*i].weight);
            all.iter().copied().min_by(|a, b| f64::total_cmp(&at(a), &at(b)))
        };
        let free: Vec<usize> = (0..got.len()).filter(free).collect();
        let short: Vec<usize> = free.iter().copied().filter(short).collect();
        let first = behind(&short, &promised);
        let probing = free.iter().copied().filter(|&i| got[i] + STEP <= probe as f64);
        let probing = probing.min_by(|&a, &b| f64::total_cmp(&got[a], &got[b]));
        let left = got.iter().sum::<f64>() + STEP <= CAPACITY as f64;
        let next = first.or(probing).or_else(|| behind(&free, &grown));
        let Some(next) = next.filter(|_| left) else { return got };
        got[next] += STEP;
        // What it got as part of its tenant's minimum is promised, and for probing it is not weighed: no share of the rest.
        if first.is_some() {
            promised[next] += STEP;
        } else if probing.is_none() {
            grown[next] += STEP;
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(96))]

    /// A member that wants its minimum has it within [`MINIMUM`] periods, whatever the others do and did; limits never exceed.
    #[test]
    fn minima_are_met_within_n_periods(case in case(6), late: bool) {
        let mut plant = Plant::new(link(), &case.members, &case.tenants, late);
        for demands in &case.demands {
            for turn in 0..12 {
                plant.turn(demands, |_| false);
                if turn >= MINIMUM - 1 + usize::from(late) {
                    for (member, (&demand, &limit)) in case.members.iter().zip(demands.iter().zip(&plant.limits)) {
                        let min = member.min.map_or(0, |min| min.bits() / 1_000_000);
                        prop_assert!(limit >= demand.min(min), "{member:?} wants {demand} has {limit}, turn {turn}");
                    }
                }
            }
        }
    }

    /// At steady demand limits stop changing; shares are those of exact water filling, and the link is used.
    #[test]
    fn steady_demand_settles_into_max_min_shares(case in case(3), late: bool) {
        let mut plant = Plant::new(link(), &case.members, &case.tenants, late);
        for demands in &case.demands {
            for _ in 0..SETTLED {
                plant.turn(demands, |_| false);
            }
            for _ in 0..20 {
                prop_assert_eq!(plant.turn(demands, |_| false), 0, "{:?} for {:?}", plant.limits, demands);
            }
            let sent = plant.sent(demands);
            let exact = water_filling(&case, demands, 0);
            let (all, possible) = (sent.iter().sum::<u64>() as f64, exact.iter().sum::<f64>());
            // A tenth that content members have in reserve, a twentieth for probing: the same for each, whatever its weight.
            // Of a tenant's maximum, its silent members' probing shares may be any part.
            let probe = probe(sent.len());
            let silent = |i: usize| case.tenants.iter().any(|t| t.segment == case.members[i].segment).then(|| probe.saturating_sub(demands[i]));
            let silent = (0..sent.len()).filter_map(silent).sum::<u64>() as f64;
            prop_assert!(all >= 0.85 * possible - 8.0 - silent, "{sent:?} of {exact:?} for {demands:?}");
            let reserved: Vec<u64> = demands.iter().map(|demand| (demand * 112 / 100 + 2).max(probe)).collect();
            let shares = water_filling(&case, &reserved, probe);
            for i in 0..sent.len() {
                let share = shares[i].min(demands[i] as f64);
                prop_assert!(
                    sent[i] as f64 >= 0.97 * share - 10.0,
                    "{i}: {sent:?}, shares {shares:?} for {demands:?}, limits {:?}",
                    plant.limits
                );
            }
            for tenant in &case.tenants {
                let wanted = plant.of(tenant, demands).min(tenant.min.map_or(0, |min| min.bits() / 1_000_000));
                let own = case.members.iter().zip(demands).filter(|(m, _)| m.segment == tenant.segment);
                let possible: u64 = own.map(|(m, &d)| m.max.map_or(d, |max| d.min(max.bits() / 1_000_000))).sum();
                let got = plant.of(tenant, &sent);
                prop_assert!(
                    got as f64 >= 0.85 * wanted.min(possible) as f64 - 8.0 - silent,
                    "{got} of {wanted}: {sent:?}"
                );
            }
        }
    }

    /// What cannot be read keeps what it has, roughly, and takes no promise from the others.
    #[test]
    fn missing_samples_break_no_promise(case in case(3), blind in 0usize..8, every in 2usize..5) {
        let mut plant = Plant::new(link(), &case.members, &case.tenants, false);
        for demands in &case.demands {
            for turn in 0..24 {
                plant.turn(demands, |i| i == blind || (i + turn) % every == 0);
            }
            for (i, member) in case.members.iter().enumerate() {
                let min = member.min.map_or(0, |min| min.bits() / 1_000_000);
                prop_assert!(plant.limits[i] >= demands[i].min(min), "{i}: {:?} for {demands:?}", plant.limits);
            }
        }
        let nothing_read = plant.turn(&case.demands[0], |_| true);
        prop_assert_eq!(nothing_read, 0, "nothing was read, so nothing changes");
    }

    /// Limits that are not taken leave the sums as they were.
    #[test]
    fn a_limit_that_was_not_set_is_not_assumed(case in case(4), failing in 0usize..6) {
        let mut controller = Controller::new(link(), &case.members, &case.tenants).expect("admissible");
        let mut real: Vec<u64> = controller.step(&[]).iter().map(|c| c.to.bits() / 1_000_000).collect();
        for demands in &case.demands {
            for _ in 0..8 {
                let usage: Vec<_> = demands.iter().zip(&real)
                    .map(|(&d, &l)| Some(Usage { bytes: d.min(l) * 12_500, elapsed: PERIOD })).collect();
                let changes = controller.step(&usage).to_vec();
                for (at, change) in changes.iter().enumerate() {
                    if at >= failing {
                        controller.not_set(change.id);
                    } else {
                        real[usize::from(change.id)] = change.to.bits() / 1_000_000;
                    }
                    prop_assert!(real.iter().sum::<u64>() <= CAPACITY);
                }
                let believed: Vec<u64> =
                    controller.standings().map(|s| s.limit.map_or(0, |l| l.bits() / 1_000_000)).collect();
                prop_assert_eq!(&believed, &real);
            }
        }
    }
}

fn sender(kind: Kind, start: u64) -> Sender {
    Sender { kind, activity: Activity::from(Duration::from_millis(start)) }
}

fn simulate(members: Vec<(Member, Sender)>, control: Control, seconds: u64, seed: u64) -> Trace {
    let scenario = Scenario {
        link: link(),
        speed: mbit(CAPACITY / 4 * 5),
        buffer: Bytes::new(1_000_000),
        members,
        tenants: vec![],
        control,
        duration: Duration::from_secs(seconds),
        bucket: Duration::from_millis(100),
        seed,
    };
    simulation::run(&scenario).expect("admissible")
}

fn timing() -> impl Strategy<Value = Timing> {
    (prop::sample::select(vec![20u64, 50, 100, 200]), 0u64..10, 0u64..10, 0.0..0.05).prop_map(
        |(period, jitter, delay, missed)| Timing {
            period: Duration::from_millis(period),
            jitter: Duration::from_millis(period * jitter / 100),
            delay: Duration::from_millis(period * delay / 10),
            setting: Duration::from_millis(2),
            missed,
        },
    )
}

fn plain(id: u16, min: u64) -> Member {
    Member { id, max: None, min: Some(mbit(min)), weight: 1, segment: segment(1) }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(24))]

    /// TCP keeps its minimum against any number of UDP senders that join, and the link is full. What a function's queue
    /// holds is more than a round trip's worth: with less, TCP by itself does not fill its limit.
    #[test]
    fn tcp_keeps_its_minimum_against_udp(
        timing in timing(), rtt in 1u64..10, others in 1u16..5, min in 100u64..500, seed: u64,
    ) {
        let tcp = Kind::Tcp { rtt: Duration::from_millis(rtt), demand: None };
        let mut members = vec![(plain(0, min), sender(tcp, 0))];
        members.extend((1..=others).map(|id| (plain(id, 50), sender(Kind::Udp(mbit(CAPACITY)), 3000 + 100 * u64::from(id)))));
        let trace = simulate(members, Control::Loop(timing), 8, seed);
        let free = simulate(vec![(plain(0, min), sender(tcp, 0))], Control::None, 3, seed).mean(0, 1.0, 3.0);
        let (alone, joined) = (trace.mean(0, 1.0, 3.0), trace.mean(0, 5.0, 8.0));
        prop_assert!(alone >= 0.9 * free, "alone {alone:.0}, without limits {free:.0}");
        prop_assert!(joined >= 0.9 * min as f64, "{joined:.0} of {min}");
        let all: f64 = (0..=usize::from(others)).map(|i| trace.mean(i, 5.0, 8.0)).sum();
        prop_assert!(all >= 0.9 * CAPACITY as f64, "{all:.0} in all");
        prop_assert!(trace.dropped.iter().sum::<f64>() < 3e6, "the link dropped {:?}", trace.dropped);
        for step in &trace.steps {
            prop_assert!(step.limits.iter().sum::<u64>() <= CAPACITY);
        }
    }

    /// TCP senders alone share alike and keep the link full, once their windows have grown: one that loses in slow start,
    /// while its share is lent, begins at half a queue, and gains a segment per round trip. From there to a share of
    /// 500 Mbit/s with 29 ms that takes 20 s.
    #[test]
    fn tcp_senders_share_alike(timing in timing(), rtts in prop::collection::vec(1u64..30, 2..5), seed: u64) {
        let of = |(rtt, id): (u64, u16)| {
            (plain(id, 50), sender(Kind::Tcp { rtt: Duration::from_millis(rtt), demand: None }, 0))
        };
        let members: Vec<_> = rtts.iter().copied().zip(0..).map(of).collect();
        let count = members.len();
        let trace = simulate(members, Control::Loop(timing), 20, seed);
        let fair = CAPACITY as f64 / count as f64;
        for i in 0..count {
            let mean = trace.mean(i, 16.0, 20.0);
            prop_assert!((0.9 * fair..1.1 * fair).contains(&mean), "{i} of {count}: {mean:.0}, fair {fair:.0}");
        }
        let all: f64 = (0..count).map(|i| trace.mean(i, 16.0, 20.0)).sum();
        prop_assert!(all >= 0.95 * CAPACITY as f64, "{all:.0} in all");
    }

    /// Senders that come and go have their minimum in most of the time that they are there.
    #[test]
    fn a_sender_that_comes_and_goes_is_not_starved(timing in timing(), on in 4u64..20, off in 1u64..20, seed: u64) {
        let period = timing.period.as_millis() as u64;
        let (on, off) = (Duration::from_millis(on * period), Duration::from_millis(off * period));
        let activity = Activity { on, off, ..Activity::from(Duration::from_millis(1000)) };
        let bursty = Sender { kind: Kind::Udp(mbit(400)), activity };
        let members = vec![(plain(0, 400), bursty), (plain(1, 400), sender(Kind::Udp(mbit(CAPACITY)), 0))];
        let seconds = 10;
        let trace = simulate(members, Control::Loop(timing), seconds, seed);
        let share = on.as_secs_f64() / (on + off).as_secs_f64();
        // What it was not let send in the first periods waits in its queue.
        let periods = (1.0 - 4.0 * timing.period.as_secs_f64() / on.as_secs_f64()).max(0.0);
        let mean = trace.mean(0, 1.0, seconds as f64);
        prop_assert!(mean >= 400.0 * share * periods * 0.9 - 5.0, "{mean:.0} of {:.0}", 400.0 * share);
    }

    #[test]
    fn equal_inputs_give_equal_results(timing in timing(), seed: u64) {
        let members = || vec![
            (plain(0, 300), sender(Kind::Tcp { rtt: PERIOD / 10, demand: Some(mbit(500)) }, 0)),
            (plain(1, 300), sender(Kind::Udp(mbit(700)), 500)),
        ];
        prop_assert_eq!(simulate(members(), Control::Loop(timing), 2, seed), simulate(members(), Control::Loop(timing), 2, seed));
    }
}

#[test]
fn a_reserved_minimum_is_available_at_once_and_stays_idle_while_unused() {
    let members = [plain(0, 400), plain(1, 400)];
    let mut used = Vec::new();
    for lending in [Lending::Reserve, Lending::Lend] {
        let mut plant = Plant::new(LinkTerms { lending, ..link() }, &members, &[], false);
        for _ in 0..SETTLED {
            plant.turn(&[0, 100_000], |_| false);
        }
        used.push((plant.limits[0], plant.limits[1]));
    }
    assert_eq!(used, [(400, 600), (10, 990)]);
}

#[test]
fn a_change_of_members_keeps_the_state_of_the_others() {
    let members = [plain(0, 400), plain(1, 400)];
    let mut plant = Plant::new(link(), &members, &[], false);
    for _ in 0..SETTLED {
        plant.turn(&[0, 100_000], |_| false);
    }
    let mut controller = plant.controller.clone();
    let more = [plain(1, 400), plain(2, 100), plain(0, 300)];
    controller.reconfigure(link(), &more, &[]).expect("admissible");
    let usage = |mbit: u64| Some(Usage { bytes: mbit * 12_500, elapsed: PERIOD });
    let changes = controller.step(&[usage(990), None, usage(0)]).to_vec();
    assert_eq!(
        changes.iter().find(|c| c.id == 2).map(|c| c.from),
        Some(None),
        "one that is new is set: {changes:?}"
    );
    assert_eq!(changes[0].id, 1, "lowered first: {changes:?}");
    let reasons: Vec<(u16, LimitReason)> = controller.standings().map(|s| (s.id, s.reason)).collect();
    assert_eq!(reasons, [(1, LimitReason::Share), (2, LimitReason::Unmeasured), (0, LimitReason::Idle)]);
    let refused = controller.reconfigure(link(), &[plain(0, 900), plain(1, 200)], &[]);
    assert!(refused.is_err());
    assert_eq!(controller.standings().len(), 3, "as it was");
    controller.forget(1);
    assert!(controller.step(&[usage(500), usage(0), usage(0)]).iter().any(|c| c.id == 1 && c.from.is_none()));
}

#[test]
fn a_slower_link_shrinks_minima_in_proportion() {
    let mut plant = Plant::new(link(), &[plain(0, 600), plain(1, 300)], &[], false);
    plant.turn(&[100_000, 100_000], |_| false);
    plant.controller.set_capacity(mbit(90));
    plant.capacity = 90;
    let usage = [600, 400].map(|mbit: u64| Some(Usage { bytes: mbit * 12_500, elapsed: PERIOD }));
    plant.controller.step(&usage);
    let limits: Vec<u64> =
        plant.controller.standings().filter_map(|s| Some(s.limit?.bits() / 1_000_000)).collect();
    assert!(limits.iter().sum::<u64>() <= 90 && limits[0].abs_diff(60) <= 2, "{limits:?}");
}

#[test]
fn inadmissible_members_are_refused_with_the_numbers() {
    let tenant = |max, min| Tenant { segment: segment(1), max, min };
    let refusals = |members: &[Member], tenants: &[Tenant]| {
        let all = admissible(&link(), members, tenants).expect_err("does not fit");
        all.iter().map(|refusal| (refusal.function(), refusal.to_string())).collect::<Vec<_>>()
    };
    let small = Member { max: Rate::from_bits(500_000), ..plain(0, 1) };
    for (members, tenants, function, words) in [
        (vec![plain(0, 600), plain(1, 401)], vec![], None, "2 VFs are promised 1001mbit together"),
        (
            vec![plain(0, 1000), Member { min: None, ..plain(1, 1) }],
            vec![],
            None,
            "promised 1001mbit together",
        ),
        (vec![plain(0, 10), plain(0, 10)], vec![], Some(0), "VF 0 has two contracts"),
        (
            vec![Member { max: Some(mbit(5)), ..plain(3, 6) }],
            vec![],
            Some(3),
            "tx.min 6mbit is above tx.max 5mbit",
        ),
        (vec![small], vec![], Some(0), "tx.max 500kbit is below 1mbit"),
        (vec![Member { weight: 0, ..plain(0, 1) }], vec![], Some(0), "weight 0; it must be 1 to 1000"),
        (vec![plain(0, 60)], vec![tenant(Some(mbit(50)), None)], None, "promised 60mbit together"),
        (
            vec![plain(0, 1)],
            vec![tenant(Some(mbit(50)), Some(mbit(51)))],
            None,
            "its min 51mbit is above its max 50mbit",
        ),
        (vec![plain(0, 1)], vec![tenant(None, None); 2], None, "has two aggregates"),
        (
            vec![Member { segment: segment(2), ..plain(0, 600) }, plain(1, 1)],
            vec![tenant(None, Some(mbit(401)))],
            None,
            "1001mbit",
        ),
    ] {
        let all = refusals(&members, &tenants);
        assert!(all.iter().any(|(of, text)| *of == function && text.contains(words)), "{words}: {all:?}");
    }
    assert_eq!(admissible(&link(), &[plain(0, 600), plain(1, 400)], &[]), Ok(()));
}

#[test]
fn a_minimum_and_a_maximum_within_one_unit_become_one_number() {
    let both = Rate::from_bits(50_500_000);
    let members = [Member { max: both, min: both, ..plain(0, 1) }, plain(1, 950)];
    // 51 would be more than the maximum, and more than there is beside the other's.
    assert_eq!(admissible(&link(), &members, &[]), Ok(()));
    let mut plant = Plant::new(link(), &members, &[], false);
    for _ in 0..SETTLED {
        plant.turn(&[100_000, 100_000], |_| false);
    }
    assert_eq!(plant.limits, [50, 950]);
}
