//! Driver and device in two threads, each asleep unless woken: a lost wake-up
//! or a reordered index stops or breaks them.

use super::super::{Chain, Features, Queue};
use super::{GUEST_ADDR, Guest};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::time::Duration;
use tidegate_frontend::driver::Buffer;

const CHAINS: u32 = 60_000;

/// Like an eventfd: any number of signals wake once.
struct Bell(SyncSender<()>);

impl Bell {
    fn new() -> (Self, Receiver<()>) {
        let (sender, receiver) = sync_channel(1);
        (Self(sender), receiver)
    }

    fn ring(&self) {
        let _ = self.0.try_send(());
    }
}

/// A thread that sleeps this long was forgotten, also on a slow machine.
fn sleep(bell: &Receiver<()>, who: &str) {
    assert!(bell.recv_timeout(Duration::from_secs(120)).is_ok(), "the {who} was not woken");
}

/// Returns small numbers that differ, the same in every run.
fn small(state: &mut u32) -> u16 {
    *state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
    1 + (*state >> 28) as u16
}

fn stress(features: Features) {
    const SIZE: u16 = 16;
    let Guest { memory, map, mut driver, mut device } = Guest::starting_at(SIZE, features, 65_000);
    let start = device.next_avail();
    let (kick, kicked) = Bell::new();
    let (call, called) = Bell::new();

    let guest = std::thread::spawn(move || {
        let slot_addr = |slot: u32| GUEST_ADDR + 0x8_0000 + u64::from(slot) * 64;
        // The slot of each chain in flight, by head.
        let mut slots = [0; SIZE as usize];
        let mut free_slots: Vec<u32> = (0..u32::from(SIZE)).collect();
        let (mut sent, mut back, mut seed) = (0u32, 0u32, 1);
        let mut answered = vec![false; CHAINS as usize];
        while back < CHAINS {
            for _ in 0..small(&mut seed) {
                if sent == CHAINS || free_slots.is_empty() || driver.free() < 2 {
                    break;
                }
                let slot = free_slots.pop().unwrap();
                memory.write(slot_addr(slot), &sent.to_le_bytes());
                // Its number in two pieces.
                let pieces = [Buffer::readable(slot_addr(slot), 1), Buffer::readable(slot_addr(slot) + 1, 3)];
                let head = if features.indirect { driver.add_indirect(&pieces) } else { driver.add(&pieces) };
                slots[usize::from(head.unwrap())] = slot;
                sent += 1;
            }
            if driver.publish() {
                kick.ring();
            }
            let before = back;
            while let Some(used) = driver.reap() {
                // The device answers with the number, each once, in any order.
                assert!(!std::mem::replace(&mut answered[used.len as usize], true), "{} twice", used.len);
                let mut number = [0; 4];
                memory.read(slot_addr(slots[usize::from(used.head)]), &mut number);
                assert_eq!(u32::from_le_bytes(number), used.len);
                free_slots.push(slots[usize::from(used.head)]);
                back += 1;
            }
            if back == before
                && back < CHAINS
                && (sent == CHAINS || driver.free() < 2 || free_slots.is_empty())
            {
                if !driver.enable_interrupts() {
                    sleep(&called, "driver");
                }
                driver.disable_interrupts();
            }
        }
    });

    let (mut chain, mut seen, mut seed) = (Chain::new(), 0u32, 2);
    let mut open: Vec<(u16, u32)> = Vec::new();
    let mut completed = 0;
    while completed < CHAINS {
        let available = device.available().unwrap();
        for _ in 0..available.min(small(&mut seed)) {
            assert_eq!(device.pop_readable(&mut chain), Ok(true));
            let mut number = Vec::new();
            for span in chain.spans() {
                // SAFETY: popped from a queue whose memory `map` keeps.
                number.extend((0..span.len as usize).map(|i| unsafe { span.ptr.add(i).read_volatile() }));
            }
            let number = u32::from_le_bytes(number.try_into().unwrap());
            assert_eq!(number, seen, "in order, and what was written before the index moved");
            open.push((chain.head(), number));
            seen += 1;
        }
        // Out of order: the last first.
        for _ in 0..small(&mut seed) {
            let Some((head, number)) = open.pop() else {
                break;
            };
            device.complete(head, number);
            completed += 1;
        }
        if device.publish() {
            call.ring();
        }
        if device.pending() == 0 && open.is_empty() && completed < CHAINS {
            if !device.request_kicks() {
                sleep(&kicked, "device");
            }
            device.suppress_kicks();
        }
    }
    guest.join().unwrap();
    drop(map);
    assert_eq!(device.next_avail(), start.wrapping_add(CHAINS as u16));
}

#[test]
fn neither_side_sleeps_for_ever_with_flags() {
    stress(Features { packed: false, event_idx: false, indirect: false, in_order: false });
    stress(Features { packed: true, event_idx: false, indirect: false, in_order: false });
}

