//! `tidegate-bench fairness`: each sender's share of one egress that all senders fill.
//!
//! Every vNIC except the receiver sends as much as it may. A number in each frame tells the receiver which
//! sender it is from.

use crate::clock;
use crate::frames::Size;
use crate::guest::Guest;
use crate::load::{Load, Plan, Watch, median};
use crate::measurement::{Outcome, Windows, ring};
use crate::scene::{Scene, SceneError};
use crate::shares::{jain, weight_error};
use serde::Serialize;
use std::time::Duration;

/// Arguments of `fairness`.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// vNIC that receives, with an rx.max; all others send
    #[arg(long, value_name = "NAME")]
    to: String,
    /// Bytes of the senders' frames without FCS, 42 to 9014; several are taken in turn
    #[arg(long, value_name = "BYTES", value_delimiter = ',', default_value = "1518")]
    frame: Vec<Size>,
    /// Entries of each virtqueue
    #[arg(long, value_name = "N", default_value = "256", value_parser = ring)]
    ring: u16,
    #[command(flatten)]
    windows: Windows,
}

#[derive(Debug, Serialize)]
pub struct Report {
    to: String,
    set_bits_per_second: u64,
    senders: Vec<Sender>,
    windows: Vec<Window>,
    /// Over all windows: Jain's index of bytes by weight, of the senders without a minimum.
    jain: f64,
    /// Largest difference from a share by weight (%), of the senders without a minimum.
    weight_error_percent: f64,
    /// Smallest ratio of rate to minimum; `None` without minima.
    least_of_minimum: Option<f64>,
    bits_per_second: f64,
}

#[derive(Debug, Serialize)]
struct Sender {
    name: String,
    weight: u32,
    min_bits_per_second: Option<u64>,
    frame: String,
    bytes: u64,
    bits_per_second: f64,
}

#[derive(Debug, Serialize)]
struct Window {
    start_ns: u64,
    seconds: f64,
    bytes: u64,
    jain: f64,
    weight_error_percent: f64,
    least_of_minimum: Option<f64>,
    longest_gap_ns: u64,
    /// As in the windows of `forward`.
    taken_ns: u64,
    switch_taken_ns: u64,
}

impl Report {
    pub fn table(&self) -> String {
        let mut text = format!(
            "{} senders to {} at {:.1} Mbit/s: Jain's index {:.6}, weights within {:.3} %{}\n",
            self.senders.len(),
            self.to,
            self.bits_per_second / 1e6,
            self.jain,
            self.weight_error_percent,
            self.least_of_minimum.map_or_else(String::new, |least| format!(", minima at least {least:.4}")),
        );
        text += "      Mbit/s   weight   min   name\n";
        for sender in &self.senders {
            let min =
                sender.min_bits_per_second.map_or_else(|| "-".into(), |min| (min / 1_000_000).to_string());
            let rate = sender.bits_per_second / 1e6;
            text += &format!("{rate:12.3} {:8} {min:>5}   {}\n", sender.weight, sender.name);
        }
        text.trim_end().to_owned()
    }
}

