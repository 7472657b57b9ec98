//! Frames that land in a guest's receive buffers, between two whole switches.
//!
//! ```text
//!  guest a ─▶ switch ─▶ device ══ device ─▶ buffers of guest b ─▶ its driver      b's front end: rings, memory, log change
//! ```

use super::harness::dirty::{Log, migrating};
use super::harness::fabric::{Two, two_with};
use super::harness::{PATIENCE, bytes_in, measured, pump, udp, vnic};
use super::{ZERO_COPY, zero_copy};
use std::time::{Duration, Instant};
use tidegate_frontend::front_end::{MRG_RXBUF, Options};
use tidegate_switch::control::Client;
use tidegate_verbs::simulated::{Datagram, Fate};
use vhost::VhostBackend;

pub(super) fn larger() -> Options {
    let options = Options::default();
    Options { queue_size: 512, buffer_size: 1600, ..options }
}

impl Two {
    /// Sends frames to the second guest until they land; each arrives.
    #[track_caller]
    pub(super) fn until_landing(&mut self) {
        let (began, mut in_a_row) = (Instant::now(), 0);
        while in_a_row < 3 {
            assert!(began.elapsed() < 4 * PATIENCE, "{:?}", self.sides[1].counts());
            let before = self.sides[1].counts();
            let frame = self.frame(0, 1000);
            self.sides[0].guest.send_or_drop(&frame);
            // One by a queue pair that was replaced just now is lost.
            let until = Instant::now() + Duration::from_millis(200);
            let mut has_come = false;
            while !has_come && Instant::now() < until {
                self.sides[1].guest.each(|bytes| has_come |= bytes == frame);
            }
            while has_come && self.sides[1].counts().received == before.received && Instant::now() < until {}
            // It counts when it is back.
            std::thread::sleep(Duration::from_micros(200));
            let after = self.sides[1].counts();
            in_a_row =
                if has_come && after.zero_copied_in > before.zero_copied_in { in_a_row + 1 } else { 0 };
        }
    }

    /// Sends so many frames of any length to the second guest, all of which arrive in order.
    #[track_caller]
    pub(super) fn all_arrive(&mut self, count: usize) {
        for n in 0..count {
            self.send(0, [10, 100, 700, 1400][n % 4]);
        }
    }
}

#[test]
fn frames_land() {
    for options in [Options::default(), larger()] {
        let mut two = two_with(ZERO_COPY, &options);
        two.until_landing();
        let before = two.sides[1].counts();
        two.all_arrive(400);
        two.until("all are back", || two.sides[1].counts().zero_copied_in >= before.zero_copied_in + 400);
        let after = two.sides[1].counts();
        assert_eq!(after.zero_copied_in - before.zero_copied_in, 400);
        assert!(after.copied_in - before.copied_in <= 400 * 192, "{}", after.copied_in - before.copied_in);
        // Each byte is in a head, or was not copied.
        let payload = after.received_bytes - before.received_bytes - (after.copied_in - before.copied_in);
        assert_eq!(after.zero_copied_in_bytes - before.zero_copied_in_bytes, payload);
        assert_eq!((after.malformed, after.spoofed), (0, 0));
    }
}

