//! A tenant: a process with its own network namespace, Linux network stack and one interface, with one
//! role.

use super::order::{Answer, BULK_PORT, Figures, Order, VOICE_PORT, Window};
use super::{bulk, interface, namespace, placement, voice};
use crate::exit;
use clap::ValueEnum;
use std::io::{self, BufRead, Write};
use std::net::{Ipv4Addr, TcpListener, UdpSocket};
use std::thread;
use std::time::Duration;

pub const INTERFACE: &str = "eth0";

/// Time that a tenant waits for its interface and for the sink.
const PATIENCE: Duration = Duration::from_secs(5);

/// What a tenant does.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Role {
    /// Sends voice to the sink.
    Voice,
    /// Sends bulk data to the sink.
    Bulk,
    /// Receives both.
    Sink,
}

/// Runs a tenant until its standard input ends.
///
/// # Errors
/// Standard input or output broke. All other errors are answers.
pub fn run(role: Role) -> io::Result<()> {
    let mut out = io::stdout().lock();
    let mut answer = |answer: &Answer| -> io::Result<()> {
        serde_json::to_writer(&mut out, answer)?;
        out.write_all(b"\n")?;
        out.flush()
    };
    let ready = namespace::enter_tenant().and_then(|()| interface::up("lo"));
    answer(&ready.map_or_else(|e| Answer::Failed(format!("no network namespace: {e}")), |()| Answer::Done))?;
    let mut tenant = Tenant { role, voice: voice::Tally::default(), bulk: bulk::Meter::default() };
    for line in io::stdin().lock().lines() {
        answer(&match serde_json::from_str(&line?) {
            Ok(order) => tenant.obey(order).unwrap_or_else(|e| Answer::Failed(e.to_string())),
            Err(e) => Answer::Failed(format!("not an order: {e}")),
        })?;
    }
    Ok(())
}

struct Tenant {
    role: Role,
    voice: voice::Tally,
    bulk: bulk::Meter,
}

impl Tenant {
    fn obey(&mut self, order: Order) -> io::Result<Answer> {
        match order {
            Order::Start { address, sink, realtime } => self.start(address, sink, realtime)?,
            Order::Measure(window) => self.measure(window),
            Order::Report => return Ok(Answer::Figures(self.figures())),
        }
        Ok(Answer::Done)
    }

    fn start(&self, address: Ipv4Addr, sink: Ipv4Addr, realtime: bool) -> io::Result<()> {
        interface::wait_for(INTERFACE, PATIENCE)?;
        interface::assign(INTERFACE, address, 24)?;
        // Read before this thread, which starts the others, leaves that CPU.
        let prompt = placement::voice_cpus();
        placement::keep_off(prompt);
        match self.role {
            Role::Voice => {
                let socket = UdpSocket::bind((address, 0))?;
                socket.connect((sink, VOICE_PORT))?;
                let tally = self.voice.clone();
                work("voice", move || {
                    placement::keep_to(prompt);
                    voice::send(&socket, &tally, realtime)
                });
            }
            Role::Bulk => bulk::send((sink, BULK_PORT).into(), PATIENCE)?,
            Role::Sink => {
                let socket = UdpSocket::bind((address, VOICE_PORT))?;
                let listener = TcpListener::bind((address, BULK_PORT))?;
                let (tally, meter) = (self.voice.clone(), self.bulk.clone());
                work("voice receiver", move || {
                    placement::keep_to(prompt);
                    voice::receive(&socket, &tally, realtime)
                });
                work("bulk receiver", move || bulk::receive(&listener, &meter));
            }
        }
        Ok(())
    }

    fn measure(&self, window: Window) {
        self.voice.measure(window);
        if self.role == Role::Sink {
            self.bulk.measure(window);
        }
    }

    fn figures(&self) -> Figures {
        Figures { bytes: self.bulk.bytes(), ..self.voice.figures() }
    }
}

/// Runs `body` in a thread. If the stream breaks, the figures would be wrong: the tenant ends, and the demo
/// with it.
fn work(what: &'static str, body: impl FnOnce() -> io::Result<()> + Send + 'static) {
    thread::spawn(move || {
        if let Err(e) = body() {
            exit::print_error(&format!("{what}: {e}"));
            std::process::exit(1);
        }
    });
}
