//! A guest's memory with a device: registered while it may be read, and never longer than the front end allows.
//!
//! ```text
//!  front end: memory, rings, log, holes ─▶ switch ─▶ device in memory: bytes of others that it has registered
//! ```

use super::harness::dirty::{Log, migrating};
use super::harness::fabric::{Side, Two, two_with};
use super::harness::{PATIENCE, contract, vnic};
use super::{ZERO_COPY, zero_copy};
use rustix::fs::{FallocateFlags, fallocate, ftruncate};
use std::time::{Duration, Instant};
use tidegate_evidence::Connection;
use tidegate_frontend::front_end::{IN_ORDER, MRG_RXBUF, Options};
use tidegate_switch::control::Client;
use vhost::VhostBackend;

/// A driver that would have its buffers back in order.
fn options() -> Options {
    let options = Options::default();
    Options { features: options.features | IN_ORDER, ..options }
}

fn two() -> Two {
    let two = two_with(ZERO_COPY, &options());
    two.until_lent(0);
    two.until_lent(1);
    two
}

/// Why the frames of a side's vNIC are copied; `None` if they are not.
fn why(side: &Side) -> Option<String> {
    side.zero_copy().map_or_else(|| Some("not known yet".into()), |zero_copy| zero_copy.copied_because)
}

fn size(side: &Side) -> usize {
    side.guest.front.memory().size() as usize
}

/// Shares the guest's memory anew, and waits until the switch has obeyed.
fn share(side: &mut Side) {
    side.guest.front.share_memory().unwrap();
    obeyed(side);
}

/// Waits until the switch has obeyed all messages.
fn obeyed(side: &mut Side) {
    side.guest.front.protocol().unwrap().get_features().unwrap();
}

impl Two {
    #[track_caller]
    fn until_lent(&self, n: usize) {
        self.until("the device has the guest's memory", || why(&self.sides[n]).is_none());
        let side = &self.sides[n];
        assert_eq!(side.zero_copy().unwrap().registered, size(side) as u64);
        assert_eq!(side.device.foreign(), size(side));
    }

    #[track_caller]
    fn until_copied(&self, n: usize, words: &str) {
        self.until(words, || why(&self.sides[n]).is_some_and(|why| why.contains(words)));
    }

    #[track_caller]
    fn until_given_back(&self, n: usize) {
        self.until("the device has nothing of the guest", || self.sides[n].device.foreign() == 0);
    }
}

#[test]
fn memory_is_registered_while_a_ring_runs_and_given_back_before_it_changes() {
    let mut two = two();
    assert_eq!(two.sides[0].host.port("a").features & IN_ORDER, 0);
    two.frames_go_by_rdma();
    assert!(two.sides[0].counts().zero_copied_out >= 2);

    // Other memory: the former is given back before the front end hears that.
    two.sides[0].device.pin_slowly(true);
    share(&mut two.sides[0]);
    assert_eq!(two.sides[0].device.foreign(), 0);
    two.until_copied(0, "is registering");
    two.frames_go_by_rdma();
    two.sides[0].device.pin_slowly(false);
    two.until_lent(0);

    // A ring ends: the link gives it back, the device keeps it while another one runs.
    two.sides[0].guest.front.stop_queue(1).unwrap();
    assert_eq!(two.sides[0].device.foreign(), size(&two.sides[0]));
    two.sides[0].guest.front.stop_queue(0).unwrap();
    two.until_given_back(0);
    two.until_copied(0, "no queue of the guest's driver runs");
    for queue in [0, 1] {
        two.sides[0].guest.front.start_queue(queue).unwrap();
        two.sides[0].guest.front.enable_queue(queue, true).unwrap();
    }
    two.until_lent(0);
    two.frames_go_by_rdma();

    two.sides[0].guest.front.disconnect();
    two.until_given_back(0);
    two.until_copied(0, "no front end has shared");
    two.sides[0].guest.front.reconnect().unwrap();
    two.until_lent(0);
}

#[test]
fn a_driver_that_has_its_buffers_in_order_keeps_copies_until_it_comes_anew() {
    let mut two = two_with("", &options());
    assert_eq!(two.sides[0].zero_copy(), None);
    two.sides[0].host.change(&vnic("a", 1, &zero_copy("")));
    two.until_copied(0, "IN_ORDER");
    two.sides[0].guest.front.reconnect().unwrap();
    two.until_lent(0);
}

