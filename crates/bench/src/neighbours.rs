//! Two pairs of honest guests on one thread: one sends as fast as it may, the other measures delays.
//!
//! ```text
//!  bulk ── 1514 B, as fast as it goes ──▶ sink      goodput
//!  voice ── 200 B, one every so often ──▶ ear       delay of each, from when it was due
//! ```

use crate::clock;
use crate::frames::{Size, UDP_HEADERS, VNET_HDR};
use crate::guest::Guest;
use crate::host::Host;
use crate::load::{Watch, median};
use crate::measurement::Outcome;
use serde::Serialize;
use std::path::Path;
use std::time::Duration;
use tidegate_contract::{Attach, Mac, Vnic};
use tidegate_frontend::front_end::{FrontEnd, Options};

/// Offset of the time at which a voice frame was due.
const STAMP: usize = VNET_HDR + UDP_HEADERS;
/// Length of a voice frame (bytes).
const VOICE: usize = 200;
/// Length of a bulk frame (bytes).
const BULK: usize = tidegate_contract::frame::FRAME as usize;
/// Virtqueue size of bulk and sink (entries).
const RING: u16 = 1024;
/// Time between two checks whether a CPU was taken away (ns).
const PART: u64 = 2_000_000;
/// Largest CPU time taken away in an undisturbed part (ns).
const TAKEN: u64 = 10_000;
/// Longest time without a look at the rings in an undisturbed part (ns).
const GAP: u64 = 50_000;
/// Longest wait for frames under way at the end of a measurement, in pauses between two voice frames.
const PATIENCE: u64 = 2000;

#[derive(Clone, Copy, Debug, Serialize)]
pub struct Figures {
    pub bulk_mbit: f64,
    pub voice_p50_us: f64,
    pub voice_p999_us: f64,
    pub voice_worst_us: f64,
    /// Voice frames that did not arrive within 10 ms.
    pub late: u64,
    /// Voice frames that did not arrive: each counts as a delay of the whole window.
    pub lost: u64,
}

impl Figures {
    /// Returns the means; of the worst delay, and of late and lost frames, the larger value.
    pub fn mean(&self, other: &Self) -> Self {
        let middle = |of: fn(&Self) -> f64| median([of(self), of(other)]);
        Self {
            bulk_mbit: middle(|seen| seen.bulk_mbit),
            voice_p50_us: middle(|seen| seen.voice_p50_us),
            voice_p999_us: middle(|seen| seen.voice_p999_us),
            voice_worst_us: self.voice_worst_us.max(other.voice_worst_us),
            late: self.late.max(other.late),
            lost: self.lost.max(other.lost),
        }
    }
}

/// The counts of one window, or of several together.
#[derive(Clone, Debug, Default)]
pub struct Window {
    /// Bulk frames that the sink received.
    frames: u64,
    /// Length (ns).
    length: u64,
    /// When each voice frame was due, and its delay (ns).
    delays: Vec<(u64, u64)>,
    lost: u64,
    /// Begin and end of the parts in which a CPU was taken away.
    taken: Vec<(u64, u64)>,
}

impl Window {
    pub fn join(&mut self, other: Self) {
        self.frames += other.frames;
        self.length += other.length;
        self.delays.extend(other.delays);
        self.lost += other.lost;
        self.taken.extend(other.taken);
    }

    /// Returns the sorted delays of the voice frames under way while no CPU was [taken
    /// away](Neighbours::watch) (us).
    pub fn undisturbed(&self) -> Vec<f64> {
        // Parts are in order and do not overlap: finds the first that ends after a frame was due.
        let disturbed = |due: u64, delay: u64| {
            let part = self.taken.partition_point(|(_, end)| *end <= due);
            self.taken.get(part).is_some_and(|(start, _)| *start <= due + delay)
        };
        let undisturbed_delays = self.delays.iter().filter(|(due, delay)| !disturbed(*due, *delay));
        let mut undisturbed_delays: Vec<f64> =
            undisturbed_delays.map(|(_, delay)| *delay as f64 / 1e3).collect();
        undisturbed_delays.sort_by(f64::total_cmp);
        undisturbed_delays
    }

