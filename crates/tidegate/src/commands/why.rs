//! `tidegate why NAME`: what a vNIC waits for, in plain words.

use crate::client::{Client, ClientError, encode, for_display};
use crate::commands::window::{self, Window};
use crate::commands::{show, uplink};
use crate::exit::{self, Failure};
use crate::explain;
use crate::format::{count, duration, plural};
use crate::table::{Align, Table};
use hyper::StatusCode;
use serde_json::Value;
use std::collections::BTreeMap;
use std::fmt::Write;
use std::time::{SystemTime, UNIX_EPOCH};
use tidegate_agent::views::{OwnWait, State, VnicView, WhyView};
use tidegate_contract::{Nanos, Queueing};
use tidegate_evidence::Connection;
use tidegate_evidence::Quantity;
use tidegate_evidence::{Delay, VnicStats, total};

/// Least delay (ns) for which the text mentions that it may have been much less.
const LONG: u64 = 1_000_000;
const MISSES: usize = 10;

/// Label of the row for frames of a flow that had none before them.
const SPARSE: &str = "  with no frame of their flow waiting";

/// Arguments of `why`.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// The vNIC, or the uplink
    name: String,
    #[command(flatten)]
    window: Window,
}

pub async fn run(client: &Client, args: Args, json: bool) -> Result<(), Failure> {
    let path = format!("/v1/vnics/{}", encode(&args.name));
    let (vnic, path) = (args.window.api_path(&path), args.window.api_path(&(path + "/why")));
    if json {
        return exit::print_json(&match client.get::<Value>(&path).await {
            Err(error) => uplink_instead(client, &args.name, error).await?,
            Ok(why) => why,
        });
    }
    let now = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |d| d.as_nanos() as u64);
    let view: VnicView = match client.get_for_display(&vnic).await {
        Err(error) => {
            let uplink = uplink_instead(client, &args.name, error).await?;
            return exit::print(&uplink::why(&for_display(uplink, &args.name)?));
        }
        Ok(view) => view,
    };
    exit::print(&text(&view, &client.get_for_display(&path).await?, now))
}

/// Returns the uplink of a name that no vNIC has: `error` says that.
async fn uplink_instead(client: &Client, name: &str, error: ClientError) -> Result<Value, ClientError> {
    match &error {
        ClientError::Answered { status: StatusCode::NOT_FOUND, .. } => {
            client.get(&uplink::path(name)).await.map_err(|_| error)
        }
        _ => Err(error),
    }
}

/// Composes the account; `now` in nanoseconds since the epoch. Figures come from `why`, and the values to
/// compare them with from `view`.
fn text(view: &VnicView, why: &WhyView, now: u64) -> String {
    if view.state == State::Refused {
        return condition(view);
    }
    let Some(stats) = &view.stats else {
        let nothing = "Nothing is known of its frames: the place of this vNIC does not know the vNIC.\n";
        return condition(view) + nothing + &not_promised(view);
    };
    [
        condition(view),
        window::title(view.window),
        throttling(view, stats, why),
        waits(view, stats, why),
        delays(view, stats, why),
        least_delay_note(view, stats),
        host_latency(view),
        drops(view, why),
        misses(view, stats, why, now),
        far_misses(why, now),
        unknown(view),
    ]
    .concat()
}

fn is_counted(view: &VnicView, what: Quantity) -> bool {
    !view.unknown.contains_key(&what)
}

/// Lists what the place does not count, and why. Super-frames are left out: they explain nothing.
fn unknown(view: &VnicView) -> String {
    let unknown = view.unknown.iter().filter(|(what, _)| **what != Quantity::SuperFrames);
    let lines: Vec<String> = unknown.map(|(what, why)| format!("  {}: {why}\n", what.label())).collect();
    if lines.is_empty() { String::new() } else { format!("Not counted here:\n{}", lines.concat()) }
}

fn condition(view: &VnicView) -> String {
    let name = &view.name;
    if let (State::Refused, Some(by)) = (view.state, &view.refused) {
        return format!("{name} is refused: it has no contract in force, and no port.\n{by}\n");
    }
    let mut out = match view.connection {
        Some(Connection::Up) => format!("{name} is up.\n"),
        Some(Connection::Connected) => {
            format!("{name} is connected, but its guest has not started the interface: no frame can flow.\n")
        }
        Some(Connection::Waiting) => format!("{name} waits for its VM to connect: no frame can flow.\n"),
        Some(Connection::Disconnected) => format!("{name} has lost its VM: no frame can flow.\n"),
        None => format!("{name} has no port: no frame can flow.\n"),
    };
    match view.state {
        State::InForce => {}
        State::Pending => out += "Its contract is not in force yet.\n",
        State::Failed => out += "Its contract could not be put in force; the agent tries again.\n",
        State::Refused => out += "Its contract is refused.\n",
    }
    if let Some(by) = &view.refused {
        let _ = writeln!(out, "{by}\nWhat that file said before is in force.");
    }
    if let Some(reason) = &view.reason {
        let _ = writeln!(out, "The agent says: {reason}");
    }
    out
}

