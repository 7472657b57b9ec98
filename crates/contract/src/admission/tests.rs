//! Compares the arithmetic with the formula, and with worked examples.

use super::egress::{Egress, Minimum, Order, Source};
use super::*;
use crate::{Discipline, Host, Rate, Segment, Tx, Vnic, testing};
use proptest::{collection::vec, prelude::*};

fn realtime(name: &str, max: &str, burst: &str, deadline: &str) -> Vnic {
    let mut vnic = testing::vnic(name);
    vnic.tx = Tx { max: max.parse().ok(), min: None, burst: burst.parse().ok(), ..Tx::default() };
    vnic.deadline = deadline.parse().ok();
    vnic.to = vec!["sink".into()];
    vnic.check().expect("valid");
    vnic
}

fn guaranteed(name: &str, min: &str) -> Vnic {
    let mut vnic = testing::vnic(name);
    vnic.tx.min = min.parse().ok();
    vnic.to = vec!["sink".into()];
    vnic
}

fn sink(max: &str) -> Vnic {
    let mut vnic = testing::vnic("sink");
    vnic.rx.max = max.parse().ok();
    vnic
}

/// Moves a vNIC to the kernel's place, which serves by priorities and cuts no super-frame.
fn of_kernel(mut vnic: Vnic) -> Vnic {
    vnic.attach = crate::Attach::Netdev { name: format!("{}0", vnic.name) };
    vnic
}

fn refusals(vnics: &[Vnic]) -> Vec<String> {
    judge(vnics).expect_err("refused").iter().map(ToString::to_string).collect()
}

fn judge(vnics: &[Vnic]) -> Result<Admission, Vec<NotAdmissible>> {
    admit(&ContractSet::local(&Host::default(), vnics))
}

#[test]
fn one_source_by_hand() {
    // H = 250 us; (4000 + 1518) bytes at 1 Gbit/s take 44.144 us.
    let vnics = [realtime("plc1", "100mbit", "4kB", "500us"), sink("1gbit")];
    let admission = judge(&vnics).expect("fits");
    let [bound] = admission.bounds.as_slice() else { panic!("one bound") };
    assert_eq!(bound.bound, Nanos::new(294_144));
    assert_eq!(
        bound.to_string(),
        "\
plc1 to sink: at most 294144ns of 500us, margin 205856ns
  t      = 500us      the interval with the least slack
  demand = 4kB        real-time traffic that may be due within t
  L      = 1518B      the largest frame that may be under way
  C      = 1gbit      the capacity of the egress
  H      = 250us      the host's latency budget
  bound  = deadline - (t - H - (demand + L) / C)"
    );
    let summary = admission.egress("sink").expect("a summary");
    assert_eq!(
        (summary.realtime_bits, summary.guaranteed_bits, summary.remaining_bits),
        (100_000_000, 0, 900_000_000)
    );
    assert_eq!(admission.bounds_of("plc1").count(), 1);
    assert_eq!(admission.bounds_of("sink").count(), 0);
}

#[test]
fn priorities_by_hand() {
    // L = 65,553 bytes, and a burst is 4000 and a frame of 4000. The vNIC of the shorter deadline waits for its own
    // only: 588.4 us. The other, due in 2 ms, for both and for the 25,000 that the first sends within 2 ms: 852.4 us.
    let vnics = [
        realtime("fast", "100mbit", "4kB", "900us"),
        realtime("slow", "100mbit", "4kB", "2ms"),
        sink("1gbit"),
    ]
    .map(of_kernel);
    let admission = judge(&vnics).expect("fits");
    let bounds: Vec<_> = admission.bounds.iter().map(|b| (b.vnic.as_str(), b.bound.get())).collect();
    assert_eq!(bounds, [("fast", 250_000 + 588_424), ("slow", 250_000 + 852_424)]);

    let mut slow = vnics.clone();
    slow[1].deadline = "901us".parse().ok();
    let refused = refusals(&slow);
    assert_eq!(refused.len(), 1, "{refused:?}");
    assert!(
        refused[0].starts_with("egress sink refuses fast, slow: within 901us, 92816B may be due"),
        "{refused:?}"
    );
}

