//! Calibration: what it costs on this machine that stages share a CPU, and that frames go from CPU to CPU.
//!
//! ```text
//!  machine ─▶ pairings ─▶ rounds: idle, together, apart, apart, together ... ─▶ judge ─▶ rows ─▶ costs ─▶ file
//!                            └─ window: flows through private network namespaces, rings, a cache line
//! ```
//!
//! Real stages: senders, veth pairs, the kernel's stack on the CPU that `rps_cpus` names, sockets, receiver threads that stand for virtual
//! CPUs. Nothing outside of the private namespaces changes. Both placements of a pairing take turns, and the machine has to tell them
//! apart ([`judge`]) before a measured value replaces a prior.
//!
//! - [`pairings`]: which placements are compared. Pure
//! - [`layout`]: which CPU does what in one window. Pure
//! - `window`, `threads`: a window and its threads
//! - `network`, `flow`: the namespaces, and what sends and receives there
//! - `memory`: work without the kernel's network
//! - `burn`: the used time of a CPU
//! - [`judge`]: whether two placements are told apart. Pure
//! - [`measured`]: rows, and costs from them. Pure
//! - [`file`]: costs on disk

mod burn;
pub mod file;
mod flow;
pub mod judge;
pub mod layout;
pub mod measured;
mod memory;
mod network;
pub mod pairings;
mod threads;
mod window;

use layout::{Layout, Window};
use measured::{Row, Samples};
use network::Network;
use pairings::{Pair, Pairing, pairings};
use std::collections::BTreeMap;
use std::os::unix::fs::FileTypeExt;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};
use tidegate_cores::cpus::Cpus;
use tidegate_cores::machine::Machine;

/// Fewest rounds of each pairing.
const ROUNDS: u32 = 9;
/// Shortest and longest window: more time makes more rounds.
const SHORTEST: Duration = Duration::from_millis(25);
const LONGEST: Duration = Duration::from_millis(150);
/// Time of a window beside its measured time.
const AROUND: Duration = Duration::from_millis(20);

/// What was measured, and what was not.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Calibration {
    /// The pairings.
    pub rows: Vec<(Pair, Row)>,
    /// Pairs that were not measured, in words, each with the reason.
    pub missing: Vec<(String, String)>,
    /// The part of the CPUs' time that other programs used, in the median idle window.
    pub busy: f64,
}

/// Why there is no calibration.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum CalibrateError {
    /// Asked to stop.
    #[error("interrupted")]
    Interrupted,
    /// Nothing can be told apart.
    #[error("there is one CPU that may be used: all stages run there, and nothing can be compared")]
    OneCpu,
    /// A step failed; the reason.
    #[error("{0}")]
    Failed(String),
}