#[test]
fn the_contract_and_the_uplink_decide_too() {
    let two = two();
    let host = &two.sides[0].host;
    host.change(&vnic("a", 1, "transport = \"rdma\""));
    two.until_given_back(0);
    two.until("no word of zero copy", || two.sides[0].zero_copy().is_none());
    host.change(&vnic("a", 1, &zero_copy("")));
    two.until_lent(0);
    // Without a queue pair for a while, the device keeps it.
    two.sides[0].device.set_active(false);
    two.until("no queue pair", || two.sides[0].queue_pair().is_none());
    assert_eq!(two.sides[0].device.foreign(), size(&two.sides[0]));
    two.sides[0].device.set_active(true);
    two.until("a queue pair", || two.sides[0].queue_pair().is_some());
    let number = two.sides[0].queue_pair().unwrap();
    assert!(two.sides[0].device.break_queue_pair(number));
    two.until("another queue pair", || two.sides[0].queue_pair().is_some_and(|other| other != number));
    two.until_lent(0);
    host.switch.remove_uplink("net0").unwrap();
    two.until_gone(0);
    host.switch.remove_port("a").unwrap();
}

impl Two {
    /// Sends a frame to the second guest until it arrives.
    #[track_caller]
    fn until_received(&mut self, frame: &[u8], mut send: impl FnMut(&[u8])) {
        let began = Instant::now();
        let mut has_come = false;
        while !has_come {
            assert!(began.elapsed() < 4 * PATIENCE, "{:?}", self.sides[1].counts());
            send(frame);
            std::thread::sleep(Duration::from_millis(5));
            self.sides[1].guest.each(|bytes| has_come |= bytes == frame);
        }
    }

    #[track_caller]
    fn until_gone(&self, n: usize) {
        let (device, began) = (&self.sides[n].device, Instant::now());
        while device.foreign() > 0 || !device.queue_pairs().is_empty() {
            assert!(began.elapsed() < 4 * PATIENCE, "{} bytes, {:?}", device.foreign(), device.queue_pairs());
            std::thread::sleep(Duration::from_millis(1));
        }
    }
}

#[test]
fn a_guest_that_migrates_is_copied_until_its_log_ends() {
    let options = migrating(Options::default());
    let mut two = two_with(ZERO_COPY, &options);
    two.until_lent(0);
    let log = Log::new(&two.sides[0].guest.front, 0);
    log.start(&mut two.sides[0].guest.front).unwrap();
    two.until_copied(0, "migrating");
    two.until_given_back(0);
    two.frames_go_by_rdma();
    Log::stop(&mut two.sides[0].guest.front);
    two.until_lent(0);
}

#[test]
fn holes_bring_the_copies_back_until_other_memory_comes() {
    let mut two = two();
    let memory = two.sides[0].guest.front.memory().clone();
    let last = memory.size() - 4096;
    let punch = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
    fallocate(memory.fd(), punch, last, 4096).unwrap();
    two.until_copied(0, "no balloon");
    two.until_given_back(0);
    assert_eq!(two.sides[0].counts().holes, 1);
    two.frames_go_by_rdma();
    // A hole that is filled leaves the former table as it was judged.
    memory.preallocate().unwrap();
    two.frames_go_by_rdma();
    two.until_copied(0, "no balloon");
    share(&mut two.sides[0]);
    two.until_lent(0);
    assert_eq!(two.sides[0].counts().holes, 1);
}

#[test]
fn memory_with_holes_from_the_beginning_is_not_registered() {
    let mut two = two_with(ZERO_COPY, &Options { preallocate: false, ..Options::default() });
    two.until_copied(0, "not preallocated");
    assert_eq!((two.sides[0].device.foreign(), two.sides[0].counts().holes), (0, 0));
    two.frames_go_by_rdma();
}

#[test]
fn a_refused_registration_says_what_to_do_and_is_tried_again() {
    let two = two();
    let host = &two.sides[0].host;
    host.change(&vnic("a", 1, "transport = \"rdma\""));
    two.until_given_back(0);
    for _ in 0..3 {
        two.sides[0].device.refuse("ibv_reg_mr", libc::ENOMEM);
    }
    host.change(&vnic("a", 1, &zero_copy("")));
    two.until_copied(0, "locked memory");
    two.until_lent(0);
}

#[test]
fn truncated_memory_is_given_back() {
    let mut two = two();
    let memory = two.sides[0].guest.front.memory().clone();
    ftruncate(memory.fd(), 0).unwrap();
    two.until_given_back(0);
    two.until("its front end is thrown out, or copied", || {
        why(&two.sides[0]).is_some() || two.sides[0].host.port("a").connection != Connection::Up
    });
    // The other one goes on.
    assert_eq!(why(&two.sides[1]), None);
    two.sides[1].guest.drain();
}

