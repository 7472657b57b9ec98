//! Frames a second of CPU time through two links and a veth pair, by one thread: both hosts' work. By hand, as root:
//! `cargo test --release -p tidegate-place-switch --features measure --lib speed -- --nocapture`

use crate::sockets::{self, Sockets};
use std::process::Command;
use std::sync::Arc;
use tidegate_contract::{Uplink, UplinkKind};
use tidegate_switch::clock::clock;
use tidegate_switch::fdb::{Fdb, PeerIndex, SegmentIndex};
use tidegate_switch::frame::parse;
use tidegate_switch::link::vxlan::Peers;
use tidegate_switch::link::{Delivery, Link, Posted, Scratch, Taken, nic};
use tidegate_switch::slots::{Frame, Slots};
use tidegate_switch::vhost_user::notifier::cpu_time;

const SEGMENT: SegmentIndex = SegmentIndex(3);
const VLAN: u32 = 42;
/// CPU time of each case (ns).
const TIME: u64 = 1_000_000_000;
/// Bytes of each frame, and frames a flush.
const CASES: [(usize, usize); 4] = [(60, 64), (60, 8), (60, 1), (1514, 64)];

pub(crate) fn run(words: &str) {
    let mut words = words.split(' ');
    let output = Command::new(words.next().unwrap()).args(words).output().expect("iproute2, ethtool");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
}

fn link(kind: &str, device: &str) -> Link {
    let text = format!(
        r#"{{"name":"net0","kind":"{kind}","device":"{device}","rate":"10gbit",
            "peers":[{{"name":"lan","segments":[{VLAN}],"stamps":false}}]}}"#
    );
    let uplink: Uplink = serde_json::from_str(&text).unwrap();
    let Sockets { receive, mut send, .. } = sockets::open(&uplink, 1).unwrap();
    let last = send.pop().unwrap();
    let device = match uplink.kind {
        UplinkKind::Xdp => nic::Device::xdp(receive, &send, last).unwrap().remove(0),
        _ => nic::Device::Packet { receive, send: last },
    };
    let peers = Arc::new(Peers::of_nic(PeerIndex::MIN, &[(SEGMENT, VLAN)]).unwrap());
    let setup = nic::Setup { device, longest: 1514, peers, fdb: Arc::new(Fdb::new()), owner: None };
    Link::nic(setup, 9, 0, clock())
}

/// Returns a broadcast frame of `len` bytes, which has no protocol of its own.
fn frame(memory: &mut [u8]) -> Frame {
    memory[..14].copy_from_slice(&[0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 2, 0, 0, 0, 0, 1, 0x88, 0xb5]);
    let mut slots = Slots::new(1, 0, 0);
    let reference = slots.take().unwrap();
    let frame = reference.get_mut();
    let head = memory.len().min(frame.bytes.len());
    frame.bytes[..head].copy_from_slice(&memory[..head]);
    (frame.len, frame.head_len) = (memory.len() as u32, head as u16);
    frame.headers = parse(&memory[..head], memory.len()).unwrap();
    (frame.wire_bytes, frame.wire_frames, frame.segment) = (frame.len, 1, SEGMENT);
    let rest = &mut memory[head..];
    frame.spans[0] = tidegate_switch::virtio::Span { ptr: rest.as_mut_ptr(), len: rest.len() as u32 };
    frame.span_count = 1;
    let made = frame.clone();
    slots.give(reference);
    made
}

#[test]
fn frames_a_second() {
    if !tidegate_testkit::own_network_or_skip() {
        return;
    }
    for (number, kind) in ["packet", "xdp"].into_iter().enumerate() {
        let [one, two] = [0, 1].map(|end| format!("v{number}{end}"));
        run(&format!("ip link add {one} type veth peer name {two}"));
        for device in [&one, &two] {
            run(&format!("ip link set {device} up promisc on"));
            run(&format!("ethtool -K {device} rxvlan off"));
        }
        let (mut a, mut b) = (link(kind, &one), link(kind, &two));
        let mut scratch = Scratch::default();
        for (len, batch) in CASES {
            let mut memory = vec![0; len];
            let sent = frame(&mut memory);
            let (mut posted, mut received) = (0u64, 0u64);
            let (began, wall) = (cpu_time(), clock());
            while cpu_time() - began < TIME {
                for _ in 0..batch {
                    posted += u64::from(a.rx.post(&sent, Delivery::WHOLE, &mut scratch) == Posted::Done);
                }
                a.rx.flush();
                b.tx.note_readable(0, 0, 0);
                _ = b.tx.poll(0, clock());
                loop {
                    match b.tx.take(0, &mut scratch, false) {
                        Taken::New(pending, _) => {
                            received += 1;
                            b.tx.give_back(pending.frame);
                        }
                        Taken::Dropped(reason, _) => panic!("{reason:?}"),
                        _ => break,
                    }
                }
            }
            println!(
                "{kind:6} {len:4} B, {batch:2} a flush: {:.3} M frames a second of this thread, {:.3} M a second; {} of {posted} not \
                 received",
                received as f64 * 1e3 / TIME as f64,
                received as f64 * 1e3 / (clock() - wall) as f64,
                posted - received,
            );
        }
    }
}