    pub fn arrived(&self) -> usize {
        self.delays.len()
    }

    /// Returns the bulk frames received per second.
    pub fn rate(&self) -> f64 {
        self.frames as f64 / (self.length.max(1) as f64 / 1e9)
    }

    pub fn figures(&self) -> Figures {
        let mut delays: Vec<u64> = self.delays.iter().map(|(_, delay)| *delay).collect();
        delays.resize((delays.len() + self.lost as usize).max(1), self.length);
        delays.sort_unstable();
        let at = |q: f64| quantile(&delays, q) as f64 / 1e3;
        Figures {
            bulk_mbit: self.rate() * BULK as f64 * 8.0 / 1e6,
            voice_p50_us: at(0.5),
            voice_p999_us: at(0.999),
            voice_worst_us: at(1.0),
            late: delays.iter().filter(|delay| **delay > 10_000_000).count() as u64,
            lost: self.lost,
        }
    }
}

pub struct Neighbours {
    bulk: Guest,
    sink: Guest,
    voice: FrontEnd,
    ear: FrontEnd,
    frame: Vec<u8>,
    /// Pause between two voice frames (ns).
    every: u64,
    /// Pause between two refills of bulk's ring (ns); 0 to send as fast as it may.
    pause: u64,
    watch: Option<Watch>,
}

impl Neighbours {
    /// Connects bulk, sink, voice and ear to their vNICs of `host`, and starts the bulk traffic. Voice
    /// sends a frame every `every` nanoseconds.
    ///
    /// # Errors
    /// The switch refuses a guest.
    pub fn connect(host: &Host, places: [(&str, [u8; 6]); 4], every: u64) -> Outcome<Self> {
        let [bulk, sink, voice, ear] = places;
        let guest = |(name, mac): (&str, [u8; 6])| {
            Guest::connect(&vnic(name, Mac(mac), &host.socket(name)), RING, Size::Frame(BULK), 2048)
        };
        let (mut from, to) = (guest(bulk)?, guest(sink)?);
        from.load(|flow| Size::Frame(BULK).build(Mac(sink.1), Mac(bulk.1), flow));
        from.start();
        // Room for the frames that are due after a thread lost its CPU for some 100 ms.
        let options = || Options { queue_size: 1024, ..Options::default() };
        let front = |name: &str| FrontEnd::connect(host.socket(name), options());
        let frame = Size::Frame(VOICE).build(Mac(ear.1), Mac(voice.1), 0);
        let (voice, ear) = (front(voice.0)?, front(ear.0)?);
        Ok(Self { bulk: from, sink: to, voice, ear, frame, every, pause: 0, watch: None })
    }

    /// Makes bulk send `rate` frames a second from now on, a ring of them at a time; 0: as many as the
    /// switch takes.
    pub fn pace(&mut self, rate: f64) {
        self.pause = if rate > 0.0 { (f64::from(RING) / rate * 1e9) as u64 } else { 0 };
    }

    /// Makes later windows note when a CPU was taken away from the guests' thread or from the workers of
    /// the switch with process id `switch`.
    ///
    /// # Errors
    /// The process does not exist, or has no worker.
    pub fn watch(&mut self, switch: u32) -> Outcome<()> {
        self.watch = Some(Watch::new(Some(switch))?);
        Ok(())
    }

    /// Sends and receives for `time`. Returns the figures.
    pub fn measure(&mut self, time: Duration) -> Figures {
        self.window(time).figures()
    }

