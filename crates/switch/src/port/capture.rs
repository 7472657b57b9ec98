//! Copies of one vNIC's frames, as pcapng, without making its worker wait.
//!
//! ```text
//!  worker ──record──▶ ring of bytes ──thread──▶ pcapng ──▶ pipe (file, Wireshark)
//!                        └ full: counted, not waited for
//! ```

use crate::slots::Frame;
use pcap_file::DataLink;
use pcap_file::pcapng::PcapNgWriter;
use pcap_file::pcapng::blocks::enhanced_packet::{EnhancedPacketBlock, EnhancedPacketOption};
use pcap_file::pcapng::blocks::interface_description::{
    InterfaceDescriptionBlock, InterfaceDescriptionOption,
};
use rtrb::{Consumer, Producer, RingBuffer};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::time::{ClockId, clock_gettime};
use std::borrow::Cow;
use std::fs::File;
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;
use tidegate_service::housekeeping;

/// Bytes that may wait for the writing thread.
const RING: usize = 8 << 20;
/// How often the writing thread looks.
const POLL: Timespec = Timespec { tv_sec: 0, tv_nsec: 2_000_000 };
/// time (8), captured length (4), original length (4), direction (1)
const HEADER: usize = 17;

/// Which way a frame went, in the VM's view.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Direction {
    /// The VM sent it (tx).
    FromVm,
    /// The VM received it (rx).
    ToVm,
}

/// The worker's end.
pub struct CaptureTap {
    ring: Producer<u8>,
    snaplen: usize,
    lost: Arc<AtomicU64>,
}

impl CaptureTap {
    /// The reader is gone.
    pub fn is_over(&self) -> bool {
        self.ring.is_abandoned()
    }

    /// Copies a frame, or counts it as lost where the ring is full.
    pub fn record(&mut self, frame: &Frame, direction: Direction) {
        let captured = (frame.len as usize).min(self.snaplen);
        let Ok(mut chunk) = self.ring.write_chunk(HEADER + captured) else {
            self.lost.fetch_add(1, Ordering::Relaxed);
            return;
        };
        let wall = clock_gettime(ClockId::Realtime);
        let mut header = [0; HEADER];
        let time = wall.tv_sec as u64 * 1_000_000_000 + wall.tv_nsec as u64;
        header[..8].copy_from_slice(&time.to_ne_bytes());
        header[8..12].copy_from_slice(&(captured as u32).to_ne_bytes());
        header[12..16].copy_from_slice(&frame.len.to_ne_bytes());
        header[16] = u8::from(direction == Direction::ToVm);

        let (first, second) = chunk.as_mut_slices();
        let mut out = Scatter { parts: [first, second] };
        out.put(header.as_ptr(), HEADER);
        let head = captured.min(frame.head_len as usize);
        out.put(frame.bytes.as_ptr(), head);
        let mut left = captured - head;
        for span in frame.payload() {
            let here = left.min(span.len as usize);
            out.put(span.ptr, here);
            left -= here;
        }
        chunk.commit_all();
    }
}

/// Two slices, filled one after the other.
struct Scatter<'a> {
    parts: [&'a mut [u8]; 2],
}

impl Scatter<'_> {
    fn put(&mut self, mut from: *const u8, mut len: usize) {
        for part in &mut self.parts {
            let here = len.min(part.len());
            // SAFETY: `from` is a frame's own bytes or a span of the source's memory, which is mapped
            // while the frame is in our hands; `here` fits the destination.
            unsafe { std::ptr::copy_nonoverlapping(from, part.as_mut_ptr(), here) };
            *part = &mut std::mem::take(part)[here..];
            from = from.wrapping_add(here);
            len -= here;
        }
    }
}

/// A capture under way: its end is told by `finished`.
pub fn start(
    name: &str,
    snaplen: u32,
    into: File,
    finished: impl FnOnce() + Send + 'static,
) -> io::Result<CaptureTap> {
    let (producer, consumer) = RingBuffer::new(RING);
    let lost = Arc::new(AtomicU64::new(0));
    let mut writer = Writer::new(name, snaplen, into, consumer, lost.clone())?;
    std::thread::Builder::new().name(format!("cap-{name}")).spawn(move || {
        if let Err(error) = writer.run() {
            // Broken pipe is how a reader ends a capture.
            tracing::debug!(%error, "capture ended");
        }
        // The worker's end shows that it is over.
        drop(writer);
        finished();
    })?;
    Ok(CaptureTap { ring: producer, snaplen: snaplen as usize, lost })
}

struct Writer {
    out: PcapNgWriter<File>,
    ring: Consumer<u8>,
    lost: Arc<AtomicU64>,
}

impl Writer {
    fn new(
        name: &str,
        snaplen: u32,
        into: File,
        ring: Consumer<u8>,
        lost: Arc<AtomicU64>,
    ) -> io::Result<Self> {
        let mut out = PcapNgWriter::new(into).map_err(io::Error::other)?;
        let interface = InterfaceDescriptionBlock {
            linktype: DataLink::ETHERNET,
            snaplen,
            options: vec![
                InterfaceDescriptionOption::IfName(Cow::Owned(name.to_owned())),
                // 10^-9 s
                InterfaceDescriptionOption::IfTsResol(9),
            ],
        };
        out.write_pcapng_block(interface).map_err(io::Error::other)?;
        Ok(Self { out, ring, lost })
    }

    /// Writes until the port is gone or the reader is.
    fn run(&mut self) -> io::Result<()> {
        loop {
            housekeeping::follow();
            while self.packet()? {}
            if self.ring.is_abandoned() || self.reader_is_gone()? {
                return Ok(());
            }
        }
    }

    fn packet(&mut self) -> io::Result<bool> {
        let Some(header) = self.take(HEADER) else { return Ok(false) };
        let number =
            |range: std::ops::Range<usize>| u32::from_ne_bytes(header[range].try_into().expect("four bytes"));
        let time = u64::from_ne_bytes(header[..8].try_into().expect("eight bytes"));
        let data = self.take(number(8..12) as usize).unwrap_or_default();
        // epb_flags (pcapng, 4.3): 1 inbound, 2 outbound, seen from the VM.
        let direction = if header[16] == 1 { 1 } else { 2 };
        let mut options = vec![EnhancedPacketOption::Flags(direction)];
        let lost = self.lost.swap(0, Ordering::Relaxed);
        if lost > 0 {
            options.push(EnhancedPacketOption::DropCount(lost));
        }
        let block = EnhancedPacketBlock {
            interface_id: 0,
            timestamp: Duration::from_nanos(time),
            original_len: number(12..16),
            data: Cow::Owned(data),
            options,
        };
        self.out.write_pcapng_block(block).map_err(io::Error::other)?;
        Ok(true)
    }

    fn take(&mut self, len: usize) -> Option<Vec<u8>> {
        let chunk = self.ring.read_chunk(len).ok()?;
        let (first, second) = chunk.as_slices();
        let bytes = [first, second].concat();
        chunk.commit_all();
        Some(bytes)
    }

    fn reader_is_gone(&self) -> io::Result<bool> {
        let mut fds = [PollFd::new(self.out.get_ref(), PollFlags::empty())];
        poll(&mut fds, Some(&POLL))?;
        Ok(fds[0].revents().intersects(PollFlags::ERR | PollFlags::HUP))
    }
}
