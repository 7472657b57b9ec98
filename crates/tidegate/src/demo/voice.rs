//! The voice stream: 1,000 frames of 200 bytes a second, each with its number and its send time.

use super::clock;
use super::contracts::DEADLINE;
use super::order::{Figures, LATE, Window};
use rustix::io::Errno;
use std::collections::HashSet;
use std::io;
use std::net::UdpSocket;
use std::sync::{Arc, Mutex, PoisonError};
use tidegate_evidence::Histogram;

/// Length of a voice frame (bytes, without FCS).
pub const FRAME: usize = 200;
pub const PER_SECOND: u64 = 1_000;

/// Length of the Ethernet, IPv4 and UDP headers (bytes).
const HEADERS: usize = 14 + 20 + 8;
const PAYLOAD: usize = FRAME - HEADERS;

/// Content of a packet: its number and send time (CLOCK_MONOTONIC, ns).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Packet {
    number: u64,
    sent: u64,
}

impl Packet {
    fn bytes(self) -> [u8; PAYLOAD] {
        let mut bytes = [0; PAYLOAD];
        bytes[..8].copy_from_slice(&self.number.to_be_bytes());
        bytes[8..16].copy_from_slice(&self.sent.to_be_bytes());
        bytes
    }

    fn parse(bytes: &[u8]) -> Option<Self> {
        let number = u64::from_be_bytes(bytes.get(..8)?.try_into().ok()?);
        let sent = u64::from_be_bytes(bytes.get(8..16)?.try_into().ok()?);
        (bytes.len() == PAYLOAD).then_some(Self { number, sent })
    }
}

#[derive(Clone, Default)]
pub struct Tally(Arc<Mutex<Counts>>);

#[derive(Default)]
struct Counts {
    window: Window,
    numbers: HashSet<u64>,
    delays: Histogram,
    late: u64,
    late_spans: Vec<Window>,
}

impl Tally {
    pub fn measure(&self, window: Window) {
        *self.counts() = Counts { window, late_spans: Vec::with_capacity(LATE), ..Counts::default() };
    }

    pub fn figures(&self) -> Figures {
        let counts = self.counts();
        Figures {
            frames: counts.numbers.len() as u64,
            delays: counts.delays.occupied().collect(),
            longest: counts.delays.max(),
            late: counts.late,
            late_spans: counts.late_spans.clone(),
            bytes: 0,
        }
    }

    /// Counts a sent packet. Its delay here is the sender's timer lateness.
    fn sent(&self, packet: Packet, due: u64) {
        let mut counts = self.counts();
        if counts.window.holds(packet.sent) {
            counts.numbers.insert(packet.number);
            counts.delays.record(packet.sent.saturating_sub(due));
        }
    }

    /// Counts a received packet in the window in which it was sent, whenever it arrives.
    fn received(&self, packet: Packet, at: u64) {
        let mut counts = self.counts();
        if counts.window.holds(packet.sent) && counts.numbers.insert(packet.number) {
            let delay = at.saturating_sub(packet.sent);
            counts.delays.record(delay);
            if delay > DEADLINE {
                counts.late += 1;
                if counts.late_spans.len() < LATE {
                    counts.late_spans.push(Window { from: packet.sent, to: at });
                }
            }
        }
    }

    fn counts(&self) -> std::sync::MutexGuard<'_, Counts> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Sends until the socket breaks. The send time is read right before the send, so a late wake-up does not
/// look like a slow network.
pub fn send(socket: &UdpSocket, tally: &Tally, realtime: bool) -> io::Result<()> {
    clock::wake_promptly(realtime);
    let period = 1_000_000_000 / PER_SECOND;
    let mut next = clock::now();
    for number in 0.. {
        next += period;
        clock::sleep_until(next);
        let packet = Packet { number, sent: clock::now() };
        match socket.send(&packet.bytes()) {
            // A frame without room in the sender's own interface counts as lost.
            Err(e) if e.raw_os_error() != Some(Errno::NOBUFS.raw_os_error()) => return Err(e),
            _ => tally.sent(packet, next),
        }
    }
    Ok(())
}

pub fn receive(socket: &UdpSocket, tally: &Tally, realtime: bool) -> io::Result<()> {
    clock::wake_promptly(realtime);
    // One byte more: a longer frame, such as a stray broadcast of the host, is not voice.
    let mut buffer = [0; PAYLOAD + 1];
    loop {
        let length = socket.recv(&mut buffer)?;
        let at = clock::now();
        if let Some(packet) = Packet::parse(&buffer[..length]) {
            tally.received(packet, at);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::Ipv4Addr;

    #[test]
    fn a_frame_has_its_size() {
        assert_eq!(Packet { number: 0, sent: 0 }.bytes().len() + HEADERS, FRAME);
    }

    #[test]
    fn a_packet_parses_back() {
        let packet = Packet { number: 7, sent: 123_456_789_012 };
        assert_eq!(Packet::parse(&packet.bytes()), Some(packet));
        assert_eq!(Packet::parse(&packet.bytes()[..20]), None);
    }

    #[test]
    fn loss_and_delay_are_of_the_window_alone() {
        let tally = Tally::default();
        tally.measure(Window { from: 1_000, to: 2_000 });
        tally.received(Packet { number: 1, sent: 999 }, 1_500);
        tally.received(Packet { number: 2, sent: 1_000 }, 1_010);
        tally.received(Packet { number: 2, sent: 1_000 }, 1_900);
        tally.received(Packet { number: 4, sent: 1_999 }, 2_019);
        tally.received(Packet { number: 5, sent: 2_000 }, 2_001);
        let figures = tally.figures();
        assert_eq!((figures.frames, figures.delays, figures.longest), (2, vec![(10, 1), (20, 1)], 20));
        assert_eq!((figures.late, figures.late_spans), (0, vec![]));
    }

    #[test]
    fn late_frames_are_listed_up_to_a_number() {
        let tally = Tally::default();
        tally.measure(Window { from: 0, to: u64::MAX });
        tally.received(Packet { number: 0, sent: 7 }, 7 + DEADLINE);
        for number in 1..=LATE as u64 + 5 {
            tally.received(Packet { number, sent: number }, number + DEADLINE + 1);
        }
        let figures = tally.figures();
        assert_eq!((figures.late, figures.late_spans.len()), (LATE as u64 + 5, LATE));
        assert_eq!(figures.late_spans[0], Window { from: 1, to: DEADLINE + 2 });
    }

    #[test]
    fn voice_over_loopback_is_counted_at_both_ends() {
        let sink = UdpSocket::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        let voice = UdpSocket::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        voice.connect(sink.local_addr().unwrap()).unwrap();
        let (sent, received) = (Tally::default(), Tally::default());
        let now = clock::now();
        let window = Window { from: now, to: now + 50_000_000 };
        sent.measure(window);
        received.measure(window);
        let (tx, rx) = (sent.clone(), received.clone());
        std::thread::spawn(move || send(&voice, &tx, false));
        std::thread::spawn(move || receive(&sink, &rx, false));
        clock::sleep_until(window.to);
        std::thread::sleep(std::time::Duration::from_millis(200));
        assert!(sent.figures().frames > 0);
        assert_eq!(sent.figures().frames, received.figures().frames);
        assert!(received.figures().longest > 0);
    }
}