#[test]
fn a_later_deadline_can_be_the_tightest() {
    // At t = 500 us: (2000 + 1518) bytes. At t = 600 us: both bursts, and 100 us at 100 Mbit/s more.
    let vnics = [
        realtime("fast", "100mbit", "2kB", "500us"),
        realtime("slow", "100mbit", "25kB", "600us"),
        sink("1gbit"),
    ];
    let admission = judge(&vnics).expect("fits");
    let demand = (2000 + 25_000) * 8 + 10_000 + 1518 * 8;
    let slack = 350_000 - demand;
    assert_eq!(admission.bounds[0].critical_t, Nanos::new(600_000));
    assert_eq!(admission.bounds[0].bound, Nanos::new(500_000 - slack));
    assert_eq!(admission.bounds[1].bound, Nanos::new(600_000 - slack));
    assert_eq!(admission.bounds[0].demand, Bytes::new(28_250));
}

#[test]
fn a_sum_that_fits_by_one_bit_fits() {
    let mut vnics =
        vec![realtime("rt", "400mbit", "4kB", "1ms"), guaranteed("min", "600mbit"), sink("1gbit")];
    assert_eq!(judge(&vnics).expect("fits").egresses[0].remaining_bits, 0);
    vnics[1].tx.min = Rate::from_bits(600_000_001);
    assert_eq!(
        refusals(&vnics),
        [
            "egress sink refuses rt, min: 1000000001 bit/s are promised, 1000000000 bit/s (1gbit) are available; \
          the contracts would fit with vnic.min.tx.min at most 600mbit, or vnic.rt.tx.max at most 399999kbit, \
          or vnic.sink.rx.max at least 1000001kbit"
        ]
    );
    // No suggested rate is below the vNIC's own minimum.
    vnics[0].tx.min = Rate::from_bits(400_000_000);
    assert!(!refusals(&vnics)[0].contains("vnic.rt.tx.max"));
    // A real-time vNIC's own minimum lies within its envelope.
    vnics[1].tx.min = Rate::from_bits(600_000_000);
    assert!(judge(&vnics).is_ok());

    // (b + L) / C + H: 250 us + 5518 bytes at 1 Gbit/s = 294.144 us exactly.
    let exactly = |deadline| [realtime("rt", "100mbit", "4kB", deadline), sink("1gbit")];
    let admission = judge(&exactly("294144ns")).expect("fits");
    assert_eq!(admission.bounds[0].margin(), Nanos::new(0));
    assert_eq!(
        refusals(&exactly("294143ns")),
        [
            "egress sink refuses rt: within 294143ns, 5518B may be due (4kB real-time, 1518B already under way), \
          but 5517B can be sent at 1gbit after 250us of host latency; \
          the contracts would fit with vnic.rt.deadline at least 295us, or vnic.rt.tx.burst at most 3999B, \
          or vnic.sink.rx.max at least 1000023kbit"
        ]
    );
}

#[test]
fn refusals_name_what_to_set() {
    let rt = || realtime("rt", "100mbit", "4kB", "1ms");
    assert_eq!(
        refusals(&[rt(), testing::vnic("sink")]),
        ["egress sink refuses rt: its capacity is unknown, so it can keep no promise; set vnic.sink.rx.max"]
    );
    let mut fifo = sink("1gbit");
    fifo.rx.discipline = Discipline::Fifo;
    assert_eq!(
        refusals(&[rt(), fifo]),
        ["egress sink refuses rt: its discipline is fifo, which keeps no promise; \
          remove vnic.sink.rx.discipline, or the promises"]
    );
    assert_eq!(
        refusals(&[rt()]),
        ["egress sink refuses rt: there is no such vNIC; name one, a remote, or \"uplink\""]
    );
    // No capacity helps if the deadline is within the host's own latency.
    let [early] =
        refusals(&[realtime("rt", "1mbit", "2kB", "250us"), sink("1gbit")]).try_into().expect("one");
    assert!(early.contains("but 0B can be sent"), "{early}");
    assert!(early.contains("vnic.rt.deadline at least 279us") && !early.contains("rx.max"), "{early}");
}

