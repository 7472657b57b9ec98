//! Worked examples, and random changes beside the sums of the definition.

use super::network::*;
use super::*;
use crate::{Bytes, Nanos};
use proptest::{collection::vec, prelude::*};

fn link(name: &str, from: &str, to: &str) -> Link {
    let level =
        |delay: u64| Level { delay: Nanos::new(delay * 1000), buffer: Buffer::Bytes(Bytes::new(100_000)) };
    Link {
        name: name.into(),
        from: from.into(),
        to: to.into(),
        capacity: "1gbit".parse().expect("a rate"),
        reservable: "500mbit".parse().expect("a rate"),
        overhead: Bytes::new(24),
        latency: Nanos::new(10_000),
        propagation: Nanos::new(500),
        largest_frame: Bytes::new(1518),
        levels: vec![level(100), level(1000)],
    }
}

fn line() -> Ledger {
    Ledger::new(Network::new(vec![link("ab", "a", "b"), link("bc", "b", "c")]).expect("sound"))
}

fn request(rate: &str, burst: u64, budget: &str) -> Request {
    Request {
        rate: rate.parse().expect("a rate"),
        burst: Bytes::new(burst),
        smallest_frame: Bytes::new(100),
        largest_frame: Bytes::new(1000),
        budget: budget.parse().expect("a time"),
    }
}

fn reserve(path: &str, request: Request, level: u8) -> Reserve {
    let routes = vec![Route { links: vec!["ab".into(), "bc".into()], level }];
    Reserve { path: path.into(), request, routes }
}

fn why(ledger: &mut Ledger, wanted: Reserve) -> String {
    let refusals = ledger.change(&[], &[wanted]).expect_err("refused");
    refusals.iter().map(ToString::to_string).collect::<Vec<_>>().join("\n")
}

#[test]
fn a_path_by_hand() {
    let mut ledger = line();
    let granted = ledger.change(&[], &[reserve("voice", request("10mbit", 4000, "300us"), 0)]).expect("fits");
    let (route, grant) = &granted[0];
    // 100 us and 500 ns twice; 4,000 bytes grow by 10 Mbit/s of 100 us, 125 bytes, at each link.
    assert_eq!((*route, grant.bound, grant.burst), (0, Nanos::new(201_000), Bytes::new(4250)));
    let bursts: Vec<u64> = grant.hops.iter().map(|hop| hop.burst.get()).collect();
    assert_eq!(bursts, [4000, 4125]);
    // 28 bytes more for each 100: 5,120 bytes, and 1,542 that are under way, at 1 Gbit/s, and 10 us.
    assert_eq!(grant.hops[0].needed, Nanos::new((5120 + 1542) * 8 + 10_000));
    let usage: Vec<u64> = ledger.usage().map(|usage| usage.reserved_bits).collect();
    assert_eq!(usage, [12_800_000, 12_800_000]);
}

