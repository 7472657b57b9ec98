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
mod tests;
