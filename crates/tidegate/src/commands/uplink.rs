//! `tidegate uplink [NAME]`: the ways to other hosts; and `tidegate why NAME` of one.

use crate::client::{Client, encode};
use crate::commands::rdma;
use crate::exit::{self, Failure};
use crate::explain;
use crate::format::{count, duration, plural, rate, size};
use crate::table::{Align, Table};
use serde_json::Value;
use std::collections::BTreeMap;
use std::fmt::Write;
use tidegate_agent::views::{State, UplinkStats, UplinkView};
use tidegate_contract::{Peer, Segment, Uplink};
use tidegate_evidence::{DropReason, PairStatus, SocketCounts, total};

/// Arguments of `uplink`.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// The uplink; all of them if absent
    name: Option<String>,
}

pub async fn run(client: &Client, args: Args, json: bool) -> Result<(), Failure> {
    let path = match &args.name {
        Some(name) => path(name),
        None => "/v1/uplinks".to_owned(),
    };
    if json {
        return exit::print_json(&client.get::<Value>(&path).await?);
    }
    match args.name {
        Some(_) => exit::print(&one(&client.get_for_display(&path).await?)),
        None => exit::print(&overview(&client.get_for_display::<Vec<UplinkView>>(&path).await?)),
    }
}

/// Returns the API's path of an uplink.
pub fn path(name: &str) -> String {
    format!("/v1/uplinks/{}", encode(name))
}

fn overview(uplinks: &[UplinkView]) -> String {
    if uplinks.is_empty() {
        return "There are no uplinks: vNICs of this host reach no other host by the switch.\n".into();
    }
    let right = Align::Right;
    let mut table = Table::new(&[
        ("name", Align::Left),
        ("state", Align::Left),
        ("local", Align::Left),
        ("peers", right),
        ("rate", right),
        ("mtu", right),
        ("sent", right),
        ("received", right),
        ("dropped", right),
    ]);
    for view in uplinks {
        let contract = &view.contract;
        let now = |bps: Option<u64>| bps.map_or_else(|| "-".into(), |bps| rate(bps as f64));
        let dropped = view
            .stats
            .as_ref()
            .map(|s| count(total(s.sent.dropped.values().chain(s.received.dropped.values()).copied())));
        table.row([
            view.name.clone(),
            state(view).into(),
            way_out(contract),
            contract.peers.len().to_string(),
            contract.rate.to_string(),
            contract.mtu.to_string(),
            now(view.sent_rate_bps),
            now(view.received_rate_bps),
            dropped.unwrap_or_else(|| "-".into()),
        ]);
    }
    table.render()
}

fn one(view: &UplinkView) -> String {
    let contract = &view.contract;
    let mut facts = vec![("contract", format!("{}, from {}", state(view), owner(view)))];
    facts.extend(view.reason.clone().map(|reason| ("reason", reason)));
    facts.extend(contract.local.map(|local| ("local", format!("{local}, UDP port {}", contract.port))));
    if contract.is_plain() {
        facts.push(("kind", contract.kind.name().into()));
    }
    facts.extend(contract.device.clone().map(|device| ("device", device)));
    facts.extend(view.worker.map(|worker| ("worker", worker.to_string())));
    facts.extend([("rate", contract.rate.to_string()), ("mtu", mtu(view))]);
    facts.extend(contract.latency.map(|latency| ("latency", latency.to_string())));
    facts.push(("budget", contract.arrival_budget.to_string()));
    facts.extend(contract.peers.iter().map(|p| ("peer", peer(p))));
    if !view.remotes.is_empty() {
        facts.push(("remotes", view.remotes.join(", ")));
    }
    let mut out = format!("{}\n", view.name);
    for (key, value) in facts {
        let _ = writeln!(out, "  {key:<10}  {value}");
    }
    out.push('\n');
    out += &match &view.stats {
        Some(stats) => counters(stats),
        None => "No counters: the switch does not have the uplink.\n".into(),
    };
    let rdma = view.rdma.as_ref().map(rdma::of_uplink).unwrap_or_default();
    out + &sockets(&view.sockets) + &pairs(&view.pairs) + &rdma
}

/// Returns the frames of a NIC's queues to the workers that receive from them.
fn sockets(sockets: &[SocketCounts]) -> String {
    if sockets.is_empty() {
        return String::new();
    }
    let right = Align::Right;
    let mut table = Table::new(&[
        ("queue", right),
        ("worker", right),
        ("frames", right),
        ("worker behind", right),
        ("no memory", right),
    ]);
    for counts in sockets {
        let lost = |frames: Option<u64>| frames.map_or_else(|| "-".into(), count);
        table.row([
            counts.queue.to_string(),
            counts.worker.to_string(),
            count(counts.frames),
            lost(counts.ring_full),
            lost(counts.no_chunk),
        ]);
    }
    format!(
        "\nFrames from the NIC by queue and worker, and how many of them the kernel dropped\n{}",
        table.render()
    )
}

