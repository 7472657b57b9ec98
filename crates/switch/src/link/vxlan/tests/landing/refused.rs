//! Frames that land and are no member's, or that their guest changes meanwhile.

use super::*;
use tidegate_verbs::simulated::{Datagram, Fate};

/// What no member sent, or is for another guest, is in the guest's memory, but is not shown, and the buffers are posted again.
#[test]
fn what_is_refused_is_not_shown_and_its_buffers_are_posted_again() {
    let mut landed = Landed::setup(true, 256, (256, 1536));
    let frame = Spec::udp4(1000).build();
    let good = landed.scene.datagram(&frame);
    let other_mac = [0x52, 0x54, 0, 0, 0, 9];
    let with = |at: usize, mac: &[u8]| {
        let mut bytes = good.bytes.clone();
        bytes[32 + at..][..mac.len()].copy_from_slice(mac);
        Datagram { bytes, ..good.clone() }
    };
    let changed = |at: usize| {
        let mut bytes = good.bytes.clone();
        bytes[at] ^= 0x40;
        Datagram { bytes, ..good.clone() }
    };
    let cut = |len: usize| Datagram { bytes: good.bytes[..len].to_vec(), ..good.clone() };
    let cases = [
        (Datagram { source: good.source + 1, ..good.clone() }, DropReason::UnknownPeer),
        (Datagram { from: [127, 0, 0, 9].into(), ..good.clone() }, DropReason::UnknownPeer),
        (with(6, &other_mac), DropReason::SourceMac),
        // Its guest could have written that: it would speak in the member's name.
        (with(0, &other_mac), DropReason::Malformed),
        (with(0, &[0xff; 6]), DropReason::Malformed),
        (changed(0), DropReason::Malformed),
        (changed(31), DropReason::Malformed),
        (cut(0), DropReason::Malformed),
        (cut(31), DropReason::Malformed),
        (cut(32 + 13), DropReason::Malformed),
    ];
    let (posted, chains) = (landed.landing.posted(), landed.guest.chains_in_use());
    for n in 0..1000 {
        let (datagram, reason) = &cases[n % cases.len()];
        assert_eq!(landed.scene.fabric.forge(datagram.clone()), Fate::Delivered, "{n}");
        assert_eq!(landed.turn(|_| End::Posted), [*reason], "{n}");
    }
    assert_eq!(landed.guest.reap(), []);
    assert_eq!((landed.landing.posted(), landed.guest.chains_in_use()), (posted, chains));
    assert_eq!(landed.scene.fabric.forge(good), Fate::Delivered);
    assert_eq!(landed.turn(|_| End::Posted), []);
    assert_eq!(landed.guest.reap()[0].1, frame);
    landed.end();
}

/// A guest writes other addresses into a buffer, after the device has written and before the switch looks.
#[test]
fn a_guest_that_changes_what_landed_speaks_in_nobodys_name() {
    let mut landed = Landed::setup(false, 256, (256, 4096));
    let frame = Spec::udp4(1000).build();
    for (at, reason) in [(0, DropReason::Malformed), (6, DropReason::SourceMac)] {
        assert_eq!(landed.scene.a.send(&plain(&frame)), Posted::Done);
        for addr in landed.guest.given.values() {
            let place = addr + VnetHdr::LEN as u64;
            if landed.guest.memory.bytes(place, frame.len()) == frame {
                landed.guest.memory.write(place + at, &[0x52, 0x54, 0, 0, 0, 9]);
            }
        }
        assert_eq!(landed.turn(|_| End::Posted), [reason]);
    }
    // Behind the head it changes what it gets itself.
    assert_eq!(landed.scene.a.send(&plain(&frame)), Posted::Done);
    let (memory, given) = (landed.guest.memory.clone(), landed.guest.given.clone());
    landed.turn(|_| {
        for addr in given.values() {
            memory.write(addr + VnetHdr::LEN as u64 + 500, &[0xaa; 8]);
        }
        End::Posted
    });
    let got = &landed.guest.reap()[0].1;
    assert_eq!((got.len(), &got[..500], &got[500..508]), (frame.len(), &frame[..500], &[0xaa; 8][..]));
    landed.end();
}