#[test]
fn refusals_name_the_link_and_the_numbers() {
    let mut ledger = line();
    let ask = |path: &str, rate, burst, budget, level| reserve(path, request(rate, burst, budget), level);
    assert_eq!(
        why(&mut ledger, ask("a", "400mbit", 4000, "1ms", 0)),
        "path a: link ab (level 0): 512000000 bit/s would be reserved, 500000000 bit/s (500mbit) are reservable"
    );
    assert_eq!(
        why(&mut ledger, ask("a", "10mbit", 10_000, "1ms", 0)),
        "path a: link ab (level 0): level 0 would need 124736ns, and its fixed delay is 100us"
    );
    assert_eq!(
        why(&mut ledger, ask("a", "10mbit", 4000, "200us", 0)),
        "path a: its 2 links take at most 201us at level 0, and 200us are left of the deadline; take a shorter route or \
         a more urgent level, or raise the deadline"
    );
    assert_eq!(
        why(&mut ledger, ask("a", "10mbit", 80_000, "9ms", 1)),
        "path a: link ab (level 1): up to 102436B of level 1 would wait, and its queue holds 100kB"
    );
    assert_eq!(
        why(&mut ledger, ask("a", "10mbit", 900, "1ms", 0)),
        "path a: frames of 100B to 1kB with a burst of 900B: the shortest has at least 60B, the longest fits into the \
         burst, and that is at most 1GB"
    );
    let mut long = ask("a", "10mbit", 4000, "1ms", 0);
    long.request.largest_frame = Bytes::new(1515);
    assert!(why(&mut ledger, long).contains("up to 1519B with the path's tag, and link ab carries 1518B"));
    let mut route = |links: &[&str], level| {
        let mut wanted = ask("a", "10mbit", 4000, "1ms", level);
        wanted.routes[0].links = links.iter().map(|link| (*link).into()).collect();
        why(&mut ledger, wanted)
    };
    assert_eq!(route(&["ax"], 0), "path a: there is no link ax");
    assert_eq!(route(&["bc", "ab"], 0), "path a: link ab begins at a, and the one before it ends at c");
    assert_eq!(route(&[], 0), "path a: it has 0 links; it needs 1 to 64");
    assert!(route(&["ab"], 2).contains("link ab has 2 levels"));
    let mut none = ask("a", "10mbit", 4000, "1ms", 0);
    none.routes.clear();
    assert_eq!(why(&mut ledger, none), "path a: there is no route between its ends");
    let mut many = ask("a", "10mbit", 4000, "1ms", 0);
    let nowhere = Route { links: vec!["ax".into()], level: 0 };
    many.routes = [vec![nowhere; MOST_ROUTES], many.routes].concat();
    assert_eq!(
        why(&mut ledger, many.clone()),
        "path a: 65 routes are offered, and at most 64 are tried; offer the best ones"
    );
    many.routes.remove(0);
    assert_eq!(ledger.change(&[], &[many]).expect("fits")[0].0, 63);
}

#[test]
fn a_less_urgent_level_is_not_broken_by_a_more_urgent_one() {
    let mut links = vec![link("ab", "a", "b"), link("bc", "b", "c")];
    links.iter_mut().for_each(|link| link.levels[1].delay = Nanos::new(120_000));
    let mut ledger = Ledger::new(Network::new(links).expect("sound"));
    ledger.change(&[], &[reserve("low", request("10mbit", 6000, "1ms"), 1)]).expect("fits");
    assert_eq!(
        why(&mut ledger, reserve("high", request("10mbit", 4000, "1ms"), 0)),
        "path high: link ab (level 0): level 1 would need 126354ns, and its fixed delay is 120us"
    );
}

#[test]
fn a_refused_change_leaves_all_as_it_was() {
    let mut ledger = line();
    let voice = || reserve("voice", request("10mbit", 4000, "300us"), 0);
    ledger.change(&[], &[voice()]).expect("fits");
    let before: Vec<Usage> = ledger.usage().collect();
    let too_much = reserve("voice", request("400mbit", 4000, "300us"), 0);
    ledger
        .change(&["voice".into()], &[reserve("other", request("1mbit", 1000, "1ms"), 1), too_much])
        .expect_err("refused");
    assert_eq!(ledger.usage().collect::<Vec<_>>(), before);
    assert_eq!(ledger.paths().collect::<Vec<_>>(), ["voice"]);
    assert_eq!(ledger.get("voice"), Some((&voice().request, &voice().routes[0])));
    assert_eq!(
        ledger.change(&[], &[voice()]).expect_err("refused"),
        [PathRefusal::Exists { path: "voice".into() }]
    );
    let unknown = ledger.change(&["voice".into(), "other".into()], &[]).expect_err("refused");
    assert_eq!(unknown, [PathRefusal::Unknown { path: "other".into() }]);
    assert_eq!(ledger.usage().collect::<Vec<_>>(), before);
    ledger.change(&["voice".into()], &[]).expect("released");
    assert!(ledger.usage().all(|usage| usage.reserved_bits == 0));
}

#[test]
fn faults_of_links() {
    let fault = |change: fn(&mut Vec<Link>)| {
        let mut links = vec![link("ab", "a", "b"), link("bc", "b", "c")];
        change(&mut links);
        Network::new(links).expect_err("refused").to_string()
    };
    assert!(fault(|links| links[1].name = "ab".into()).contains("declared twice"));
    assert!(fault(|links| links[1].to = "b".into()).contains("begins and ends at b"));
    assert!(fault(|links| links[1].levels.clear()).contains("it needs 1 to 7"));
    assert!(
        fault(|links| links[0].reservable = "2gbit".parse().expect("a rate"))
            .contains("its capacity is 1gbit")
    );
    assert!(fault(|links| links[0].levels.reverse()).contains("level 1 has a delay of 100us"));
}