fn throttling(view: &VnicView, stats: &VnicStats, why: &WhyView) -> String {
    if !is_counted(view, Quantity::Throttled) {
        return String::new();
    }
    let max = show::tx_max(view);
    let limit = match (show::soft(view), max) {
        (Some(soft), Some(max)) => format!("the {soft} that its guest asks for (its tx.max is {max})"),
        (Some(soft), None) => format!("the {soft} that its guest asks for"),
        (None, Some(max)) => format!("its tx.max of {max}"),
        (None, None) => "its tx.max".into(),
    };
    match (stats.throttled, why.throttled_ns) {
        (true, total) => format!(
            "It is throttled right now: it has more to send than {limit} lets through. \
             {}, frames waited for that for {}.\n",
            time_phrases(view).1,
            duration(total)
        ),
        (false, 0) if view.window.is_some() => "It was not throttled in that time.\n".into(),
        (false, 0) => "It has never been throttled.\n".into(),
        (false, total) => format!(
            "It is not throttled right now. {}, frames waited for {limit} for {}.\n",
            time_phrases(view).1,
            duration(total)
        ),
    }
}

/// Names the time of the figures: for the end of a sentence, and for its beginning.
fn time_phrases(view: &VnicView) -> (&'static str, &'static str) {
    if view.window.is_some() { (" in that time", "In that time") } else { ("", "In all") }
}

/// Shows where frames waited, for vNICs with counted limits of their own: at the limit, and on the rest of
/// the way.
fn waits(view: &VnicView, stats: &VnicStats, why: &WhyView) -> String {
    if [&why.tx_wait, &why.rx_wait].into_iter().flatten().all(|wait| wait.waited.count == 0) {
        return String::new();
    }
    let right = Align::Right;
    let headings = ["frames", "half", "99 %", "99.9 %", "longest", "marked", "flows now", "most"];
    let columns: Vec<_> =
        std::iter::once(("where", Align::Left)).chain(headings.map(|heading| (heading, right))).collect();
    let mut table = Table::new(&columns);
    let mut row = |place: String, delay: &Delay, wait: Option<&OwnWait>| {
        let times = [delay.p50, delay.p99, delay.p999, delay.max].map(duration);
        let known = |flows: Option<u64>| flows.map_or_else(|| "-".into(), count);
        let flows = wait.map(|wait| [count(wait.marked), known(wait.flows_now), known(wait.flows_most)]);
        let cells = [place, count(delay.count)].into_iter().chain(times);
        table.row(cells.chain(flows.into_iter().flatten()));
    };
    if let Some(wait) = &why.tx_wait {
        row(format!("what it sent: before its own {}", wait.limit), &wait.waited, Some(wait));
        wait.sparse
            .iter()
            .filter(|_| wait.waited.max > 0)
            .for_each(|sparse| row(SPARSE.into(), sparse, None));
    }
    let delay_is_own_wait = show::delay_is_own_wait(stats);
    if stats.delay.count > 0 && is_counted(view, Quantity::Delay) && !delay_is_own_wait {
        row("what it sent: from there to the receiver".into(), &stats.delay, None);
    }
    if let Some(wait) = &why.rx_wait {
        row(format!("what it received: before its own {}", wait.limit), &wait.waited, Some(wait));
        wait.sparse
            .iter()
            .filter(|_| wait.waited.max > 0)
            .for_each(|sparse| row(SPARSE.into(), sparse, None));
    }
    let longest = |wait: &Option<OwnWait>| wait.as_ref().map_or(0, |wait| wait.waited.p99);
    let [tx, rx] = [&why.tx_wait, &why.rx_wait].map(longest);
    // A wait below a tenth of the other is not mentioned.
    let sends = tx > 0 && (delay_is_own_wait || tx > stats.delay.p99) && tx >= rx / 10;
    let receives = rx > 0 && rx >= tx / 10;
    let verdict = match (sends, receives) {
        (true, true) => "Most of the wait is for its own limits, on what it sends and on what it receives.\n",
        (true, false) => "Most of the wait is for its own limit on what it sends.\n",
        (false, true) => "Frames to it wait for its own limit on what it receives.\n",
        (false, false) => "",
    };
    let is_waiting = !verdict.is_empty();
    let queueing = view.contract.as_ref().map(|contract| contract.queueing);
    let by_flow = [&why.tx_wait, &why.rx_wait].into_iter().flatten().any(|wait| wait.sparse.is_some());
    let flow_note = match queueing {
        _ if is_waiting && by_flow => {
            "Each flow waits in a queue of its own: a ping, or the first frame of a request, does not wait behind an upload.\n"
        }
        Some(Queueing::Fifo) if is_waiting => {
            "All its frames wait in one queue (queueing = \"fifo\"), a ping behind an upload.\n"
        }
        _ => "",
    };
    format!("\nWhere its frames waited:\n{}{verdict}{flow_note}", indented(&table.render()))
}

