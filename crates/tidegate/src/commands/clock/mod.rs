//! `tidegate clock`: the offsets to other hosts' clocks, and how far they can be trusted.
//!
//! ```text
//!  GET /v1/clock: peers ─┐
//!  adjtimex ─▶ this host ─┴▶ table, and what would tell a microsecond
//! ```
//!
//! - `time_of_day`: what the kernel says of this host's clock

mod time_of_day;

use crate::client::Client;
use crate::exit::{self, Failure};
use crate::format::{count, duration};
use crate::table::{Align, Table};
use serde_json::{Value, json};
use tidegate_agent::views::ClockView;
use tidegate_evidence::PeerStatus;
use time_of_day::TimeOfDay;

/// An error (ns) with which a microsecond can be told.
const MICROSECOND: u64 = 1_000;

/// Arguments of `clock`.
#[derive(Debug, clap::Args)]
pub struct Args {}

/// Prints the clocks of all peers.
pub async fn run(client: &Client, Args {}: Args, json: bool) -> Result<(), Failure> {
    let here = TimeOfDay::read();
    if json {
        let mut answer: Value = client.get("/v1/clock").await?;
        if let Some(answer) = answer.as_object_mut() {
            answer.insert("time_of_day".into(), json!(here));
        }
        return exit::print_json(&answer);
    }
    exit::print(&text(&client.get_for_display("/v1/clock").await?, &here))
}

fn text(clock: &ClockView, here: &TimeOfDay) -> String {
    if clock.peers.is_empty() {
        return format!(
            "No uplink has a peer: there is no other clock to compare with ([uplink.NAME.peer.NAME]).\n{}\n",
            here.text()
        );
    }
    let mut table = Table::new(&[
        ("peer", Align::Left),
        ("uplink", Align::Left),
        ("offset", Align::Right),
        ("error", Align::Right),
        ("least round trip", Align::Right),
        ("age", Align::Right),
        ("answers", Align::Right),
        ("missing", Align::Right),
        ("note", Align::Left),
    ]);
    for peer in &clock.peers {
        let or_dash = |text: Option<String>| text.unwrap_or_else(|| "-".into());
        table.row([
            peer.name.clone(),
            peer.uplink.clone(),
            or_dash(peer.clock.map(|clock| signed(clock.offset_ns))),
            or_dash(peer.clock.map(|clock| duration(clock.error_ns))),
            or_dash(peer.round_trip.map(|trip| duration(trip.least_ns))),
            or_dash(peer.clock.map(|clock| duration(clock.age_ns))),
            count(peer.counts.exchanges),
            count(peer.counts.missing),
            note(peer),
        ]);
    }
    [table.render(), microsecond(&clock.peers), here.text(), String::new()].join("\n")
}

/// Says why a peer's clock is not known, or what was refused of it; empty if all is well.
fn note(peer: &PeerStatus) -> String {
    let refused: u64 = peer.counts.refused.values().fold(0, |sum, count| sum.saturating_add(*count));
    match &peer.unasked {
        Some(why) => why.clone(),
        None if !peer.reachable && peer.counts.exchanges == 0 => {
            "no answer: is UDP open to its notice-port, and the segment's key the same there?".into()
        }
        None if !peer.reachable => "does not answer".into(),
        None if refused > 0 => {
            let most = peer.counts.refused.iter().max_by_key(|(_, count)| **count);
            format!("{} notices refused, most: {}", count(refused), most.map_or("", |(why, _)| why))
        }
        None => String::new(),
    }
}

/// Says what an error means, and what would give a smaller one.
fn microsecond(peers: &[PeerStatus]) -> String {
    let worst = peers.iter().filter_map(|peer| Some(peer.clock?.error_ns)).max();
    let what = "The error is half the least round trip, and what the clocks may have drifted since.\n\
                A frame from there that is late by less is uncertain, and counted apart.";
    match worst {
        None => "No clock is known: frames from other hosts are not judged.".into(),
        Some(worst) if worst <= MICROSECOND => what.into(),
        Some(worst) => format!(
            "{what}\nBelow {}, hardware timestamps of the NIC would tell, or clocks that PTP keeps on both hosts \
             (linuxptp: ptp4l, ts2phc, phc2sys).",
            duration(worst)
        ),
    }
}

fn signed(ns: i64) -> String {
    format!("{}{}", if ns < 0 { "-" } else { "+" }, duration(ns.unsigned_abs()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use tidegate_evidence::{PeerClock, PeerCounts, RoundTrip};

    fn peer(name: &str) -> PeerStatus {
        PeerStatus {
            name: name.into(),
            uplink: "net0".into(),
            address: [192, 0, 2, 2].into(),
            unasked: None,
            reachable: true,
            clock: Some(PeerClock { offset_ns: -1_234_567, error_ns: 8_400, age_ns: 120_000_000 }),
            round_trip: Some(RoundTrip { least_ns: 16_700, last_ns: 20_000 }),
            counts: PeerCounts { exchanges: 1_412, ..PeerCounts::default() },
        }
    }

    fn here() -> TimeOfDay {
        TimeOfDay { synchronised: Some(true), estimated_error_us: Some(40), maximum_error_us: Some(20_000) }
    }

    #[test]
    fn each_peer_has_a_row_and_an_error_is_explained() {
        let silent = PeerStatus {
            reachable: false,
            clock: None,
            round_trip: None,
            counts: PeerCounts { missing: 9, ..PeerCounts::default() },
            ..peer("host3")
        };
        let kernel =
            PeerStatus { unasked: Some("it is no Tidegate host (stamps = false)".into()), ..silent.clone() };
        let text = text(&ClockView { peers: vec![peer("host2"), silent, kernel] }, &here());
        let lines: Vec<&str> = text.lines().collect();
        assert!(
            lines[1].contains("-1.23 ms") && lines[1].contains("8.40 us") && lines[1].contains("16.7 us")
        );
        assert!(lines[2].contains("no answer: is UDP open"), "{text}");
        assert!(lines[3].contains("stamps = false"), "{text}");
        assert!(text.contains("Below 8.40 us, hardware timestamps") && text.contains("linuxptp"), "{text}");
        assert!(text.ends_with("at most 20.0 ms.\n"), "{text}");
    }

    #[test]
    fn what_is_good_enough_needs_no_advice() {
        let mut good = peer("host2");
        good.clock = Some(PeerClock { offset_ns: 5, error_ns: 700, age_ns: 0 });
        let said = text(&ClockView { peers: vec![good] }, &here());
        assert!(!said.contains("hardware"), "{said}");
        assert!(text(&ClockView::default(), &here()).starts_with("No uplink has a peer"));
    }

    #[test]
    fn refused_notices_are_named() {
        let mut peer = peer("host2");
        peer.counts.refused = [("forged".to_owned(), 3), ("replayed".to_owned(), 1)].into();
        assert_eq!(note(&peer), "4 notices refused, most: forged");
    }
}
