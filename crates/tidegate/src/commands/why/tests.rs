//! The words about views that are made up.

use super::*;
use crate::commands::samples;

#[test]
fn frames_late_elsewhere_are_listed() {
    let miss = tidegate_evidence::FarMiss {
        number: 1,
        at: 4_000_000_000,
        vnic: "voice".into(),
        peer: "host2".into(),
        dst: "52:54:00:00:00:09".parse().unwrap(),
        sequence: 7,
        cause: "network".into(),
        dropped: false,
        deadline_ns: 1_000_000,
        late_ns: 500_000,
        error_ns: 8_000,
        hold_ns: 20_000,
        network_ns: 1_470_000,
        there_ns: 10_000,
        others: 3,
    };
    let unsure = tidegate_evidence::FarMiss { late_ns: 7_000, others: 0, ..miss.clone() };
    let why = WhyView { far_misses: vec![unsure, miss], ..samples::why_voice() };
    let text = far_misses(&why, 6_000_000_000);
    let late = "2.00 s ago: late by 500 us at host2 (52:54:00:00:00:09): 20.0 us here, 1.47 ms in the network, \
                    10.0 us there; cause: network; and 3 more frames";
    assert!(text.contains(late), "{text}");
    assert!(text.contains("perhaps late by 7.00 us, within 8.00 us at host2"), "{text}");
    assert_eq!(far_misses(&samples::why_voice(), 0), "");
}

#[test]
fn misses_and_drops_are_explained() {
    let expected = "\
voice is up.
It is not throttled right now. In all, frames waited for its tx.max of 4mbit for 3.00 ms.
Of its 11,999 frames delivered, half took at most 42.0 us, 99 % 90.0 us, 99.9 % 300 us, the slowest 1.12 ms.
Its delay bound holds while worker loops take at most host-latency (H, 250 us). Since the switch was started 3 took longer: \
no bound held then. `tidegate calibrate` names what makes the host slow, and the host-latency that the host needs now.

Dropped frames that it sent:
  frames  reason      what it means
   1,200  source_mac  sent from a MAC address that is not the vNIC's own, or naming one in ARP or neighbour discovery: if this is intended, add it to \
`allowed.macs`, or to `allowed.shared` of each vNIC that takes turns with it (VRRP, CARP)
       1  late        could no longer arrive before its deadline

3 frames missed the deadline of 1ms:
  frames  cause    what it means
       2  queue    waited behind other frames in the receiver's queue
       1  dropped  dropped, so it never arrived

The latest, newest first:
  500 ms ago: dropped after 1.00 ms (could no longer arrive before its deadline): waited 900 us in the queue of `sink`
  3.00 s ago: missed by 120 us: waited 800 us in the queue of `sink` behind `bulk1`
";
    assert_eq!(text(&samples::voice(), &samples::why_voice(), 8_000_000_000), expected);
}

#[test]
fn a_vnics_own_limit_is_named_as_the_place_of_waiting() {
    let said = text(&samples::waiting(), &samples::why_waiting(), 0);
    let expected = "\
web is up.
Figures of the last 10.4 s.
It is throttled right now: it has more to send than its tx.max of 20mbit lets through. In that time, frames waited for that \
for 9.80 s.

Where its frames waited:
  where                                         frames    half     99 %   99.9 %  longest  marked  flows now  most
  what it sent: before its own tx.max = 20mbit   1,600  865 ms   1.05 s   1.05 s   1.05 s      21          2     9
    with no frame of their flow waiting            900  310 us  1.20 ms  1.40 ms  1.40 ms
  what it sent: from there to the receiver       1,600  541 us   800 us   900 us   910 us
Most of the wait is for its own limit on what it sends.
Each flow waits in a queue of its own: a ping, or the first frame of a request, does not wait behind an upload.

Dropped frames that it sent:
";
    assert!(said.starts_with(expected), "{said}");
}

#[test]
fn one_queue_for_all_flows_is_named() {
    let (mut view, mut why) = (samples::waiting(), samples::why_waiting());
    view.contract.as_mut().unwrap().queueing = Queueing::Fifo;
    why.tx_wait.as_mut().unwrap().sparse = None;
    let said = text(&view, &why, 0);
    assert!(said.contains("in one queue (queueing = \"fifo\"), a ping behind an upload.\n"), "{said}");
    assert!(!said.contains("no frame of their flow"), "{said}");
}

#[test]
fn a_place_that_measures_one_wait_shows_it_once() {
    let (mut view, mut why) = (samples::waiting(), samples::why_waiting());
    let stats = view.stats.as_mut().unwrap();
    stats.delay = stats.tokens_tx.clone().unwrap();
    let wait = why.tx_wait.as_mut().unwrap();
    (wait.sparse, wait.flows_now, wait.flows_most) = (None, None, None);
    let said = text(&view, &why, 0);
    assert!(said.contains("1.05 s      21          -     -\nMost of the wait is"), "{said}");
    assert!(!said.contains("from there"), "{said}");
}

#[test]
fn a_window_without_frames_has_no_table() {
    let (mut view, mut why) = (samples::waiting(), samples::why_waiting());
    view.stats = Some(VnicStats::default());
    why.tx_wait.as_mut().unwrap().waited = Delay::default();
    let said = text(&view, &why, 0);
    assert!(!said.contains("Where its frames waited"), "{said}");
    assert!(said.contains("None of its frames was delivered in that time.\n"), "{said}");
}

