//! The end of a landing: memory, rings and the process go.

use super::*;

/// A frame that is under way while its guest's memory goes: the chains wait for it.
#[test]
fn the_end_waits_for_frames_that_are_under_way() {
    let mut landed = Landed::setup(true, 256, (256, 1536));
    let sent = plain(&Spec::udp4(3000).build());
    (0..3).for_each(|_| assert_eq!(landed.scene.a.send(&sent), Posted::Done));
    let under_way = landed.take();
    assert_eq!(under_way.len(), 3);
    landed.close();
    assert!(!landed.landing.is_over());
    let control = |landed: &mut Landed| landed.guest.link.vhost().unwrap().end_landing().is_some();
    assert!(!control(&mut landed));
    // One is still delivered, one dropped, one copied: all the same.
    assert_eq!(landed.guest.post(under_way[0].get()), Posted::Done);
    landed.guest.flush();
    assert_eq!(landed.guest.reap()[0].1, on_the_wire(&sent)[0]);
    for (n, frame) in under_way.into_iter().enumerate() {
        assert!(!landed.landing.is_over(), "{n}");
        landed.scene.b.tx.give_back(frame);
    }
    assert!(landed.landing.is_over() && control(&mut landed));
    landed.guest.flush();
    landed.guest.reap();
    assert_eq!(landed.guest.given.len() as u16, landed.guest.driver.size() - landed.guest.driver.free());
    assert_eq!(landed.guest.chains_in_use(), 0);
    let number = landed.landing.number;
    assert!(landed.scene.b.tx.forget_landing(number).is_some());
}

/// A ring that stops before the device is done loses its buffers, and nothing else: frames are copied from what is still mapped.
#[test]
fn a_ring_that_is_stopped_too_early_harms_nothing() {
    for packed in [false, true] {
        let mut landed = Landed::setup(packed, 256, (256, 1536));
        let sent = plain(&Spec::udp4(3000).build());
        assert_eq!(landed.scene.a.send(&sent), Posted::Done);
        let [frame] = landed.take()[..] else { panic!("one arrived") };
        let base = landed.guest.link.vhost().unwrap().stop(0).unwrap().queue.retire();
        assert!(base > 0);
        // The next ring of the same port.
        let other = Guest::new(packed, 256, (256, 1536), 0);
        let mut guest = std::mem::replace(&mut landed.guest, other);
        drop(guest.link.vhost().unwrap().close_landing());
        assert_eq!(landed.guest.post(frame.get()), Posted::Done);
        landed.guest.flush();
        assert_eq!(landed.guest.reap()[0].1, on_the_wire(&sent)[0]);
        landed.scene.b.tx.give_back(frame);
        let tables = Arc::new(Tables::default());
        landed.scene.b.tx.set_rdma(tables.clone());
        drop(landed.scene.b.rx.set_rdma(tables.clone()));
        landed.scene.tables[1] = tables;
        assert!(guest.link.vhost().unwrap().end_landing().is_some());
    }
}

/// A switch that is killed: the kernel destroys the queue pair, and the next process gives the chains back.
#[test]
fn after_a_kill_the_next_process_gives_the_buffers_back() {
    for packed in [false, true] {
        let Landed { scene, mut guest, .. } = {
            let mut landed = Landed::setup(packed, 256, (256, 1536));
            let sent = plain(&Spec::udp4(2000).build());
            for n in 0..50 {
                assert_eq!(landed.scene.a.send(&sent), Posted::Done);
                landed.turn(|_| if n % 3 == 0 { End::Dropped } else { End::Posted });
                landed.guest.reap();
                landed.guest.give(if n % 2 == 0 { 256 } else { 3 });
            }
            landed
        };
        assert!(guest.chains_in_use() > 50);
        drop(scene);
        guest.start();
        guest.flush();
        assert_eq!(guest.chains_in_use(), 0);
        guest.empty = 0;
        guest.reap();
        assert!(guest.empty > 50, "{}", guest.empty);
        // All buffers are the driver's, or wait in its ring: each is of use once.
        guest.give(256);
        let local = plain(&Spec::udp4(900).build());
        let mut posted = 0;
        while guest.post(&local.frame) == Posted::Done {
            posted += 1;
        }
        guest.flush();
        assert_eq!((posted, guest.reap().len(), guest.given.len()), (256, 256, 0));
    }
}
