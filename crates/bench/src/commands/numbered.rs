//! Numbered frames from one vNIC to another until stopped: how many arrive, are lost or arrive twice.
//! Guests reconnect after the death of their switch, as QEMU's do.
//!
//! ```text
//!  number ─▶ frame ─▶ transmit ring ══ switch ══▶ receive ring ─▶ number ─▶ Arrivals ─▶ a line of JSON a second
//! ```

use crate::clock;
use crate::frames::{Size, UDP_HEADERS, VNET_HDR};
use crate::guest::GuestError;
use crate::measurement::{Outcome, seconds};
use crate::scene::{self, Scene};
use rustix::io::Errno;
use rustix::net::RecvFlags;
use serde::Serialize;
use std::time::Duration;
use tidegate_contract::Vnic;
use tidegate_frontend::front_end::{FrontEnd, Options};

/// Time between two looks at the rings.
const PAUSE: Duration = Duration::from_millis(1);
/// Time between two attempts to reconnect (ns).
const RETRY: u64 = 20_000_000;
/// Offset of a frame's number.
const NUMBER: usize = VNET_HDR + UDP_HEADERS;

/// Arguments of `numbered`.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// The vNIC that sends
    #[arg(long, value_name = "VNIC")]
    from: String,
    /// The vNIC that receives
    #[arg(long, value_name = "VNIC")]
    to: String,
    /// Bytes of a frame
    #[arg(long, value_name = "BYTES", default_value_t = 1000, value_parser = clap::value_parser!(u16).range(60..=1518))]
    frame: u16,
    /// Stop after this time, s
    #[arg(long, value_name = "S", default_value = "86400", value_parser = seconds)]
    time: Duration,
}

/// One line of output: counts since the start.
#[derive(Clone, Copy, Debug, Default, Serialize)]
pub struct Line {
    pub seconds: f64,
    pub sent: u64,
    /// Bytes of frames received for the first time, without FCS.
    pub bytes: u64,
    #[serde(flatten)]
    pub arrivals: Arrivals,
    pub reconnects: u64,
}

/// Arrivals of numbers that were sent in order. A number more than [`WINDOW`] below the latest counts as a
/// duplicate.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Arrivals {
    pub received: u64,
    /// Numbers below the latest that did not arrive.
    pub lost: u64,
    pub duplicates: u64,
    /// Frames that arrived after a later one.
    pub late: u64,
}

/// More than the frames that are ever under way.
const WINDOW: u64 = 1 << 16;

struct Numbers {
    seen: Vec<bool>,
    next: u64,
    arrivals: Arrivals,
}

impl Numbers {
    fn new() -> Self {
        Self { seen: vec![false; WINDOW as usize], next: 0, arrivals: Arrivals::default() }
    }

    /// Records `number`. Returns whether it arrived for the first time.
    fn arrived(&mut self, number: u64) -> bool {
        let slot = (number % WINDOW) as usize;
        if number >= self.next {
            // Skipped numbers count as lost until they arrive.
            for skipped in self.next.max((number + 1).saturating_sub(WINDOW))..number {
                self.seen[(skipped % WINDOW) as usize] = false;
            }
            self.arrivals.lost += number - self.next;
            self.next = number + 1;
        } else if self.next - number > WINDOW || self.seen[slot] {
            self.arrivals.duplicates += 1;
            return false;
        } else {
            self.arrivals.late += 1;
            self.arrivals.lost -= 1;
        }
        self.seen[slot] = true;
        self.arrivals.received += 1;
        true
    }
}

struct Guest {
    front: FrontEnd,
    connected: bool,
    retry_at: u64,
}

impl Guest {
    fn connect(vnic: &Vnic) -> Result<Self, GuestError> {
        let socket = scene::socket(vnic)?;
        let front = FrontEnd::connect(socket, Options::default()).map_err(|source| GuestError::Connect {
            name: vnic.name.clone(),
            socket: socket.display().to_string(),
            source,
        })?;
        Ok(Self { front, connected: true, retry_at: 0 })
    }

    /// Returns whether the guest is connected; reconnects if not. The second value is `true` just after a
    /// reconnection.
    fn ensure_connected(&mut self, now: u64) -> (bool, bool) {
        if self.connected {
            let ended = self.front.stream().is_ok_and(|stream| {
                let peeked = rustix::net::recv(stream, &mut [0u8; 1], RecvFlags::PEEK | RecvFlags::DONTWAIT);
                !matches!(peeked, Err(Errno::AGAIN | Errno::INTR) | Ok((1.., _)))
            });
            self.connected = !ended;
        }
        if !self.connected && now >= self.retry_at {
            self.retry_at = now + RETRY;
            self.connected = self.front.reconnect().is_ok();
            return (self.connected, self.connected);
        }
        (self.connected, false)
    }
}

/// Sends and counts, and prints a line every second.
///
/// # Errors
/// A vNIC is missing from the contracts, or the switch refuses it at the start.
pub fn run(scene: &Scene, args: &Args) -> Outcome<String> {
    let (from, to) = (scene.vnic(&args.from)?, scene.vnic(&args.to)?);
    let (mut sender, mut receiver) = (Guest::connect(from)?, Guest::connect(to)?);
    let mut frame = Size::Frame(args.frame.into()).build(to.mac, from.mac, 0);
    let mut received = Vec::with_capacity(2048);
    let (mut numbers, mut line) = (Numbers::new(), Line::default());
    let start = clock::now();
    let end = start + args.time.as_nanos() as u64;
    let mut next_line_at = start + 1_000_000_000;
    loop {
        let now = clock::now();
        for guest in [&mut sender, &mut receiver] {
            line.reconnects += u64::from(guest.ensure_connected(now).1);
        }
        if sender.connected {
            loop {
                frame[NUMBER..NUMBER + 8].copy_from_slice(&line.sent.to_be_bytes());
                if !sender.front.push(0, &frame) {
                    break;
                }
                line.sent += 1;
            }
            sender.front.flush(0);
        }
        while receiver.front.receive_into(0, &mut received) {
            if let Some(bytes) = received.get(NUMBER..NUMBER + 8) {
                let number = u64::from_be_bytes(bytes.try_into()?);
                if numbers.arrived(number) {
                    line.bytes += (received.len() - VNET_HDR) as u64;
                }
            }
        }
        if now >= next_line_at || now >= end {
            next_line_at += 1_000_000_000;
            line.seconds = (now - start) as f64 / 1e9;
            line.arrivals = numbers.arrivals;
            if now >= end {
                return Ok(serde_json::to_string(&line)?);
            }
            println!("{}", serde_json::to_string(&line)?);
        }
        std::thread::sleep(PAUSE);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::BTreeSet;

    proptest! {
        #[test]
        fn arrivals_equal_those_of_a_set(steps in prop::collection::vec((0u64..40, any::<bool>()), 1..200)) {
            let (mut numbers, mut seen, mut next) = (Numbers::new(), BTreeSet::new(), 0u64);
            let (mut late, mut duplicates) = (0, 0);
            for (step, forward) in steps {
                let number = if forward { next + step } else { next.saturating_sub(step) };
                if !seen.insert(number) {
                    duplicates += 1;
                } else if number < next {
                    late += 1;
                }
                next = next.max(number + 1);
                numbers.arrived(number);
            }
            let received = seen.len() as u64;
            let expected = Arrivals { received, lost: next - received, duplicates, late };
            prop_assert_eq!(numbers.arrivals, expected);
        }
    }
}