#[test]
fn neither_side_sleeps_for_ever_with_event_indices() {
    stress(Features { packed: false, event_idx: true, indirect: true, in_order: false });
    stress(Features { packed: true, event_idx: true, indirect: true, in_order: false });
}

/// Two threads that continue only together.
struct Gate(AtomicU32);

impl Gate {
    /// Returns when both have come here `round` times, `delay` turns later.
    fn pass(&self, round: u32, delay: u32) {
        self.0.fetch_add(1, Ordering::AcqRel);
        let mut turns = 0u32;
        while self.0.load(Ordering::Acquire) < 2 * round {
            turns += 1;
            match turns.is_multiple_of(1000) {
                true => std::thread::yield_now(),
                false => std::hint::spin_loop(),
            }
        }
        (0..delay).for_each(|_| std::hint::spin_loop());
    }
}

/// One side moves its index while the other asks for a notification, repeatedly at the same moment: one of
/// the two must notice. Without the fences, an optimised build on two processors fails within seconds; an
/// unoptimised one is too slow between the two accesses to notice.
fn race(features: Features) {
    const ROUNDS: u32 = 10_000;
    let Guest { memory: _memory, map: _map, mut driver, mut device } = Guest::new(4, features);
    let gate = Arc::new(Gate(AtomicU32::new(0)));
    // The driver's view of the round: kick wanted, chains back.
    let seen = Arc::new((AtomicBool::new(false), AtomicBool::new(false)));
    let (theirs, driver_saw) = (Arc::clone(&gate), Arc::clone(&seen));
    let guest = std::thread::spawn(move || {
        for round in 0..ROUNDS {
            driver.add(&[Buffer::readable(GUEST_ADDR, 64)]).unwrap();
            driver.disable_interrupts();
            theirs.pass(4 * round + 1, round % 7);
            driver_saw.0.store(driver.publish(), Ordering::Relaxed);
            theirs.pass(4 * round + 2, 0);
            theirs.pass(4 * round + 3, round % 5);
            driver_saw.1.store(driver.enable_interrupts(), Ordering::Relaxed);
            theirs.pass(4 * round + 4, 0);
            driver.reap().unwrap();
        }
    });
    let mut chain = Chain::new();
    let (mut lost_kicks, mut lost_interrupts) = (0, 0);
    for round in 0..ROUNDS {
        device.suppress_kicks();
        gate.pass(4 * round + 1, round % 5);
        let arrived = device.request_kicks();
        gate.pass(4 * round + 2, 0);
        lost_kicks += u32::from(!arrived && !seen.0.load(Ordering::Relaxed));
        assert_eq!(device.available(), Ok(1));
        assert_eq!(device.pop_readable(&mut chain), Ok(true));
        device.complete(chain.head(), 0);
        gate.pass(4 * round + 3, round % 7);
        let interrupt = device.publish();
        gate.pass(4 * round + 4, 0);
        lost_interrupts += u32::from(!interrupt && !seen.1.load(Ordering::Relaxed));
    }
    guest.join().unwrap();
    assert_eq!((lost_kicks, lost_interrupts), (0, 0));
}

#[test]
fn asking_and_moving_at_once_is_noticed_with_flags() {
    race(Features { packed: false, event_idx: false, indirect: false, in_order: false });
    race(Features { packed: true, event_idx: false, indirect: false, in_order: false });
}

#[test]
fn asking_and_moving_at_once_is_noticed_with_event_indices() {
    race(Features { packed: false, event_idx: true, indirect: false, in_order: false });
    race(Features { packed: true, event_idx: true, indirect: false, in_order: false });
}

