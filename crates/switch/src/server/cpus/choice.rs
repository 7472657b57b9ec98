//! Which worker gets which CPU.
//!
//! - At least one CPU stays for all other threads: a worker that spins would starve threads bound to its CPU.
//! - A worker keeps its CPU while other threads use at most three quarters of it. Otherwise it moves to a CPU
//!   that they use less than half of, if one exists.
//! - A new CPU is preferably, in this order: one of which other threads use at most three quarters; not CPU
//!   0, where the kernel does its own work and most interrupts arrive; not on another worker's core; the one
//!   with the highest number, because interrupts and programs that count from 0 prefer the first.
//! - A CPU that the agent directs comes before all that, except the first.

use super::list;
use super::load::Shares;
use std::cmp::Reverse;
use std::collections::BTreeMap;

/// The first CPU of each CPU's core. A CPU that is missing here is a core of its own.
pub type Cores = std::collections::BTreeMap<usize, usize>;

/// Other threads use too much of a CPU above this share.
const CROWDED: f64 = 0.75;
/// A worker leaves a crowded CPU only for one of which other threads use less than this share.
const ROOMY: f64 = 0.5;

/// A choice for all workers.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Choice {
    /// Each worker's CPU.
    pub own: Vec<Option<usize>>,
    /// Why workers are not on the CPUs directed.
    pub refused: BTreeMap<usize, String>,
}

/// As [`choose`], with the CPUs of some workers `directed`: they may share one. A worker whose CPU is not allowed, or the last one for
/// all other threads, gets another one if it is `wanted`.
pub fn choose_directed(
    (allowed, cores): (&[usize], &Cores),
    wanted: &[bool],
    directed: &BTreeMap<usize, usize>,
    before: &[Option<usize>],
    load: &Shares,
) -> Choice {
    let (mut taken, mut followed) = (Vec::new(), BTreeMap::new());
    let mut refused = BTreeMap::new();
    for (worker, cpu) in directed.iter().filter(|(worker, _)| **worker < wanted.len()) {
        let is_new = !taken.contains(cpu);
        if !allowed.contains(cpu) {
            let why = format!(
                "this process may not run on CPU {cpu}: it does not exist, is offline, or is excluded by a cpuset or an affinity; \
                 the process may use {}",
                list::text(allowed)
            );
            refused.insert(*worker, why);
            continue;
        }
        if is_new && taken.len() + 1 >= allowed.len() {
            refused.insert(*worker, format!("CPU {cpu} is the last one for all other threads of the switch"));
            continue;
        }
        if is_new {
            taken.push(*cpu);
        }
        followed.insert(*worker, *cpu);
    }
    let wanted: Vec<bool> = wanted
        .iter()
        .enumerate()
        .map(|(worker, wanted)| *wanted && !followed.contains_key(&worker))
        .collect();
    let mut own = choose(allowed, cores, &wanted, before, load, &taken);
    followed.into_iter().for_each(|(worker, cpu)| own[worker] = Some(cpu));
    Choice { own, refused }
}

