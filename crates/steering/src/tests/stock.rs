//! Debian's kernel, in a guest of its own: further tunnels, and a CPU that goes off. tests/cores/test_steering.py runs these.

use super::host::{Between, Far, NETWORK, Near, pinned};
use super::tunnels::{check, entry};
use super::veth::table;
use crate::steering::{Options, Steering};
use tidegate_contract::cores::Tunnel;
use tidegate_testkit::in_namespace;

/// Runs a test of this name in a network namespace of the guest.
///
/// # Panics
/// This is no guest: its CPUs and file systems are not the test's own.
pub fn in_guest(name: &str, test: impl FnOnce()) {
    let is_guest = std::env::var_os("TIDEGATE_TEST_STOCK_KERNEL").is_some();
    assert!(is_guest, "only in a guest: .venv/bin/pytest tests/cores/test_steering.py");
    in_namespace(name, NETWORK, test);
}

/// Declares a test of a tunnel.
macro_rules! stock {
    ($name:ident, $between:expr, $tunnel:expr, $id:expr) => {
        #[test]
        fn $name() {
            in_guest(concat!("tests::stock::", stringify!($name)), || check($between, $tunnel, $id));
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
    in_guest("tests::stock::a_cpu_goes_off_and_comes_back_without_losing_a_frame", || {
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
