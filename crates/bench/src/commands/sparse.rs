//! `tidegate-bench sparse`: delay of the probes of a sparse flow beside flows that fill the same vNIC's
//! limit.
//!
//! ```text
//!  flows 0..N in turn ──▶ ┌──────────┐                    ┌─▶ bytes of each flow: rate, Jain's index
//!                         │ tx ring  │══ switch, limit ═══┤
//!  a probe every 10 ms ─▶ └──────────┘                    └─▶ its number: the time since it was due
//!                          `spare` descriptors are left free by the flows
//! ```
//!
//! The flows never react to drops or marks: they are always ready to send. If they leave no descriptor
//! free, a probe waits in the guest, and that time counts.

use crate::clock;
use crate::frames::{SEGMENT, Size, TCP_HEADERS, UDP_HEADERS, VNET_HDR};
use crate::measurement::{Outcome, ring, seconds};
use crate::scene::{self, Scene};
use crate::shares::jain;
use serde::Serialize;
use std::time::Duration;
use tidegate_frontend::front_end::{FrontEnd, MRG_RXBUF, Options};

/// VIRTIO_NET_F_CSUM, GUEST_CSUM, GUEST_TSO4 and HOST_TSO4.
const OFFLOADS: u64 = 1 << 0 | 1 << 1 | 1 << 7 | 1 << 11;
/// Time between two probes (ns).
const GAP: u64 = 10_000_000;
/// Length of a probe (bytes, without FCS).
const PROBE: usize = 60;
/// Flow number of the probes, above all others.
const SPARSE: u16 = u16::MAX;
/// Offset of a frame's source port, which is its flow number.
const FLOW: usize = VNET_HDR + 34;
/// Offset of a probe's number.
const NUMBER: usize = VNET_HDR + UDP_HEADERS;
/// Longest wait for probes after the last one was due (ns).
const PATIENCE: u64 = 3_000_000_000;
/// Frames received between two looks at the clock.
const BATCH: usize = 64;

/// Arguments of `sparse`.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// vNIC that sends
    #[arg(long, value_name = "NAME")]
    from: String,
    /// vNIC that receives
    #[arg(long, value_name = "NAME")]
    to: String,
    /// Flows that fill the limit
    #[arg(long, value_name = "N", default_value = "8", value_parser = clap::value_parser!(u16).range(0..=1024))]
    flows: u16,
    /// Bytes of their frames without FCS, 42 to 9014, or `super` for 64 KB TCP super-frames
    #[arg(long, value_name = "BYTES", default_value = "super")]
    frame: Size,
    /// Entries of each virtqueue
    #[arg(long, value_name = "N", default_value = "256", value_parser = ring)]
    ring: u16,
    /// Descriptors of the transmit ring that the flows leave free
    #[arg(long, value_name = "N", default_value = "8")]
    spare: u16,
    /// Traffic before the first probe, s
    #[arg(long, value_name = "S", default_value = "2", value_parser = seconds)]
    warm_up: Duration,
    /// How long to send probes, s
    #[arg(long, value_name = "S", default_value = "5", value_parser = seconds)]
    seconds: Duration,
}

#[derive(Debug, Serialize)]
pub struct Report {
    /// One-way time from when a probe was due until it was received.
    p50_ns: u64,
    p99_ns: u64,
    p999_ns: u64,
    worst_ns: u64,
    probes: usize,
    lost: usize,
    /// Probes that found no free descriptor when they were due.
    ring_full: usize,
    /// Payload of the flows that arrived while probes were sent.
    goodput_bits_per_second: f64,
    /// Largest payload share of a limit's bits: with full frames or full segments.
    payload_share: f64,
    /// Jain's index of the flows' payload; 1 without flows.
    jain: f64,
}

impl Report {
    pub fn table(&self) -> String {
        let ms = |ns: u64| ns as f64 / 1e6;
        format!(
            "probes, ms: p50 {:.3}, p99 {:.3}, p99.9 {:.3}, worst {:.3}; {} of {} lost, {} found the ring full\n\
             goodput {:.3} Mbit/s, Jain's index {:.3}",
            ms(self.p50_ns),
            ms(self.p99_ns),
            ms(self.p999_ns),
            ms(self.worst_ns),
            self.lost,
            self.probes,
            self.ring_full,
            self.goodput_bits_per_second / 1e6,
            self.jain,
        )
    }
}

