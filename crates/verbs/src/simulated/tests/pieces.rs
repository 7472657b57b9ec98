//! Pieces, and lives of a queue pair, as the fabric has them.

use super::*;
use crate::simulated::Datagram;
use crate::{Access, BATCH, ELEMENTS, GRH, PIECES};
use proptest::prelude::*;

/// Bytes of a region of the property test.
const SMALL: usize = 4096;

/// Places in two regions: which, from where, how many bytes.
type Places = Vec<(usize, usize, u32)>;

fn places(longest: u32) -> impl Strategy<Value = Places> {
    let one = (0..2_usize, 1..=longest)
        .prop_flat_map(|(region, len)| (Just(region), 0..=SMALL - len as usize, Just(len)));
    proptest::collection::vec(one, 1..=PIECES as usize)
}

fn pieces<'a>(regions: &'a [Arc<Region>; 2], places: &Places) -> Vec<Piece<'a>> {
    places.iter().map(|&(region, from, len)| Piece { region: &regions[region], from, len }).collect()
}

/// Fills both regions with bytes that tell their place, and returns the same bytes.
fn filled(regions: &[Arc<Region>; 2], seed: u8) -> [Vec<u8>; 2] {
    [0, 1].map(|n| {
        let bytes: Vec<u8> = (0..SMALL).map(|at| (at % 251) as u8 ^ seed ^ (n as u8) << 7).collect();
        // SAFETY: all of the region, which no device uses at this time.
        unsafe { regions[n].start().copy_from_nonoverlapping(bytes.as_ptr(), SMALL) };
        bytes
    })
}

fn bytes(region: &Region) -> &[u8] {
    // SAFETY: all of the region, which no device uses at this time.
    unsafe { std::slice::from_raw_parts(region.start(), region.len()) }
}

fn pair(side: &Side, pieces: u32) -> QueuePair {
    let depths = Depths { send: 200, receive: 200, pieces };
    QueuePair::new(&side.device, &side.sends, &side.receives, depths, KEY).unwrap()
}

proptest! {
    /// What is gathered and scattered is what a model does with two arrays.
    #[test]
    fn bytes_go_from_pieces_to_pieces_in_order(sent in places(256), received in places(400)) {
        let (_, a, b) = sides();
        let [from, to] = [&a, &b].map(|side| [(); 2].map(|()| Region::new(&side.device, SMALL).unwrap()));
        let (source, mut expected) = (filled(&from, 0x11), filled(&to, 0x22));
        let (sender, receiver) = (pair(&a, PIECES), pair(&b, PIECES));
        let (handle, posted, landed) = (a.to(&b), pieces(&from, &sent), pieces(&to, &received));
        let send = Send {
            id: 1,
            pieces: &posted,
            is_signalled: true,
            to: &handle,
            queue_pair: receiver.number(),
            q_key: KEY,
        };
        // SAFETY: the bytes are read after the completions.
        unsafe {
            receiver.post_receive(&[Receive { id: 2, pieces: &landed }]).unwrap();
            sender.post_send(&[send]).unwrap();
        }
        prop_assert_eq!(done(&a.sends), [(1, Status::Success)]);
        let of = |&(region, at, len): &(usize, usize, u32)| &source[region][at..at + len as usize];
        let payload: Vec<u8> = sent.iter().flat_map(of).copied().collect();
        let room: usize = received.iter().map(|(.., len)| *len as usize).sum();
        let fits = GRH + payload.len() <= room;
        let completion = taken(&b.receives)[0];
        prop_assert_eq!(completion.status, if fits { Status::Success } else { Status::Failed(1) });
        if fits {
            prop_assert_eq!(completion.bytes as usize, GRH + payload.len());
            let grh = Datagram::grh(&Datagram {
                from: a.address,
                source: sender.number(),
                to: b.address,
                queue_pair: receiver.number(),
                q_key: KEY,
                traffic_class: 0,
                bytes: payload.clone(),
            });
            let mut rest = [&grh[..], &payload].concat();
            for (region, at, len) in received {
                let own: Vec<u8> = rest.drain(..rest.len().min(len as usize)).collect();
                expected[region][at..at + own.len()].copy_from_slice(&own);
            }
        }
        prop_assert!(bytes(&to[0]) == expected[0] && bytes(&to[1]) == expected[1]);
        prop_assert!(bytes(&from[0]) == source[0] && bytes(&from[1]) == source[1]);
    }
}

