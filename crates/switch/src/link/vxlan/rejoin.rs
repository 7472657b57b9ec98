//! Segments that arrived in one message, as the super-frame that they were. Pure.
//!
//! ```text
//!  │ frame │ frame │ frame │ frame │     of one peer and segment, one after the other
//!      └─ intact TCP segment ─▶ Joined ◀─ join ─┴─ intact? no: it begins anew, alone
//!                                  └▶ head of a super-frame, and the bodies in place: copied once
//! ```
//!
//! No frame waits for another: only those that are there join. A sender's super-frame is cut into one train, and the
//! kernel delivers a train as one message, so most come back whole. A receiver that takes no super-frames gets it
//! cut again.
//!
//! The receiver of a super-frame computes no checksum, so that of each frame is checked before, and a frame with a
//! wrong one is delivered alone, as it came. A frame with bytes behind its packet, as a deadline's stamp is, never
//! joins; nor do frames with different congestion marks ([`Joined`]).

use super::sockets::DATAGRAMS;
use crate::frame::offload::TSO_SIZE_MIN;
use crate::frame::{HEADER_MAX, Headers, Joined, L4, VnetHdr, is_intact, parse};

/// A super-frame whose body is still in the message.
pub struct Whole<'a> {
    head: [u8; HEADER_MAX],
    headers: Headers,
    vnet: VnetHdr,
    /// The frames that it was; all have headers of the same length.
    frames: [&'a [u8]; DATAGRAMS],
    count: usize,
}

impl<'a> Whole<'a> {
    /// Returns its headers.
    #[inline]
    pub fn head(&self) -> &[u8] {
        &self.head[..usize::from(self.headers.len)]
    }

    /// Returns its virtio header.
    #[inline]
    pub fn vnet(&self) -> VnetHdr {
        self.vnet
    }

    /// Returns the parts of its body, one of each frame; at least 2.
    #[inline]
    pub fn body(&self) -> impl ExactSizeIterator<Item = &'a [u8]> + Clone {
        let headers = usize::from(self.headers.len);
        self.frames[..self.count].iter().map(move |frame| &frame[headers..])
    }
}

/// Joins `first` and as many of the frames `behind` it as belong to it; `None` if none does. It ends at the first frame with a
/// wrong checksum, so that each frame is looked at twice at most.
#[inline]
pub fn rejoin<'a>(first: &'a [u8], behind: impl Iterator<Item = &'a [u8]> + Clone) -> Option<Whole<'a>> {
    segment(behind.clone().next()?)?;
    let headers = segment(first).filter(|headers| is_intact(first, headers))?;
    let mut joined = Joined::begin(head(first), &headers, first.len())?;
    if first.len() - usize::from(headers.len) < usize::from(TSO_SIZE_MIN) {
        return None;
    }
    let mut frames: [&[u8]; DATAGRAMS] = [&[]; DATAGRAMS];
    frames[0] = first;
    let mut count = 1;
    for frame in behind.take(DATAGRAMS - 1) {
        if joined.is_complete() {
            break;
        }
        let Some(own) = segment(frame).filter(|own| is_intact(frame, own)) else { break };
        if !joined.join(head(frame), &own, frame.len()) {
            break;
        }
        frames[count] = frame;
        count += 1;
    }
    if count == 1 {
        return None;
    }
    let (head, headers, vnet) = joined.finish()?;
    Some(Whole { head, headers, vnet, frames, count })
}

/// Returns the headers of a TCP segment.
#[inline]
fn segment(frame: &[u8]) -> Option<Headers> {
    parse(head(frame), frame.len()).ok().filter(|headers| headers.l4 == L4::Tcp)
}

