//! The kernel's own tunnels, and a CPU that goes off. Most kernels of test machines have VXLAN alone; tests/cores/test_steering.py runs the
//! rest with Debian's, in a guest.

use super::host::{Between, Far, NETWORK, Near, pinned};
use super::veth::table;
use crate::key::Pattern;
use crate::steering::{Options, Steering};
use crate::table::Entry;
use tidegate_contract::cores::{Flow, Tunnel};
use tidegate_testkit::{in_namespace, need};

/// Whether this is Debian's kernel, in a guest that is ours alone.
pub fn is_stock() -> bool {
    std::env::var_os("TIDEGATE_TEST_STOCK_KERNEL").is_some()
}

/// Frames of this number in a tunnel, and of a port in it unless that is hidden.
fn entry(tunnel: Tunnel, id: Option<u32>, cpu: usize) -> Entry {
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

fn check(between: Between, tunnel: Tunnel, id: Option<u32>) {
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

/// Declares a test that needs Debian's kernel.
macro_rules! stock {
    ($name:ident, $between:expr, $tunnel:expr, $id:expr) => {
        #[test]
        fn $name() {
            if is_stock() {
                in_namespace(concat!("tests::tunnels::", stringify!($name)), NETWORK, || {
                    check($between, $tunnel, $id);
                });
            }
        }
    };
}

stock!(in_geneve, Between::Tunnel("geneve id 42", false), Tunnel::Geneve, Some(42));
stock!(
    in_geneve_over_ipv6,
    Between::Tunnel("geneve id 42 udp6zerocsumtx udp6zerocsumrx", true),
    Tunnel::Geneve,
    Some(42)
);
stock!(in_gre_with_ethernet, Between::Tunnel("gretap key 42 csum seq", false), Tunnel::Gre, Some(42));
stock!(in_gre_with_ip, Between::Tunnel("gre", false), Tunnel::Gre, None);
stock!(in_gre_over_ipv6, Between::Tunnel("ip6gretap key 42", true), Tunnel::Gre, Some(42));
stock!(in_esp, Between::Esp, Tunnel::Esp, Some(42));

#[test]
fn a_cpu_goes_off_and_comes_back_without_losing_a_frame() {
    if !is_stock() {
        return;
    }
    in_namespace("tests::tunnels::a_cpu_goes_off_and_comes_back_without_losing_a_frame", NETWORK, || {
        let online: Vec<usize> = crate::cpus::online("/".as_ref()).unwrap().into_iter().collect();
        let (first, last) = (online[0], online[online.len() - 1]);
        assert!(last > first, "at least two CPUs");
        let near = Near::new();
        let far = Far::new(&near);
        far.run(move || pinned(first));
        let voice = table(vec![entry(Tunnel::Vxlan, Some(42), last)], [last]);
        let mut steering = Steering::attach("near", &Options::default(), &voice).unwrap();
        let switch = |on: u8| {
            std::fs::write(format!("/sys/devices/system/cpu/cpu{last}/online"), on.to_string()).unwrap();
        };
        let all_on = |cpu: usize, near: &Near| {
            let received = near.receive(5001, &far, 64);
            assert_eq!(received.lost, 0);
            assert!(received.cpus.iter().all(|on| *on == cpu as u32), "CPU {cpu}: {:?}", received.cpus);
        };
        all_on(last, &near);
        switch(0);
        // Before the next look the kernel runs the queue's thread elsewhere.
        assert_eq!(near.receive(5001, &far, 64).lost, 0);
        steering.update(&voice).unwrap();
        all_on(first, &near);
        assert_eq!(steering.counters().unwrap().outcomes.no_target[&first].frames, 64);
        switch(1);
        steering.update(&voice).unwrap();
        all_on(last, &near);
        // Between two looks.
        switch(0);
        switch(1);
        steering.update(&voice).unwrap();
        all_on(last, &near);
        steering.detach().unwrap();
    });
}
