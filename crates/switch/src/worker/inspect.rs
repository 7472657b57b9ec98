//! What the sender's contract says of a frame, by its copied head.
//!
//! ```text
//!  head ─▶ parse ─▶ offload request ─▶ length ─▶ policy, claims ─▶ marks ─▶ learn ─▶ may be sent
//!            └──────────┴───────────────┴───────────┴──────────────────────┴──▶ dropped: why
//! ```

use super::Worker;
use crate::frame::offload::check;
use crate::frame::{Headers, L3, L4, clear_realtime_marks, parse, segments, wire_bytes};
use crate::port::{Frame, Port};
use crate::stats::DropReason;

impl Worker {
    /// Decides on a frame by its copied head: whether it may be sent.
    pub(super) fn inspect(&mut self, port: &mut Port, frame: &mut Frame) -> Result<(), DropReason> {
        let len = frame.len as usize;
        let headers = parse(frame.head(), len).map_err(|_| DropReason::Malformed)?;
        let offload =
            check(&frame.vnet, &headers, frame.head_len as usize, len).map_err(|_| DropReason::Malformed)?;
        let longest = offload.gso_size().map_or(frame.len, |size| u32::from(headers.len) + u32::from(size));
        if longest > port.contract.frame_max {
            return Err(DropReason::TooLong);
        }
        self.admit(port, frame.head(), &headers)?;
        frame.segment = port.segment;
        frame.headers = headers;
        frame.offload = offload;
        frame.wire_frames = segments(offload, &headers, len);
        frame.wire_bytes = wire_bytes(offload, &headers, len);
        frame.flow = flow_hash(frame.head(), &headers);
        let Some(info) = &self.infos[port.index as usize] else { return Err(DropReason::NoReceiver) };
        if info.deadline.is_none() {
            let head_len = frame.head_len as usize;
            clear_realtime_marks(&mut frame.bytes[..head_len], &mut frame.headers);
        }
        if info.learns {
            let seconds = (self.now / 1_000_000_000) as u32;
            if let Err(crate::fdb::NotLearned::Pinned) =
                self.fdb.learn(frame.segment, headers.src, port.index, seconds)
            {
                // Another vNIC's own address, sent from behind a bridge: spoofed.
                return Err(DropReason::SourceMac);
            }
        }
        Ok(())
    }
}

/// Equal for all frames of a flow, and of fragments to the same host.
pub(super) fn flow_hash(head: &[u8], headers: &Headers) -> u32 {
    let (l3, l4) = (headers.l3_offset as usize, headers.l4_offset as usize);
    let addresses = match headers.l3 {
        L3::Ipv4 => l3 + 12..l3 + 20,
        L3::Ipv6 => l3 + 8..l3 + 40,
        _ => 0..12,
    };
    let ports = match headers.l4 {
        L4::Tcp | L4::Udp => l4..l4 + 4,
        _ => 0..0,
    };
    let bytes = |range| head.get::<std::ops::Range<usize>>(range).unwrap_or(&[]);
    let mix = |hash: u32, word: &[u8; 4]| {
        (hash.rotate_left(5) ^ u32::from_le_bytes(*word)).wrapping_mul(0x9e37_79b1)
    };
    let (words, _) = bytes(addresses).as_chunks();
    let hash = words.iter().fold(0, mix);
    let (words, _) = bytes(ports).as_chunks();
    // The low bits choose the queue: the high ones are mixed best.
    words.iter().fold(hash, mix) >> 8
}

impl From<crate::frame::policy::Reason> for DropReason {
    fn from(reason: crate::frame::policy::Reason) -> Self {
        use crate::frame::policy::Reason;
        match reason {
            Reason::SourceMac | Reason::NeighbourMac => Self::SourceMac,
            Reason::SourcePrefix | Reason::ArpSpoof | Reason::NeighbourSpoof => Self::SourcePrefix,
            Reason::LinkLocal => Self::LinkLocal,
            Reason::Control => Self::Control,
            Reason::Router => Self::Router,
            Reason::DhcpServer => Self::DhcpServer,
            Reason::Vlan => Self::Vlan,
            Reason::Encapsulation | Reason::Hidden => Self::Encapsulation,
        }
    }
}