/// Sets a number of a link.
type Set = fn(&mut Link, u64);

/// Numbers of a link with bounds: the key, how to set it, the least and the most.
const RANGES: [(&str, Set, u64, u64); 7] = [
    ("overhead", |link, n| link.overhead = Bytes::new(n), 0, 1_000),
    ("latency", |link, n| link.latency = Nanos::new(n), 0, 10_000_000_000),
    ("propagation", |link, n| link.propagation = Nanos::new(n), 0, 10_000_000_000),
    ("largest-frame", |link, n| link.largest_frame = Bytes::new(n), 60, 65_536),
    ("levels[0].delay", |link, n| link.levels[0].delay = Nanos::new(n), 1, 10_000_000_000),
    (
        "levels[0].buffer",
        |link, n| link.levels[0].buffer = Buffer::Bytes(Bytes::new(n)),
        0,
        1_000_000_000_000,
    ),
    ("levels[0].buffer", |link, n| link.levels[0].buffer = Buffer::Frames(n), 0, 1 << 32),
];

#[test]
fn numbers_of_links_have_bounds() {
    for (key, set, least, most) in RANGES {
        let declared = |number| {
            let mut link = link("ab", "a", "b");
            link.levels.truncate(1);
            set(&mut link, number);
            Network::new(vec![link]).map(drop)
        };
        assert_eq!((declared(least), declared(most)), (Ok(()), Ok(())), "{key}");
        for outside in [most + 1, u64::MAX].into_iter().chain(least.checked_sub(1)) {
            let fault = declared(outside).expect_err(key);
            assert!(matches!(&fault, NotANetwork::Range { key: at, .. } if at == key), "{fault}");
        }
    }
    let long = Link { overhead: Bytes::new(1001), ..link("ab", "a", "b") };
    let fault = Network::new(vec![long]).expect_err("refused");
    assert_eq!(fault.to_string(), "link ab: overhead is 1001B; it may be 0B to 1kB");
}

/// Returns a line of as many links as a route may have, with the largest numbers; `latency` in nanoseconds.
fn longest_line(buffer: Buffer, latency: u64) -> Vec<Link> {
    let make = |at: usize| {
        let mut link = link(&format!("l{at}"), &format!("s{at}"), &format!("s{}", at + 1));
        RANGES.iter().for_each(|(_, set, _, most)| set(&mut link, *most));
        (link.capacity, link.reservable) = (crate::Rate::MAX, crate::Rate::MAX);
        let level = Level { delay: link.levels[0].delay, buffer };
        Link { latency: Nanos::new(latency), levels: vec![level; LEVELS], ..link }
    };
    (0..MOST_HOPS).map(make).collect()
}

/// The build of tests checks for overflow.
#[test]
fn thousands_of_flows_with_the_largest_numbers_overflow_nothing() {
    const FLOWS: usize = 4_000;
    let buffers = [Buffer::Bytes(Bytes::new(1_000_000_000_000)), Buffer::Frames(1 << 32)];
    // With the longest latency no delay is left, and all is refused.
    for (buffer, latency) in buffers.into_iter().flat_map(|buffer| [(buffer, 0), (buffer, 10_000_000_000)]) {
        let links = longest_line(buffer, latency);
        let names: Vec<String> = links.iter().map(|link| link.name.clone()).collect();
        let mut ledger = Ledger::new(Network::new(links).expect("sound"));
        let mut granted = 0;
        for number in 0..FLOWS {
            let most = crate::Rate::MAX.bits();
            let (rate, burst, hops) = match number {
                0 => (most / 20, 1_000_000_000, 1),
                _ if number % 50 == 0 => (most / [1, 1000][number / 50 % 2], 1_000_000_000, MOST_HOPS),
                _ => (1, 65_532, MOST_HOPS),
            };
            let request = Request {
                rate: crate::Rate::from_bits(rate).expect("a rate"),
                burst: Bytes::new(burst),
                smallest_frame: Bytes::new(60),
                largest_frame: Bytes::new(65_532),
                budget: Nanos::new(u64::MAX),
            };
            let level = u8::try_from(number % LEVELS).expect("small");
            let routes = vec![Route { links: names[..hops].to_vec(), level }];
            let wanted = Reserve { path: number.to_string(), request, routes };
            granted += usize::from(ledger.change(&[], &[wanted]).is_ok());
        }
        if latency == 0 {
            assert!((FLOWS / 2..FLOWS).contains(&granted), "{granted} granted");
        } else {
            assert_eq!(granted, 0);
        }
        assert_eq!(ledger.usage().count(), MOST_HOPS);
        let all: Vec<String> = ledger.paths().map(Into::into).collect();
        ledger.change(&all, &[]).expect("released");
        assert!(ledger.usage().all(|usage| usage.reserved_bits == 0));
    }
}

