use super::*;
use proptest::prelude::*;

const WAY: Way = Way {
    from: IpAddr::V4(std::net::Ipv4Addr::new(192, 0, 2, 1)),
    to: IpAddr::V4(std::net::Ipv4Addr::new(192, 0, 2, 2)),
};

fn bodies() -> impl Strategy<Value = Body> {
    let reply = any::<(u64, u32, u64, u64)>().prop_map(|(asked_started_ns, asked_number, t1, t2)| {
        Body::ClockReply(ClockReply { asked_started_ns, asked_number, t1, t2 })
    });
    let late =
        (any::<([u8; 6], [u8; 6], u32, u32, u64)>(), any::<(u64, u32, u64, u64, bool, u32)>(), 0..7usize);
    let late = late.prop_map(|((src, dst, sequence, deadline_us, late_ns), rest, cause)| {
        let (error_ns, hold_ns, network_ns, here_ns, dropped, others) = rest;
        let cause = Cause::ALL[cause];
        Body::Late(LateReport {
            src,
            dst,
            sequence,
            deadline_us,
            late_ns,
            error_ns,
            hold_ns,
            network_ns,
            here_ns,
            cause,
            dropped,
            others,
        })
    });
    let here = any::<([u8; 6], u64)>().prop_map(|(mac, since_ns)| Body::Here(Here { mac, since_ns }));
    let longest = prop_oneof![Just(14), Just(u16::MAX), 14u16..];
    let takes = prop_oneof![Just((0, 0)), (2..1u32 << 24, longest)];
    let member = (any::<([u8; 6], u64)>(), takes).prop_map(|((mac, since_ns), (queue_pair, longest))| {
        Body::Member(Member { mac, since_ns, queue_pair, longest })
    });
    prop_oneof![Just(Body::ClockRequest), reply, late, here, member]
}

fn notices() -> impl Strategy<Value = Notice> {
    let key = prop_oneof![Just(KeyNumber::Even), Just(KeyNumber::Odd)];
    (key, 0..1u32 << 24, any::<(u64, u32, u64)>(), bodies()).prop_map(
        |(key, vni, (started_ns, number, sent_ns), body)| Notice {
            key,
            vni,
            started_ns,
            number,
            sent_ns,
            body,
        },
    )
}

fn addresses() -> impl Strategy<Value = IpAddr> {
    prop_oneof![
        any::<u32>().prop_map(|a| IpAddr::V4(a.into())),
        any::<u128>().prop_map(|a| IpAddr::V6(a.into()))
    ]
}

fn both(key: [u8; 16]) -> Keys {
    Keys { even: Some(Key::new(key)), odd: Some(Key::new(key)) }
}

proptest! {
    #[test]
    fn a_notice_is_read_back(notice in notices(), key: [u8; 16], from in addresses(), to in addresses()) {
        let way = Way { from, to };
        let message = notice.write(&Key::new(key), way);
        let keys = |vni| if vni == notice.vni { both(key) } else { Keys::default() };
        prop_assert_eq!(Notice::read(message.as_bytes(), way, keys), Ok(notice));
    }

    #[test]
    fn any_bytes_are_read_without_panic(mut bytes in prop::collection::vec(any::<u8>(), 0..200), kind in 0..8u8) {
        let _ = Notice::read(&bytes, WAY, |_| both([7; 16]));
        if bytes.len() >= 4 {
            bytes[..4].copy_from_slice(&[0x74, 0x6e, 1, kind]);
            prop_assert!(Notice::read(&bytes, WAY, |_| both([7; 16])).is_err());
        }
    }

    #[test]
    fn each_flipped_bit_and_each_cut_is_refused(notice in notices(), key: [u8; 16]) {
        let message = notice.write(&Key::new(key), WAY);
        let bytes = message.as_bytes();
        for bit in 0..bytes.len() * 8 {
            let mut changed = bytes.to_vec();
            changed[bit / 8] ^= 1 << (bit % 8);
            prop_assert!(Notice::read(&changed, WAY, |_| both(key)).is_err(), "bit {}", bit);
        }
        for len in 0..bytes.len() {
            prop_assert!(Notice::read(&bytes[..len], WAY, |_| both(key)).is_err(), "{} bytes", len);
        }
        let longer = [bytes, &[0]].concat();
        prop_assert!(Notice::read(&longer, WAY, |_| both(key)).is_err());
    }

    #[test]
    fn another_way_or_key_is_refused(notice in notices(), key: [u8; 16], other: [u8; 16], at in addresses()) {
        let message = notice.write(&Key::new(key), WAY);
        let read = |way, key| Notice::read(message.as_bytes(), way, |_| both(key));
        prop_assert_eq!(read(Way { from: WAY.to, to: WAY.from }, key), Err(Refused::Forged), "reflected");
        prop_assume!(at != WAY.from && at != WAY.to && key != other);
        prop_assert_eq!(read(Way { to: at, ..WAY }, key), Err(Refused::Forged));
        prop_assert_eq!(read(Way { from: at, ..WAY }, key), Err(Refused::Forged));
        prop_assert_eq!(read(WAY, other), Err(Refused::Forged));
        let none = Notice::read(message.as_bytes(), WAY, |_| Keys::default());
        prop_assert_eq!(none, Err(Refused::NoKey(notice.vni)));
    }
}

