//! `tidegate-bench forward`: frames per second, over many ports or addresses.

use crate::frames::Size;
use crate::guest::{Guest, Rings};
use crate::load::{Load, Watch, Window, median};
use crate::measurement::{Outcome, Windows, ring};
use crate::scene::Scene;
use clap::ValueEnum;
use serde::Serialize;
use std::time::{Duration, Instant};
use tidegate_contract::Mac;

/// Virtqueue size of a silent guest (entries).
const IDLE_RING: u16 = 64;
/// Longest wait until the switch has learned the addresses behind the ports.
const PATIENCE: Duration = Duration::from_secs(20);

/// Time without a frame after which the switch has learned all addresses.
const QUIET: Duration = Duration::from_millis(20);

/// Arguments of `forward`.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// Which port sends to which
    #[arg(long, value_enum, default_value_t = Pattern::Pairs)]
    pattern: Pattern,
    /// Ports that take part, the first of the file; all where absent
    #[arg(long, value_name = "N")]
    ports: Option<usize>,
    /// Further ports of the file that are connected and silent
    #[arg(long, value_name = "N", default_value_t = 0)]
    idle: usize,
    /// Bytes of a frame without FCS, 42 to 9014
    #[arg(long, value_name = "BYTES", default_value = "64")]
    frame: Size,
    /// Addresses behind all ports together (`allowed = { macs = "any" }`); the vNICs' own where absent
    #[arg(long, value_name = "N")]
    macs: Option<usize>,
    /// Entries of each virtqueue
    #[arg(long, value_name = "N", default_value = "256", value_parser = ring)]
    ring: u16,
    /// Packed virtqueues instead of split ones
    #[arg(long)]
    packed: bool,
    #[command(flatten)]
    windows: Windows,
}

/// Which port sends to which.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, ValueEnum)]
#[serde(rename_all = "kebab-case")]
pub enum Pattern {
    /// The first to the second, the third to the fourth, and so on
    Pairs,
    /// All others to the first
    AllToOne,
    /// The first to all others, in turn
    OneToAll,
}

impl Pattern {
    fn targets(self, ports: usize) -> Vec<Vec<usize>> {
        let to = |port: usize| match self {
            Self::Pairs if port.is_multiple_of(2) && port + 1 < ports => vec![port + 1],
            Self::AllToOne if port > 0 => vec![0],
            Self::OneToAll if port == 0 => (1..ports).collect(),
            _ => vec![],
        };
        (0..ports).map(to).collect()
    }
}

#[derive(Debug, Serialize)]
pub struct Report {
    pattern: Pattern,
    frame: String,
    ring: u16,
    ports: usize,
    senders: usize,
    receivers: usize,
    idle: usize,
    macs: usize,
    huge_pages: bool,
    frames_per_second: f64,
    windows: Vec<Window>,
}

impl Report {
    pub fn table(&self) -> String {
        let mut text = format!(
            "{:?}, frames of {} bytes, {} to {} ports, {} silent, {} addresses: {:.3} Mpps ({:.1} ns a frame)\n",
            self.pattern,
            self.frame,
            self.senders,
            self.receivers,
            self.idle,
            self.macs,
            self.frames_per_second / 1e6,
            1e9 / self.frames_per_second.max(1.0),
        );
        text += "    Mpps   taken us   of the switch us   longest gap us   starved\n";
        for window in &self.windows {
            text += &format!(
                "{:8.3} {:10} {:18} {:16} {:9.2}\n",
                window.frames as f64 / window.seconds / 1e6,
                window.taken_ns / 1000,
                window.switch_taken_ns / 1000,
                window.longest_gap_ns / 1000,
                window.starved
            );
        }
        text.trim_end().to_owned()
    }
}