#[test]
fn local_senders_and_other_hosts_share_a_ring() {
    let mut two = two_with(ZERO_COPY, &larger());
    let options = larger();
    let mut local = two.sides[1].host.guest_with(&vnic("c", 9, ""), options);
    two.until_landing();
    let (to, from) = (two.sides[1].guest.mac(), two.sides[0].guest.mac());
    let frame = |source: [u8; 6], n: u32| udp(to, source, &[&n.to_be_bytes()[..], &[0; 600]].concat());
    let mut next = [0u32; 2];
    let began = Instant::now();
    let mut seen = [0u32; 2];
    while seen != [600; 2] {
        assert!(began.elapsed() < 4 * PATIENCE, "{seen:?} of {next:?}: {:?}", two.sides[1].counts());
        // Fewer on the way than there are buffers.
        for (n, source) in [from, local.mac()].into_iter().enumerate() {
            if next[n] < 600 && next[n] < seen[n] + 20 {
                let guest = if n == 0 { &mut two.sides[0].guest } else { &mut local };
                guest.send(&frame(source, next[n]));
                next[n] += 1;
            }
        }
        let local = local.mac();
        two.sides[1].guest.each(|bytes| {
            let n = usize::from(bytes[6..12] == local);
            let number = u32::from_be_bytes(bytes[42..46].try_into().unwrap());
            assert_eq!(number, seen[n], "each once, in order");
            seen[n] += 1;
        });
    }
    let counts = two.sides[1].counts();
    assert!(counts.zero_copied_in > 500, "{counts:?}");
}

#[test]
fn whatever_the_front_end_changes_buffers_come_back_before_it_hears_of_that() {
    for options in [migrating(Options::default()), migrating(larger())] {
        let mut two = two_with(ZERO_COPY, &options);
        two.until_landing();
        let pair = two.sides[1].queue_pair();

        // Other memory.
        two.sides[1].device.pin_slowly(true);
        two.sides[1].guest.front.share_memory().unwrap();
        two.sides[1].guest.front.protocol().unwrap().get_features().unwrap();
        assert_eq!(two.sides[1].device.foreign(), 0);
        two.sides[1].device.pin_slowly(false);
        two.until_landing();
        assert_ne!(two.sides[1].queue_pair(), pair, "another queue pair took its place");

        // A ring ends: its base is behind all buffers that were taken.
        let base = two.sides[1].guest.front.stop_queue(0).unwrap();
        assert_eq!(two.sides[1].guest.front.ring(0).base() & 0x7fff, base & 0x7fff);
        two.sides[1].guest.drain();
        two.sides[1].guest.front.start_queue(0).unwrap();
        two.sides[1].guest.front.enable_queue(0, true).unwrap();
        two.until_landing();

        // It migrates.
        let log = Log::new(&two.sides[1].guest.front, 0);
        log.start(&mut two.sides[1].guest.front).unwrap();
        let before = two.sides[1].counts().zero_copied_in;
        two.until_members();
        two.all_arrive(40);
        assert_eq!(two.sides[1].counts().zero_copied_in, before);
        Log::stop(&mut two.sides[1].guest.front);
        two.until_landing();

        // It goes, and comes back.
        two.sides[1].guest.front.disconnect();
        two.until("the device has nothing of the guest", || two.sides[1].device.foreign() == 0);
        two.sides[1].guest.front.reconnect().unwrap();
        two.until_landing();
        two.all_arrive(40);
    }
}

#[test]
fn the_contract_the_queue_pair_and_the_uplink_end_it() {
    let mut two = two_with(ZERO_COPY, &Options::default());
    two.until_landing();
    two.sides[1].host.change(&vnic("b", 2, "transport = \"rdma\""));
    two.until("the device has nothing of the guest", || two.sides[1].device.foreign() == 0);
    two.until_members();
    two.frames_go_by_rdma();
    two.sides[1].host.change(&vnic("b", 2, &zero_copy("")));
    two.until_landing();
    let pair = two.sides[1].queue_pair().unwrap();
    assert!(two.sides[1].device.break_queue_pair(pair));
    two.until_landing();
    two.all_arrive(20);
    two.sides[1].host.switch.remove_uplink("net0").unwrap();
    two.until_without_uplink();
    two.sides[1].host.switch.remove_port("b").unwrap();
}

impl Two {
    #[track_caller]
    fn until_without_uplink(&self) {
        let (device, began) = (&self.sides[1].device, Instant::now());
        while device.foreign() > 0 || !device.queue_pairs().is_empty() {
            assert!(began.elapsed() < 4 * PATIENCE, "{} bytes, {:?}", device.foreign(), device.queue_pairs());
            std::thread::sleep(Duration::from_millis(1));
        }
    }
}

