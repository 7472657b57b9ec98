//! The switch accepts only true eventfds, and no worker waits for the many threads that wait on one.

use crate::harness::{TestSwitch, contract, vnic};
use crate::pulse::{Attacked, Pulse, keeps};
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicU64};
use std::time::Duration;
use tidegate_evidence::Connection;
use tidegate_frontend::attack::counters::silent_kick_waiters;
use tidegate_frontend::attack::{Attack, Target};

/// Least share of frames in time beside hostile counters, relative to alone. Without a guard it is at most
/// a fifth.
const KEPT: f64 = 0.6;

fn beside(attacked: impl Fn(PathBuf) -> Attacked) {
    let host = TestSwitch::new(1);
    let pulse = Pulse::start(&host);
    // Each try has its own port, since the last one's may be in quarantine.
    let mut tries = 0;
    keeps(&pulse, KEPT, || {
        tries += 1;
        let name = format!("hostile{tries}");
        host.add(&contract(&vnic(&name, 2 + tries, "")));
        let attacked = attacked(host.socket(&name));
        let share = pulse.in_time(Duration::from_secs(3));
        attacked.end();
        let port = host.port(&name);
        assert!(port.held.events > 0, "{port:?}");
        share
    });
}

#[test]
fn neighbours_do_not_wait_for_the_waiters_of_a_call() {
    beside(|socket| Attacked::with(Attack::CallWaiters, socket));
}

#[test]
fn neighbours_do_not_wait_for_the_waiters_of_a_kick() {
    beside(|socket| Attacked::with(Attack::KickWaiters, socket));
}

/// A counter that is never signalled costs little in an epoll that has no waiters itself.
#[test]
fn neighbours_do_not_wait_for_the_waiters_of_a_silent_kick() {
    let pass = |socket: PathBuf, stop: &AtomicBool, steps: &AtomicU64| {
        silent_kick_waiters(&Target { socket: &socket, stop, steps })
    };
    beside(|socket| {
        let attacked = Attacked::by(pass, socket);
        attacked.wait_for(1);
        attacked
    });
}

/// After three events.
#[test]
fn a_port_is_quarantined_and_says_why() {
    let host = TestSwitch::new(1);
    host.add(&contract(&vnic("hostile", 3, "")));
    let pulse = Pulse::start(&host);
    let attacked = Attacked::with(Attack::CallWaiters, host.socket("hostile"));
    let start = std::time::Instant::now();
    let quarantine = loop {
        if let Some(quarantine) = host.port("hostile").held.quarantine {
            break quarantine;
        }
        assert!(start.elapsed() < Duration::from_secs(60), "{:?}", host.port("hostile"));
        std::thread::sleep(Duration::from_millis(10));
    };
    assert!(quarantine.reason.contains("call eventfd") && quarantine.seconds == 60, "{quarantine:?}");
    assert!((1..=60).contains(&quarantine.remaining));
    host.until(|| host.port("hostile").connection == Connection::Waiting);
    let (refused, steps) = (host.port("hostile").refused_connections, attacked.steps());
    host.until(|| host.port("hostile").refused_connections > refused + 3);
    assert_eq!(attacked.steps(), steps, "it does not come to its attack any more");
    attacked.end();
    let port = host.port("hostile");
    assert!(port.thrown_out.contains_key("held") || port.thrown_out.contains_key("message"), "{port:?}");
    assert_eq!(port.held.quarantines, 1);
    pulse.beats();
    assert!(
        host.switch
            .ports()
            .iter()
            .filter(|port| port.vnic.name != "hostile")
            .all(|port| port.held.events == 0)
    );
}
