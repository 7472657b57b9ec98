//! Requests of several pieces.
//!
//! ```text
//!  piece, piece, piece ─ in their order ─▶ datagram ─▶ GRH, bytes ─ in their order ─▶ piece, piece, piece
//! ```

use super::end::{End, KEY, Side, sides, take};
use crate::{Access, CompletionQueue, Depths, Error, GRH, Piece, QueuePair, Receive, Region, Send, Status};
use std::sync::Arc;

/// Bytes of a datagram of many pieces: a header, some in a row, one alone.
const LENGTHS: [usize; 4] = [34, 1, 1000, 7];

pub fn gathered(a: &End, b: &End) {
    let (a, b, to) = sides(a, b);
    let other = Region::new(&a.end.device, 4096).unwrap();
    let sum: usize = LENGTHS.iter().sum();
    let expected: Vec<u8> = (0..sum).map(|n| (n % 251) as u8).collect();
    // Each piece elsewhere: from the end of one region on, the third one in another.
    let (mut pieces, mut done) = (vec![], 0);
    for (n, len) in LENGTHS.into_iter().enumerate() {
        let bytes = &expected[done..done + len];
        let from = (LENGTHS.len() - n) * 1500 + n;
        let region: &Region = if n == 2 { &other } else { &a.region };
        let from = if n == 2 { region.len() - len } else { from };
        // SAFETY: within the region; the device has no send.
        unsafe { region.start().add(from).copy_from_nonoverlapping(bytes.as_ptr(), len) };
        pieces.push(Piece { region, from, len: len as u32 });
        done += len;
    }
    b.post(3);
    // The second one has the same piece twice; the third one is one piece of a region's end.
    a.send_pieces(&to, (b.pair.number(), KEY), &[&pieces, &[pieces[3], pieces[3]], &pieces[2..3]]);
    let twice = [&expected[sum - 7..], &expected[sum - 7..]].concat();
    assert_eq!(b.payloads(3), [expected.clone(), twice, expected[35..1035].to_vec()]);
}

pub fn scattered(a: &End, b: &End) {
    let (a, b, to) = sides(a, b);
    let other = Region::new(&b.end.device, 4096).unwrap();
    // The GRH ends in the second piece; the last piece gets nothing.
    let places = [(&*b.region, 500, 30), (&*other, 4076, 20), (&*b.region, 200, 100), (&*b.region, 700, 64)];
    let pieces = places.map(|(region, from, len)| Piece { region, from, len });
    let fill = |region: &Region| {
        // SAFETY: all of the region; the device has none of it yet.
        unsafe { region.start().write_bytes(0xee, region.len()) }
    };
    fill(&b.region);
    fill(&other);
    // SAFETY: the bytes are read after the completion.
    unsafe { b.pair.post_receive(&[Receive { id: 5, pieces: &pieces }]) }.unwrap();
    let sent: Vec<u8> = (0..75).collect();
    a.send(&to, b.pair.number(), KEY, &[&sent]);
    let done = take(&b.receives, 1)[0];
    assert_eq!((done.id, done.status, done.bytes as usize), (5, Status::Success, GRH + sent.len()));
    let read = |region: &Region, from: usize, len: usize| {
        // SAFETY: within the region; the completion gave the bytes back.
        unsafe { std::slice::from_raw_parts(region.start().add(from), len) }.to_vec()
    };
    assert_eq!(read(&other, 4086, 10), sent[..10]);
    assert_eq!(read(&b.region, 200, 65), sent[10..]);
    for (from, len) in [(499, 1), (530, 170), (199, 1), (265, 235), (700, 64)] {
        assert_eq!(read(&b.region, from, len), vec![0xee; len], "{len} bytes from {from} are not its own");
    }
    assert_eq!(read(&other, 0, 4076), vec![0xee; 4076]);
}