/// Returns how frames with a deadline left, and how they arrived, for each vNIC here and remote.
fn pairs(pairs: &[PairStatus]) -> String {
    if pairs.is_empty() {
        return String::new();
    }
    let right = Align::Right;
    let mut table = Table::new(&[
        ("vNIC", Align::Left),
        ("remote", Align::Left),
        ("sent", right),
        ("arrived", right),
        ("in time", right),
        ("late", right),
        ("worst", right),
        ("perhaps late", right),
        ("not judged", right),
        ("lost", right),
        ("note", Align::Left),
    ]);
    for pair in pairs {
        let worst = if pair.worst_ns == 0 { "-".into() } else { duration(pair.worst_ns) };
        table.row([
            pair.vnic.clone(),
            pair.remote.clone(),
            count(pair.sent),
            count(pair.arrived),
            count(pair.met),
            count(pair.late.total()),
            worst,
            count(pair.uncertain.total()),
            count(pair.unjudged),
            count(pair.lost),
            pair_note(pair),
        ]);
    }
    format!("\nFrames with a deadline: sent from here, and arrived here from the remote\n{}", table.render())
}

/// Returns where late frames waited, and which frames were refused.
fn pair_note(pair: &PairStatus) -> String {
    let late = [
        (pair.late.sender, "late at the sender"),
        (pair.late.network, "late in the network"),
        (pair.late.receiver, "late here"),
        (pair.dropped, "dropped here"),
        (pair.replayed, "came before"),
        (pair.forged, "with a false stamp"),
        (pair.excess, "beyond the remote's tx"),
        (pair.reordered, "overtaken"),
    ];
    let notes = late.iter().filter(|(n, _)| *n > 0).map(|(n, what)| format!("{} {what}", count(*n)));
    notes.collect::<Vec<_>>().join(", ")
}

/// Explains an uplink's state and its drops.
pub fn why(view: &UplinkView) -> String {
    let name = &view.name;
    let mut out = match (view.state, &view.reason) {
        (State::InForce, _) => format!("{name} is up.\n"),
        (_, reason) => format!(
            "{name} is {}, and no frame passes: {}\nThe agent tries again.\n",
            state(view),
            reason.as_deref().unwrap_or("no reason is known")
        ),
    };
    let Some(stats) = &view.stats else { return out };
    for (title, dropped) in [
        ("Dropped frames to other hosts:", &stats.sent.dropped),
        ("Dropped frames from other hosts:", &stats.received.dropped),
    ] {
        out += &drops(title, dropped);
    }
    if stats.sent.dropped.contains_key(DropReason::PathMtu.label()) {
        let _ = writeln!(
            out,
            "\nThe contract's mtu is {}. A device takes less: `ip link` shows the MTU of those on this host, and another one on \
             the path may have less. Raise that MTU; or set the uplink's mtu to the least of them, and `tidegate plan` \
             names the vNICs that have to change.",
            mtu(view)
        );
    }
    if stats.sent.dropped.is_empty() && stats.received.dropped.is_empty() {
        out += "No frame to or from other hosts was dropped here.\n";
    }
    out
}

fn drops(title: &str, dropped: &BTreeMap<String, u64>) -> String {
    if dropped.is_empty() {
        return String::new();
    }
    let columns = [("frames", Align::Right), ("reason", Align::Left), ("what it means", Align::Left)];
    let mut table = Table::new(&columns);
    for (label, n) in dropped {
        table.row([count(*n), label.clone(), explain::drop_reason(label).into()]);
    }
    let rows: String = table.render().lines().map(|line| format!("  {line}\n")).collect();
    format!("\n{title}\n{rows}")
}

fn counters(stats: &UplinkStats) -> String {
    let right = Align::Right;
    let columns = [("", Align::Left), ("frames", right), ("bytes", right), ("dropped", right)];
    let mut table = Table::new(&columns);
    for (name, traffic) in [("sent", &stats.sent), ("received", &stats.received)] {
        let dropped = total(traffic.dropped.values().copied());
        table.row([name.into(), count(traffic.wire_frames), size(traffic.wire_bytes), count(dropped)]);
    }
    let wire = stats.on_wire;
    format!(
        "{}on the wire: {}, {} with outer headers; {} of floods among them\n",
        table.render(),
        plural(wire.frames, "frame"),
        size(wire.bytes),
        if wire.copies == 1 {
            "1 further copy".into()
        } else {
            format!("{} further copies", count(wire.copies))
        }
    )
}

fn state(view: &UplinkView) -> &'static str {
    match view.state {
        State::InForce => "in force",
        State::Pending => "pending",
        State::Failed => "failed",
        State::Refused => "refused",
    }
}

fn owner(view: &UplinkView) -> &str {
    view.owner.strip_prefix("file:").unwrap_or(&view.owner)
}

