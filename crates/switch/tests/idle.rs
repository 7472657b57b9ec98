//! Alone in its process, since it measures the CPU time of all worker threads.

mod harness;

use harness::*;
use std::time::Duration;

#[test]
fn an_idle_switch_uses_no_cpu() {
    let host = TestSwitch::new(1);
    let mut a = host.guest(&vnic("a", 1, "tx = { max = \"10mbit\" }"));
    let mut b = host.guest(&vnic("b", 2, ""));
    a.send(&udp(b.mac(), a.mac(), b"wake up"));
    b.receive();
    std::thread::sleep(Duration::from_millis(50));
    let (before, turns) = (cpu_time_of_workers(), host.stats.workers()[0].sleeps);
    std::thread::sleep(Duration::from_secs(1));
    let used = cpu_time_of_workers() - before;
    assert!(used < Duration::from_millis(50), "{used:?} of CPU in one idle second");
    assert!(host.stats.workers()[0].sleeps - turns < 100);
    a.send(&udp(b.mac(), a.mac(), b"again"));
    b.receive();
}

fn cpu_time_of_workers() -> Duration {
    let mut total = Duration::ZERO;
    for task in std::fs::read_dir("/proc/self/task").unwrap().flatten() {
        let name = std::fs::read_to_string(task.path().join("comm")).unwrap_or_default();
        if name.starts_with("worker-") {
            let schedstat = std::fs::read_to_string(task.path().join("schedstat")).unwrap_or_default();
            let on_cpu: u64 = schedstat.split(' ').next().and_then(|n| n.parse().ok()).unwrap_or(0);
            total += Duration::from_nanos(on_cpu);
        }
    }
    total
}