/// As many pieces as the device says, both ways; one more is refused.
pub fn most(a: &End, b: &End) {
    let (a, b, _) = sides(a, b);
    let most = a.end.device.pieces().min(b.end.device.pieces());
    assert!(most >= 2, "{most} pieces");
    let made = |side: &Side, pieces| {
        let depths = Depths { send: 8, receive: 8, pieces };
        QueuePair::new(&side.end.device, &side.sends, &side.receives, depths, KEY)
    };
    for side in [&a, &b] {
        let limit = side.end.device.pieces();
        for asked in [0, limit + 1, u32::MAX] {
            let refused = made(side, asked).unwrap_err();
            assert!(
                matches!(refused, Error::Pieces { asked: named, most } if named == asked && most == limit),
                "{refused}"
            );
        }
    }
    let (from, to) = (made(&a, most).unwrap(), made(&b, most).unwrap());
    // SAFETY: within the region.
    unsafe { a.buffer(0).write_bytes(7, 64 * most as usize) };
    let address = a.address(&b.end, 0);
    let sent: Vec<_> = (0..most as usize).map(|n| a.piece(n * 64, 5)).collect();
    let received: Vec<_> = (0..most as usize).map(|n| b.piece(n * 64, 64)).collect();
    let send =
        Send { id: 1, pieces: &sent, is_signalled: true, to: &address, queue_pair: to.number(), q_key: KEY };
    // SAFETY: the bytes are used after the completions.
    unsafe {
        to.post_receive(&[Receive { id: 2, pieces: &received }]).unwrap();
        from.post_send(&[send]).unwrap();
    }
    assert_eq!(take(&a.sends, 1)[0].status, Status::Success);
    let done = take(&b.receives, 1)[0];
    assert_eq!((done.status, done.bytes as usize), (Status::Success, GRH + 5 * most as usize));
}

/// What is refused is not posted, what came before is, and all goes on.
pub fn refused(a: &End, b: &End) {
    let (a, b, to) = sides(a, b);
    let queue = CompletionQueue::new(&a.end.device, 8).unwrap();
    let depths = Depths { send: 8, receive: 8, pieces: 2 };
    let pair = QueuePair::new(&a.end.device, &queue, &queue, depths, KEY).unwrap();
    let (len, good) = (a.region.len(), a.piece(0, 4));
    let owner: Arc<Region> = a.region.clone();
    // SAFETY: the owner is the region of these bytes.
    let read_only = unsafe { Region::over(&a.end.device, owner.start(), 4096, owner.clone(), Access::Read) };
    let read_only = read_only.unwrap();
    let only_read = Piece { region: &read_only, ..good };
    let huge = Piece { len: u32::MAX, ..good };
    let cases: [(&str, Vec<Piece<'_>>); 7] = [
        ("no piece", vec![]),
        ("one piece more than asked for", vec![good; 3]),
        ("many pieces", vec![good; 1000]),
        ("a piece without bytes", vec![good, Piece { len: 0, ..good }]),
        ("a piece beyond its region", vec![good, Piece { from: len - 3, ..good }]),
        ("a piece that begins nowhere", vec![Piece { from: usize::MAX, ..good }, good]),
        ("4 GiB together", vec![huge, huge]),
    ];
    for (what, pieces) in &cases {
        let send = |id, pieces| Send {
            id,
            pieces,
            is_signalled: true,
            to: &to,
            queue_pair: b.pair.number(),
            q_key: KEY,
        };
        let first = [good];
        // SAFETY: the bytes are not written; receives are never filled.
        unsafe {
            let sends = [send(1, &first), send(2, pieces), send(3, &first)];
            let (taken, error) = pair.post_send(&sends).unwrap_err();
            assert_eq!(taken, 1, "{what}: {error}");
            assert_eq!(pair.post_receive(&[Receive { id: 4, pieces }]).unwrap_err().0, 0, "{what}");
        }
        assert_eq!(take(&queue, 1)[0].id, 1, "{what}");
    }
    // Memory that the device only reads is sent, and not received into.
    b.post(1);
    let sent = [only_read, good];
    // SAFETY: the bytes are not written; the receive is refused.
    unsafe {
        let (taken, error) = pair.post_receive(&[Receive { id: 5, pieces: &sent }]).unwrap_err();
        assert_eq!(taken, 0, "{error}");
        a.buffer(0).copy_from_nonoverlapping(b"read".as_ptr(), 4);
    }
    a.send_pieces(&to, (b.pair.number(), KEY), &[&sent]);
    assert_eq!(b.payloads(1), [b"readread"]);
}
