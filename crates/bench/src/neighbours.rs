//! Two pairs of honest guests on one thread: one as fast as it may, one that asks how long a frame takes.
//!
//! ```text
//!  bulk ── 1514 B, as fast as it goes ──▶ sink      goodput
//!  voice ── 200 B, one every so often ──▶ ear       delay of each, from when it was due
//! ```

use crate::clock;
use crate::commands::Outcome;
use crate::frames::{Size, UDP_HEADERS, VNET_HDR};
use crate::guest::Guest;
use crate::host::Host;
use crate::load::median;
use serde::Serialize;
use std::path::Path;
use std::time::Duration;
use tidegate_contract::{Attach, Mac, Vnic};
use tidegate_frontend::front_end::{FrontEnd, Options};

/// Where a voice frame says when it was due.
const STAMP: usize = VNET_HDR + UDP_HEADERS;
/// Bytes of a voice frame.
const VOICE: usize = 200;
/// Bytes of a bulk frame.
const BULK: usize = 1514;
/// So long after its end a measurement waits for frames on their way, in pauses between two of them.
const PATIENCE: u64 = 2000;

/// What they had for a while.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct Seen {
    /// What the sink received, Mbit/s.
    pub bulk_mbit: f64,
    /// The voice's delays, us.
    pub voice_p50_us: f64,
    /// Those of one frame in a thousand, at least.
    pub voice_p999_us: f64,
    /// The longest.
    pub voice_worst_us: f64,
    /// Voice frames that did not arrive within 10 ms.
    pub late: u64,
}

impl Seen {
    /// In the middle of both; the worst of both.
    pub fn mean(&self, other: &Self) -> Self {
        let middle = |of: fn(&Self) -> f64| median([of(self), of(other)]);
        Self {
            bulk_mbit: middle(|seen| seen.bulk_mbit),
            voice_p50_us: middle(|seen| seen.voice_p50_us),
            voice_p999_us: middle(|seen| seen.voice_p999_us),
            voice_worst_us: self.voice_worst_us.max(other.voice_worst_us),
            late: self.late.max(other.late),
        }
    }
}

/// The guests.
pub struct Neighbours {
    bulk: Guest,
    sink: Guest,
    voice: FrontEnd,
    ear: FrontEnd,
    frame: Vec<u8>,
    /// Pause between two frames of the voice, ns.
    every: u64,
}

impl Neighbours {
    /// Connects bulk, sink, voice and ear to their vNICs of `host`, and starts the bulk traffic. The voice sends a frame
    /// `every` so many nanoseconds.
    ///
    /// # Errors
    /// The switch does not take one of them.
    pub fn connect(host: &Host, places: [(&str, [u8; 6]); 4], every: u64) -> Outcome<Self> {
        let [bulk, sink, voice, ear] = places;
        let guest = |(name, mac): (&str, [u8; 6])| {
            Guest::connect(&vnic(name, Mac(mac), &host.socket(name)), 1024, Size::Frame(BULK), 2048)
        };
        let (mut from, to) = (guest(bulk)?, guest(sink)?);
        from.load(|flow| Size::Frame(BULK).build(Mac(sink.1), Mac(bulk.1), flow));
        from.start();
        let front = |name: &str| FrontEnd::connect(host.socket(name), Options::default());
        let frame = Size::Frame(VOICE).build(Mac(ear.1), Mac(voice.1), 0);
        Ok(Self { bulk: from, sink: to, voice: front(voice.0)?, ear: front(ear.0)?, frame, every })
    }

    /// Sends and receives for `time`.
    pub fn measure(&mut self, time: Duration) -> Seen {
        let mut delays = Vec::with_capacity((time.as_nanos() as u64 / self.every) as usize + 1);
        let (start, frames) = (clock::now(), self.sink.received.frames);
        let end = start + time.as_nanos() as u64;
        let (mut due, mut received, mut sent, mut now) = (start, Vec::new(), 0, start);
        // Those that are on their way at the end are waited for, but not for ever.
        while now < end || (delays.len() < sent && now < end + self.every * PATIENCE) {
            self.bulk.refill();
            self.sink.drain();
            while due <= now && due < end {
                self.frame[STAMP..STAMP + 8].copy_from_slice(&due.to_le_bytes());
                // What finds no room is as late as can be.
                if !self.voice.send(0, &self.frame) {
                    delays.push(time.as_nanos() as u64);
                }
                sent += 1;
                due += self.every;
            }
            while self.ear.receive_into(0, &mut received) {
                let stamp = received.get(STAMP..STAMP + 8).and_then(|bytes| bytes.try_into().ok());
                let at = stamp.map_or(0, u64::from_le_bytes);
                if received.len() == self.frame.len() && at >= start {
                    delays.push(clock::now().saturating_sub(at));
                }
            }
            now = clock::now();
        }
        delays.resize(sent.max(1), time.as_nanos() as u64);
        delays.sort_unstable();
        let at = |q: f64| delays[((delays.len() - 1) as f64 * q) as usize] as f64 / 1e3;
        let bits = (self.sink.received.frames - frames) as f64 * BULK as f64 * 8.0;
        Seen {
            bulk_mbit: bits / ((now - start) as f64 / 1e3),
            voice_p50_us: at(0.5),
            voice_p999_us: at(0.999),
            voice_worst_us: at(1.0),
            late: delays.iter().filter(|delay| **delay > 10_000_000).count() as u64,
        }
    }
}

/// What a guest has to know of a vNIC.
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