/// What is not a member's lands, and no driver sees it, in the midst of what is one's.
#[test]
fn strangers_reach_no_driver() {
    let mut two = two_with(ZERO_COPY, &Options::default());
    two.until_landing();
    for n in 0..300 {
        let frame = two.frame(0, 500);
        let good = two.datagram(0, &frame);
        let bad = match n % 3 {
            0 => Datagram { source: good.source + 1, ..good },
            1 => {
                let mut bytes = good.bytes.clone();
                bytes[32 + 6] ^= 2;
                Datagram { bytes, ..good }
            }
            _ => {
                let mut bytes = good.bytes.clone();
                bytes[32] ^= 2;
                Datagram { bytes, ..good }
            }
        };
        assert_eq!(two.fabric.forge(bad), Fate::Delivered);
        if n % 10 == 0 {
            two.send(0, 900);
        }
    }
    two.send(0, 900);
    let counts = two.sides[1].counts();
    let refused = counts.unknown_member + counts.spoofed + counts.malformed;
    assert_eq!(refused, 300, "{counts:?}");
    two.until_landing();
}

/// A guest that resets its ring in a loop costs others nothing, and frames land again afterwards.
#[test]
fn a_ring_that_is_restarted_in_a_loop_loses_no_buffer() {
    let mut two = two_with(ZERO_COPY, &Options::default());
    two.until_landing();
    for _ in 0..30 {
        let front = &mut two.sides[1].guest.front;
        front.stop_queue(0).unwrap();
        front.start_queue(0).unwrap();
        front.enable_queue(0, true).unwrap();
        let frame = two.frame(0, 300);
        two.sides[0].guest.send_or_drop(&frame);
        two.sides[1].guest.drain();
    }
    two.until_members();
    two.until_landing();
    two.all_arrive(300);
}

/// What lands waits for its receiver's rate like what is copied.
#[test]
fn the_receivers_rate_holds_for_frames_that_land() {
    let mut two = two_with(&format!("{ZERO_COPY}\nrx.max = \"20mbit\""), &Options::default());
    two.until_landing();
    let before = two.sides[1].counts().zero_copied_in;
    measured("part of the rate", 0.5..=1.1, || {
        let frame = two.frame(0, 1000);
        let [sender, receiver] = &mut two.sides;
        let (bytes, took) =
            pump(Duration::from_secs(1), &mut [(&mut sender.guest, frame)], &mut receiver.guest);
        bytes[0] as f64 / bytes_in(20_000_000, took)
    });
    assert!(two.sides[1].counts().zero_copied_in > before + 100);
}

/// A process that takes over would give back buffers that the device fills: all are back before it gets the rings.
#[test]
fn a_switch_that_retires_has_its_buffers_back() {
    let mut two = two_with(ZERO_COPY, &Options::default());
    two.until_landing();
    let control = two.sides[1].host.control();
    for _ in 0..3 {
        let before = two.sides[1].device.queue_pairs();
        let mut client = Client::connect(&control).unwrap();
        let (retired, _control) = client.retire().unwrap();
        assert_eq!(retired.ports.len(), 1);
        let after = two.sides[1].device.queue_pairs();
        assert!(before.iter().all(|pair| !after.contains(pair)), "{before:?} {after:?}");
        // It does not take over.
        drop(client);
        two.until_members();
        two.until_landing();
        two.all_arrive(20);
    }
}

/// A device that is taken out fills nothing any more: its buffers come back, and frames go as VXLAN.
#[test]
fn buffers_of_a_device_that_is_taken_out_come_back() {
    let mut two = two_with(ZERO_COPY, &Options::default());
    two.until_landing();
    two.sides[1].device.unplug();
    let began = Instant::now();
    loop {
        assert!(began.elapsed() < 4 * PATIENCE, "{:?}", two.sides[1].counts());
        let (frame, mut has_come) = (two.frame(0, 300), false);
        two.sides[0].guest.send_or_drop(&frame);
        std::thread::sleep(Duration::from_millis(20));
        two.sides[1].guest.each(|bytes| has_come |= bytes == frame);
        if has_come {
            break;
        }
    }
    two.all_arrive(20);
    // The front end does not wait for long, and the whole ring is of use.
    two.sides[1].guest.front.share_memory().unwrap();
    two.sides[1].guest.front.protocol().unwrap().get_features().unwrap();
    assert!(began.elapsed() < 4 * PATIENCE);
    two.all_arrive(300);
}