#[test]
fn a_device_says_how_many_pieces_it_takes() {
    let (_, a, _) = sides();
    assert_eq!(a.device.pieces(), PIECES);
    a.orders.set_pieces(3);
    let asked =
        |pieces| QueuePair::new(&a.device, &a.sends, &a.receives, Depths { pieces, ..DEPTHS }, KEY).map(drop);
    asked(3).unwrap();
    for pieces in [0, 4, u32::MAX] {
        let error = asked(pieces).unwrap_err().to_string();
        assert_eq!(error, format!("requests of {pieces} pieces of memory: there can be from 1 to 3 here"));
    }
    a.orders.set_pieces(u32::MAX);
    assert_eq!(a.device.pieces(), PIECES, "no more than are posted");
}

#[test]
fn a_write_to_the_device_takes_so_many_requests_and_pieces() {
    let (_, a, b) = sides();
    let (to, one) = (a.to(&b), Piece { region: &a.region, from: 0, len: 1 });
    for (requests, pieces, writes) in
        [(BATCH, ELEMENTS / BATCH, 1), (BATCH + 1, 1, 2), (BATCH, PIECES as usize, 2), (1, 16, 1)]
    {
        let pieces = vec![one; pieces];
        let send = Send { id: 0, pieces: &pieces, is_signalled: false, to: &to, queue_pair: 1, q_key: KEY };
        let sender = pair(&a, PIECES);
        let before = a.orders.counters().doorbells;
        // SAFETY: the test does not write there.
        unsafe { sender.post_send(&vec![send; requests]) }.unwrap();
        assert_eq!(a.orders.counters().doorbells - before, writes, "{requests} of {}", pieces.len());
    }
}

#[test]
fn a_piece_whose_memory_is_gone_fails_the_request() {
    let (_, a, b) = sides();
    let new = |side: &Side| Region::new(&side.device, 1).unwrap();
    let (gone, to) = (new(&a), a.to(&b));
    let pieces = [Piece { region: &a.region, from: 0, len: 1 }, Piece { region: &gone, from: 0, len: 1 }];
    a.orders.pause();
    let send = Send {
        id: 3,
        pieces: &pieces,
        is_signalled: false,
        to: &to,
        queue_pair: b.pair.number(),
        q_key: KEY,
    };
    // SAFETY: the memory goes, which the test is about.
    unsafe { a.pair.post_send(&[send]) }.unwrap();
    drop(gone);
    a.orders.resume();
    assert_eq!(done(&a.sends), [(3, Status::Failed(4))]);
    assert!(b.payloads().is_empty());
}

#[test]
fn the_owner_of_memory_stays_until_the_region_goes() {
    let (_, a, b) = sides();
    let owner: Arc<Vec<u8>> = Arc::new(b"guest".to_vec());
    let watch = Arc::downgrade(&owner);
    let start = owner.as_ptr().cast_mut();
    // SAFETY: the bytes stay as long as their vector.
    let region = unsafe { Region::over(&a.device, start, 5, owner, Access::Read) }.unwrap();
    let to = a.to(&b);
    let pieces = [Piece { region: &region, from: 1, len: 4 }];
    let send =
        Send { id: 3, pieces: &pieces, is_signalled: true, to: &to, queue_pair: b.pair.number(), q_key: KEY };
    // SAFETY: the bytes are never written.
    unsafe { a.pair.post_send(&[send]) }.unwrap();
    assert_eq!(b.payloads(), [b"uest"]);
    assert!(watch.upgrade().is_some());
    drop(region);
    assert!(watch.upgrade().is_none());
    a.orders.refuse("ibv_reg_mr", libc::ENOMEM);
    let owner = Arc::new([0_u8; 8]);
    // SAFETY: the same.
    let refused = unsafe { Region::over(&a.device, start, 5, owner.clone(), Access::Write) };
    assert_eq!((number(refused), Arc::strong_count(&owner)), (libc::ENOMEM, 1));
}