#[test]
fn an_unchecked_contract_is_not_passed_over() {
    let mut bare = realtime("rt", "100mbit", "4kB", "1ms");
    bare.tx.burst = None;
    assert_eq!(
        refusals(&[bare, sink("1gbit")]),
        ["egress sink refuses rt: a deadline holds for a declared envelope only; set tx.max and tx.burst"]
    );
}

#[test]
fn results_pass_through_json() {
    let fits = [realtime("rt", "100mbit", "4kB", "1ms"), guaranteed("min", "1mbit"), sink("1gbit")];
    let admission = judge(&fits).expect("fits");
    let json = serde_json::to_string(&admission).expect("serialises");
    assert_eq!(serde_json::from_str::<Admission>(&json).expect("parses"), admission);

    let over = [realtime("rt", "100mbit", "4kB", "260us"), guaranteed("min", "1gbit"), sink("1gbit")];
    let refused = judge(&over).expect_err("refused");
    assert_eq!(refused.len(), 2, "too much, and too early");
    let json = serde_json::to_value(&refused).expect("serialises");
    assert_eq!(json[0]["reason"], "rate");
    assert_eq!(json[1]["t"], "260us");
    assert_eq!(serde_json::from_value::<Vec<NotAdmissible>>(json).expect("parses"), refused);
}

#[test]
fn every_egress_is_judged() {
    let mut rt = realtime("rt", "100mbit", "4kB", "1ms");
    rt.to = vec!["sink".into(), "uplink".into(), "gone".into()];
    let vnics = [rt, sink("1mbit")];
    let refused = judge(&vnics).expect_err("refused");
    let egresses: Vec<&str> = refused.iter().map(NotAdmissible::egress).collect();
    assert_eq!(egresses, ["gone", "sink", "uplink"]);
}

#[test]
fn blocking_comes_from_every_vnic_that_can_send_to_the_egress() {
    let blocking = |vnics: &[Vnic]| judge(vnics).expect("fits").bounds[0].blocking.get();
    let rt = realtime("rt", "100mbit", "4kB", "1ms");
    let mut jumbo = testing::vnic("jumbo");
    jumbo.mtu = 9000;
    let mut receiver = sink("1gbit");
    receiver.mtu = 3000;
    let mut vnics = vec![rt, jumbo, receiver];
    assert_eq!(blocking(&vnics), 9018);
    vnics[1].segment = Segment::new(2).expect("in range");
    assert_eq!(blocking(&vnics), 1518, "neither another segment nor the receiver itself sends there");
}

prop_compose! {
    fn any_egress()(
        capacity in prop_oneof![1_000_000u64..=20_000_000_000, Just(1_000_000_000)],
        mtu in 68u64..=9000, host_latency in prop_oneof![Just(0u64), 0u64..300_000],
        envelopes in vec((1u64..400_000_000, 1518u64..30_000, 10_000u64..3_000_000, any_way()), 1..6),
        minima in vec((1u64..500_000_000, prop_oneof![Just(0u64), Just(50)]), 0..3),
    ) -> Egress {
        let source = |(i, (rate, burst, deadline, way)): (usize, (u64, u64, u64, Way))| {
            let (jitter, added, latency) = way;
            let away = (latency > 0)
                .then(|| {
                    // Of what is asked from a controller, this host keeps as much as the network gets.
                    let asked = latency % 2 == 1;
                    let latency = Nanos::new(if asked { deadline } else { latency });
                    Beyond { peer: "b".into(), latency, arrival_budget: Nanos::new(7), asked }
                });
            Source {
                name: format!("rt{i}"), table: if jitter > 0 { "remote" } else { "vnic" },
                burst: u128::from(burst) * 8, rate, deadline, jitter, added, away, smallest_rate: 1, smallest_burst: 86,
            }
        };
        let minimum = |(i, (rate, added))| Minimum { name: format!("min{i}"), rate, added };
        Egress {
            order: Order::Edf,
            name: "sink".into(), capacity_key: "vnic.sink.rx.max".into(), capacity,
            blocking: (mtu + 18) * 8, host_latency,
            sources: envelopes.into_iter().enumerate().map(source).collect(),
            minima: minima.into_iter().enumerate().map(minimum).collect(), senders: Vec::new(),
        }
    }
}