/// One flow of the model: its request, and where it goes.
type Placed = (Request, Vec<usize>, usize);

/// The definition, from all flows anew: whether each level of each link keeps its delay and its buffer.
fn all_kept(links: &[Link], flows: &[Placed]) -> bool {
    let nano = 1_000_000_000i128;
    links.iter().enumerate().all(|(at, link)| {
        // Rate, burst, frames within D; of each flow of this link, by level.
        let mut of = vec![Vec::new(); link.levels.len()];
        for (request, way, level) in flows {
            let Some(place) = way.iter().position(|&l| l == at) else { continue };
            let rate = i128::from(request.rate.bits());
            let data = |time: i128| i128::from(request.burst.get()) * 8 + (rate * time + nano - 1) / nano;
            let before =
                way[..place].iter().map(|&l| i128::from(links[l].levels[*level].delay.get())).sum::<i128>();
            let delay = i128::from(link.levels[*level].delay.get());
            let smallest = i128::from(request.smallest_frame.get());
            let wire = |data: i128| {
                let grown = data * (smallest + 4 + i128::from(link.overhead.get()));
                (grown + smallest - 1) / smallest
            };
            of[*level].push((wire(rate), wire(data(before)), data(before + delay) / (smallest * 8)));
        }
        let sum = |level: &Vec<(i128, i128, i128)>| {
            level.iter().fold((0, 0, 0), |sum, flow| (sum.0 + flow.0, sum.1 + flow.1, sum.2 + flow.2))
        };
        let sums: Vec<_> = of.iter().map(sum).collect();
        let capacity = i128::from(link.capacity.bits());
        let largest = i128::from(link.largest_frame.get() + link.overhead.get()) * 8;
        let fits = |level: usize| {
            let (rate, burst, frames) = sums[level];
            let higher = sums[..level].iter().fold((0, 0), |sum, of| (sum.0 + of.0, sum.1 + of.1));
            // What the level has had by t, at the least (nanobits); negative at first.
            let served = |t: i128| {
                capacity * (t - i128::from(link.latency.get())) - (largest + higher.1) * nano - higher.0 * t
            };
            let in_time = served(link.levels[level].delay.get().into()) >= burst * nano;
            let buffer = match link.levels[level].buffer {
                Buffer::Frames(available) => frames <= available.into(),
                Buffer::Bytes(available) => {
                    // Until then nothing of the level has left: the arrivals by then wait.
                    let bits = i128::from(available.get()) * 8 - burst;
                    bits >= 0 && rate > 0 && served(bits * nano / rate) >= 0
                }
            };
            of[level].is_empty() || in_time && buffer
        };
        sums.iter().map(|sum| sum.0).sum::<i128>() <= i128::from(link.reservable.bits())
            && (0..sums.len()).all(fits)
    })
}

prop_compose! {
    fn any_link()(
        gbits in prop::sample::select(vec![1u64, 2, 4, 8]),
        share in 1u64..=100,
        overhead in prop::sample::select(vec![0u64, 24]),
        latency in 0u64..50_000, propagation in 0u64..10_000,
        // Some are too short for anything.
        delays in vec(10_000u64..2_000_000, 1..4),
        buffers in vec(prop_oneof![
            (2_000u64..400_000).prop_map(|bytes| Buffer::Bytes(Bytes::new(bytes))), (2u64..500).prop_map(Buffer::Frames),
        ], 3),
    ) -> Link {
        let mut delays = delays;
        delays.sort_unstable();
        let level = |(delay, buffer)| Level { delay: Nanos::new(delay), buffer };
        let capacity = crate::Rate::from_bits(gbits * 1_000_000_000).expect("a rate");
        Link {
            capacity,
            reservable: crate::Rate::from_bits(gbits * 10_000_000 * share).expect("a rate"),
            overhead: Bytes::new(overhead),
            latency: Nanos::new(latency),
            propagation: Nanos::new(propagation),
            levels: delays.into_iter().zip(buffers).map(level).collect(),
            ..link("", "", "")
        }
    }
}

