//! Queue pairs that begin anew.

use super::end::{BUFFERS, End, KEY, OTHER_KEY, Side, sides, take};
use crate::{Error, LARGEST_Q_KEY, Receive, Send, Status};

/// A queue pair that is ready loses what is posted without a word, and has another key.
pub fn ready(a: &End, b: &End) {
    let (a, b, to) = sides(a, b);
    let number = b.pair.number();
    b.write(BUFFERS, &[0xee; 64]);
    b.post(BUFFERS);
    b.pair.renew(OTHER_KEY).unwrap();
    assert_eq!(b.pair.number(), number);
    let witness = Side::new(&b.end);
    witness.post(1);
    a.send(&to, number, OTHER_KEY, &[b"without a buffer"]);
    a.send(&to, witness.pair.number(), KEY, &[b"came"]);
    assert_eq!(witness.payloads(1), [b"came"]);
    assert!(!b.has_received());
    assert_eq!(b.read(BUFFERS, 64), [0xee; 64], "the device has the buffer no more");
    // All places are free.
    b.post(BUFFERS);
    a.send(&to, number, KEY, &[b"the old key"]);
    a.send(&to, number, OTHER_KEY, &[b"x".as_slice(); BUFFERS]);
    assert_eq!(b.payloads(BUFFERS), vec![b"x"; BUFFERS]);
}

/// The same of sends that were not told, and in the other direction.
pub fn sends(a: &End, b: &End) {
    let (a, b, to) = sides(a, b);
    b.post(BUFFERS);
    let pieces = [a.piece(0, 1)];
    let untold = |id| Send {
        id,
        pieces: &pieces,
        is_signalled: false,
        to: &to,
        queue_pair: b.pair.number(),
        q_key: KEY,
    };
    let sends: Vec<_> = (0..3).map(untold).collect();
    // SAFETY: the bytes are not written.
    unsafe { a.pair.post_send(&sends) }.unwrap();
    a.pair.renew(KEY).unwrap();
    assert_eq!(a.sends.poll(&mut [crate::Completion::default()]).unwrap(), 0);
    // They may have left before, or not.
    let witness = Side::new(&b.end);
    witness.post(BUFFERS);
    a.send(&to, witness.pair.number(), KEY, &[b"y".as_slice(); BUFFERS]);
    assert_eq!(witness.payloads(BUFFERS), vec![b"y"; BUFFERS]);
}

/// One that failed is flushed, and then begins anew, again and again.
pub fn failed(a: &End, b: &End) {
    let (a, b, to) = sides(a, b);
    let number = b.pair.number();
    for key in [OTHER_KEY, KEY, OTHER_KEY] {
        b.post(BUFFERS);
        b.pair.fail().unwrap();
        let done = take(&b.receives, BUFFERS);
        assert!(done.iter().all(|done| done.status == Status::Flushed), "{done:?}");
        b.pair.renew(key).unwrap();
        assert!(b.pair.number() == number && !b.has_received());
        b.post(2);
        a.send(&to, number, key, &[b"one", b"two"]);
        assert_eq!(b.payloads(2), [b"one", b"two"]);
        a.post(1);
        b.send(&b.address(&a.end, 0), a.pair.number(), KEY, &[b"back"]);
        let back = a.receive(1).remove(0);
        assert_eq!((back.0.source, &back.2[..]), (number, b"back".as_slice()));
        b.pair.set_q_key(KEY).unwrap();
    }
    let key = LARGEST_Q_KEY + 1;
    assert!(matches!(b.pair.renew(key), Err(Error::QKey(named)) if named == key));
    // A buffer that is too short breaks it by itself.
    let short = [b.piece(BUFFERS, 41)];
    // SAFETY: the bytes are not read.
    unsafe { b.pair.post_receive(&[Receive { id: 3, pieces: &short }]) }.unwrap();
    a.send(&to, number, KEY, &[b"longer"]);
    assert_ne!(take(&b.receives, 1)[0].status, Status::Success);
    b.pair.renew(KEY).unwrap();
    b.post(1);
    a.send(&to, number, KEY, &[b"longer"]);
    assert_eq!(b.payloads(1), [b"longer"]);
}