/// The registration of a large guest, or of one whose pages are slow to come, takes no other vNIC's time.
#[test]
fn a_slow_registration_holds_up_nobody_else() {
    let mut two = two();
    two.sides[0].device.pin_slowly(true);
    share(&mut two.sides[0]);
    two.until_copied(0, "is registering");
    let side = &two.sides[0];
    let mut other = side.host.guest(&vnic("c", 9, "transport = \"rdma\""));
    two.until("another vNIC has a queue pair", || {
        let status = two.sides[0].status();
        status.pairs.iter().any(|pair| pair.vnic == "c" && pair.queue_pair.is_some())
    });
    // Nor its own front end, with a ring that ends, or with other memory.
    two.sides[0].guest.front.stop_queue(1).unwrap();
    share(&mut two.sides[0]);
    two.sides[0].guest.front.disconnect();
    let mac = contract(&vnic("b", 2, "")).mac.0;
    let frame = super::harness::udp(mac, other.mac(), &[7; 100]);
    // The other host drops its frames until it hears of the queue pair.
    two.until_received(&frame, |frame| other.send_or_drop(frame));
    two.sides[0].device.pin_slowly(false);
    two.until_given_back(0);
}

/// A front end that changes its memory in a loop is copied; frames of others go on, and all is well once it stops.
#[test]
fn memory_that_changes_in_a_loop_is_not_registered_each_time() {
    let mut two = two();
    for n in 0..60 {
        share(&mut two.sides[0]);
        if n % 20 == 0 {
            two.frames_go_by_rdma();
        }
    }
    two.until_lent(0);
    two.frames_go_by_rdma();
}

/// A frame that the device has not read yet, from a ring that ends: once the front end knows of that end, the device reads nothing.
#[test]
fn nothing_is_read_out_of_a_guest_after_its_ring_ended() {
    let mut two = two();
    two.sides[0].device.pause();
    let before = two.sides[0].counts().zero_copied_out;
    let frame = two.frame(0, 1400);
    two.sides[0].guest.send(&frame);
    two.until("the device has it", || two.sides[0].counts().zero_copied_out > before);
    two.sides[0].guest.front.stop_queue(1).unwrap();
    let sent = |two: &Two| two.sides[0].device.counters().datagrams;
    let before = sent(&two);
    two.sides[0].device.resume();
    assert_eq!(sent(&two), before);
}

/// An uplink that goes while its device is not done takes its queue pairs along: nothing is left at the device.
#[test]
fn a_link_that_is_removed_while_tables_retire_leaves_nothing() {
    let mut two = two();
    two.sides[0].device.pause();
    let frame = two.frame(0, 100);
    two.sides[0].guest.send(&frame);
    two.until("sent", || two.sides[0].counts().sent == 1);
    let Side { host, guest, .. } = &mut two.sides[0];
    let switch = &host.switch;
    let is_lent = || {
        let status = switch.uplinks().remove(0).rdma.unwrap();
        status.pairs[0].zero_copy.as_ref().is_some_and(|zero_copy| zero_copy.copied_because.is_none())
    };
    std::thread::scope(|scope| {
        let share = scope.spawn(|| guest.front.share_memory().unwrap());
        let began = Instant::now();
        while is_lent() && began.elapsed() < PATIENCE {
            std::thread::sleep(Duration::from_millis(1));
        }
        switch.remove_uplink("net0").unwrap();
        share.join().unwrap();
    });
    two.until_gone(0);
}

impl Two {
    /// Returns two hosts, of which the first one's device has a frame of its guest, and does not send it.
    fn with_a_frame_that_stays() -> Self {
        let mut two = two();
        two.sides[0].device.pause();
        let before = two.sides[0].counts().zero_copied_out;
        let frame = two.frame(0, 1400);
        two.sides[0].guest.send(&frame);
        two.until("the device has it", || two.sides[0].counts().zero_copied_out > before);
        two
    }

    /// Waits until the frame is dropped since the device has ended it, so that it is not read any more.
    #[track_caller]
    fn until_ended_by_the_device(&self) {
        let host = &self.sides[0].host;
        host.until(|| !host.stats("a").tx.dropped.is_empty());
        let dropped = host.stats("a").tx.dropped;
        assert_eq!(dropped.get("uplink_refused"), Some(&1), "{dropped:?}");
    }
}

/// The device is done a little after the tables were replaced, and nothing else happens at the uplink.
#[test]
fn a_loan_ends_as_soon_as_the_device_is_done() {
    let mut two = Two::with_a_frame_that_stays();
    let Side { host, guest, device, .. } = &mut two.sides[0];
    let is_lent = || {
        let status = host.switch.uplinks().remove(0).rdma.unwrap();
        status.pairs[0].zero_copy.as_ref().is_some_and(|zero_copy| zero_copy.copied_because.is_none())
    };
    std::thread::scope(|scope| {
        let ring = scope.spawn(|| guest.front.stop_queue(1).unwrap());
        host.until(|| !is_lent());
        device.resume();
        ring.join().unwrap();
    });
    two.until_lent(0);
    assert_eq!(two.sides[0].host.switch.uplinks().remove(0).broken, None);
}