/// Each direction says for itself whether frames are copied, and why.
#[test]
fn whether_frames_land_is_told_beside_whether_they_are_sent_from_the_guests_memory() {
    let plain = Options::default();
    let without = Options { features: plain.features & !MRG_RXBUF, ..plain.clone() };
    let two_queues = Options { queue_pairs: 2, ..plain.clone() };
    let queues = format!("{ZERO_COPY}\nqueues = 2");
    for (keys, options, words) in [
        (ZERO_COPY, &plain, None),
        (ZERO_COPY, &without, Some("mrg_rxbuf=on")),
        (queues.as_str(), &two_queues, Some("several queues")),
    ] {
        let mut two = two_with(keys, options);
        let told = |two: &Two| two.sides[1].zero_copy().filter(|told| told.copied_because.is_none());
        two.until("frames are sent from the guest's memory", || told(&two).is_some());
        two.until("whether frames land", || {
            let why = told(&two).and_then(|told| told.landing).map(|landing| landing.copied_because);
            match words {
                None => why == Some(None),
                Some(words) => why.flatten().is_some_and(|why| why.contains(words)),
            }
        });
        if words.is_none() {
            // The switch's own buffers are used up first.
            two.until_landing();
        }
        two.until_members();
        for from in [0, 1] {
            (0..20).for_each(|_| two.send(from, 1000));
        }
        let counted = || {
            let (counts, of_uplink) = (told(&two).unwrap().counts, two.sides[1].counts());
            let of_uplink = [
                (of_uplink.zero_copied_out, of_uplink.zero_copied_out_bytes),
                (of_uplink.zero_copied_in, of_uplink.zero_copied_in_bytes),
            ];
            let of_vnic = [(counts.sent, counts.sent_bytes), (counts.received, counts.received_bytes)];
            (of_vnic == of_uplink).then_some(of_vnic.map(|(frames, _)| frames))
        };
        // Some come by the queue pair before the last announcement.
        two.until("counts", || {
            counted().is_some_and(|[sent, received]| sent >= 20 && (received > 0) == words.is_none())
        });
    }
}

/// A driver that receives by several queues later gets its frames copied, from as many buffers as without zero copy.
#[test]
fn a_driver_that_enables_a_second_queue_ends_it() {
    let mut two = two_with("zero-copy = true\nqueues = 2", &Options { queue_pairs: 2, ..Options::default() });
    two.sides[1].guest.front.enable_queue(2, false).unwrap();
    two.until_landing();
    let pair = two.sides[1].queue_pair();
    two.sides[1].guest.front.enable_queue(2, true).unwrap();
    two.send(0, 300);
    two.until("another queue pair", || two.sides[1].queue_pair().is_some_and(|new| Some(new) != pair));
    two.until("all buffers", || {
        let pair = two.sides[1].queue_pair().unwrap();
        two.sides[1].device.posted(pair).is_some_and(|(_, receives)| receives == 256)
    });
    two.until_members();
    let before = two.sides[1].counts().zero_copied_in;
    two.all_arrive(40);
    assert_eq!(two.sides[1].counts().zero_copied_in, before);
}

