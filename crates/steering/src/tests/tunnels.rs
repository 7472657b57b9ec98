//! The kernel's own tunnels: VXLAN. Most kernels of test machines have no other; the rest is in `stock`.

use super::host::{Between, Far, NETWORK, Near, pinned};
use super::veth::table;
use crate::key::Pattern;
use crate::steering::{Options, Steering};
use crate::table::Entry;
use tidegate_contract::cores::{Flow, Tunnel};
use tidegate_testkit::{in_namespace, need};

/// Frames of this number in a tunnel, and of a port in it unless that is hidden.
pub fn entry(tunnel: Tunnel, id: Option<u32>, cpu: usize) -> Entry {
    let flow = Flow {
        id,
        from: Some([10, 0, 0, 2].into()),
        to: Some([10, 0, 0, 1].into()),
        protocol: (tunnel != Tunnel::Esp).then_some(17),
        to_port: (tunnel != Tunnel::Esp).then_some(5001),
        cpu: Some(cpu),
        ..Flow::new("near", tunnel)
    };
    Entry { name: "voice".into(), pattern: Pattern::from(&flow), cpu }
}

/// Checks that frames of such a tunnel run on their CPU.
pub fn check(between: Between, tunnel: Tunnel, id: Option<u32>) {
    let online: Vec<usize> = crate::cpus::online("/".as_ref()).unwrap().into_iter().collect();
    if !need("two CPUs", online.len() > 1) {
        return;
    }
    let near = Near::with(between);
    let far = Far::new(&near);
    let (first, second) = (online[0], online[1]);
    far.run(move || pinned(first));
    let steering =
        Steering::attach("near", &Options::default(), &table(vec![entry(tunnel, id, second)], [])).unwrap();
    let received = near.receive(5001, &far, 64);
    let counters = steering.counters().unwrap();
    assert_eq!(received.lost, 0, "{between:?}: {counters:?}");
    assert!(
        received.cpus.iter().all(|cpu| *cpu == second as u32),
        "{between:?}: {:?} {counters:?}",
        received.cpus
    );
    assert_eq!(counters.entries["voice"].total().frames, 64, "{between:?}: {counters:?}");
}

#[test]
fn a_flow_in_vxlan_over_ipv6_runs_on_its_cpu() {
    in_namespace("tests::tunnels::a_flow_in_vxlan_over_ipv6_runs_on_its_cpu", NETWORK, || {
        check(
            Between::Tunnel("vxlan id 42 dstport 4789 udp6zerocsumtx udp6zerocsumrx", true),
            Tunnel::Vxlan,
            Some(42),
        );
    });
}
