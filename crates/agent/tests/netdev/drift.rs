//! Somebody changes what we made: it is put right within a second, with a line in the log, and counted.

use super::common::{Lab, until};
use super::{LIMITS, contract, in_namespace, is_shaped, run};
use std::io::Write;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

/// The promise is a second; what is on top is for a busy machine.
const WITHIN: Duration = Duration::from_secs(2);

/// What the agent logs, from here on. This process is one test's own.
#[derive(Clone, Default)]
struct Log(Arc<Mutex<Vec<u8>>>);

impl Log {
    fn start() -> Self {
        let log = Self::default();
        let writer = log.clone();
        tracing_subscriber::fmt().with_ansi(false).with_writer(move || writer.clone()).init();
        log
    }

    fn lines(&self, with: &str) -> Vec<String> {
        let log = self.0.lock().unwrap();
        let text = String::from_utf8_lossy(&log);
        text.lines().filter(|line| line.contains(with)).map(str::to_owned).collect()
    }
}

impl Write for Log {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        self.0.lock().unwrap().write(bytes)
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

#[test]
fn drift_is_repaired_within_a_second_logged_and_counted() {
    in_namespace("drift::drift_is_repaired_within_a_second_logged_and_counted", || {
        let log = Log::start();
        let lab = Lab::new();
        let _switch = lab.switch();
        let agent = lab.agent();
        assert_eq!(agent.apply(&contract("web", 1, "vnet3", LIMITS)).0, 200);
        let repaired = || agent.get("/v1/host").1["drift_repaired"].as_u64().unwrap();
        let damages = [
            ("tc qdisc del dev vnet3 root", "set qdisc htb at root of vnet3"),
            ("tc qdisc replace dev vnet3 root handle 1: htb", "set qdisc htb at root of vnet3"),
            ("tc qdisc del dev vnet3 clsact", "set qdisc clsact at clsact of vnet3"),
            ("tc class change dev vnet3 classid 7464:1 htb rate 1mbit", "set class 7464:1 of vnet3"),
            ("ip link del tidegate-tx", "make interface tidegate-tx"),
            ("tc filter del dev vnet3 ingress pref 1", "clear real-time marks in what vnet3 receives"),
        ];
        for (number, (damage, what)) in (1..).zip(damages) {
            let before = repaired();
            run(damage);
            let begin = Instant::now();
            until(damage, || is_shaped().then_some(()));
            let took = begin.elapsed();
            assert!(took < WITHIN, "{damage}: repaired after {took:?}");
            until("it is counted", || (repaired() > before).then_some(()));
            let lines = log.lines("drift: ");
            assert_eq!(lines.len(), number, "one line each: {lines:#?}");
            let line = lines.last().unwrap();
            assert!(line.contains("WARN") && line.contains("vnic=\"web\""), "{line}");
            assert!(line.contains(what), "{damage}: {line}");
        }
    });
}