/// Makes a ring of links.
pub(super) fn any_ring() -> impl Strategy<Value = Vec<Link>> {
    vec(any_link(), 2..7).prop_map(|mut links| {
        let count = links.len();
        for (i, link) in links.iter_mut().enumerate() {
            (link.name, link.from, link.to) =
                (format!("l{i}"), format!("s{i}"), format!("s{}", (i + 1) % count));
        }
        links
    })
}

prop_compose! {
    /// Makes a flow, where it begins, how many links it takes, and its level.
    pub(super) fn any_flow()(
        rate in prop_oneof![100_000u64..5_000_000, 1_000_000u64..330_000_000],
        (smallest, largest) in (60u64..=1514).prop_flat_map(|smallest| (Just(smallest), smallest..=1514)),
        more in prop_oneof![Just(0u64), 0u64..20_000],
        budget in 10_000u64..20_000_000,
        from in 0usize..6, hops in 1usize..6, level in 0u8..3,
    ) -> (Request, usize, usize, u8) {
        let request = Request {
            rate: crate::Rate::from_bits(rate).expect("a rate"),
            burst: Bytes::new(largest + more),
            smallest_frame: Bytes::new(smallest),
            largest_frame: Bytes::new(largest),
            budget: Nanos::new(budget),
        };
        (request, from, hops, level)
    }
}

/// Returns the links of a flow in a ring.
pub(super) fn way(links: &[Link], from: usize, hops: usize) -> Vec<usize> {
    (0..hops.min(links.len() - 1)).map(|hop| (from + hop) % links.len()).collect()
}

pub(super) fn wanted(links: &[Link], number: usize, flow: &(Request, usize, usize, u8)) -> Reserve {
    let (request, from, hops, level) = *flow;
    let names = way(links, from, hops).into_iter().map(|at| links[at].name.clone()).collect();
    Reserve { path: number.to_string(), request, routes: vec![Route { links: names, level }] }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2000))]

    /// A change is made if and only if all promises hold by the definition afterwards; sums never drift.
    #[test]
    fn changes_are_made_where_the_definition_allows_them(
        links in any_ring(),
        steps in vec((any_flow(), prop::option::of(0usize..30)), 1..30),
    ) {
        let mut ledger = Ledger::new(Network::new(links.clone()).expect("sound"));
        let mut model: Vec<(usize, Placed)> = Vec::new();
        for (number, (flow, released)) in steps.iter().enumerate() {
            let (request, from, hops, level) = *flow;
            let mut after = model.clone();
            let released = released.map(|at| at % (model.len() + 1)).filter(|at| *at < model.len());
            let names: Vec<String> = released.iter().map(|&at| after.remove(at).0.to_string()).collect();
            let path = way(&links, from, hops);
            let level = usize::from(level);
            let exists = path.iter().all(|&at| level < links[at].levels.len());
            let taken = || path.iter().map(|&at| links[at].levels[level].delay.get() + links[at].propagation.get()).sum::<u64>();
            let fits = exists && taken() <= request.budget.get() && {
                after.push((number, (request, path.clone(), level)));
                all_kept(&links, &after.iter().map(|(_, placed)| placed.clone()).collect::<Vec<_>>())
            };
            let result = ledger.change(&names, &[wanted(&links, number, flow)]);
            prop_assert_eq!(result.is_ok(), fits, "{:?}", result);
            if fits {
                model = after;
            }
            let mut names: Vec<String> = model.iter().map(|(number, _)| number.to_string()).collect();
            names.sort();
            prop_assert_eq!(ledger.paths().collect::<Vec<_>>(), names);
        }
        let all: Vec<String> = ledger.paths().map(Into::into).collect();
        ledger.change(&all, &[]).expect("released");
        prop_assert!(ledger.usage().all(|usage| usage.reserved_bits == 0));
    }
}