/// Jitter, bytes added to each frame, latency.
type Way = (u64, u64, u64);

/// Makes the way of a vNIC of this host, of a remote, or over an uplink.
fn any_way() -> impl Strategy<Value = Way> {
    prop_oneof![
        2 => Just((0, 0, 0)),
        1 => (1u64..1_000_000).prop_map(|jitter| (jitter, 0, 0)),
        1 => (prop_oneof![Just(50u64), Just(82), Just(102)], 1u64..500_000).prop_map(|(added, away)| (0, added, away)),
    ]
}

/// Returns data on the wire, each 60 bytes with `added` more, rounded up.
fn wire(data: u128, added: u64) -> i128 {
    let frames = data * u128::from(added);
    (data + frames / 60 + u128::from(!frames.is_multiple_of(60))) as i128
}

/// Computes the slack at t from the formula (nanobits).
fn slack(egress: &Egress, t: u64) -> i128 {
    let t = i128::from(t);
    let due = egress.sources.iter().filter(|s| i128::from(s.deadline) <= t);
    let demand: i128 = due
        .map(|s| {
            let bunched = (u128::from(s.rate) * u128::from(s.jitter)).div_ceil(1_000_000_000);
            let since = t - i128::from(s.deadline);
            wire(s.burst + bunched, s.added) * 1_000_000_000 + wire(s.rate.into(), s.added) * since
        })
        .sum();
    i128::from(egress.capacity) * (t - i128::from(egress.host_latency))
        - demand
        - i128::from(egress.blocking) * 1_000_000_000
}

/// Returns every deadline and its neighbours, an even grid, and later times.
fn grid(egress: &Egress) -> Vec<u64> {
    let deadlines = || egress.sources.iter().map(|s| s.deadline);
    let (first, last) = (deadlines().min().expect("a source"), deadlines().max().expect("a source"));
    let mut grid: Vec<u64> = deadlines().flat_map(|d| [d - 1, d, d + 1]).collect();
    grid.extend((0..1000).map(|i| first + (2 * last - first) * i / 1000));
    grid.extend([10 * last, 1000 * last, 1_000_000 * last]);
    grid.retain(|t| *t >= first);
    grid
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(1000))]

    #[test]
    fn admission_equals_the_formula(egress in any_egress()) {
        let realtime = egress.sources.iter().map(|s| wire(s.rate.into(), s.added));
        let rates = realtime.chain(egress.minima.iter().map(|m| wire(m.rate.into(), m.added))).sum::<i128>();
        let least = grid(&egress).into_iter().map(|t| slack(&egress, t)).min().expect("a grid");
        let fits = rates <= egress.capacity.into() && least >= 0;
        prop_assert_eq!(egress.fits(), fits);
        prop_assert_eq!(refusal::refusals(&egress).is_empty(), fits);
    }

    #[test]
    fn bounds_equal_the_formula(mut egress in any_egress(), spare in 0u64..1_000_000) {
        egress.capacity = u64::try_from(egress.promised_rate()).expect("small") + spare;
        for (source, (bound, critical)) in egress.sources.iter().zip(egress.bounds()) {
            let after = grid(&egress).into_iter().filter(|t| *t >= source.deadline);
            let least = after.map(|t| slack(&egress, t)).min().expect("its own deadline");
            prop_assert_eq!(critical.slack, least);
            prop_assert_eq!(slack(&egress, critical.t), least);
            // The least whole B with (d - B) C <= slack.
            let spare = |bound: u64| (i128::from(source.deadline) - i128::from(bound)) * i128::from(egress.capacity);
            prop_assert!(spare(bound) <= least && spare(bound - 1) > least);
            prop_assert_eq!(bound <= source.deadline, least >= 0);
        }
    }

    #[test]
    fn a_suggested_value_fits_and_is_the_limit(egress in any_egress()) {
        for refusal in refusal::refusals(&egress) {
            let alone = matches!(refusal, NotAdmissible::Deadline { .. }) || egress.fits_in_time();
            for fit in refusal.fits() {
                let (changed, beyond) = applied(&egress, fit);
                if alone {
                    prop_assert!(changed.fits(), "{}", fit);
                } else {
                    prop_assert!(changed.promised_rate() <= u128::from(changed.capacity), "{}", fit);
                }
                prop_assert!(!beyond.fits(), "{}", fit);
            }
        }
    }
}

