//! The text of views that are made up.

use super::*;
use crate::commands::samples;
use tidegate_evidence::Figure;

#[test]
fn uncertain_delays_and_misses_are_shown_as_such() {
    let mut view = samples::voice();
    let stats = view.stats.as_mut().unwrap();
    stats.delay_least = Delay {
        count: 11_999,
        p50: 20_000,
        p99: 60_000,
        p999: 90_000,
        max: 100_000,
        buckets: vec![(100_000, 11_999)],
    };
    stats.realtime_worst_least_ns = 100_000;
    stats.misses.clear();
    (stats.misses_possible, stats.misses_asleep) = (2, 0);
    let said = derivation(&view, &view.promises[0]);
    assert!(said.contains("at most 1.12 ms, 120 us over the deadline; at least 100 us\n"), "{said}");
    assert!(said.contains("0 frames, 2 possibly\n"), "{said}");
    view.stats.as_mut().unwrap().misses_asleep = 3;
    assert_eq!(missed_count_text(&view), "0 frames, 2 possibly, 3 if the worker woke up late");
    let said = text(&view);
    let expected = "by the first poll that showed it: p50 20.0 us, p99 60.0 us, p99.9 90.0 us, max 100 us\n";
    assert!(said.contains(expected), "{said}");
}

#[test]
fn the_wait_for_its_own_limit_stands_beside_the_delay() {
    let said = text(&samples::waiting());
    let expected = "
throttled for 9.80 s, also right now
wait of what it sent for its own tx.max: p50 865 ms, p99 1.05 s, p99.9 1.05 s, max 1.05 s
  with no frame of their flow waiting: p50 310 us, p99 1.20 ms, p99.9 1.40 ms, max 1.40 ms
  marked (ECN) 21; flows that wait: 2 now, 9 at most
";
    assert!(said.contains(expected), "{said}");
    assert!(said.contains("\nFigures of the last 10.4 s.\n"), "{said}");
    assert!(said.contains("delay of what it sent, after that wait: p50 541 us,"), "{said}");
}

#[test]
fn every_figure_has_its_source() {
    let figure = |name: &str, value, source: &str| Figure { name: name.into(), value, source: source.into() };
    let mut view = samples::idle();
    assert!(statistics(&view).contains("no counters"));
    view.figures =
        vec![figure("tx.bytes", Some(5_000), "register VFGOTC"), figure("rx.bytes", None, "nobody")];
    let expected = "\
figure      value  source
tx.bytes     5000  register VFGOTC
rx.bytes  unknown  nobody
";
    assert_eq!(statistics(&view), expected);
}

#[test]
fn a_real_time_vnic_shows_bound_worst_and_margin() {
    let expected = "\
voice
  attach      vhost-user /run/tidegate/vm/voice.sock
  connection  up
  worker      1
  contract    in force, from /etc/tidegate/voice.toml
  mac         52:54:00:00:00:01
  segment     42
  tx          max 4mbit, burst 2kB
  rx          no limit
  queueing    flows
  weight      1
  deadline    1ms
  to          sink
  mtu         1500
  queues      1

          frames  on the wire    bytes  dropped
sent      12,000       12,000  2.40 MB        1
received       7            7    420 B        0
throttled for 3.00 ms in all
time of its worker: 720 us to take what it sends (60 ns a frame), 30.0 us to deliver what was queued (300 ns a frame), 2.00 us for its kicks
delay of what it sent: p50 42.0 us, p99 90.0 us, p99.9 300 us, max 1.12 ms

deadline towards sink
  delay bound B     278 us, margin 722 us to the deadline of 1ms
  worst seen        1.12 ms, 120 us over the deadline
  missed            3 frames
  how B is computed: B = deadline - (t - H - (demand + L) / C)
    critical time t     1ms  the interval with the least slack
    demand              2kB  real-time traffic due within t, all bursts at once; takes 16.0 us
    blocking frame L  1518B  the largest frame that may be under way; takes 12.1 us
    capacity C        1gbit  of sink
    host budget H     250us  worker loops, wake-up and one copy
  bound 278 us holds if H = 250us held (violated 3 times) and the receiver had buffers
  worst seen is Tr - Ts as the switch measured it, of real-time frames to all places, under this deadline
";
    assert_eq!(text(&samples::voice()), expected);
}

#[test]
fn without_counters_or_deadline_there_is_less_to_show() {
    let text = text(&samples::idle());
    assert!(text.contains("connection  waiting\n") && text.contains("from api\n"), "{text}");
    assert!(text.ends_with("\nNo counters: the place of this vNIC does not know the vNIC.\n"), "{text}");
}

#[test]
fn the_limit_that_the_guest_asks_for_is_shown() {
    let text = text(&samples::lowered());
    assert!(text.contains("  tx          max 4mbit, the guest asks for 3mbit, burst 2kB\n"), "{text}");
    assert!(text.contains("  guest       /run/vm/voice.limit\n"), "{text}");
    let mut same = samples::lowered();
    same.soft = tx_max(&same);
    assert_eq!((soft(&samples::lowered()), soft(&same)), (samples::lowered().soft, None));
}

#[test]
fn uncounted_values_are_unknown() {
    let text = text(&samples::unknown());
    let expected = "
           frames  on the wire    bytes  dropped
sent      unknown          900  1.20 MB        0
received  unknown      unknown  unknown  unknown
";
    assert!(text.ends_with(expected), "{text}");
}

#[test]
fn a_suspended_deadline_is_not_promised() {
    let text = text(&samples::suspended());
    let expected = "
deadline towards sink: not promised right now
  why               guest memory is not preallocated: add prealloc=on
  delay bound B     none; 278 us when it is promised again
  missed            0 frames while it was promised
";
    assert!(text.ends_with(expected), "{text}");
    let fact =
        "  deadline    1ms, not promised right now: guest memory is not preallocated: add prealloc=on\n";
    assert!(text.contains(fact), "{text}");
}

#[test]
fn a_refused_contract_is_shown_with_its_file_and_line() {
    let [readable, unreadable] = samples::refused();
    let expected = "\
dark
  contract    refused, from /etc/tidegate/cam.toml
  refused     /etc/tidegate/cam.toml:9 is refused: egress sink refuses cam

No part of the contract is in force.
";
    assert_eq!(text(&unreadable), expected);
    let text_of_it = text(&readable);
    assert!(text_of_it.contains("  mac         52:54:00:00:00:02\n"), "{text_of_it}");
    assert!(text_of_it.contains("  refused     /etc/tidegate/cam.toml:4 is refused"), "{text_of_it}");
    let as_before = VnicView { refused: readable.refused, ..samples::voice() };
    let text = text(&as_before);
    let expected = "
  contract    in force, from /etc/tidegate/voice.toml
  refused     /etc/tidegate/cam.toml:4 is refused: egress sink refuses cam
              its earlier contracts are in force
";
    assert!(text.contains(expected), "{text}");
}

#[test]
fn a_deadline_that_was_kept_has_a_margin() {
    let mut view = samples::voice();
    view.promises[0].worst_seen_ns = Some(300_000);
    assert!(text(&view).contains("worst seen        300 us, margin 700 us to the deadline\n"));
    view.window = samples::waiting().window;
    assert!(text(&view).contains("  300 us, margin 700 us to the deadline (since the deadline was set)\n"));
    view.promises.clear();
    assert!(text(&view).contains("No delay bound"));
}