/// Chooses a CPU for each `wanted` worker, at most all `allowed` CPUs but one. `before` has each worker's present CPU; other workers have
/// the CPUs `taken`.
fn choose(
    allowed: &[usize],
    cores: &Cores,
    wanted: &[bool],
    before: &[Option<usize>],
    load: &Shares,
    taken: &[usize],
) -> Vec<Option<usize>> {
    let most = allowed.len().saturating_sub(1);
    let others = |cpu: usize| load.get(&cpu).copied();
    let crowded = |cpu: usize| others(cpu).is_some_and(|share| share > CROWDED);
    let unused = |cpu: usize| !before.contains(&Some(cpu)) && !taken.contains(&cpu);
    let roomy = |cpu: usize| unused(cpu) && others(cpu).is_some_and(|share| share < ROOMY);
    let room = allowed.iter().filter(|cpu| roomy(**cpu)).count();
    let core = |cpu: usize| cores.get(&cpu).copied().unwrap_or(cpu);
    let mut chosen: Vec<Option<usize>> = vec![None; wanted.len()];
    let mut given: Vec<usize> = taken.to_vec();
    // Workers that leave a CPU for a better one. They choose first, so that none ends worse than before.
    let mut leaving: Vec<usize> = Vec::new();
    for (worker, cpu) in before.iter().enumerate().take(wanted.len()) {
        if let Some(cpu) = cpu
            && wanted[worker]
            && given.len() + leaving.len() < most
            && allowed.contains(cpu)
            && !given.contains(cpu)
        {
            if crowded(*cpu) && leaving.len() < room {
                leaving.push(worker);
                continue;
            }
            given.push(*cpu);
            chosen[worker] = Some(*cpu);
        }
    }
    let without = |worker: &usize| wanted[*worker] && chosen[*worker].is_none() && !leaving.contains(worker);
    let without: Vec<usize> = (0..wanted.len()).filter(without).collect();
    for (place, worker) in leaving.iter().chain(&without).copied().enumerate() {
        if given.len() >= most {
            break;
        }
        let free = allowed.iter().copied().filter(|cpu| !given.contains(cpu));
        let shared = |cpu: usize| given.iter().any(|other| core(*other) == core(cpu));
        let tight = |cpu: usize| place < leaving.len() && !roomy(cpu);
        let key = |cpu: &usize| (crowded(*cpu), tight(*cpu), *cpu == 0, shared(*cpu), Reverse(*cpu));
        if let Some(cpu) = free.min_by_key(key) {
            given.push(cpu);
            chosen[worker] = Some(cpu);
        }
    }
    chosen
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::collection::{btree_set, vec};
    use proptest::prelude::*;
    use std::collections::BTreeSet;

    fn choose(
        allowed: &[usize],
        cores: &Cores,
        wanted: &[bool],
        before: &[Option<usize>],
        load: &Shares,
    ) -> Vec<Option<usize>> {
        let choice = choose_directed((allowed, cores), wanted, &BTreeMap::new(), before, load);
        assert!(choice.refused.is_empty());
        choice.own
    }

    fn threads(half: usize) -> Cores {
        (0..2 * half).map(|cpu| (cpu, cpu % half)).collect()
    }

    fn chosen(allowed: &[usize], cores: &Cores, wanted: &[bool]) -> Vec<Option<usize>> {
        choose(allowed, cores, wanted, &vec![None; wanted.len()], &Shares::new())
    }

    #[test]
    fn one_cpu_is_left_for_the_others() {
        assert_eq!(chosen(&[0], &Cores::new(), &[true]), [None]);
        assert_eq!(chosen(&[], &Cores::new(), &[true]), [None]);
        assert_eq!(chosen(&[0, 1], &Cores::new(), &[true, true]), [Some(1), None]);
        assert_eq!(chosen(&[0, 1, 2, 3], &Cores::new(), &[true; 2]), [Some(3), Some(2)]);
    }

    #[test]
    fn a_worker_without_deadlines_gets_none() {
        assert_eq!(chosen(&[0, 1, 2, 3], &Cores::new(), &[false, true]), [None, Some(3)]);
    }

    #[test]
    fn workers_share_no_core_while_there_are_others() {
        assert_eq!(chosen(&[0, 1, 2, 3], &threads(2), &[true; 2]), [Some(3), Some(2)]);
        assert_eq!(chosen(&[1, 3, 0, 2], &threads(2), &[true; 3]), [Some(3), Some(2), Some(1)]);
    }

    #[test]
    fn a_worker_keeps_its_cpu_while_it_is_allowed() {
        let before = [Some(1), Some(0)];
        assert_eq!(choose(&[0, 1, 2], &Cores::new(), &[true; 2], &before, &Shares::new()), before);
        assert_eq!(
            choose(&[0, 2, 3], &Cores::new(), &[true; 2], &before, &Shares::new()),
            [Some(3), Some(0)]
        );
        assert_eq!(choose(&[0, 1], &Cores::new(), &[true; 2], &before, &Shares::new()), [Some(1), None]);
    }

    #[test]
    fn a_worker_leaves_a_cpu_that_others_use_for_one_with_room() {
        let after = |loads: &[(usize, f64)], before: &[Option<usize>]| {
            let load: Shares = loads.iter().copied().collect();
            choose(&[0, 1, 2, 3], &Cores::new(), &vec![true; before.len()], before, &load)
        };
        assert_eq!(after(&[(3, 0.9), (2, 0.9), (1, 0.2)], &[Some(3)]), [Some(1)]);
        assert_eq!(after(&[(3, 0.7), (2, 0.1)], &[Some(3)]), [Some(3)], "that is not much");
        assert_eq!(
            after(&[(0, 0.9), (1, 0.9), (2, 0.6), (3, 0.9)], &[Some(3)]),
            [Some(3)],
            "none is much better"
        );
        assert_eq!(after(&[(3, 0.9)], &[Some(3)]), [Some(3)], "of the rest nothing is known");
        assert_eq!(after(&[(3, 0.9)], &[None]), [Some(2)]);
        assert_eq!(after(&[(1, 0.9), (2, 0.9), (3, 0.9), (0, 0.1)], &[Some(3)]), [Some(0)]);
        assert_eq!(
            after(&[(2, 0.9), (3, 0.9), (1, 0.1)], &[Some(3), Some(2)]),
            [Some(1), Some(2)],
            "room for one"
        );
        assert_eq!(
            after(&[(3, 0.9), (2, 0.7), (1, 0.1)], &[Some(3)]),
            [Some(1)],
            "not where it is little better"
        );
        assert_eq!(after(&[(3, 0.9), (2, 0.7), (1, 0.7), (0, 0.1)], &[Some(3)]), [Some(0)]);
    }

    #[test]
    fn a_worker_that_leaves_a_cpu_loses_no_place_to_one_that_had_none() {
        let load = Shares::from([(0, 0.1), (1, 0.1), (2, 0.1), (3, 0.9)]);
        let after =
            |allowed: &[usize]| choose(allowed, &Cores::new(), &[true; 3], &[None, Some(3), Some(2)], &load);
        assert_eq!(after(&[1, 2, 3]), [None, Some(1), Some(2)], "two for three");
        assert_eq!(after(&[0, 1, 2, 3]), [Some(0), Some(1), Some(2)]);
    }

    #[test]
    fn a_directed_worker_gets_its_cpu_if_it_is_allowed_and_not_the_last() {
        let choose =
            |allowed: &[usize], wanted: &[bool], directed: &[(usize, usize)], before: &[Option<usize>]| {
                let directed = directed.iter().copied().collect();
                let load = Shares::from([(0, 0.9), (1, 0.9)]);
                let choice = choose_directed((allowed, &Cores::new()), wanted, &directed, before, &load);
                (choice.own, choice.refused.into_iter().collect::<Vec<_>>())
            };
        let all = [0, 1, 2, 3];
        assert_eq!(choose(&all, &[false; 2], &[(1, 0)], &[None; 2]), (vec![None, Some(0)], vec![]));
        let (own, refused) = choose(&all, &[true; 2], &[(1, 3)], &[Some(3), None]);
        assert_eq!((own, refused.len()), (vec![Some(2), Some(3)], 0), "the other one makes room");
        assert_eq!(choose(&all, &[false; 3], &[(0, 1), (2, 1)], &[None; 3]).0, [Some(1), None, Some(1)]);
        let (own, refused) = choose(&all, &[true, false], &[(0, 7), (1, 7)], &[None; 2]);
        assert_eq!((own, refused.len()), (vec![Some(3), None], 2));
        assert!(
            refused[0].1.contains("may not run on CPU 7") && refused[0].1.contains("may use 0-3"),
            "{refused:?}"
        );
        let (own, refused) = choose(&[0, 1], &[true, false], &[(0, 0), (1, 1)], &[None; 2]);
        assert_eq!(own, [Some(0), None]);
        assert!(refused[0].1.contains("last one"), "{refused:?}");
        assert_eq!(choose(&[], &[true], &[(0, 0), (9, 0)], &[None]).0, [None]);
    }

    fn subsets(cpus: &[usize], count: usize) -> Vec<Vec<usize>> {
        match (count, cpus) {
            (0, _) => vec![vec![]],
            (_, []) => vec![],
            (_, [first, rest @ ..]) => {
                let with = subsets(rest, count - 1).into_iter().map(|mut set| {
                    set.push(*first);
                    set
                });
                with.chain(subsets(rest, count)).collect()
            }
        }
    }

    proptest! {
        /// No other choice has fewer crowded CPUs, leaves CPU 0 alone more often, or shares fewer cores.
        #[test]
        fn no_choice_is_better(
            allowed in btree_set(0..8usize, 0..8),
            cores in vec(0..4usize, 8),
            wanted in vec(any::<bool>(), 1..5),
            load in vec(0..=4u8, 8),
        ) {
            let allowed: Vec<usize> = allowed.into_iter().collect();
            let cores: Cores = cores.into_iter().enumerate().collect();
            let load: Shares = load.into_iter().map(|quarters| f64::from(quarters) / 4.0).enumerate().collect();
            let chosen = choose(&allowed, &cores, &wanted, &vec![None; wanted.len()], &load);
            let chosen: Vec<usize> = chosen.into_iter().flatten().collect();
            let count = wanted.iter().filter(|wanted| **wanted).count().min(allowed.len().saturating_sub(1));
            prop_assert_eq!(chosen.len(), count);
            let cost = |cpus: &[usize]| {
                let own: BTreeSet<usize> = cpus.iter().map(|cpu| cores[cpu]).collect();
                let crowded = cpus.iter().filter(|cpu| load[cpu] > CROWDED).count();
                (crowded, cpus.contains(&0), cpus.len() - own.len())
            };
            let best = subsets(&allowed, count).iter().map(|set| cost(set)).min();
            prop_assert_eq!(Some(cost(&chosen)), best);
        }

        /// A worker that had a CPU has one afterwards; another one only if it is much better.
        #[test]
        fn a_worker_that_leaves_a_cpu_is_better_off(
            allowed in btree_set(0..8usize, 0..8),
            cores in vec(0..4usize, 8),
            workers in vec((any::<bool>(), 0..12usize), 1..5),
            load in vec(0..=8u8, 8),
        ) {
            let allowed: Vec<usize> = allowed.into_iter().collect();
            let cores: Cores = cores.into_iter().enumerate().collect();
            let load: Shares = load.into_iter().map(|eighths| f64::from(eighths) / 8.0).enumerate().collect();
            let wanted: Vec<bool> = workers.iter().map(|(wanted, _)| *wanted).collect();
            let mut before: Vec<Option<usize>> = Vec::new();
            for (_, cpu) in &workers {
                before.push(Some(*cpu).filter(|cpu| *cpu < 8 && !before.contains(&Some(*cpu))));
            }
            let now = choose(&allowed, &cores, &wanted, &before, &load);
            let could: Vec<usize> = (0..workers.len())
                .filter(|w| wanted[*w] && before[*w].is_some_and(|cpu| allowed.contains(&cpu)))
                .collect();
            let have = could.iter().filter(|w| now[**w].is_some()).count();
            prop_assert_eq!(have, could.len().min(allowed.len().saturating_sub(1)));
            let is_roomy = |cpu: &usize| load[cpu] < ROOMY && !before.contains(&Some(*cpu));
            let left_over = allowed.iter().any(|cpu| is_roomy(cpu) && !now.contains(&Some(*cpu)));
            for worker in could {
                let (Some(was), Some(is)) = (before[worker], now[worker]) else { continue };
                match is == was {
                    true => prop_assert!(load[&was] <= CROWDED || !left_over, "{worker} stays on {was}"),
                    false => prop_assert!(load[&was] > CROWDED && load[&is] < ROOMY, "{was} for {is}"),
                }
            }
        }

        /// Constant directions come to rest at the first choice, and the others have what they would have on the rest of the CPUs.
        #[test]
        fn directions_come_to_rest(
            allowed in btree_set(0..8usize, 0..8),
            wanted in vec(any::<bool>(), 4),
            directed in proptest::collection::btree_map(0..6usize, 0..9usize, 0..5),
            before in btree_set(0..8usize, 4),
        ) {
            let allowed: Vec<usize> = allowed.into_iter().collect();
            let before: Vec<Option<usize>> = before.into_iter().map(Some).collect();
            let choose = |before: &[Option<usize>]| {
                choose_directed((&allowed, &Cores::new()), &wanted, &directed, before, &Shares::new())
            };
            let first = choose(&before);
            prop_assert_eq!(&choose(&first.own), &first);
            let mut taken = BTreeSet::new();
            for (worker, cpu) in directed.iter().filter(|(worker, _)| **worker < 4) {
                let is_at = first.own[*worker] == Some(*cpu);
                prop_assert!(is_at || first.refused.contains_key(worker));
                if !first.refused.contains_key(worker) {
                    taken.insert(*cpu);
                }
            }
            let used: BTreeSet<usize> = first.own.iter().flatten().copied().collect();
            prop_assert!(used.is_empty() || used.len() < allowed.len(), "one is left");
            prop_assert!(used.iter().all(|cpu| allowed.contains(cpu)));
            let is_free = |worker: &usize| !directed.contains_key(worker) || first.refused.contains_key(worker);
            let free: Vec<usize> = (0..4).filter(is_free).collect();
            for worker in &free {
                prop_assert!(first.own[*worker].is_none_or(|cpu| !taken.contains(&cpu)));
            }
            let have = free.iter().filter(|worker| first.own[**worker].is_some()).count();
            let could = free.iter().filter(|worker| wanted[**worker]).count();
            prop_assert_eq!(have, could.min((allowed.len() - taken.len()).saturating_sub(1)));
        }

        #[test]
        fn changes_move_as_few_as_possible(
            steps in vec((btree_set(0..6usize, 0..6), vec(any::<bool>(), 4)), 1..10),
        ) {
            let mut before = vec![None; 4];
            for (allowed, wanted) in steps {
                let allowed: Vec<usize> = allowed.into_iter().collect();
                let now = choose(&allowed, &Cores::new(), &wanted, &before, &Shares::new());
                let given: Vec<usize> = now.iter().flatten().copied().collect();
                prop_assert_eq!(given.iter().collect::<BTreeSet<_>>().len(), given.len());
                prop_assert!(given.iter().all(|cpu| allowed.contains(cpu)));
                prop_assert!(given.is_empty() || given.len() < allowed.len());
                let could: Vec<usize> = (0..4)
                    .filter(|w| wanted[*w] && before[*w].is_some_and(|cpu| allowed.contains(&cpu)))
                    .collect();
                let kept = could.iter().filter(|w| now[**w] == before[**w]).count();
                prop_assert_eq!(kept, could.len().min(allowed.len().saturating_sub(1)));
                before = now;
            }
        }
    }
}
