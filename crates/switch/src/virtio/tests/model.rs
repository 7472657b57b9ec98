//! Driver and device in random sequences, against a model of two FIFOs and two sleepers.

use super::super::{Chain, Features};
use super::{GUEST_ADDR, Guest};
use proptest::prelude::*;
use std::collections::VecDeque;
use tidegate_frontend::driver::{Buffer, Used};

#[derive(Clone, Debug)]
enum Step {
    Add { buffers: Vec<u32>, indirect: bool },
    Publish,
    Reap,
    Look,
    Pop,
    Rewind(u16),
    Complete { which: usize, len: u32 },
    PublishUsed,
    DeviceSleeps,
    DeviceWakes,
    DriverSleeps,
    DriverWakes,
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        4 => (prop::collection::vec(1u32..64, 1..5), any::<bool>())
            .prop_map(|(buffers, indirect)| Step::Add { buffers, indirect }),
        3 => Just(Step::Publish),
        3 => Just(Step::Reap),
        3 => Just(Step::Look),
        4 => Just(Step::Pop),
        1 => (1u16..4).prop_map(Step::Rewind),
        4 => (any::<prop::sample::Index>(), any::<u32>())
            .prop_map(|(which, len)| Step::Complete { which: which.index(64), len }),
        3 => Just(Step::PublishUsed),
        2 => Just(Step::DeviceSleeps),
        1 => Just(Step::DeviceWakes),
        2 => Just(Step::DriverSleeps),
        1 => Just(Step::DriverWakes),
    ]
}

/// A chain as the driver added it: guest addresses and lengths.
type Expected = (u16, Vec<(u64, u32)>);