fn delays(view: &VnicView, stats: &VnicStats, why: &WhyView) -> String {
    let delay = &stats.delay;
    let is_in_table = delay.count > 0 && (why.tx_wait.is_some() || why.rx_wait.is_some());
    if !is_counted(view, Quantity::Delay) || is_in_table {
        return String::new();
    }
    if delay.count == 0 {
        return match view.window {
            Some(_) => "None of its frames was delivered in that time.\n".into(),
            None => "None of its frames has been delivered yet.\n".into(),
        };
    }
    format!(
        "Of its {} delivered, half took at most {}, 99 % {}, 99.9 % {}, the slowest {}.\n",
        plural(delay.count, "frame"),
        duration(delay.p50),
        duration(delay.p99),
        duration(delay.p999),
        duration(delay.max)
    )
}

/// Says that a long delay may really be much shorter: while a tap is never seen empty, the arrival time of
/// a frame is unknown.
fn least_delay_note(view: &VnicView, stats: &VnicStats) -> String {
    let (most, least) = (stats.delay.p99, stats.delay_least.p99);
    if !is_counted(view, Quantity::Delay) || show::delay_is_own_wait(stats) || most < LONG || most < 2 * least
    {
        return String::new();
    }
    format!(
        "These delays count from the last poll that found its ring or tap empty: the exact arrival of a frame is unknown. Counted from the first poll that showed the frames, 99 % of them took at most {}.\n",
        duration(least)
    )
}

/// Says that the bound did not hold because the host took too long, and what to do.
fn host_latency(view: &VnicView) -> String {
    let violated = view.promises.iter().find(|p| p.suspended.is_none() && p.host_latency_violations > 0);
    violated.map_or_else(String::new, |promise| {
        format!(
            "Its delay bound holds while worker loops take at most host-latency (H, {}). Since the switch was started {} took \
             longer: no bound held then. `tidegate calibrate` names what makes the host slow, and the host-latency that the host needs now.\n",
            duration(promise.derivation.host_latency_ns),
            count(promise.host_latency_violations)
        )
    })
}

fn drops(view: &VnicView, why: &WhyView) -> String {
    let list = |title: &str, drops: &BTreeMap<String, u64>| {
        let mut table =
            Table::new(&[("frames", Align::Right), ("reason", Align::Left), ("what it means", Align::Left)]);
        for (label, n) in most_first(drops) {
            table.row([count(n), label.into(), explain::drop_reason(label).into()]);
        }
        if drops.is_empty() { String::new() } else { format!("\n{title}\n{}", indented(&table.render())) }
    };
    let lists = [
        list("Dropped frames that it sent:", &why.tx_dropped),
        list("Dropped frames that were sent to it:", &why.rx_dropped),
    ]
    .concat();
    if !lists.is_empty() {
        return lists;
    }
    match (is_counted(view, Quantity::Tx), is_counted(view, Quantity::Rx)) {
        _ if !is_counted(view, Quantity::Drops) => String::new(),
        (true, true) => format!("No frame from it or to it was dropped{}.\n", time_phrases(view).0),
        (true, false) => format!("No frame that it sent was dropped{}.\n", time_phrases(view).0),
        (false, true) => format!("No frame to it was dropped{}.\n", time_phrases(view).0),
        (false, false) => String::new(),
    }
}