pub fn run(scene: &Scene, args: &Args, watch: &Watch) -> Outcome<Report> {
    let ports = args.ports.unwrap_or(scene.vnics.len().saturating_sub(args.idle));
    let (vnics, idle) = scene.first(Some(ports + args.idle))?.split_at(ports);
    let targets = args.pattern.targets(vnics.len());
    let senders: Vec<usize> = (0..vnics.len()).filter(|port| !targets[*port].is_empty()).collect();
    let mut receivers: Vec<usize> = targets.iter().flatten().copied().collect();
    receivers.sort_unstable();
    receivers.dedup();
    if senders.is_empty() {
        return Err("traffic takes two ports".into());
    }
    let rings = Rings { size: args.ring, packed: args.packed };
    let connect = |vnic| Guest::connect(vnic, rings, args.frame, args.frame.buffer());
    let guests = vnics.iter().map(connect).collect::<Result<Vec<_>, _>>()?;
    // Kept until the end, because a dropped guest disconnects.
    let silent = |vnic| Guest::connect(vnic, IDLE_RING, args.frame, args.frame.buffer());
    let idle = idle.iter().map(silent).collect::<Result<Vec<_>, _>>()?;
    let mut load = Load { guests, senders, receivers };
    let addresses = Addresses::new(&load, args.macs, args.ring)?;
    for (port, targets) in targets.iter().enumerate() {
        let to = if targets.is_empty() { load.senders.clone() } else { targets.clone() };
        let frame = |n: u16| {
            let n = usize::from(n);
            let (to, turn) = (to[n % to.len()], n / to.len());
            args.frame.build(addresses.mac_of(to, turn), addresses.mac_of(port, n), port as u16)
        };
        let macs: Vec<_> = (0..args.ring).map(frame).collect();
        load.guests[port].load(|n| macs[usize::from(n)].clone());
    }
    if args.macs.is_some() {
        introduce(&mut load)?;
    }
    load.start();
    let windows = load.measure(args.windows.into(), watch)?;
    if windows.iter().all(|window| window.frames == 0) {
        return Err("no frame arrived: are these contracts in force, in one segment?".into());
    }
    Ok(Report {
        pattern: args.pattern,
        frame: args.frame.to_string(),
        ring: args.ring,
        ports: vnics.len(),
        senders: load.senders.len(),
        receivers: load.receivers.len(),
        idle: idle.len(),
        macs: addresses.count(),
        huge_pages: load.guests.iter().chain(&idle).all(Guest::has_huge_pages),
        frames_per_second: median(windows.iter().map(|window| window.frames as f64 / window.seconds)),
        windows,
    })
}

struct Addresses(Vec<Vec<Mac>>);

impl Addresses {
    /// Spreads `macs` addresses evenly over the ports, or uses the vNICs' own if `None`.
    fn new(load: &Load, macs: Option<usize>, ring: u16) -> Outcome<Self> {
        let ports = load.guests.len();
        let own = |guest: &Guest| vec![guest.mac()];
        let Some(macs) = macs else { return Ok(Self(load.guests.iter().map(own).collect())) };
        let each = macs / ports;
        if each == 0 || each > usize::from(ring) {
            // Every frame of a ring has one source and one destination.
            return Err(format!("{macs} addresses on {ports} ports are not 1 to {ring} each (--ring)").into());
        }
        if let Some(guest) = load.guests.iter().find(|guest| !guest.vnic.allowed.any_mac) {
            let name = &guest.vnic.name;
            return Err(format!(
                "vnic.{name} may send from its own address only: allowed = {{ macs = \"any\" }}"
            )
            .into());
        }
        let mac = |port: usize, n: usize| {
            // Locally administered (IEEE 802), in an order that favours no table.
            let spread = (n as u16).wrapping_mul(40_503).to_be_bytes();
            let port = (port as u16).to_be_bytes();
            Mac([0x0a, spread[1], port[0], port[1], spread[0], spread[1]])
        };
        Ok(Self((0..ports).map(|port| (0..each).map(|n| mac(port, n)).collect()).collect()))
    }

    fn mac_of(&self, port: usize, n: usize) -> Mac {
        self.0[port][n % self.0[port].len()]
    }

    fn count(&self) -> usize {
        self.0.iter().map(Vec::len).sum()
    }
}

/// Makes every port send one ring of frames from its addresses, so that the switch learns them.
fn introduce(load: &mut Load) -> Outcome<()> {
    let end = Instant::now() + PATIENCE;
    for port in 0..load.guests.len() {
        load.guests[port].start();
        while !load.guests[port].is_idle() {
            // The switch floods frames to an unknown address to every port.
            for guest in &mut load.guests {
                guest.drain();
            }
            if Instant::now() > end {
                let name = &load.guests[port].vnic.name;
                return Err(format!("the switch does not take the frames of vnic.{name}").into());
            }
        }
    }
    load.settle(QUIET);
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn patterns() {
        let none: Vec<usize> = vec![];
        assert_eq!(Pattern::Pairs.targets(5), [vec![1], vec![], vec![3], vec![], vec![]]);
        assert_eq!(Pattern::AllToOne.targets(3), [none.clone(), vec![0], vec![0]]);
        assert_eq!(Pattern::OneToAll.targets(3), [vec![1, 2], none.clone(), none]);
        assert!(Pattern::Pairs.targets(1).concat().is_empty());
    }
}