/// The probes by number: when each was due, and its delay.
#[derive(Debug, Default)]
struct Probes {
    due: Vec<u64>,
    took: Vec<Option<u64>>,
}

impl Probes {
    fn sent(&mut self, due: u64) {
        self.due.push(due);
        self.took.push(None);
    }

    /// Records an arrival. Ignores repeated and unknown numbers.
    fn arrived(&mut self, number: u64, now: u64) {
        let at = usize::try_from(number).unwrap_or(usize::MAX);
        if let (Some(due), Some(took @ None)) = (self.due.get(at), self.took.get_mut(at)) {
            *took = Some(now.saturating_sub(*due));
        }
    }

    fn all_came(&self) -> bool {
        self.took.iter().all(Option::is_some)
    }

    fn lost(&self) -> usize {
        self.took.iter().filter(|took| took.is_none()).count()
    }

    fn sorted(&self) -> Vec<u64> {
        let mut sorted: Vec<u64> = self.took.iter().flatten().copied().collect();
        sorted.sort_unstable();
        sorted
    }
}

/// Returns the smallest value of `sorted` that at least `share` of the values do not exceed; 0 without
/// values.
fn percentile(sorted: &[u64], share: f64) -> u64 {
    let rank = (sorted.len() as f64 * share).ceil() as usize;
    sorted.get(rank.max(1) - 1).copied().unwrap_or(0)
}

/// Returns flow and payload length of a received frame with its virtio_net_hdr; `None` if it is not IPv4.
fn payload_of(frame: &[u8]) -> Option<(u16, usize)> {
    if frame.get(VNET_HDR + 12..VNET_HDR + 14)? != [8, 0] {
        return None;
    }
    let headers = if frame[VNET_HDR + 23] == 6 { TCP_HEADERS } else { UDP_HEADERS };
    let flow = frame.get(FLOW..FLOW + 2)?;
    Some((u16::from_be_bytes([flow[0], flow[1]]), frame.len().checked_sub(VNET_HDR + headers)?))
}

struct Run {
    sender: FrontEnd,
    receiver: FrontEnd,
    frames: Vec<Vec<u8>>,
    next: usize,
    most: usize,
    received: Vec<u8>,
    payload: Vec<u64>,
    probes: Probes,
}

impl Run {
    /// Fills the ring with the flows in turn, except the spare descriptors, and receives a batch.
    fn turn(&mut self) -> u64 {
        let room = self.most.saturating_sub(self.sender.in_flight(0));
        if !self.frames.is_empty() && room > 0 {
            for _ in 0..room {
                if !self.sender.push(0, &self.frames[self.next]) {
                    break;
                }
                self.next = (self.next + 1) % self.frames.len();
            }
            self.sender.flush(0);
        }
        let now = clock::now();
        for _ in 0..BATCH {
            if !self.receiver.receive_into(0, &mut self.received) {
                break;
            }
            match payload_of(&self.received) {
                Some((SPARSE, _)) => {
                    if let Some(number) = self.received[NUMBER..].first_chunk() {
                        self.probes.arrived(u64::from_be_bytes(*number), clock::now());
                    }
                }
                Some((flow, bytes)) => {
                    if let Some(sum) = self.payload.get_mut(usize::from(flow)) {
                        *sum += bytes as u64;
                    }
                }
                None => {}
            }
        }
        now
    }
}

