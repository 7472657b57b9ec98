use super::*;
use proptest::prelude::*;

const KEY: Key = Key::new(*b"segment 42's key");
const OTHER: Key = Key::new(*b"segment 43's key");
const KEYS: Keys = Keys { even: Some(KEY), odd: None };

fn any_stamp() -> impl Strategy<Value = Stamp> {
    (any::<u32>(), any::<u64>(), any::<u32>(), any::<u32>()).prop_map(
        |(deadline_us, sent_ns, hold_ns, sequence)| Stamp {
            key: KeyNumber::Even,
            deadline_us,
            sent_ns,
            hold_ns,
            sequence,
        },
    )
}

fn stamped(frame: &[u8], stamp: &Stamp, key: &Key) -> Vec<u8> {
    let mut frame = frame.to_vec();
    let trailer = stamp.trailer(key, &frame, frame.len() as u32);
    frame.extend(trailer);
    frame
}

/// A UDP datagram in IPv4 or IPv6, with a tag or without.
fn packet(v6: bool, tag: Option<u16>, payload: &[u8]) -> Vec<u8> {
    let mut frame = vec![2, 0, 0, 0, 0, 2, 2, 0, 0, 0, 0, 1];
    if let Some(tci) = tag {
        frame.extend([0x81, 0]);
        frame.extend(tci.to_be_bytes());
    }
    if v6 {
        frame.extend([0x86, 0xdd, 0x6b, 0x8a, 0xbc, 0xde]);
        frame.extend([0x55; 36]);
    } else {
        frame.extend([0x08, 0, 0x45, 0xb8]);
        frame.extend([0x33; 18]);
    }
    frame.extend(payload);
    frame
}

proptest! {
    #[test]
    fn a_stamp_is_read_back(stamp in any_stamp(), frame in prop::collection::vec(any::<u8>(), 0..200)) {
        let on_wire = stamped(&frame, &stamp, &KEY);
        prop_assert_eq!(Stamp::read(&on_wire, &KEYS), Some(stamp));
    }

    /// Any bit of the covered bytes, of the length and of the trailer.
    #[test]
    fn a_changed_bit_is_a_forgery(
        stamp in any_stamp(), v6: bool, payload in prop::collection::vec(any::<u8>(), 64..200), bit in 0usize..8,
        at in 0usize..96,
    ) {
        let mut frame = stamped(&packet(v6, None, &payload), &stamp, &KEY);
        let length = frame.len();
        let at = if at < 64 { at } else { length - 32 + (at - 64) };
        let mutable = if v6 { (at == 14 && bit < 4) || (at == 15 && bit >= 4) } else { at == 15 || at == 24 || at == 25 };
        frame[at] ^= 1 << bit;
        prop_assert_eq!(Stamp::read(&frame, &KEYS).is_some(), mutable, "byte {} bit {}", at, bit);
    }

    /// Payload behind the covered bytes may change while a frame is sent.
    #[test]
    fn rewritten_payload_is_no_forgery(stamp in any_stamp(), v6: bool, at in 64usize..150, byte: u8) {
        let mut frame = stamped(&packet(v6, None, &[7; 128]), &stamp, &KEY);
        frame[at] = byte;
        prop_assert_eq!(Stamp::read(&frame, &KEYS), Some(stamp));
    }

    /// A network that adds, changes or removes an 802.1Q tag: the length differs then, and the receiver takes the tag off.
    #[test]
    fn a_changed_tag_is_no_forgery(stamp in any_stamp(), v6: bool, tci: u16, other: u16) {
        let mut frame = stamped(&packet(v6, Some(tci), &[7; 128]), &stamp, &KEY);
        frame[14..16].copy_from_slice(&other.to_be_bytes());
        prop_assert_eq!(Stamp::read(&frame, &KEYS), Some(stamp));
    }

    #[test]
    fn any_bytes_are_read_without_panic(frame: Vec<u8>) {
        prop_assert_eq!(Stamp::read(&frame, &KEYS), None);
    }

    /// Bytes that begin like a stamp, of every length.
    #[test]
    fn a_guests_imitation_is_no_stamp(mut fields: [u8; 32], frame in prop::collection::vec(any::<u8>(), 0..80)) {
        fields[..4].copy_from_slice(&[0x74, 0x64, 1, 0]);
        let on_wire = [&frame[..], &fields].concat();
        prop_assert_eq!(Stamp::read(&on_wire, &KEYS), None);
    }
}

#[test]
fn another_segments_key_does_not_verify() {
    let stamp = Stamp { key: KeyNumber::Even, deadline_us: 500, sent_ns: 1, hold_ns: 2, sequence: 3 };
    let on_wire = stamped(&packet(false, None, &[1; 50]), &stamp, &OTHER);
    assert_eq!(Stamp::read(&on_wire, &KEYS), None);
}

#[test]
fn two_keys_are_valid_while_one_replaces_the_other() {
    let frame = packet(true, None, &[1; 50]);
    let stamp = |key| Stamp { key, deadline_us: 500, sent_ns: 1, hold_ns: 2, sequence: 3 };
    let old = stamped(&frame, &stamp(KeyNumber::Even), &KEY);
    let new = stamped(&frame, &stamp(KeyNumber::Odd), &OTHER);
    let both = Keys { even: Some(KEY), odd: Some(OTHER) };
    assert!(Stamp::read(&old, &both).is_some() && Stamp::read(&new, &both).is_some());
    let later = Keys { even: None, odd: Some(OTHER) };
    assert_eq!(Stamp::read(&old, &later), None);
    assert!(Stamp::read(&new, &later).is_some());
}

#[test]
fn another_version_or_flag_is_no_stamp() {
    let stamp = Stamp { key: KeyNumber::Even, deadline_us: 500, sent_ns: 1, hold_ns: 2, sequence: 3 };
    let frame = packet(false, None, &[1; 50]);
    for (at, byte) in [(0, 0x75), (2, 2), (3, 2), (3, 0x80)] {
        // With a tag that is right for these fields.
        let mut fields = stamp.fields();
        fields[at] = byte;
        let tag = KEY.tag(&frame, frame.len() as u32, &fields);
        let on_wire = [&frame[..], &fields, &tag.to_be_bytes()].concat();
        assert_eq!(Stamp::read(&on_wire, &KEYS), None, "byte {at}");
    }
}

/// The reference vectors of SipHash-2-4 (Aumasson and Bernstein, appendix A): the library is what its name says.
#[test]
fn the_hash_is_siphash_2_4() {
    let key: [u8; 16] = std::array::from_fn(|n| n as u8);
    let input: [u8; 15] = std::array::from_fn(|n| n as u8);
    assert_eq!(siphasher::sip::SipHasher24::new_with_key(&key).hash(&input), 0xa129_ca61_49be_45e5);
}

#[test]
fn a_key_is_not_printed() {
    assert_eq!(format!("{:?}", KEYS.even), "Some(Key(..))");
}