fn misses(view: &VnicView, stats: &VnicStats, why: &WhyView, now: u64) -> String {
    let total = total(why.misses.values().copied());
    let deadline = show::deadline(view);
    let mut out = not_promised(view);
    let possible_misses = possible_misses(why);
    let was_kept =
        total == 0 && possible_misses.is_empty() && (stats.realtime_delivered > 0 || out.is_empty());
    if !is_counted(view, Quantity::Deadline) || (total == 0 && possible_misses.is_empty() && !was_kept) {
        return out;
    }
    out += &match (deadline, total) {
        (_, 0) if !possible_misses.is_empty() => "No frame missed its deadline for certain.\n".into(),
        (None, 0) => return out + "It has no deadline, so it cannot miss any.\n",
        (Some(deadline), 0) => {
            return out + &deadline_kept(deadline, stats.realtime_delivered, time_phrases(view).0);
        }
        (None, _) => format!("\n{} missed the deadline it had:\n", plural(total, "frame")),
        (Some(deadline), _) => format!("\n{} missed the deadline of {deadline}:\n", plural(total, "frame")),
    };
    let mut table =
        Table::new(&[("frames", Align::Right), ("cause", Align::Left), ("what it means", Align::Left)]);
    for (label, n) in most_first(&why.misses) {
        table.row([count(n), label.into(), explain::cause(label).into()]);
    }
    if total > 0 {
        out += &indented(&table.render());
    }
    out += &possible_misses;
    out += &culprits(why);
    if !why.latest_misses.is_empty() {
        out += "\nThe latest, newest first:\n";
    }
    for miss in why.latest_misses.iter().rev().take(MISSES) {
        let _ = writeln!(out, "  {} ago: {}", duration(now.saturating_sub(miss.at)), explain::miss(miss));
    }
    out
}

/// Lists the latest frames that other hosts reported as late, newest first; empty without any.
fn far_misses(why: &WhyView, now: u64) -> String {
    let mut out = String::new();
    if !why.far_misses.is_empty() {
        out += "\nLate at other hosts, as they report it, newest first:\n";
    }
    for miss in why.far_misses.iter().rev().take(MISSES) {
        let _ = writeln!(out, "  {} ago: {}", duration(now.saturating_sub(miss.at)), explain::far_miss(miss));
    }
    out
}

/// Says how many frames possibly missed a deadline, and what is unknown about them; empty without any.
fn possible_misses(why: &WhyView) -> String {
    let mut out = String::new();
    if why.misses_possible > 0 {
        let frames = plural(why.misses_possible, "frame");
        let _ = writeln!(
            out,
            "{frames} possibly missed it: in time if they arrived at the first poll that showed them, late if at the last poll without them."
        );
    }
    if why.misses_asleep > 0 {
        let _ = writeln!(
            out,
            "{} missed it only if the worker took that long to wake up, which the switch cannot measure.",
            plural(why.misses_asleep, "frame")
        );
    }
    out
}

/// Lists what held up the worker when frames were late for it.
fn culprits(why: &WhyView) -> String {
    let mut table =
        Table::new(&[("frames", Align::Right), ("culprit", Align::Left), ("what it means", Align::Left)]);
    for (label, n) in most_first(&why.culprits) {
        table.row([count(n), label.into(), explain::culprit(label).into()]);
    }
    let mut out = String::new();
    if !why.culprits.is_empty() {
        out += "\nWhat delayed the switch's worker, since the agent was started:\n";
        out += &indented(&table.render());
    }
    if let Some(unobserved) = &why.unobserved {
        let _ = writeln!(
            out,
            "The agent does not observe what keeps the worker from its CPU, so only the worker's own loops are known: {unobserved}"
        );
    }
    out
}

fn not_promised(view: &VnicView) -> String {
    match (&view.deadline_suspended, show::deadline(view)) {
        (Some(why), Some(deadline)) => {
            format!("Its deadline of {deadline} is not promised right now: {why}\n")
        }
        _ => String::new(),
    }
}

fn deadline_kept(deadline: Nanos, delivered: u64, when: &str) -> String {
    match delivered {
        0 if !when.is_empty() => format!("No frame with its deadline of {deadline} was delivered{when}.\n"),
        0 => format!("No frame with its deadline of {deadline} has been delivered yet.\n"),
        1 => format!("It kept its deadline of {deadline} for the one frame that was delivered.\n"),
        n => format!("It kept its deadline of {deadline} for every one of {}.\n", plural(n, "frame")),
    }
}

fn most_first(counts: &BTreeMap<String, u64>) -> Vec<(&str, u64)> {
    let mut counts: Vec<(&str, u64)> = counts.iter().map(|(label, n)| (label.as_str(), *n)).collect();
    counts.sort_by_key(|(label, n)| (std::cmp::Reverse(*n), *label));
    counts
}

fn indented(text: &str) -> String {
    text.lines().map(|line| format!("  {line}\n")).collect()
}

#[cfg(test)]
mod tests {
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
            unknown.ends_with(
                "\nNothing is known of its frames: the place of this vNIC does not know the vNIC.\n"
            )
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
        let expected = "Its deadline of 1ms is not promised right now: guest memory is not preallocated: add prealloc=on\n";
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
}