impl Egress {
    fn fits_in_time(&self) -> bool {
        Egress { minima: Vec::new(), ..self.clone() }.fits()
    }
}

/// Returns `egress` with the suggestion taken, and with one step more than suggested.
fn applied(egress: &Egress, fit: &Fit) -> (Egress, Egress) {
    let (mut at, mut beyond) = (egress.clone(), egress.clone());
    let (_, (name, key)) =
        fit.key.split_once('.').and_then(|(t, k)| Some((t, k.split_once('.')?))).expect("a key");
    let rate = || fit.value.parse::<Rate>().expect("a rate").bits();
    let source = |e: &Egress| e.sources.iter().position(|s| s.name == name);
    match key {
        "rx.max" => (at.capacity, beyond.capacity) = (rate(), rate() - 1000),
        "tx.min" => {
            let i = at.minima.iter().position(|m| m.name == name).expect("a minimum");
            (at.minima[i].rate, beyond.minima[i].rate) = (rate(), rate() + 1000);
        }
        "tx.max" => {
            let i = source(&at).expect("a source");
            (at.sources[i].rate, beyond.sources[i].rate) = (rate(), rate() + 1000);
        }
        "tx.burst" => {
            let i = source(&at).expect("a source");
            let bits = u128::from(fit.value.parse::<Bytes>().expect("a size").get()) * 8;
            (at.sources[i].burst, beyond.sources[i].burst) = (bits, bits + 8);
        }
        "deadline" => {
            let i = source(&at).expect("a source");
            let ns = fit.value.parse::<Nanos>().expect("a duration").get();
            let left = |ns| egress.sources[i].left_of(ns);
            (at.sources[i].deadline, beyond.sources[i].deadline) = (left(ns), left(ns - 1000));
        }
        _ => panic!("{}", fit.key),
    }
    (at, beyond)
}

proptest! {
    /// Compares the largest frame under way with its definition.
    #[test]
    fn the_largest_frame_is_that_of_another_in_the_segment(
        frames in vec((68u16..9000, 0u32..4), 0..30), receiver in 0usize..30,
    ) {
        let make = |(i, (mtu, segment)): (usize, &(u16, u32))| {
            let segment = Segment::new(*segment).expect("in range");
            Vnic { mtu: *mtu, segment, ..testing::vnic(&format!("v{i}")) }
        };
        let vnics: Vec<Vnic> = frames.iter().enumerate().map(make).collect();
        let host = Host::default();
        let routes = Routes::new(&ContractSet::local(&host, &vnics));
        let neighbours = Neighbours::new(&vnics, &routes);
        let Some(receiver) = vnics.get(receiver) else { return Ok(()) };
        let reaches = |v: &&Vnic| receiver.segment == v.segment && receiver.name != v.name;
        let largest = vnics.iter().filter(reaches).map(Vnic::largest_frame).max().unwrap_or(0);
        prop_assert_eq!(neighbours.largest_frame(receiver), largest);
    }
}

/// A condition is a few sums, also at the kernel's place with thousands of senders.
#[test]
fn many_senders_are_admitted_at_once() {
    let sender =
        |i: usize| of_kernel(realtime(&format!("v{i}"), "1kbit", "2kB", &format!("{}ms", 9_000 + i % 900)));
    let mut vnics: Vec<Vnic> = (0..8_000).map(sender).collect();
    vnics.push(of_kernel(sink("1gbit")));
    let begin = std::time::Instant::now();
    let admission = judge(&vnics).expect("fits");
    assert_eq!(admission.bounds.len(), 8_000);
    // Too little capacity: the search for a fit tries a hundred sets.
    vnics[8_000] = of_kernel(sink("10mbit"));
    let Err(refused) = judge(&vnics) else { panic!("it fits") };
    let why = refused[0].to_string();
    assert!(why.contains(" more: within 9") && why.len() < 1_000, "{}", &why[..300]);
    // A comparison of each sender with each took minutes.
    assert!(begin.elapsed().as_secs() < 30, "{:?}", begin.elapsed());
}
