//! A front end's demands above its quota are refused, and enough is left for the others.

use crate::harness::{TestSwitch, contract, vnic};
use crate::pulse::{Attacked, Pulse};
use std::os::fd::AsFd;
use std::time::Duration;
use tidegate_evidence::Connection;
use tidegate_frontend::attack::Attack;
use tidegate_frontend::attack::memory::{share_sparse, sparse_file};
use tidegate_frontend::front_end::{FrontEnd, Options};

#[test]
fn no_front_end_takes_all_addresses() {
    let host = TestSwitch::new(1);
    let pulse = Pulse::start(&host);
    let attacked: Vec<_> = (0..3)
        .map(|n| {
            let name = format!("hostile{n}");
            host.add(&contract(&vnic(&name, 10 + n, "")));
            Attacked::with(Attack::SparseRegions, host.socket(&name))
        })
        .collect();
    // Waits until no attacker gets more for a while.
    let steps = || attacked.iter().map(Attacked::steps).sum::<u64>();
    let mut last = 0;
    host.until(|| {
        std::thread::sleep(Duration::from_millis(300));
        std::mem::replace(&mut last, steps()) == steps()
    });
    // A guest with 24 GiB, and one of the usual size, still connect.
    let _large = {
        let mut large = host.guest(&vnic("large", 4, "")).front;
        share_sparse(&mut large, sparse_file(24 << 30).unwrap(), &[24 << 30]).unwrap();
        large
    };
    let _guest = host.guest(&vnic("guest", 5, ""));
    assert!(host.switch.ledger.refused() > 0);
    let port = host.port("hostile0");
    let why = port.last_error.unwrap();
    assert!(why.contains("of guest memory requested") && why.contains("may have"), "{why}");
    assert!(port.thrown_out["quota"] > 0, "{:?}", port.thrown_out);
    pulse.beats();
    attacked.into_iter().for_each(Attacked::end);
}

#[test]
fn regions_are_few_and_within_their_files() {
    let host = TestSwitch::new(1);
    host.add(&contract(&vnic("hostile", 3, "")));
    let file = sparse_file(4096).unwrap();
    let connect = || FrontEnd::connect(host.socket("hostile"), Options::default()).unwrap();
    let why = |before: Option<String>| {
        host.until(|| {
            let port = host.port("hostile");
            port.connection == Connection::Waiting && port.last_error != before
        });
        host.port("hostile").last_error
    };
    assert!(share_sparse(&mut connect(), file.as_fd(), &[8192]).is_err());
    let longer = why(None);
    assert!(longer.as_ref().unwrap().contains("of its file, which has 4096"), "{longer:?}");
    // 16 sparse regions of a page are allowed.
    share_sparse(&mut connect(), file.as_fd(), &[4096; 16]).unwrap();
    host.until(|| host.port("hostile").connection == Connection::Waiting);
    // 2 PiB are refused, whatever the file's size.
    let huge = sparse_file(2 << 50).unwrap();
    assert!(share_sparse(&mut connect(), huge.as_fd(), &[2 << 50]).is_err());
    let more = why(longer);
    assert!(more.as_ref().unwrap().contains("2097152.1 GiB of guest memory requested"), "{more:?}");
}

#[test]
fn shared_memory_is_given_back() {
    let host = TestSwitch::new(1);
    host.add(&contract(&vnic("guest", 3, "")));
    let file = sparse_file(600 << 30).unwrap();
    // Two tables of this size exceed the quota: each exists only after the last one is gone.
    for _ in 0..5 {
        let mut front = FrontEnd::connect(host.socket("guest"), Options::default()).unwrap();
        for _ in 0..3 {
            share_sparse(&mut front, file.as_fd(), &[600 << 30]).unwrap();
        }
        drop(front);
        // A port serves one front end at a time.
        host.until(|| host.port("guest").connection == Connection::Waiting);
    }
}
