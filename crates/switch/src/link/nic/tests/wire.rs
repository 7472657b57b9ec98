//! Frames as a device gets them.

use crate::frame::VnetHdr;
use crate::frame::testing::{self, Frame as Spec};
use crate::link::nic::wire::{ADDRESSES, PACKET, Room, Size, TAG, Tci, Written, XDP, write};
use crate::link::vxlan::tests::scene::{Sent, asking, bytes, on_the_wire, plain};
use proptest::prelude::*;

const TCI: Tci = Tci::new(0xabc, 5);

/// Room for so many frames, which it keeps.
struct Frames(usize, Vec<(Vec<u8>, Size)>);

impl Room for Frames {
    fn room(&mut self, len: usize, size: Size) -> Option<&mut [u8]> {
        if self.1.len() == self.0 {
            return None;
        }
        self.1.push((vec![0xee; len], size));
        self.1.last_mut().map(|(bytes, _)| &mut bytes[..])
    }
}

/// Takes the tag out of a frame.
fn untagged(frame: &[u8]) -> Vec<u8> {
    let (addresses, rest) = frame.split_at(ADDRESSES);
    assert_eq!(rest[..TAG], [0x81, 0, 0xaa, 0xbc], "priority 5");
    [addresses, &rest[TAG..]].concat()
}

fn asks(spec: &Spec, size: Option<u16>) -> Sent {
    // UDP of odd shapes asks for nothing.
    if spec.tcp { asking(spec, size) } else { plain(&spec.build()) }
}

proptest! {
    #[test]
    fn without_the_tag_a_frame_is_the_sent_one(spec in testing::frame(), size in prop::option::of(100..400u16)) {
        let sent = asks(&spec, size);
        let mut room = Frames(1, vec![]);
        prop_assert_eq!(write(&sent.frame, TCI, &PACKET, &mut room), Written::All);
        let (written, length) = &room.1[0];
        let (header, frame) = written.split_at(VnetHdr::LEGACY_LEN);
        let header = VnetHdr::read_legacy(header).unwrap();
        prop_assert_eq!(untagged(frame), bytes(sent.frame.head(), sent.frame.payload()));
        prop_assert_eq!((length.frames, length.bytes), (sent.frame.wire_frames, sent.frame.wire_bytes));
        prop_assert_eq!(header.needs_csum(), spec.tcp);
        if spec.tcp {
            let start = usize::from(header.csum_start);
            prop_assert_eq!(&frame[start..start + 4], &sent.frame.head()[start - TAG..][..4], "what is summed");
            prop_assert_eq!(header.gso_size, sent.frame.offload.gso_size().unwrap_or(0));
        }
    }

    #[test]
    fn a_device_without_abilities_gets_finished_frames(spec in testing::frame(), size in prop::option::of(100..400u16)) {
        let sent = asks(&spec, size);
        let mut room = Frames(usize::MAX, vec![]);
        prop_assert_eq!(write(&sent.frame, TCI, &XDP, &mut room), Written::All);
        let expected = if spec.tcp { on_the_wire(&sent) } else { vec![spec.build()] };
        let got: Vec<_> = room.1.iter().map(|(frame, _)| untagged(frame)).collect();
        prop_assert_eq!(&got, &expected);
        prop_assert_eq!(room.1.iter().map(|(_, size)| size.frames).sum::<u32>() as usize, expected.len());
        prop_assert_eq!(room.1.iter().map(|(_, size)| size.bytes).sum::<u32>(), sent.frame.wire_bytes);
    }
}

#[test]
fn segments_without_room_are_told() {
    let sent = asking(&Spec::tcp4(3000), Some(1000));
    for (most, written) in
        [(0, Written::NoRoom), (1, Written::Part(1000)), (2, Written::Part(2000)), (3, Written::All)]
    {
        assert_eq!(write(&sent.frame, TCI, &XDP, &mut Frames(most, vec![])), written);
    }
}