#[inline]
fn head(frame: &[u8]) -> &[u8] {
    &frame[..frame.len().min(HEADER_MAX)]
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::frame::VnetHdr;
    use crate::frame::testing::{self, Frame as Spec};
    use crate::link::vxlan::tests::scene::{asking, on_the_wire};
    use proptest::prelude::*;

    /// Returns the frames of a TCP super-frame on the wire.
    fn segments(spec: &Spec, size: u16) -> Vec<Vec<u8>> {
        on_the_wire(&asking(spec, Some(size)))
    }

    fn rejoined(frames: &[Vec<u8>]) -> Option<Whole<'_>> {
        rejoin(&frames[0], frames[1..].iter().map(|frame| &frame[..]))
    }

    /// Returns how many frames join, 1 if none does.
    fn count(frames: &[Vec<u8>]) -> usize {
        rejoined(frames).map_or(1, |whole| whole.body().len())
    }

    #[test]
    fn segments_are_one_frame_again() {
        for spec in [Spec::tcp4(5000), Spec::tcp6(5000)] {
            let frames = segments(&spec, 1448);
            let whole = rejoined(&frames).unwrap();
            let bytes = [whole.head().to_vec(), whole.body().collect::<Vec<_>>().concat()].concat();
            assert_eq!((whole.body().len(), whole.vnet().gso_size), (4, 1448));
            assert_eq!(bytes.len(), spec.build().len());
            assert_eq!(bytes[whole.head().len()..], spec.payload);
        }
    }

    #[test]
    fn neither_datagrams_nor_a_frame_alone_nor_tiny_segments_join() {
        let datagrams = vec![Spec::udp4(500).build(); 3];
        assert_eq!(count(&datagrams), 1);
        assert_eq!(count(&segments(&Spec::tcp4(500), 500)), 1);
        assert_eq!(count(&[Spec::tcp4(4).build(), Spec::tcp4(4).build()]), 1);
    }

    #[test]
    fn other_marks_and_bytes_behind_the_packet_do_not_join() {
        let frames = segments(&Spec { ecn: 2, ..Spec::tcp4(5000) }, 1000);
        assert_eq!(count(&frames), 5);
        let mut marked = frames.clone();
        let headers = parse(head(&frames[2]), frames[2].len()).unwrap();
        crate::frame::set_ecn(&mut marked[2], &headers, 3);
        assert_eq!(count(&marked), 2);
        let mut stamped = frames;
        stamped[3].extend([0x74; 32]);
        assert_eq!((count(&stamped), count(&stamped[3..])), (3, 1));
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(512))]

        /// A changed bit anywhere in a frame: those before it join, and it never does.
        #[test]
        fn a_broken_frame_is_delivered_alone(
            (v6, broken, bit) in (any::<bool>(), 0..8usize, any::<prop::sample::Index>()),
        ) {
            let spec = if v6 { Spec::tcp6(2400) } else { Spec::tcp4(2400) };
            let mut frames = segments(&spec, 300);
            prop_assert_eq!(count(&frames), 8);
            // Behind the addresses of Ethernet, which no checksum includes.
            let bit = bit.index(8 * (frames[broken].len() - 14)) + 8 * 14;
            frames[broken][bit / 8] ^= 1 << (bit % 8);
            // Flow label, traffic class and hop limit of IPv6 are in no checksum, but equal in all frames: they may only
            // join if they are the first frame's.
            let joined = count(&frames);
            prop_assert!(joined == broken.max(1) || broken == 0 && joined == 1, "{joined} of {broken}");
            prop_assert_eq!(count(&frames[broken..]), 1);
        }

        /// Of any bytes, as much is joined as the frames have.
        #[test]
        fn any_frames_are_judged_without_panic(
            mut frames in prop::collection::vec(testing::hostile(), 1..5), same: bool,
        ) {
            if same {
                frames = vec![frames[0].clone(); 4];
            }
            if let Some(whole) = rejoined(&frames) {
                prop_assert!(whole.body().len() >= 2);
                prop_assert!(whole.vnet() != VnetHdr::default());
            }
        }
    }
}