#[derive(Clone, Copy, PartialEq, Debug)]
enum Notifications {
    /// Requested, and none has come since.
    Awaited,
    /// Suppressed.
    Suppressed,
    /// Optional.
    Open,
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 256, ..ProptestConfig::default() })]

    #[test]
    fn a_queue_is_two_fifos_and_no_wake_up_is_lost(
        steps in prop::collection::vec(step(), 1..300),
        (packed, size) in prop_oneof![
            (0u32..5).prop_map(|log| (false, 1u16 << log)),
            (1u16..=16).prop_map(|size| (true, size)),
        ],
        base in prop_oneof![Just(0u16), 65400u16..=65535, any::<u16>()],
        event_idx in any::<bool>(),
        use_indirect in any::<bool>(),
        in_order in any::<bool>(),
    ) {
        let features = Features { packed, event_idx, indirect: use_indirect, in_order };
        let mut guest = Guest::starting_at(size, features, base);
        prop_assert!(guest.device.publish(), "the first one is always sent");
        let mut chain = Chain::new();
        let mut next_addr = GUEST_ADDR;

        let mut added: VecDeque<Expected> = VecDeque::new();
        let mut available: VecDeque<Expected> = VecDeque::new();
        let mut seen = 0usize;
        // In pop order; a completed one is None until no earlier one can be put back.
        let mut popped: Vec<Option<Expected>> = Vec::new();
        // In order: chains not given back yet, with the length if completed.
        let mut open_order: VecDeque<(u16, Option<u32>)> = VecDeque::new();
        let mut heads: Vec<u16> = Vec::new();
        let mut completed: VecDeque<Used> = VecDeque::new();
        let mut used: VecDeque<Used> = VecDeque::new();
        let (mut kicks, mut interrupts) = (Notifications::Open, Notifications::Open);

        for step in steps {
            match step {
                Step::Add { buffers, indirect } => {
                    let buffers: Vec<Buffer> = buffers.iter().map(|&len| {
                        next_addr = GUEST_ADDR + (next_addr - GUEST_ADDR + 64) % 0x8000;
                        Buffer::readable(next_addr, len)
                    }).collect();
                    let head = if indirect && use_indirect {
                        if buffers.len() > usize::from(guest.driver.size()) { continue }
                        guest.driver.add_indirect(&buffers)
                    } else {
                        guest.driver.add(&buffers)
                    };
                    if let Some(head) = head {
                        added.push_back((head, buffers.iter().map(|b| (b.addr, b.len)).collect()));
                    }
                }
                Step::Publish => {
                    let kick = guest.driver.publish();
                    if !added.is_empty() {
                        match kicks {
                            Notifications::Awaited => prop_assert!(kick, "a sleeping device was not kicked"),
                            Notifications::Suppressed => prop_assert!(!kick, "kicked although suppressed"),
                            Notifications::Open => {}
                        }
                        if kicks == Notifications::Awaited { kicks = Notifications::Open }
                    } else {
                        prop_assert!(!kick);
                    }
                    available.append(&mut added);
                }
                Step::Reap => {
                    prop_assert_eq!(guest.driver.reap(), used.pop_front());
                }
                Step::Look => {
                    seen = available.len();
                    prop_assert_eq!(guest.device.available(), Ok(seen as u16));
                }
                Step::Pop => {
                    let expected = if seen > 0 { available.pop_front() } else { None };
                    prop_assert_eq!(guest.device.pop_readable(&mut chain), Ok(expected.is_some()));
                    let Some((head, buffers)) = expected else { continue };
                    seen -= 1;
                    prop_assert_eq!(guest.device.head_of(chain.head()), head);
                    open_order.push_back((head, None));
                    let spans: Vec<_> = chain.spans().iter().map(|s| (Some(s.ptr), s.len)).collect();
                    let expected: Vec<_> =
                        buffers.iter().map(|&(addr, len)| (guest.map.translate(addr, len.into()), len)).collect();
                    prop_assert_eq!(spans, expected);
                    prop_assert_eq!(chain.bytes(), buffers.iter().map(|b| b.1).sum::<u32>());
                    popped.push(Some((chain.head(), buffers)));
                    heads.push(head);
                }
                Step::Rewind(n) => {
                    let last = popped.iter().rev().take(n.into()).take_while(|p| p.is_some()).count();
                    guest.device.rewind(last as u16);
                    for _ in 0..last {
                        let (_, buffers) = popped.pop().flatten().unwrap();
                        available.push_front((heads.pop().unwrap(), buffers));
                        open_order.pop_back();
                    }
                    seen += last;
                }
                Step::Complete { which, len } => {
                    let mut open: Vec<_> = popped.iter_mut().filter(|p| p.is_some()).collect();
                    if open.is_empty() { continue }
                    let which = which % open.len();
                    let (token, _) = open[which].take().unwrap();
                    let head = guest.device.head_of(token);
                    guest.device.complete(token, len);
                    if in_order {
                        let of_head = |open: &&mut (u16, Option<u32>)| open.0 == head;
                        open_order.iter_mut().find(of_head).unwrap().1 = Some(len);
                        while let Some(&(head, Some(len))) = open_order.front() {
                            open_order.pop_front();
                            completed.push_back(Used { head, len });
                        }
                    } else {
                        completed.push_back(Used { head, len });
                    }
                }
                Step::PublishUsed => {
                    let interrupt = guest.device.publish();
                    if !completed.is_empty() {
                        match interrupts {
                            Notifications::Awaited => prop_assert!(interrupt, "a sleeping driver was not woken"),
                            Notifications::Suppressed => prop_assert!(!interrupt, "woken although suppressed"),
                            Notifications::Open => {}
                        }
                        if interrupts == Notifications::Awaited { interrupts = Notifications::Open }
                    } else {
                        prop_assert!(!interrupt);
                    }
                    used.append(&mut completed);
                }
                Step::DeviceSleeps => {
                    let missed = guest.device.request_kicks();
                    prop_assert_eq!(missed, available.len() > seen);
                    kicks = if missed { Notifications::Open } else { Notifications::Awaited };
                }
                Step::DeviceWakes => {
                    guest.device.suppress_kicks();
                    // The driver may ask about entries that the device has not looked at.
                    kicks = Notifications::Suppressed;
                }
                Step::DriverSleeps => {
                    let missed = guest.driver.enable_interrupts();
                    prop_assert_eq!(missed, !used.is_empty());
                    interrupts = if missed { Notifications::Open } else { Notifications::Awaited };
                }
                Step::DriverWakes => {
                    guest.driver.disable_interrupts();
                    interrupts = Notifications::Suppressed;
                }
            }
            let in_flight = match in_order {
                true => open_order.len(),
                false => popped.iter().flatten().count(),
            };
            prop_assert_eq!(usize::from(guest.device.in_flight()), in_flight);
            prop_assert_eq!(usize::from(guest.device.pending()), seen);
        }
    }
}

#[test]
fn indices_wrap() {
    wrap(64, Features { packed: false, event_idx: true, indirect: false, in_order: false });
}

#[test]
fn places_wrap() {
    wrap(64, Features { packed: true, event_idx: true, indirect: false, in_order: false });
    wrap(61, Features { packed: true, event_idx: true, indirect: false, in_order: false });
}

/// Once around all 2^16 indices and more, in bursts, out of order.
fn wrap(size: u16, features: Features) {
    let mut guest = Guest::new(size, features);
    let mut chain = Chain::new();
    let mut sent = 0u32;
    let mut heads = Vec::new();
    while sent < 3 * 65536 {
        let burst = 1 + sent % 61;
        for i in 0..burst {
            guest.driver.add(&[Buffer::writable(GUEST_ADDR, 1 + i)]).unwrap();
        }
        let _ = guest.driver.publish();
        assert_eq!(guest.device.available(), Ok(burst as u16));
        heads.clear();
        for i in 0..burst {
            assert_eq!(guest.device.pop_writable(&mut chain), Ok(true));
            assert_eq!(chain.bytes(), 1 + i);
            heads.push(chain.head());
        }
        for &head in heads.iter().rev() {
            guest.device.complete(head, u32::from(head));
        }
        let _ = guest.device.publish();
        for &head in heads.iter().rev() {
            assert_eq!(guest.driver.reap(), Some(Used { head, len: u32::from(head) }));
        }
        sent += burst;
    }
    assert_eq!(guest.device.next_avail(), sent as u16);
    assert_eq!(guest.driver.free(), size);
}