/// # Errors
/// The contracts lack a vNIC, the switch refuses one, or no probe arrived.
pub fn run(scene: &Scene, args: &Args) -> Outcome<Report> {
    let (from, to) = (scene.vnic(&args.from)?, scene.vnic(&args.to)?);
    let merged = args.frame == Size::Super;
    let defaults = Options::default();
    let options = Options {
        features: defaults.features | MRG_RXBUF | if merged { OFFLOADS } else { 0 },
        queue_size: args.ring,
        buffer_size: args.frame.buffer(),
        ..defaults
    };
    let connect =
        |vnic| -> Outcome<FrontEnd> { Ok(FrontEnd::connect(scene::socket(vnic)?, options.clone())?) };
    let mut run = Run {
        sender: connect(from)?,
        receiver: connect(to)?,
        frames: (0..args.flows).map(|flow| args.frame.build(to.mac, from.mac, flow)).collect(),
        next: 0,
        most: usize::from(args.ring.saturating_sub(args.spare)),
        received: Vec::with_capacity(args.frame.buffer() as usize),
        payload: vec![0; usize::from(args.flows)],
        probes: Probes::default(),
    };
    let mut probe = Size::Frame(PROBE).build(to.mac, from.mac, SPARSE);
    let warm = clock::now() + args.warm_up.as_nanos() as u64;
    while run.turn() < warm {}
    run.payload.fill(0);
    let (began, mut ring_full, mut waits) = (clock::now(), 0, false);
    let (end, mut due, mut now) = (began + args.seconds.as_nanos() as u64, began, began);
    while now < end {
        if now >= due {
            let number = run.probes.due.len() as u64;
            probe[NUMBER..NUMBER + 8].copy_from_slice(&number.to_be_bytes());
            // Frees descriptors that were completed in the meantime.
            run.sender.in_flight(0);
            if run.sender.send(0, &probe) {
                run.probes.sent(due);
                due += GAP;
                waits = false;
            } else if !waits {
                ring_full += 1;
                waits = true;
            }
        }
        now = run.turn();
    }
    let (payload, nanoseconds) = (run.payload.clone(), now - began);
    while now < end + PATIENCE && !run.probes.all_came() {
        now = run.turn();
    }
    let sorted = run.probes.sorted();
    if sorted.is_empty() {
        return Err("no probe arrived: are both vNICs in one segment?".into());
    }
    let shares: Vec<f64> = payload.iter().map(|bytes| *bytes as f64).collect();
    let payload_share = match args.frame {
        Size::Super => SEGMENT as f64 / (TCP_HEADERS + SEGMENT) as f64,
        Size::Frame(bytes) => (bytes - UDP_HEADERS) as f64 / bytes as f64,
    };
    Ok(Report {
        p50_ns: percentile(&sorted, 0.5),
        p99_ns: percentile(&sorted, 0.99),
        p999_ns: percentile(&sorted, 0.999),
        worst_ns: percentile(&sorted, 1.0),
        probes: run.probes.due.len(),
        lost: run.probes.lost(),
        ring_full,
        goodput_bits_per_second: payload.iter().sum::<u64>() as f64 * 8e9 / nanoseconds as f64,
        payload_share,
        jain: jain(&shares),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use tidegate_contract::Mac;

    #[test]
    fn a_probe_counts_once_and_a_strangers_number_never() {
        let mut probes = Probes::default();
        for due in [100, 200, 300] {
            probes.sent(due);
        }
        probes.arrived(1, 250);
        probes.arrived(1, 900);
        probes.arrived(3, 900);
        probes.arrived(u64::MAX, 900);
        assert_eq!((probes.sorted(), probes.lost(), probes.all_came()), (vec![50], 2, false));
        probes.arrived(0, 110);
        probes.arrived(2, 300);
        assert_eq!((probes.sorted(), probes.lost(), probes.all_came()), (vec![0, 10, 50], 0, true));
    }

    #[test]
    fn percentiles_cover_their_share() {
        let hundred: Vec<u64> = (1..=100).collect();
        assert_eq!([0.5, 0.99, 0.999, 1.0].map(|share| percentile(&hundred, share)), [50, 99, 100, 100]);
        assert_eq!(percentile(&[], 0.5), 0);
        assert_eq!(percentile(&[7], 0.5), 7);
    }

    #[test]
    fn a_frame_says_its_flow_and_its_payload() {
        let (a, b) = (Mac([2, 0, 0, 0, 0, 1]), Mac([2, 0, 0, 0, 0, 2]));
        assert_eq!(payload_of(&Size::Super.build(b, a, 7)), Some((7, 44 * SEGMENT)));
        assert_eq!(payload_of(&Size::Frame(1000).build(b, a, SPARSE)), Some((SPARSE, 1000 - UDP_HEADERS)));
        let mut arp = Size::Frame(60).build(b, a, 7);
        arp[VNET_HDR + 13] = 6;
        assert_eq!(payload_of(&arp), None);
        assert_eq!(payload_of(&[]), None);
    }
}