/// Its guest has the buffer back after the device has ended what it had, and not before.
#[test]
fn frames_of_a_link_that_is_removed_are_ended_at_the_device() {
    let two = Two::with_a_frame_that_stays();
    two.sides[0].host.switch.remove_uplink("net0").unwrap();
    two.until_ended_by_the_device();
    two.until_gone(0);
}

/// The frame is waited for under the lock that other tables need.
#[test]
fn a_device_that_stalls_while_a_vnic_changes_its_segment_has_its_queue_pair_ended() {
    let two = Two::with_a_frame_that_stays();
    let elsewhere = vnic("a", 1, &zero_copy("")).replace("segment = 7", "segment = 8");
    two.sides[0].host.change(&elsewhere);
    two.until_ended_by_the_device();
    assert_eq!(two.sides[0].host.switch.uplinks().remove(0).broken, None);
}

/// What is sent is with the device for ever: the front end waits two seconds, and its port goes on.
#[test]
fn a_device_that_is_not_done_does_not_hold_the_front_end_for_long() {
    // Frames do not land: the queue pair stays when the memory changes.
    let plain = Options::default();
    let mut two = two_with(ZERO_COPY, &Options { features: plain.features & !MRG_RXBUF, ..plain });
    two.until_lent(0);
    two.sides[0].device.pause();
    // Short, and copied: the link does not hold it, and ends no queue pair for it.
    let frame = two.frame(0, 0);
    two.sides[0].guest.send(&frame);
    two.until("sent", || two.sides[0].counts().sent == 1);
    share(&mut two.sides[0]);
    let size = size(&two.sides[0]);
    assert_eq!(two.sides[0].device.foreign(), size, "what the device may read stays");
    two.until("the uplink is broken", || two.sides[0].host.switch.uplinks().remove(0).broken.is_some());
    // In vain once is enough.
    let began = Instant::now();
    (0..5).for_each(|_| share(&mut two.sides[0]));
    assert!(began.elapsed() < PATIENCE);
    assert_eq!(two.sides[0].device.foreign(), size);
    // The uplink is made anew: its queue pairs end, and what they had is given back.
    two.sides[0].host.switch.remove_uplink("net0").unwrap();
    two.until_gone(0);
}

/// Another process gets the guest's ring when the device has ended what it had of the guest, and not before.
#[test]
fn a_switch_that_retires_while_its_device_stalls_leaves_nothing_there() {
    let two = Two::with_a_frame_that_stays();
    let Side { host, device, .. } = &two.sides[0];
    let pair = two.sides[0].queue_pair().unwrap();
    assert_eq!(device.posted(pair).map(|(sends, _)| sends), Some(1));
    let mut client = Client::connect(&host.control()).unwrap();
    let (retired, _control) = client.retire().unwrap();
    assert!(!retired.dropped, "the device gave it back: no worker had to drop it");
    assert_eq!(host.stats("a").tx.dropped.get("uplink_refused"), Some(&1));
    // What the device would send now would be what the guest has put there since.
    let sent = device.counters().datagrams;
    device.resume();
    assert_eq!(device.counters().datagrams, sent);
    // It does not take over: all is as before.
    drop(client);
    two.until_lent(0);
    assert_eq!(host.switch.uplinks().remove(0).broken, None);
}

/// Such a device might still read what guests have back: this process keeps the rings, and says what to do.
#[test]
fn a_switch_whose_device_is_never_done_is_not_replaced() {
    let plain = Options::default();
    let mut two = two_with(ZERO_COPY, &Options { features: plain.features & !MRG_RXBUF, ..plain });
    two.until_lent(0);
    two.sides[0].device.pause();
    let frame = two.frame(0, 0);
    two.sides[0].guest.send(&frame);
    two.until("sent", || two.sides[0].counts().sent == 1);
    let control = two.sides[0].host.control();
    let retire = || Client::connect(&control).unwrap().retire();
    let why = retire().unwrap_err().to_string();
    assert!(why.contains("does not give back the memory of guests") && why.contains("(a)"), "{why}");
    two.until("the uplink is broken", || two.sides[0].host.switch.uplinks().remove(0).broken.is_some());
    two.sides[0].host.switch.remove_uplink("net0").unwrap();
    two.until_gone(0);
    retire().unwrap();
}
