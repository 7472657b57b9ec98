//! The fabric behaves as hardware does, and as a test has it.

use crate::Device;
use crate::conformance::{self, End};
use crate::simulated::{self, Fabric};
use std::net::IpAddr;

fn ends(a: &str, b: &str) -> (End, End) {
    let fabric = Fabric::new();
    let end = |name, address: &str| {
        let address: IpAddr = address.parse().unwrap();
        End::new(&Device::simulated(&simulated::Device::new(&fabric, name, &[address])), address)
    };
    (end("rxe0", a), end("rxe1", b))
}

#[test]
fn simulated_devices_do_as_every_device_has_to() {
    for (a, b) in [("192.0.2.1", "192.0.2.2"), ("fd00::1", "fd00::2")] {
        let (a, b) = ends(a, b);
        conformance::check_all(&a, &b);
    }
    let both = ["192.0.2.1", "192.0.2.2"].map(|address| address.parse().unwrap());
    let device = Device::simulated(&simulated::Device::new(&Fabric::new(), "rxe0", &both));
    let [a, b] = both.map(|address| End::new(&device, address));
    conformance::check_all(&a, &b);
}
