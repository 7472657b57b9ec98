//! Single frames after silence, from guest to guest and back: both guests sleep until an interrupt wakes
//! them.
//!
//! ```text
//!  a: sleep, frame, kick ─▶ worker wakes up ─▶ call ─▶ b wakes up: the frame back, kick ─▶ ... ─▶ call ─▶ a wakes up
//! ```
//!
//! Compares with two taps on a kernel bridge, whose ends are applications too: here the ends have no
//! network stack.

use crate::clock;
use crate::frames::{Size, UDP_HEADERS, VNET_HDR};
use crate::host::Host;
use crate::measurement::{Outcome, seconds};
use serde::Serialize;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;
use tidegate_contract::Mac;
use tidegate_frontend::front_end::{FrontEnd, Options};

const PATIENCE: Duration = Duration::from_secs(1);
/// Round trips that do not count: the switch learns, and all code runs once.
const FIRST: u16 = 5;
const NAMES: [&str; 2] = ["a", "b"];
/// Length of a frame (bytes, without FCS).
const FRAME: usize = 60;
/// Offset of a frame's number.
const NUMBER: usize = VNET_HDR + UDP_HEADERS;

/// Arguments of `wake`.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// The program whose agent and switch are started
    #[arg(long, value_name = "PATH", default_value = "target/release/tidegate")]
    tidegate: PathBuf,
    /// Round trips
    #[arg(long, value_name = "N", default_value_t = 40, value_parser = clap::value_parser!(u16).range(1..))]
    count: u16,
    /// Silence before each, s
    #[arg(long, value_name = "S", default_value = "0.1", value_parser = seconds)]
    gap: Duration,
    /// CPU of the guest that returns frames; `--cpu` is that of the one that asks
    #[arg(long, value_name = "N")]
    peer_cpu: Option<usize>,
    /// CPU of the switch's worker; not pinned where absent
    #[arg(long, value_name = "N")]
    worker_cpu: Option<usize>,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Report {
    /// Round-trip times of the frames that came back (ns).
    pub trips: Vec<u64>,
    pub lost: usize,
}

impl Report {
    /// Shows half of the round-trip times.
    pub fn table(&self) -> String {
        let mut sorted = self.trips.clone();
        sorted.sort_unstable();
        let way = |part: f64| match sorted.len() {
            0 => f64::NAN,
            count => sorted[((count as f64 * part).ceil() as usize).max(1) - 1] as f64 / 2e3,
        };
        format!(
            "one way, us: p50 {:.1}, p99 {:.1}, most {:.1}; lost: {}",
            way(0.5),
            way(0.99),
            way(1.0),
            self.lost
        )
    }
}

/// Starts an agent and a switch, and sends single frames.
///
/// # Errors
/// Agent or switch do not come up, or refuse the guests.
pub fn run(args: &Args) -> Outcome<Report> {
    let macs = [Mac([0x52, 0x54, 0, 0x09, 2, 1]), Mac([0x52, 0x54, 0, 0x09, 2, 2])];
    let vnics = [0, 1].map(|guest: usize| (NAMES[guest], macs[guest].0, ""));
    let host = Host::start(&args.tidegate, args.worker_cpu.as_slice(), &vnics)?;
    let connect = |name| {
        FrontEnd::connect(host.socket(name), Options::default())
            .map_err(|error| format!("{error}{}", host.last_words()))
    };
    let (mut asks, mut returns) = (connect(NAMES[0])?, connect(NAMES[1])?);
    let ended = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let echo = scope.spawn(|| {
            if let Some(cpu) = args.peer_cpu {
                clock::pin(cpu).map_err(|error| format!("--peer-cpu {cpu}: {error}"))?;
            }
            echo(&mut returns, Size::Frame(FRAME).build(macs[0], macs[1], 0), &ended)
        });
        let rounds = Rounds { count: args.count.into(), gap: args.gap, spin: false };
        let report = ask(&mut asks, Size::Frame(FRAME).build(macs[1], macs[0], 0), rounds);
        ended.store(true, Ordering::Relaxed);
        echo.join().map_err(|_| "the guest that returns frames panicked")??;
        report
    })
}

/// Round trips.
#[derive(Clone, Copy, Debug)]
pub(super) struct Rounds {
    pub count: u64,
    /// Silence before each.
    pub gap: Duration,
    /// The guest looks at its ring all the time, instead of sleeping until an interrupt.
    pub spin: bool,
}

/// Sends each received number back, until `ended`.
pub(super) fn echo(guest: &mut FrontEnd, mut frame: Vec<u8>, ended: &AtomicBool) -> Result<(), String> {
    let mut received = Vec::with_capacity(2048);
    while !ended.load(Ordering::Relaxed) {
        guest.wait_receive(PATIENCE / 10).map_err(|error| error.to_string())?;
        while guest.receive_into(0, &mut received) {
            if let Some(number) = number(&received) {
                frame[NUMBER..NUMBER + 8].copy_from_slice(&number.to_be_bytes());
                guest.send(0, &frame);
            }
        }
    }
    Ok(())
}

/// Sends numbered frames, each after the answer to the one before.
pub(super) fn ask(guest: &mut FrontEnd, mut frame: Vec<u8>, rounds: Rounds) -> Outcome<Report> {
    let mut received = Vec::with_capacity(2048);
    let mut report = Report { trips: Vec::new(), lost: 0 };
    for wanted in 1..=u64::from(FIRST) + rounds.count {
        frame[NUMBER..NUMBER + 8].copy_from_slice(&wanted.to_be_bytes());
        std::thread::sleep(rounds.gap);
        let (began, mut back) = (clock::now(), false);
        guest.send(0, &frame);
        let wait = |guest: &mut FrontEnd| match rounds.spin {
            true => Ok(clock::now() - began < PATIENCE.as_nanos() as u64),
            false => guest.wait_receive(PATIENCE),
        };
        while !back && wait(guest)? {
            while guest.receive_into(0, &mut received) {
                back |= number(&received) == Some(wanted);
            }
        }
        let trip = clock::now() - began;
        match wanted > u64::from(FIRST) {
            true if back => report.trips.push(trip),
            true => report.lost += 1,
            false => {}
        }
    }
    Ok(report)
}

/// Returns the number in a frame; other frames, such as announcements, have none.
fn number(frame: &[u8]) -> Option<u64> {
    let bytes = frame.get(NUMBER..NUMBER + 8)?;
    // 0x0800: IPv4.
    (frame.get(VNET_HDR + 12..VNET_HDR + 14)? == [8, 0]).then_some(u64::from_be_bytes(bytes.try_into().ok()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn half_of_each_round_trip_is_reported() {
        let report = Report { trips: (1..=100).rev().map(|us| us * 2_000).collect(), lost: 1 };
        assert_eq!(report.table(), "one way, us: p50 50.0, p99 99.0, most 100.0; lost: 1");
        assert!(Report { trips: Vec::new(), lost: 2 }.table().ends_with("lost: 2"));
    }

    #[test]
    fn only_own_frames_have_numbers() {
        let mut frame = Size::Frame(FRAME).build(Mac([2; 6]), Mac([4; 6]), 0);
        frame[NUMBER..NUMBER + 8].copy_from_slice(&7u64.to_be_bytes());
        assert_eq!(number(&frame), Some(7));
        frame[VNET_HDR + 13] = 6;
        assert_eq!(number(&frame), None);
        assert_eq!(number(&[]), None);
    }
}