/// A vNIC that is removed: the device is done before its front end hears of it.
#[test]
fn a_vnic_that_is_removed_has_its_buffers_back() {
    let mut two = two_with(ZERO_COPY, &Options::default());
    two.until_landing();
    two.sides[1].guest.drain();
    two.sides[1].host.switch.remove_port("b").unwrap();
    assert_eq!(two.sides[1].device.foreign(), 0);
    let ring = two.sides[1].guest.front.ring(0);
    let empty = std::iter::from_fn(|| ring.reap()).filter(|used| used.len == 0).count();
    assert!(empty > 10, "{empty} buffers came back");
}

/// What may still be written to stays: the guest's buffers, its memory, and those of the switch.
#[test]
fn a_queue_pair_that_the_device_does_not_destroy_keeps_what_it_may_write_to() {
    let mut two = two_with(ZERO_COPY, &Options::default());
    two.until_landing();
    two.sides[1].guest.drain();
    let [frame, other] = [(); 2].map(|()| two.frame(0, 1000));
    let stray = two.datagram(0, &frame);
    let number = two.sides[1].queue_pair().unwrap();
    let size = two.sides[1].device.foreign();
    // It does not even bring it into the error state.
    two.sides[1].device.refuse("ibv_modify_qp", libc::EIO);
    two.sides[1].device.refuse("ibv_destroy_qp", libc::EIO);
    // Its front end waits, and goes on without.
    two.sides[1].guest.front.share_memory().unwrap();
    two.sides[1].guest.front.protocol().unwrap().get_features().unwrap();
    two.until("the uplink is broken", || {
        let broken = two.sides[1].host.switch.uplinks().remove(0).broken;
        broken.is_some_and(|why| why.contains("ibv_destroy_qp"))
    });
    assert_eq!(two.sides[1].counts().undestroyed_pairs, 1);
    assert_eq!(two.sides[1].device.foreign(), size, "the former memory alone");
    let receives = || two.sides[1].device.posted(number).unwrap().1;
    let before = receives();
    assert!(before > 32);
    for _ in 0..before {
        assert_eq!(two.fabric.forge(stray.clone()), Fate::Delivered);
    }
    assert_eq!(receives(), 0, "all went to memory that is there");
    // No other process is given buffers in which frames may land.
    let why = Client::connect(&two.sides[1].host.control()).unwrap().retire().unwrap_err().to_string();
    assert!(why.contains("does not give back") && why.contains("(b)"), "{why}");
    two.sides[1].host.switch.remove_uplink("net0").unwrap();
    assert_eq!(two.sides[1].device.foreign(), size);
    // Frames within the host need no device.
    let host = &two.sides[1].host;
    let mut near = host.guest(&vnic("near", 9, ""));
    let mac = two.sides[1].guest.mac();
    let frame = udp(mac, near.mac(), &other);
    near.send(&frame);
    assert_eq!(two.sides[1].guest.receive(), frame);
}

/// What stays with the device does not keep the next lane from address handles.
#[test]
fn after_a_queue_pair_that_was_not_destroyed_an_uplink_that_is_made_anew_has_rdma() {
    let mut two = two_with(ZERO_COPY, &Options::default());
    two.until_landing();
    two.sides[1].device.refuse("ibv_destroy_qp", libc::EIO);
    two.sides[1].guest.front.share_memory().unwrap();
    two.sides[1].guest.front.protocol().unwrap().get_features().unwrap();
    two.until("the uplink is broken", || two.sides[1].host.switch.uplinks().remove(0).broken.is_some());
    assert_eq!(two.sides[1].counts().undestroyed_pairs, 1);
    two.sides[1].make_anew();
    two.until_members();
    assert_eq!(two.sides[1].counts().undestroyed_pairs, 0, "another lane");
    two.until("it is told that this stays so", || {
        let told = two.sides[1].zero_copy();
        told.is_some_and(|told| {
            !told.is_temporary && told.copied_because.is_some_and(|why| why.contains("not done"))
        })
    });
    two.sides[1].host.switch.remove_port("b").unwrap();
    let why = Client::connect(&two.sides[1].host.control()).unwrap().retire().unwrap_err().to_string();
    assert!(why.contains("(a vNIC that was removed)"), "{why}");
}