/// Measures for about `span`. `progress` hears which pairing is measured, and the part that is done, 0 to 1.
/// The calling thread stays in a private network namespace: call it on a thread of its own.
///
/// # Errors
/// `stop` was set, there is one CPU, or a window failed.
pub fn calibrate(
    machine: &Machine,
    permitted: &Cpus,
    span: Duration,
    stop: &AtomicBool,
    progress: &mut dyn FnMut(&str, f64),
) -> Result<Calibration, CalibrateError> {
    let (mut pairings, missing) = pairings(machine, permitted);
    if pairings.is_empty() {
        return Err(CalibrateError::OneCpu);
    }
    let mut missing: Vec<_> =
        missing.into_iter().map(|(pair, reason)| (pair.words().to_owned(), reason)).collect();
    missing.extend(never_measured());
    let network = Network::new();
    if let Err(reason) = &network {
        let lost = pairings.iter().filter(|pairing| pairing.pair.needs_network());
        let mut lost: Vec<Pair> = lost.map(|pairing| pairing.pair).collect();
        lost.dedup();
        missing.extend(lost.into_iter().map(|pair| (pair.words().to_owned(), reason.clone())));
        pairings.retain(|pairing| !pairing.pair.needs_network());
    }
    let network = network.ok();
    // Of each pairing and round: an idle window, and one of each placement.
    let windows = (3 * pairings.len() as u32).max(1);
    let each = (span / (windows * ROUNDS)).saturating_sub(AROUND).clamp(SHORTEST, LONGEST);
    let rounds = (span.as_nanos() / ((each + AROUND).as_nanos() * u128::from(windows))) as u32;
    let rounds = rounds.max(ROUNDS) as usize;
    let mut samples: Vec<Samples> = pairings.iter().map(|_| Samples::default()).collect();
    let (begun, mut busy) = (Instant::now(), vec![]);
    for round in 0..rounds {
        // On a busy machine windows take longer.
        if round >= judge::FEWEST && begun.elapsed() > 2 * span {
            break;
        }
        for (number, (pairing, samples)) in pairings.iter().zip(&mut samples).enumerate() {
            let done = (round * pairings.len() + number) as f64 / (rounds * pairings.len()) as f64;
            progress(pairing.pair.words(), done);
            let measure = |layout: &Layout| {
                if stop.load(Ordering::Relaxed) {
                    return Err(CalibrateError::Interrupted);
                }
                window::measure(layout, network.as_ref(), each).map_err(CalibrateError::Failed)
            };
            let background = background(pairing, &measure)?;
            // A B, B A: what changes steadily meanwhile hits both alike.
            let (together, apart) = if round % 2 == 0 {
                let together = measure(&pairing.together)?;
                (together, measure(&pairing.apart)?)
            } else {
                let apart = measure(&pairing.apart)?;
                (measure(&pairing.together)?, apart)
            };
            busy.extend(background.values());
            samples.push(pairing, &background, together, apart);
        }
    }
    let busy = judge::median(&mut busy);
    let of = |(pairing, samples): (&Pairing, _)| (pairing.pair, Row::of(pairing, samples));
    let (rows, without): (Vec<_>, Vec<_>) =
        pairings.iter().zip(&samples).map(of).partition(|(_, row)| row.judged.rounds > 0);
    let reason =
        format!("other programs filled its CPUs in each round ({:.0} % of all CPUs' time)", 100.0 * busy);
    missing.extend(without.into_iter().map(|(pair, _)| (pair.words().to_owned(), reason.clone())));
    Ok(Calibration { rows, missing, busy })
}

/// Measures which part of each CPU's time other programs use.
fn background(
    pairing: &Pairing,
    measure: &impl Fn(&Layout) -> Result<Window, CalibrateError>,
) -> Result<BTreeMap<usize, f64>, CalibrateError> {
    let idle: Vec<usize> = pairing.together.cpus().union(&pairing.apart.cpus()).copied().collect();
    let window = measure(&Layout { idle, ..Layout::default() })?;
    Ok(window.used.iter().map(|(cpu, used)| (*cpu, used / window.span)).collect())
}

/// Pairs that no calibration measures, and why.
fn never_measured() -> Vec<(String, String)> {
    let device = std::fs::metadata("/dev/vhost-net");
    let vhost = if device.is_ok_and(|device| device.file_type().is_char_device()) {
        "it takes a VM behind a tap"
    } else {
        "there is no /dev/vhost-net"
    };
    vec![
        ("vhost-net with any other stage".into(), format!("{vhost}: the priors stay")),
        ("interrupts".into(), "veth pairs have none: the priors stay".into()),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;
    use tidegate_cores::machine::Distance;

    #[test]
    fn other_programs_are_seen_where_workers_poll_too() {
        let together = Layout { line: Some((1, 2)), ..Layout::default() };
        let apart = Layout { handed: Some((3, 4)), copies: vec![5], ..Layout::default() };
        let pairing = Pairing { pair: Pair::WorkerWorker, distance: Distance::Cache, together, apart };
        let busy = |layout: &Layout| {
            assert_eq!((layout.handed, layout.line, layout.copies.len()), (None, None, 0));
            let used = layout.idle.iter().map(|cpu| (*cpu, 50.0)).collect();
            Ok(Window { span: 100.0, used, ..Window::default() })
        };
        let found = background(&pairing, &busy).unwrap();
        assert_eq!(found, (1..=5).map(|cpu| (cpu, 0.5)).collect());
    }
}