pub fn run(scene: &Scene, args: &Args, watch: &Watch) -> Outcome<Report> {
    let to = scene.vnic(&args.to)?;
    let set = to.rx.max.ok_or_else(|| SceneError::NoKey { name: to.name.clone(), key: "rx.max" })?;
    let mut guests = vec![Guest::connect(to, args.ring.max(1024), Size::Frame(1518), 2048)?];
    let mut senders = Vec::new();
    for vnic in scene.vnics.iter().filter(|vnic| vnic.name != to.name) {
        let size = args.frame[senders.len() % args.frame.len()];
        if size == Size::Super {
            return Err("senders of super-frames are not counted by flow".into());
        }
        let mut guest = Guest::connect(vnic, args.ring, size, 2048)?;
        let flow = senders.len() as u16;
        guest.load(|_| size.build(to.mac, vnic.mac, flow));
        senders.push(Sender {
            name: vnic.name.clone(),
            weight: vnic.weight,
            min_bits_per_second: vnic.tx.min.map(|min| min.bits()),
            frame: size.to_string(),
            bytes: 0,
            bits_per_second: 0.0,
        });
        guests.push(guest);
    }
    let sizes: Vec<u64> = (0..senders.len()).map(|n| args.frame[n % args.frame.len()].wire_bytes()).collect();
    let mut load = Load { senders: (1..guests.len()).collect(), receivers: vec![0], guests };
    load.start();
    let plan = Plan::from(args.windows);
    count(&mut load, plan.warm_up, &mut vec![0; sizes.len()])?;
    let mut windows = Vec::new();
    let mut seconds = 0.0;
    for _ in 0..plan.windows {
        let mut frames = vec![0; sizes.len()];
        let start_ns = clock::now();
        let before = watch.read()?;
        let (time, longest_gap_ns) = count(&mut load, plan.window, &mut frames)?;
        let taken = watch.read()?;
        let bytes: Vec<u64> = frames.iter().zip(&sizes).map(|(frames, size)| frames * size).collect();
        let shares = Shares::of(&senders, &bytes, time);
        windows.push(Window {
            start_ns,
            seconds: time,
            bytes: bytes.iter().sum(),
            jain: shares.jain,
            weight_error_percent: shares.weight_error_percent,
            least_of_minimum: shares.least_of_minimum,
            longest_gap_ns,
            taken_ns: taken.0 - before.0,
            switch_taken_ns: taken.1 - before.1,
        });
        senders.iter_mut().zip(&bytes).for_each(|(sender, bytes)| sender.bytes += bytes);
        seconds += time;
    }
    let bytes: Vec<u64> = senders.iter().map(|sender| sender.bytes).collect();
    if bytes.iter().all(|bytes| *bytes == 0) {
        return Err("no frame arrived: are these contracts in force, in one segment?".into());
    }
    for sender in &mut senders {
        sender.bits_per_second = sender.bytes as f64 * 8.0 / seconds;
    }
    let Shares { jain, weight_error_percent, least_of_minimum } = Shares::of(&senders, &bytes, seconds);
    let bits_per_second = median(windows.iter().map(|window| window.bytes as f64 * 8.0 / window.seconds));
    Ok(Report {
        to: to.name.clone(),
        set_bits_per_second: set.bits(),
        senders,
        windows,
        jain,
        weight_error_percent,
        least_of_minimum,
        bits_per_second,
    })
}

/// Runs for `time` and counts frames by flow. Returns the elapsed seconds and the longest gap (ns).
fn count(load: &mut Load, time: Duration, frames: &mut [u64]) -> Outcome<(f64, u64)> {
    let start = clock::now();
    let end = start + time.as_nanos() as u64;
    let (mut last, mut longest, mut unknown) = (start, 0, 0);
    while last < end {
        for &sender in &load.senders {
            load.guests[sender].refill();
        }
        load.guests[0].drain_flows(|flow| match frames.get_mut(usize::from(flow)) {
            Some(count) => *count += 1,
            None => unknown += 1,
        });
        let now = clock::now();
        longest = longest.max(now - last);
        last = now;
    }
    if unknown > 0 {
        return Err(format!("{unknown} frames arrived that no sender sent").into());
    }
    Ok(((last - start) as f64 / 1e9, longest))
}

/// Jain's index and the largest differences from fair shares.
struct Shares {
    jain: f64,
    weight_error_percent: f64,
    least_of_minimum: Option<f64>,
}

impl Shares {
    fn of(senders: &[Sender], bytes: &[u64], seconds: f64) -> Self {
        let all = || senders.iter().zip(bytes);
        let free = || all().filter(|(sender, _)| sender.min_bits_per_second.is_none());
        let got: Vec<f64> = free().map(|(_, bytes)| *bytes as f64).collect();
        let weights: Vec<f64> = free().map(|(sender, _)| f64::from(sender.weight)).collect();
        let by_weight: Vec<f64> = got.iter().zip(&weights).map(|(got, weight)| got / weight).collect();
        let minima = all().filter_map(|(sender, bytes)| {
            Some(*bytes as f64 * 8.0 / seconds / sender.min_bits_per_second? as f64)
        });
        Self {
            jain: jain(&by_weight),
            weight_error_percent: weight_error(&got, &weights) * 100.0,
            least_of_minimum: minima.min_by(f64::total_cmp),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sender(weight: u32, min: Option<u64>) -> Sender {
        let (name, frame) = (String::new(), String::new());
        Sender { name, weight, min_bits_per_second: min, frame, bytes: 0, bits_per_second: 0.0 }
    }

    #[test]
    fn minima_are_apart_from_shares() {
        let senders = [sender(1, None), sender(3, None), sender(9, Some(800)), sender(1, Some(8000))];
        let shares = Shares::of(&senders, &[10, 30, 99, 990], 1.0);
        assert_eq!((shares.jain, shares.weight_error_percent), (1.0, 0.0));
        assert_eq!(shares.least_of_minimum, Some(0.99));
        assert_eq!(Shares::of(&senders[..2], &[1, 1], 1.0).least_of_minimum, None);
    }
}
