//! The kernel's own refusals, in a network namespace with a small MTU and routes that lead nowhere.

use super::*;
use std::process::Command;

const KIND: tidegate_testkit::Kind<'_> = tidegate_testkit::Kind {
    what: "network namespace",
    unshare: &["--net"],
    probe: &["ip", "link", "show", "lo"],
    user: true,
};

fn ip(words: &str) {
    let output = Command::new("ip").args(words.split(' ')).output().expect("ip (iproute2)");
    assert!(output.status.success(), "ip {words}: {}", String::from_utf8_lossy(&output.stderr));
}

#[test]
fn the_kernels_refusals_are_told_apart() {
    let name = "link::vxlan::tests::kernel::the_kernels_refusals_are_told_apart";
    tidegate_testkit::in_namespace(name, KIND, || {
        ip("link set lo up mtu 1500");
        for v6 in [false, true] {
            what_is_too_long_is_counted(v6);
        }
        ip("route add prohibit 10.1.0.0/16");
        ip("route add unreachable 10.2.0.0/16");
        for (to, reason) in [
            ("10.1.0.1:4789", DropReason::UplinkRefused),
            ("10.2.0.1:4789", DropReason::NoRoute),
            ("10.3.0.1:4789", DropReason::NoRoute),
        ] {
            let (mut a, mut b) = pair(false, 1);
            let there = b.address;
            for address in [to.parse().unwrap(), there] {
                a.rx.set_peers(Arc::new(Peers::new(vec![peer(6, address)], &[SEGMENT]).unwrap()));
                let sent = asking(&Spec::udp4(100), None);
                (0..3).for_each(|_| assert_eq!(a.rx.post(&sent.frame), Posted::Done));
            }
            a.rx.flush();
            assert_eq!((a.rx.counters().dropped(reason), a.rx.counters().frames), (3, 3), "{to}");
            assert_eq!(b.frames().len(), 3);
        }
    });
}

/// The longest frame fits exactly, behind 20 or 40, 8 and 8 bytes.
fn what_is_too_long_is_counted(v6: bool) {
    let (mut a, mut b) = pair(v6, 1);
    let fits = 1500 - if v6 { 40 } else { 20 } - 8 - 8 - 42;
    for (lens, dropped) in [
        (vec![fits; 3], 0),
        (vec![fits + 1], 1),
        (vec![fits + 1; 3], 3),
        (vec![fits + 1, fits + 1, 100, 200], 2),
        (vec![9000, 100, 9000], 2),
    ] {
        let before = a.rx.counters().dropped(DropReason::PathMtu);
        for len in &lens {
            assert_eq!(a.rx.post(&asking(&Spec::udp4(*len), None).frame), Posted::Done);
        }
        a.rx.flush();
        assert!(!a.rx.has_unsent());
        assert_eq!(a.rx.counters().dropped(DropReason::PathMtu) - before, dropped, "{lens:?}");
        assert_eq!(b.frames().len() as u64, lens.len() as u64 - dropped, "{lens:?}");
    }
}
