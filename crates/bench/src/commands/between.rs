//! One end of a pair of guests on two hosts.
//!
//! ```text
//!  host 1                                        host 2
//!  send ─▶ ring, always full ─▶ switch ─ network ─▶ switch ─▶ receive: frames of each window
//!  ask ─▶ one frame ──────────▶                              ─▶ answer ─▶ back to ask: round trips
//! ```
//!
//! A guest with nothing to do sleeps: in an emulated machine it would take the switch's CPU.

use super::wake::{self, Rounds};
use crate::clock;
use crate::frames::Size;
use crate::guest::Guest;
use crate::measurement::{Outcome, print, ring, seconds};
use crate::scene::{self, Scene};
use clap::ValueEnum;
use serde::Serialize;
use std::sync::atomic::AtomicBool;
use std::time::Duration;
use tidegate_contract::Mac;
use tidegate_frontend::front_end::{FrontEnd, Options};

/// A guest's pause when its ring asks for nothing.
const PAUSE: Duration = Duration::from_millis(1);

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Role {
    /// Sends as fast as the switch permits
    Send,
    /// Counts what arrives
    Receive,
    /// Sends single frames, and waits for each to come back
    Ask,
    /// Sends them back; does not end
    Answer,
}

/// Arguments of `between`.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// What this end does
    #[arg(value_enum)]
    role: Role,
    /// The vNIC of this end
    #[arg(long, value_name = "NAME")]
    vnic: String,
    /// MAC of the other end
    #[arg(long, value_name = "MAC")]
    to: Mac,
    /// Bytes of a frame without FCS
    #[arg(long, value_name = "BYTES", default_value = "1024")]
    frame: Size,
    /// Entries of each virtqueue
    #[arg(long, value_name = "N", default_value = "256", value_parser = ring)]
    ring: u16,
    /// How long a window is, s
    #[arg(long, value_name = "S", default_value = "1", value_parser = seconds)]
    seconds: Duration,
    /// Windows, after one that does not count
    #[arg(long, value_name = "N", default_value_t = 1)]
    windows: usize,
    /// Round trips
    #[arg(long, value_name = "N", default_value_t = 1000)]
    count: u64,
    /// `ask` looks at its ring all the time
    #[arg(long)]
    spin: bool,
}

/// Frames of each window.
#[derive(Debug, Serialize)]
pub struct Report {
    windows: Vec<Window>,
}

#[derive(Debug, Serialize)]
struct Window {
    seconds: f64,
    /// Frames that the switch gave back: sent or dropped.
    sent: u64,
    received: u64,
}

impl Report {
    fn table(&self) -> String {
        let line = |window: &Window| {
            let rate = |frames: u64| frames as f64 / window.seconds;
            format!("sent {:.0}/s, received {:.0}/s", rate(window.sent), rate(window.received))
        };
        self.windows.iter().map(line).collect::<Vec<_>>().join("\n")
    }
}

/// Plays one end.
///
/// # Errors
/// The vNIC is missing from the contracts, or the switch refuses the guest.
pub fn run(scene: &Scene, args: &Args, json: bool) -> Outcome<String> {
    let vnic = scene.vnic(&args.vnic)?;
    let frame = || args.frame.build(args.to, vnic.mac, 0);
    if let Role::Ask | Role::Answer = args.role {
        let options = Options { buffer_size: args.frame.buffer(), ..Options::default() };
        let mut front = FrontEnd::connect(scene::socket(vnic)?, options)?;
        if args.role == Role::Answer {
            wake::echo(&mut front, frame(), &AtomicBool::new(false))?;
            return Ok(String::new());
        }
        let rounds = Rounds { count: args.count, gap: Duration::ZERO, spin: args.spin };
        return print(json, &wake::ask(&mut front, frame(), rounds)?, wake::Report::table);
    }
    let mut guest = Guest::connect(vnic, args.ring, args.frame, args.frame.buffer())?;
    if args.role == Role::Send {
        guest.load(|_| frame());
        guest.start();
    }
    window(&mut guest, args);
    let windows = (0..args.windows).map(|_| window(&mut guest, args)).collect();
    print(json, &Report { windows }, Report::table)
}

fn window(guest: &mut Guest, args: &Args) -> Window {
    let (start, before) = (clock::now(), (guest.sent, guest.received.frames));
    let end = start + args.seconds.as_nanos() as u64;
    let mut now = start;
    while now < end {
        let sent = guest.sent;
        if args.role == Role::Send {
            guest.refill();
        }
        if guest.drain() == 0 && guest.sent == sent {
            std::thread::sleep(PAUSE);
        }
        now = clock::now();
    }
    Window {
        seconds: (now - start) as f64 / 1e9,
        sent: guest.sent - before.0,
        received: guest.received.frames - before.1,
    }
}
