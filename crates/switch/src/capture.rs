//! Copies of one vNIC's frames, as pcapng, without making its worker wait.
//!
//! ```text
//!  worker ──record──▶ ring of bytes ──thread──▶ pcapng ──▶ pipe (file, Wireshark)
//!                        └ full: counted, not waited for
//! ```

use crate::port::capture_tap::{CaptureTap, HEADER};
use pcap_file::DataLink;
use pcap_file::pcapng::PcapNgWriter;
use pcap_file::pcapng::blocks::enhanced_packet::{EnhancedPacketBlock, EnhancedPacketOption};
use pcap_file::pcapng::blocks::interface_description::{
    InterfaceDescriptionBlock, InterfaceDescriptionOption,
};
use rtrb::{Consumer, RingBuffer};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use std::borrow::Cow;
use std::fs::File;
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;
use tidegate_service::housekeeping;

/// Capacity of the ring (bytes).
const RING: usize = 8 << 20;
/// Interval at which the writing thread checks the reader and the ring.
const POLL: Timespec = Timespec { tv_sec: 0, tv_nsec: 2_000_000 };
/// Starts a capture into `into`. `finished` runs when it ends.
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
            // EPIPE: the reader has ended the capture.
            tracing::debug!(%error, "capture ended");
        }
        // Tells the worker's end that the capture is over.
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

    /// Writes packets until the port or the reader is gone.
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
