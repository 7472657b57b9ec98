//! Random orders of what both sides, strangers and the guest do.

use super::*;
use tidegate_verbs::simulated::Datagram;

/// What happens next.
#[derive(Clone, Debug)]
enum Step {
    /// A member sends frames of these lengths.
    Send(Vec<usize>),
    /// A stranger sends one.
    Forge,
    /// A vNIC of this host sends one.
    Local(usize),
    /// What arrived is posted, but one of so many, which is dropped.
    Turn(usize),
    /// The driver takes what came.
    Reap,
    /// The driver gives so many buffers.
    Give(usize),
    /// The guest writes nonsense to all its buffers.
    Scribble,
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        4 => prop::collection::vec(20..3900usize, 1..20).prop_map(Step::Send),
        1 => Just(Step::Forge),
        2 => (20..3900usize).prop_map(Step::Local),
        4 => (2..10usize).prop_map(Step::Turn),
        3 => Just(Step::Reap),
        3 => (0..300usize).prop_map(Step::Give),
        1 => Just(Step::Scribble),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]

    /// Whatever both sides and the guest do: what is posted is shown once, in order and whole, and each buffer comes back once.
    #[test]
    fn frames_are_shown_once_and_each_buffer_comes_back_once(
        packed: bool,
        (size, count) in prop_oneof![Just((256u16, 256usize)), Just((64, 64)), Just((512, 100))],
        len in prop_oneof![Just(1536u32), Just(4096), Just(700), Just(300)],
        steps in prop::collection::vec(step(), 1..60),
    ) {
        let mut landed = land(scene(), Guest::new(packed, size, (count, len), NET_F_GUEST_CSUM));
        let (mut expected, mut number, mut tainted): (Vec<Vec<u8>>, u64, bool) = (vec![], 0, false);
        let frame_of = |size: usize, number: &mut u64| {
            let mut frame = Spec::udp4(size.max(20)).build();
            *number += 1;
            let end = frame.len();
            frame[end - 8..].copy_from_slice(&number.to_be_bytes());
            frame
        };
        for step in steps {
            match step {
                Step::Send(sizes) => for size in sizes {
                    let frame = frame_of(size, &mut number);
                    prop_assert_eq!(landed.scene.a.send(&plain(&frame)), Posted::Done);
                },
                Step::Forge => {
                    let frame = frame_of(1000, &mut number);
                    let datagram = landed.scene.datagram(&frame);
                    landed.scene.fabric.forge(Datagram { source: datagram.source + 1, ..datagram });
                }
                Step::Local(size) => {
                    let frame = frame_of(size, &mut number);
                    let posted = landed.guest.post(&plain(&frame).frame);
                    prop_assert!(matches!(posted, Posted::Done | Posted::NoBuffers));
                    if posted == Posted::Done {
                        expected.push(frame);
                    }
                    landed.guest.flush();
                }
                Step::Turn(drops) => {
                    let (tx, guest) = (&mut landed.scene.b.tx, &mut landed.guest);
                    (0..2).for_each(|queue| tx.readiness.note_readable(queue, 0, 0));
                    for n in 1.. {
                        match tx.take() {
                            Taken::New(pending, 1) => {
                                inspect(pending.frame);
                                let frame = pending.frame.get();
                                let bytes = scene::bytes(frame.head(), frame.payload());
                                if n % drops != 0 && guest.post(frame) == Posted::Done {
                                    expected.push(bytes);
                                }
                                tx.give_back(pending.frame);
                            }
                            Taken::Dropped(..) => {}
                            Taken::Nothing => break,
                            other => panic!("{other:?}"),
                        }
                    }
                    guest.flush();
                }
                Step::Reap => {
                    let frames: Vec<_> = landed.guest.reap().into_iter().map(|(_, frame)| frame).collect();
                    if !tainted {
                        prop_assert_eq!(&frames, &expected);
                    }
                    prop_assert_eq!(frames.len(), expected.len());
                    expected.clear();
                    tainted = false;
                }
                Step::Give(count) => landed.guest.give(count),
                Step::Scribble => {
                    for addr in landed.guest.given.values() {
                        landed.guest.memory.write(*addr + VnetHdr::LEN as u64, &[0x55; 280]);
                    }
                    tainted = true;
                }
            }
            prop_assert!(landed.guest.chains_in_use() <= size / 2);
        }
        let mut guest = landed.end();
        let frames = guest.reap();
        prop_assert_eq!(frames.len(), expected.len());
        prop_assert_eq!(guest.chains_in_use(), 0);
        // Of what the driver still gives, each is of use.
        let left = guest.given.len();
        prop_assert_eq!(left, usize::from(guest.driver.size() - guest.driver.free()));
        let local = plain(&Spec::udp4(20).build());
        let mut used = 0;
        while guest.post(&local.frame) == Posted::Done {
            used += 1;
        }
        guest.flush();
        guest.reap();
        prop_assert_eq!((used, guest.given.len()), (left, 0));
    }
}