/// A guest that rewrites descriptors while they are read gets errors or its own memory.
#[test]
fn descriptors_may_change_while_they_are_read() {
    let mut guest =
        Guest::new(4, Features { packed: false, event_idx: false, indirect: true, in_order: false });
    let start = guest.map.translate(GUEST_ADDR, 1 << 20).unwrap().addr();
    let memory = Arc::clone(&guest.memory);
    let desc = guest.driver.desc_addr();
    let stop = Arc::new(AtomicBool::new(false));
    let stopped = Arc::clone(&stop);
    let table = GUEST_ADDR + 0x8_0000;
    let liar = std::thread::spawn(move || {
        // (address, length and flags and next): right and wrong halves in every mixture.
        let words = |addr: u64, len: u64, flags: u64, next: u64| [addr, len | flags << 32 | next << 48];
        let all = [
            words(GUEST_ADDR, 64, 0, 0),
            words(GUEST_ADDR + (1 << 20) - 1, 1, 1, 1),
            words(u64::MAX, u64::from(u32::MAX), 0, 0),
            words(table, 32, 4, 0),
            words(GUEST_ADDR - 16, 16, 1, 77),
        ];
        let mut i = 0;
        while !stopped.load(Ordering::Relaxed) {
            let [addr, rest] = all[i % all.len()];
            for place in [desc, desc + 16, table, table + 16] {
                memory.write(place, &addr.to_le_bytes());
                memory.write(place + 8, &rest.to_le_bytes());
            }
            i += 1;
        }
    });
    let mut chain = Chain::new();
    let avail = guest.memory.word(guest.driver.avail_addr() + 2);
    let (mut good, mut bad, mut index) = (0, 0, 0u16);
    while (good < 2000 || bad < 2000) && good + bad < 10_000_000 {
        if guest.device.pending() == 0 {
            index = index.wrapping_add(1);
            avail.store(index, Ordering::Release);
            assert_eq!(guest.device.available(), Ok(1));
        }
        match guest.device.pop_readable(&mut chain) {
            Ok(true) => {
                for span in chain.spans() {
                    assert!(
                        span.ptr.addr() >= start && span.ptr.addr() + span.len as usize <= start + (1 << 20)
                    );
                }
                guest.device.complete(chain.head(), 0);
                let _ = guest.device.publish();
                good += 1;
            }
            Ok(false) => panic!("one is pending"),
            Err(_) => bad += 1,
        }
    }
    stop.store(true, Ordering::Relaxed);
    liar.join().unwrap();
    assert!(good > 0 && bad > 0, "{good} good, {bad} bad: the two did not race");
}

/// The same in a packed ring, ownership flags included: popped chains are in the guest's own memory, never
/// more than the ring has places.
#[test]
fn a_packed_ring_may_change_while_it_is_read() {
    const SIZE: u16 = 5;
    let mut guest =
        Guest::new(SIZE, Features { packed: true, event_idx: false, indirect: true, in_order: false });
    let start = guest.map.translate(GUEST_ADDR, 1 << 20).unwrap().addr();
    let (memory, map) = (Arc::clone(&guest.memory), Arc::clone(&guest.map));
    let layout = super::layout(&guest.driver, &memory);
    let desc = guest.driver.desc_addr();
    let stop = Arc::new(AtomicBool::new(false));
    let stopped = Arc::clone(&stop);
    let table = GUEST_ADDR + 0x8_0000;
    let liar = std::thread::spawn(move || {
        let mut seed = 7u32;
        while !stopped.load(Ordering::Relaxed) {
            seed = seed.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            let slot = u64::from(seed >> 8) % u64::from(SIZE);
            let addr = [GUEST_ADDR, GUEST_ADDR + (1 << 20) - 1, u64::MAX, table][(seed >> 16) as usize % 4];
            let len = [64, 1, u32::MAX, 32][(seed >> 18) as usize % 4];
            // Mostly possible ids, and flags of either round.
            let id = (seed >> 20) as u16 % (SIZE + 1);
            let flags =
                [0, 0, 0, 1, 4][(seed >> 24) as usize % 5] | [1 << 7, 1 << 15][(seed >> 28) as usize % 2];
            memory.write(desc + 16 * slot, &addr.to_le_bytes());
            memory.write(desc + 16 * slot + 8, &len.to_le_bytes());
            memory.write(desc + 16 * slot + 12, &[id.to_le_bytes(), u16::to_le_bytes(flags)].concat());
        }
    });
    let mut chain = Chain::new();
    let (mut good, mut bad) = (0, 0);
    let mut open = std::collections::VecDeque::new();
    while (good < 2000 || bad < 2000) && good + bad < 10_000_000 {
        guest.device.available().unwrap();
        match guest.device.pop_readable(&mut chain) {
            Ok(true) => {
                for span in chain.spans() {
                    assert!(
                        span.ptr.addr() >= start && span.ptr.addr() + span.len as usize <= start + (1 << 20)
                    );
                }
                assert!(chain.head() < SIZE && !open.contains(&chain.head()));
                open.push_back(chain.head());
                good += 1;
            }
            Ok(false) => {}
            Err(_) => {
                // The end of a real queue. Begin anew.
                let features = Features { packed: true, event_idx: false, indirect: true, in_order: false };
                guest.device = Queue::new(Arc::clone(&map), layout, 0x8000_8000, features).unwrap();
                open.clear();
                bad += 1;
            }
        }
        assert_eq!(usize::from(guest.device.in_flight()), open.len());
        assert!(open.len() <= usize::from(SIZE));
        if open.len() > 2 || guest.device.pending() == 0 {
            while let Some(id) = open.pop_back() {
                guest.device.complete(id, 1);
            }
            let _ = guest.device.publish();
        }
    }
    stop.store(true, Ordering::Relaxed);
    liar.join().unwrap();
    assert!(good > 0 && bad > 0, "{good} good, {bad} bad: the two did not race");
}