/// Returns the MTU of the path, and what is left for guests.
fn mtu(view: &UplinkView) -> String {
    let contract = &view.contract;
    format!(
        "{}, which leaves {} for guests, {} with a deadline",
        contract.mtu,
        contract.guest_mtu(false, false),
        contract.guest_mtu(false, true)
    )
}

fn peer(peer: &Peer) -> String {
    let segments = match &peer.segments {
        Some(segments) => {
            let segments: Vec<String> = segments.iter().map(Segment::to_string).collect();
            format!(", segments {}", segments.join(", "))
        }
        None => String::new(),
    };
    let stamps = if peer.stamps { "" } else { ", no stamps" };
    let at = peer.address.map(|address| format!(" at {address}")).unwrap_or_default();
    format!("{}{at}{segments}{stamps}", peer.name)
}

/// Returns what frames leave by: an address, or a device.
fn way_out(uplink: &Uplink) -> String {
    let address = uplink.local.map(|local| local.to_string());
    address.or_else(|| uplink.device.clone()).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;
    use tidegate_evidence::{LateCounts, OnWire, Traffic};

    fn view() -> UplinkView {
        let text = r#"{"name":"net0","local":"192.0.2.1","rate":"10gbit",
            "peers":[{"name":"far","address":"192.0.2.2","segments":[42],"stamps":false}]}"#;
        let stats = UplinkStats {
            sent: Traffic {
                wire_frames: 1_234,
                wire_bytes: 1_000_000,
                dropped: [("path_mtu".to_owned(), 3)].into(),
                ..Traffic::default()
            },
            on_wire: OnWire { frames: 1_240, bytes: 1_062_000, copies: 6 },
            ..UplinkStats::default()
        };
        UplinkView {
            name: "net0".into(),
            owner: "file:/etc/tidegate/net.toml".into(),
            place: "switch".into(),
            state: State::InForce,
            reason: None,
            contract: serde_json::from_str(text).unwrap(),
            remotes: vec!["cam".into()],
            worker: Some(0),
            stats: Some(stats),
            pairs: vec![],
            rdma: None,
            sockets: vec![],
            sent_rate_bps: Some(8_000_000),
            received_rate_bps: None,
        }
    }

    #[test]
    fn pairs_are_shown_with_the_fate_of_their_frames() {
        let late = LateCounts { network: 2, ..LateCounts::default() };
        let pair = PairStatus {
            vnic: "plc1".into(),
            remote: "cam".into(),
            sent: 9,
            arrived: 8,
            met: 6,
            ..late_by(late)
        };
        let shown = one(&UplinkView { pairs: vec![pair], ..view() });
        let row = shown.lines().find(|line| line.contains("cam") && line.contains("plc1")).unwrap();
        let words: Vec<&str> = row.split_whitespace().collect();
        assert_eq!(words[..6], ["plc1", "cam", "9", "8", "6", "2"]);
        assert!(row.contains("2 late in the network"), "{row}");
        assert!(!one(&view()).contains("Frames with a deadline"));
    }

    #[test]
    fn frames_are_shown_by_queue_and_worker() {
        let counts =
            |worker, ring_full| SocketCounts { queue: 1, worker, frames: 12, ring_full, no_chunk: ring_full };
        let shown = one(&UplinkView { sockets: vec![counts(0, Some(3)), counts(1, None)], ..view() });
        let rows: Vec<Vec<&str>> = shown
            .lines()
            .skip_while(|line| !line.starts_with("Frames from the NIC"))
            .skip(2)
            .map(|line| line.split_whitespace().collect())
            .collect();
        assert_eq!(rows, [["1", "0", "12", "3", "3"], ["1", "1", "12", "-", "-"]]);
        assert!(!one(&view()).contains("Frames from the NIC"));
    }

    fn late_by(late: LateCounts) -> PairStatus {
        PairStatus { late, worst_ns: 84_100, ..PairStatus::default() }
    }

    #[test]
    fn an_uplink_is_shown_with_its_peers_and_counters() {
        let text = one(&view());
        for part in [
            "contract    in force, from /etc/tidegate/net.toml",
            "mtu         1500, which leaves 1450 for guests, 1418 with a deadline",
            "peer        far at 192.0.2.2, segments 42, no stamps",
            "remotes     cam",
            "on the wire: 1,240 frames, 1.06 MB with outer headers; 6 further copies of floods among them",
        ] {
            assert!(text.contains(part), "{part}:\n{text}");
        }
        let table = overview(&[view()]);
        assert!(table.contains("8.00 Mbit/s") && table.lines().count() == 2, "{table}");
    }

    #[test]
    fn why_names_the_mtu_and_what_to_do() {
        let text = why(&view());
        assert!(text.contains("path_mtu") && text.contains("The contract's mtu is 1500"), "{text}");
        let broken =
            UplinkView { state: State::Failed, reason: Some("cannot read it".into()), stats: None, ..view() };
        assert!(why(&broken).starts_with("net0 is failed, and no frame passes: cannot read it\n"));
    }
}