#[test]
fn a_delay_that_may_have_been_much_less_says_so() {
    let mut view = samples::voice();
    let stats = view.stats.as_mut().unwrap();
    (stats.delay.p99, stats.delay_least.p99) = (75_000_000, 20_000);
    let said = text(&view, &samples::why_voice(), 0);
    assert!(
        said.contains(
            "Counted from the first poll that showed the frames, 99 % of them took at most 20.0 us.\n"
        ),
        "{said}"
    );
}

#[test]
fn a_deadline_that_was_possibly_missed_was_not_kept() {
    let mut why = samples::why_voice();
    why.misses.clear();
    (why.misses_possible, why.misses_asleep) = (2, 1);
    let said = text(&samples::voice(), &why, 8_000_000_000);
    let expected = "\
No frame missed its deadline for certain.
2 frames possibly missed it: in time if they arrived at the first poll that showed them, late if at the last poll without them.
1 frame missed it only if the worker took that long to wake up, which the switch cannot measure.

The latest, newest first:
";
    assert!(said.contains(expected) && !said.contains("kept"), "{said}");
}

#[test]
fn culprits_are_named_or_the_reason_why_not() {
    let culprits = BTreeMap::from([("own_loop".into(), 1), ("softirq".into(), 2)]);
    let why = WhyView { culprits, unobserved: Some("no right to".into()), ..samples::why_voice() };
    let said = text(&samples::voice(), &why, 8_000_000_000);
    let expected = "
What delayed the switch's worker, since the agent was started:
  frames  culprit   what it means
       2  softirq   the kernel was busy on the worker's CPU, mostly with others' packets
       1  own_loop  the worker was busy with other frames, or with a change
The agent does not observe what keeps the worker from its CPU, so only the worker's own loops are known: no right to

The latest, newest first:
";
    assert!(said.contains(expected), "{said}");
}

#[test]
fn an_idle_vnic_has_nothing_to_explain() {
    let expected = "\
idle waits for its VM to connect: no frame can flow.
It has never been throttled.
None of its frames has been delivered yet.
No frame from it or to it was dropped.
It has no deadline, so it cannot miss any.
";
    let idle = VnicView { stats: Some(VnicStats::default()), ..samples::idle() };
    assert_eq!(text(&idle, &samples::why_idle(), 0), expected);
    let unknown = text(&samples::idle(), &samples::why_idle(), 0);
    assert!(
        unknown
            .ends_with("\nNothing is known of its frames: the place of this vNIC does not know the vNIC.\n")
    );
}

#[test]
fn uncounted_values_are_not_shown_as_zero() {
    let expected = "\
web is up.
No frame that it sent was dropped.
It has no deadline, so it cannot miss any.
Not counted here:
  received traffic: not limited, and so not counted
  delay of sent frames: this kernel has no BTF
  time throttled: this kernel has no BTF
";
    assert_eq!(text(&samples::unknown(), &samples::why_idle(), 0), expected);
}

#[test]
fn a_deadline_that_is_not_promised_was_not_kept() {
    let why = WhyView { misses: BTreeMap::new(), ..samples::why_voice() };
    let said = text(&samples::suspended(), &why, 0);
    let expected =
        "Its deadline of 1ms is not promised right now: guest memory is not preallocated: add prealloc=on\n";
    assert!(said.ends_with(expected), "{said}");
    let mut kept_before = samples::suspended();
    kept_before.stats.as_mut().unwrap().realtime_delivered = 5;
    let said = text(&kept_before, &why, 0);
    assert!(
        said.ends_with("prealloc=on\nIt kept its deadline of 1ms for every one of 5 frames.\n"),
        "{said}"
    );
    let mut nothing = samples::voice();
    nothing.stats.as_mut().unwrap().realtime_delivered = 0;
    let said = text(&nothing, &why, 0);
    assert!(said.ends_with("No frame with its deadline of 1ms has been delivered yet.\n"), "{said}");
}

#[test]
fn a_refused_file_is_named_with_its_line() {
    let [refused, _] = samples::refused();
    let expected = "\
idle is refused: it has no contract in force, and no port.
/etc/tidegate/cam.toml:4 is refused: egress sink refuses cam
";
    assert_eq!(text(&refused, &samples::why_idle(), 0), expected);
    let as_before = VnicView { refused: refused.refused, ..samples::voice() };
    let said = text(&as_before, &samples::why_voice(), 0);
    let expected = "voice is up.\n/etc/tidegate/cam.toml:4 is refused: egress sink refuses cam\n\
                        What that file said before is in force.\n";
    assert!(said.starts_with(expected), "{said}");
}

#[test]
fn present_throttling_and_a_kept_deadline_are_shown() {
    let (mut view, mut why) = (samples::voice(), samples::why_voice());
    why.misses.clear();
    view.stats.as_mut().unwrap().throttled = true;
    let text = text(&view, &why, 0);
    assert!(text.contains("throttled right now: it has more to send than its tx.max of 4mbit"), "{text}");
    let lowered = super::text(&samples::lowered(), &why, 0);
    assert!(
        lowered.contains("frames waited for the 3mbit that its guest asks for (its tx.max is 4mbit) for")
    );
    assert!(text.ends_with("It kept its deadline of 1ms for every one of 11,999 frames.\n"), "{text}");
}
