//! Frames and their virtio headers: parsed, judged, cut and completed.

use crate::bytes::Bytes;
use std::net::Ipv6Addr;
use std::sync::LazyLock;
use tidegate_contract::{Allowed, Mac, parse as contract};
use tidegate_switch::frame::offload::check;
use tidegate_switch::frame::plain::{parse_plain, source_ip};
use tidegate_switch::frame::policy::receiver::Receiver;
use tidegate_switch::frame::{
    FRAME_MAX, HEADER_MAX, Headers, LinkLocals, Offload, Payload, Policy, Segmenter, Span, Verdict, VnetHdr,
    clear_realtime_marks, finish_checksum, parse, receiver_hdr, segments, wire_bytes,
};

/// Of a vNIC that may send what it likes from one MAC, of one with prefixes and a VLAN, and of a router behind which
/// others live; with what each contract allows.
static POLICIES: LazyLock<[(Policy, Allowed); 3]> = LazyLock::new(|| {
    let policy = |allowed: &str| {
        let text = format!(
            "[vnic.a]\nattach = {{ vhost-user = \"/run/a.sock\" }}\nmac = \"{MAC}\"\nsegment = 7\n\
             allowed = {{ {allowed} }}"
        );
        let mut document = contract(&text, "policy").unwrap_or_else(|errors| panic!("{errors}"));
        let vnic = document.vnics.remove(0).value;
        (Policy::from(&vnic), vnic.allowed)
    };
    [
        policy(""),
        policy("prefixes = [\"10.0.0.1/32\", \"fd00::/64\", \"fe80::9/128\"], vlans = [5]"),
        policy("macs = \"any\", prefixes = [\"10.0.0.0/8\", \"::/0\"], control = true, router = true"),
    ]
});
/// The vNIC's.
const MAC: Mac = Mac([0x52, 0x54, 0, 0, 0, 1]);
/// A link-local address that it holds.
const HELD: Ipv6Addr = Ipv6Addr::new(0xfe80, 0, 0, 0, 0, 0, 0, 1);

/// Takes `data` for a virtio header and the frame behind it, as it is sent. The first byte says how
/// far the frame is longer than what is here, as one with more payload.
///
/// # Panics
/// Where two ways to look at a frame differ, or what is made of it is not in bounds.
pub fn run(data: &[u8]) {
    let mut bytes = Bytes::new(data);
    let longer = usize::from(bytes.u8()) * 257;
    let mut vnet = [0; VnetHdr::LEN];
    let given = bytes.take(VnetHdr::LEN);
    vnet[..given.len()].copy_from_slice(given);
    let vnet = VnetHdr::read(&vnet).expect("twelve bytes");
    let frame = [bytes.rest(), &vec![0; longer][..]].concat();
    // Longer ones are refused by their contract before anybody looks at them.
    let frame = &frame[..frame.len().min(FRAME_MAX)];
    let head = &frame[..frame.len().min(HEADER_MAX)];

    let mut held = LinkLocals::default();
    assert!(held.insert(HELD));
    let parsed = parse(head, frame.len());
    if let Some(plain) = parse_plain(&frame[..frame.len().min(128)], frame.len()) {
        let headers = parsed.as_ref().expect("what is plain is no contradiction");
        assert_eq!((headers.dst, headers.src, headers.dscp), (plain.dst, plain.src, plain.dscp));
        assert_eq!((headers.vlan, headers.source_ip(head)), (None, source_ip(head)));
        for (policy, allowed) in POLICIES.iter() {
            let passes = policy.check(head, headers, &held) == Verdict::Pass;
            let plainly = policy.passes_plain(head, plain.src, &held);
            assert!(passes || !plainly, "{headers:?}");
            assert!(plainly == passes || !allowed.prefixes.is_empty(), "{headers:?}");
        }
    }
    let Ok(headers) = parsed else { return };
    assert!(usize::from(headers.len) <= head.len(), "{headers:?}");
    assert!(headers.end as usize <= frame.len(), "{headers:?}");
    for (policy, allowed) in POLICIES.iter() {
        if policy.check(head, &headers, &held) == Verdict::Pass {
            let seen = Receiver::of(frame);
            assert!(seen.is_allowed(MAC, allowed, &[HELD]), "{seen:?} {allowed:?}");
        }
    }
    let _ = (headers.arp_sender_ip(head), headers.arp_sender_mac(head), headers.destination_ip(head));

    let mut marked = head.to_vec();
    let mut unmarked = headers;
    clear_realtime_marks(&mut marked, &mut unmarked);
    let again = parse(&marked, frame.len()).expect("as it was, but for a mark");
    assert_eq!((again.dscp, again.len, again.end), (unmarked.dscp, headers.len, headers.end));

    let Ok(offload) = check(&vnet, &headers, head.len(), frame.len()) else { return };
    let (count, wire) =
        (segments(offload, &headers, frame.len()), wire_bytes(offload, &headers, frame.len()));
    assert!(count >= 1 && wire as usize >= frame.len(), "{count} {wire} {}", frame.len());
    complete(frame, head, &vnet, &headers, offload);
    cut(frame, head, &headers, offload, (count, wire));
}

/// The checksum, where the receiver wants it complete.
fn complete(frame: &[u8], head: &[u8], vnet: &VnetHdr, headers: &Headers, offload: Offload) {
    if offload.gso_size().is_some() {
        return;
    }
    let mut vnet = receiver_hdr(vnet, headers, offload);
    let spans = spans(&frame[head.len()..]);
    // SAFETY: the spans are of `frame`, which is not written to meanwhile.
    let payload = unsafe { Payload::new(&spans) };
    let mut copy = head.to_vec();
    assert!(finish_checksum(&mut copy, &mut vnet, headers, &payload), "checked, and yet not in the head");
    assert!(!vnet.needs_csum());
}

/// All segments: together they are the payload, and as many and as long as was said.
fn cut(frame: &[u8], head: &[u8], headers: &Headers, offload: Offload, (count, wire): (u32, u32)) {
    let body = frame.len() - usize::from(headers.len);
    let Some(mut segmenter) = Segmenter::new(head, headers, offload, body) else {
        assert_eq!(offload.gso_size(), None, "a super-frame that was checked cannot be cut");
        return;
    };
    let mut out = [0; HEADER_MAX];
    let (mut at, mut parts, mut bytes) = (0, 0, 0);
    let payload = &frame[usize::from(headers.len)..];
    while let Some(mut part) = segmenter.next(&mut out) {
        assert_eq!(part.payload_offset, at);
        at += part.payload_len;
        parts += part.segments;
        bytes += part.head_len + part.payload_len;
        assert!(at <= body && part.payload_len > 0, "{part:?}");
        let spans = spans(&payload[part.payload_offset..at]);
        // SAFETY: the spans are of `frame`, which is not written to meanwhile.
        let payload = unsafe { Payload::new(&spans) };
        let one = &mut out[..part.head_len];
        assert!(finish_checksum(one, &mut part.vnet, &part.headers, &payload));
        let again = parse(one, part.head_len + part.payload_len).expect("a segment is a frame");
        assert_eq!((again.l3, again.l4, again.len), (headers.l3, headers.l4, headers.len));
    }
    assert_eq!((at, parts, bytes), (body, count, wire as usize));
}

/// `bytes` in two pieces, of odd length where they can be.
fn spans(bytes: &[u8]) -> [Span; 2] {
    let (a, b) = bytes.split_at((bytes.len() / 2) | usize::from(bytes.len() > 1));
    [a, b].map(|part| Span { ptr: part.as_ptr().cast_mut(), len: part.len() as u32 })
}