#[test]
fn the_longest_notice_fits_and_a_later_version_is_named() {
    let body = Body::Here(Here { mac: [2; 6], since_ns: 1 });
    let notice = Notice { key: KeyNumber::Even, vni: 42, started_ns: 1, number: 2, sent_ns: 3, body };
    let message = notice.write(&Key::new([1; 16]), WAY);
    assert_eq!(message.as_bytes().len(), HEADER + 14 + TAG);
    let mut later = message.as_bytes().to_vec();
    later[2] = 2;
    assert_eq!(Notice::read(&later, WAY, |_| both([1; 16])), Err(Refused::Version(2)));
    assert_eq!(LEN_MAX, 98);
}

/// Computed by hand from the layout above: a change of the format changes these bytes.
#[test]
fn the_bytes_of_a_request() {
    let notice = Notice {
        key: KeyNumber::Odd,
        vni: 0x01_02_03,
        started_ns: 4,
        number: 5,
        sent_ns: 6,
        body: Body::ClockRequest,
    };
    let message = notice.write(&Key::new([0; 16]), WAY);
    let fields = [0x74, 0x6e, 1, 1, 1, 1, 2, 3, 0, 0, 0, 0, 0, 0, 0, 4, 0, 0, 0, 5, 0, 0, 0, 0, 0, 0, 0, 6];
    assert_eq!(message.as_bytes()[..HEADER], fields);
}

/// Computed by hand from the layout: a change of the format changes these bytes.
#[test]
fn the_bytes_of_a_member() {
    let body =
        Body::Member(Member { mac: [2, 0, 0, 0, 0, 9], since_ns: 7, queue_pair: 0x12_3456, longest: 4064 });
    let notice = Notice { key: KeyNumber::Even, vni: 42, started_ns: 1, number: 2, sent_ns: 3, body };
    let message = notice.write(&Key::new([0; 16]), WAY);
    let (head, body) = message.as_bytes().split_at(HEADER);
    assert_eq!(head[3], 5);
    let fields = [2, 0, 0, 0, 0, 9, 0, 0, 0, 0, 0, 0, 0, 7, 0, 0x12, 0x34, 0x56, 0x0f, 0xe0];
    assert_eq!(body[..body.len() - TAG], fields);
}

/// With a right tag: a host that has the key may say anything.
#[test]
fn a_member_that_no_sender_writes_is_malformed() {
    let wrong = [(0, 1500), (1, 1500), (1 << 24, 1500), (u32::MAX, 1500), (2, 13), (2, 0), (0xff_ffff, 13)];
    for (queue_pair, longest) in wrong {
        let body = Body::Member(Member { mac: [2; 6], since_ns: 1, queue_pair, longest });
        let notice = Notice { key: KeyNumber::Even, vni: 42, started_ns: 1, number: 2, sent_ns: 3, body };
        let message = notice.write(&Key::new([1; 16]), WAY);
        let read = Notice::read(message.as_bytes(), WAY, |_| both([1; 16]));
        assert_eq!(read, Err(Refused::Malformed), "queue pair {queue_pair}, longest {longest}");
    }
}

/// What a release without a kind does with it, as this one with the next.
#[test]
fn an_unknown_kind_is_malformed_before_its_tag_is_computed() {
    for kind in [0, 6, 255] {
        let body = Body::Member(Member { mac: [2; 6], since_ns: 1, queue_pair: 0, longest: 0 });
        let notice = Notice { key: KeyNumber::Even, vni: 42, started_ns: 1, number: 2, sent_ns: 3, body };
        let mut bytes = notice.write(&Key::new([1; 16]), WAY).as_bytes().to_vec();
        bytes[3] = kind;
        let read = Notice::read(&bytes, WAY, |_| unreachable!("no key is looked up"));
        assert_eq!(read, Err(Refused::Malformed), "kind {kind}");
    }
}