    /// Sends and receives for `time`. Returns the counts.
    pub fn window(&mut self, time: Duration) -> Window {
        let mut delays = Vec::with_capacity((time.as_nanos() as u64 / self.every) as usize + 1);
        let (start, frames) = (clock::now(), self.sink.received.frames);
        let end = start + time.as_nanos() as u64;
        let (mut due, mut received, mut now) = (start, Vec::new(), start);
        let mut refill = start;
        let mut parts = Parts::new(self.watch.as_ref(), start);
        // Waits up to `PATIENCE` for frames under way at the end, or without room so far.
        let under_way =
            |due, arrived: &Vec<_>| due < end || ((due - start) / self.every) as usize > arrived.len();
        while now < end || (under_way(due, &delays) && now < end + self.every * PATIENCE) {
            if now >= refill {
                self.bulk.refill();
                refill = now + self.pause;
            }
            self.sink.drain();
            while due <= now && due < end {
                self.frame[STAMP..STAMP + 8].copy_from_slice(&due.to_le_bytes());
                if !self.voice.send(0, &self.frame) {
                    break;
                }
                due += self.every;
            }
            while self.ear.receive_into(0, &mut received) {
                let stamp = received.get(STAMP..STAMP + 8).and_then(|bytes| bytes.try_into().ok());
                let at = stamp.map_or(0, u64::from_le_bytes);
                if received.len() == self.frame.len() && at >= start {
                    delays.push((at, clock::now().saturating_sub(at)));
                }
            }
            now = clock::now();
            parts.note(now);
        }
        let wanted = (end - start).div_ceil(self.every);
        Window {
            frames: self.sink.received.frames - frames,
            length: now - start,
            lost: wanted.saturating_sub(delays.len() as u64),
            delays,
            taken: parts.taken,
        }
    }
}

/// Finds the parts of a window in which a CPU was taken away.
struct Parts<'a> {
    watch: Option<&'a Watch>,
    /// CPU time taken away before this part, from the guests' thread and from the workers (ns).
    before: (u64, u64),
    /// Begin of the part, and time of the last look at the rings.
    start: u64,
    last: u64,
    /// Longest time between two looks in this part (ns).
    gap: u64,
    taken: Vec<(u64, u64)>,
}

impl<'a> Parts<'a> {
    fn new(watch: Option<&'a Watch>, start: u64) -> Self {
        let before = watch.and_then(|watch| watch.read().ok()).unwrap_or_default();
        Self { watch, before, start, last: start, gap: 0, taken: Vec::new() }
    }

    #[inline]
    fn note(&mut self, now: u64) {
        self.gap = self.gap.max(now - self.last);
        self.last = now;
        if now - self.start >= PART {
            self.end(now);
        }
    }

    fn end(&mut self, now: u64) {
        // If the switch ended, the measurement fails elsewhere.
        let taken = self.watch.and_then(|watch| watch.read().ok()).unwrap_or(self.before);
        let most = (taken.0 - self.before.0).max(taken.1 - self.before.1);
        // The kernel does not count time that the hypervisor takes; a gap between two looks shows it.
        if self.watch.is_some() && (most > TAKEN || self.gap > GAP) {
            self.taken.push((self.start, now));
        }
        (self.before, self.start, self.gap) = (taken, now, 0);
        self.last = clock::now();
    }
}

/// Returns the quantile `q` (0 to 1) of `sorted`; 0 without values.
pub fn quantile<T: Copy + Default>(sorted: &[T], q: f64) -> T {
    sorted.get((sorted.len().saturating_sub(1) as f64 * q) as usize).copied().unwrap_or_default()
}

/// Builds the contract of a vNIC on the vhost-user socket `path`.
pub fn vnic(name: &str, mac: Mac, path: &Path) -> Vnic {
    let toml = format!(
        "[vnic.{name}]\nattach = {{ vhost-user = \"{}\" }}\nmac = \"{mac}\"\nsegment = 1\n",
        path.display()
    );
    let document = tidegate_contract::parse(&toml, "bench").expect("a contract");
    let vnic = document.vnics.into_iter().next().expect("one vNIC").value;
    debug_assert!(matches!(vnic.attach, Attach::VhostUser { .. }));
    vnic
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn frames_that_were_under_way_while_a_cpu_was_gone_are_left_out() {
        let delays = vec![
            (0, 9_000),
            (10_000, 1_000),
            (19_000, 2_000),
            (25_000, 1_000),
            (30_500, 3_000),
            (5_000, 90_000),
        ];
        let window = Window { delays, taken: vec![(20_000, 30_000), (40_000, 50_000)], ..Window::default() };
        assert_eq!(window.undisturbed(), [1.0, 3.0, 9.0]);
        assert_eq!(quantile(&[1, 2, 3], 0.999), 2);
        assert_eq!(quantile::<u64>(&[], 0.5), 0);
    }
}
