//! One window: a layout's threads begin, are measured, and end.

use super::burn::{Burner, burn};
use super::flow::{self, Shared};
use super::layout::{Layout, Window};
use super::memory::{self, Line, Ring};
use super::network::Network;
use super::threads::{Closes, Gate};
use std::thread::{Scope, ScopedJoinHandle};
use std::time::{Duration, Instant};

/// Work before the measured time: caches, neighbours' addresses, the scheduler.
const WARM: Duration = Duration::from_millis(15);

/// Measures a layout for `span`.
///
/// # Errors
/// A thread could not do its work; the reason.
pub fn measure(layout: &Layout, network: Option<&Network>, span: Duration) -> Result<Window, String> {
    let gate = Gate::default();
    let shared: Vec<Shared> = layout.flows.iter().map(|_| Shared::default()).collect();
    let (ring, line) = (Ring::default(), Line::default());
    let burners: Vec<(usize, Burner)> =
        layout.measured().into_iter().map(|cpu| (cpu, Burner::default())).collect();
    if let Some(network) = network {
        for (flow, of) in layout.flows.iter().enumerate() {
            network.steer(flow, of.soft)?;
        }
    }
    std::thread::scope(|scope| {
        // If a thread cannot be started, the others end.
        let closes = Closes(&gate);
        let gate = &gate;
        let mut receivers = vec![];
        let mut senders = vec![];
        for ((flow, of), shared) in layout.flows.iter().enumerate().zip(&shared) {
            let network = network.ok_or("there is no network for flows")?;
            let (socket, to) = (&network.senders[flow], &network.receivers[flow]);
            let sender = start(scope, "send", move || flow::send(of.transmit, socket, shared, gate))?;
            let thread = sender.thread().clone();
            senders.push(sender);
            receivers.push(start(scope, "receive", move || {
                flow::receive(of.receiver, to, shared, &thread, gate)
            })?);
        }
        let handed = match layout.handed {
            Some((worker, receiver)) => {
                let ring = &ring;
                let reader = start(scope, "read", move || memory::read(receiver, ring, gate))?;
                let thread = reader.thread().clone();
                Some((start(scope, "work", move || memory::work(worker, ring, &thread, gate))?, reader))
            }
            None => None,
        };
        let mut turning = vec![];
        if let Some((one, other)) = layout.line {
            let line = &line;
            turning.push(start(scope, "line", move || memory::bounce(one, line, true, gate))?);
            turning.push(start(scope, "line", move || memory::bounce(other, line, false, gate))?);
        }
        for cpu in &layout.copies {
            turning.push(start(scope, "copy", move || memory::copy(*cpu, gate))?);
        }
        let mut burning = vec![];
        for (cpu, burner) in &burners {
            burning.push((*cpu, start(scope, "burn", move || burn(*cpu, burner, gate))?));
        }
        burners.iter().for_each(|(_, burner)| burner.give_way());
        gate.warm();
        std::thread::sleep(WARM);
        gate.open();
        let begin = Instant::now();
        std::thread::sleep(span);
        drop(closes);
        burners.iter().for_each(|(_, burner)| burner.hurry());
        let mut window = Window { span: begin.elapsed().as_nanos() as f64, ..Window::default() };
        for thread in receivers {
            window.frames += joined(thread)?;
        }
        for thread in senders {
            window.lost += joined(thread)?;
        }
        if let Some((worker, reader)) = handed {
            let (frames, of_frame) = joined(reader)?;
            window.frames += frames;
            window.handed = [joined(worker)?, of_frame];
        }
        for (number, thread) in turning.into_iter().enumerate() {
            let turns = joined(thread)?;
            if number == 0 {
                window.turns = turns;
            }
        }
        for (cpu, thread) in burning {
            window.used.insert(cpu, (window.span - joined(thread)?).max(0.0));
        }
        Ok(window)
    })
}

fn start<'scope, T: Send + 'scope>(
    scope: &'scope Scope<'scope, '_>,
    name: &str,
    work: impl FnOnce() -> Result<T, String> + Send + 'scope,
) -> Result<ScopedJoinHandle<'scope, Result<T, String>>, String> {
    let thread = std::thread::Builder::new().name(format!("calibrate-{name}")).spawn_scoped(scope, work);
    thread.map_err(|e| format!("cannot start a thread: {e}"))
}

fn joined<T>(thread: ScopedJoinHandle<'_, Result<T, String>>) -> Result<T, String> {
    thread.join().unwrap_or_else(|_| Err("a thread of the measurement panicked".into()))
}
