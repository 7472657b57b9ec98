//! What an intruder in control of the switch can do to the agent, which is root.
//!
//! ```text
//!  switch that an intruder controls ── answers, notes, descriptors, statistics ──▶ agent ◀── six queries, in time
//! ```

#![allow(clippy::disallowed_macros, clippy::disallowed_methods, reason = "these are the program's own rules")]

#[path = "../common/mod.rs"]
mod common;

mod answers;
mod descriptors;
mod statistics;

use common::{Lab, RunningAgent, until};
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};
use tidegate_switch::control::message::{Hello, PROTOCOL, Reply};

/// Longest query, which waits up to 300 ms for a fresh look.
pub const PROMPT: Duration = Duration::from_secs(3);
/// Longest change, which waits for the switch.
pub const CHANGE: Duration = Duration::from_secs(25);

/// Makes the API's queries. Returns the longest time.
pub fn queries(agent: &RunningAgent) -> Duration {
    let reads = ["/v1/host", "/v1/vnics", "/v1/vnics/a", "/v1/vnics/a/why", "/metrics"];
    let timed = |method: &str, path: &str, body: &str, within: Duration| {
        let began = Instant::now();
        let (status, answer) = agent.request(method, path, body);
        assert!(status < 500 || status == 503, "{path}: {status} {answer}");
        assert!(began.elapsed() < within, "{path} took {:?}", began.elapsed());
        began.elapsed()
    };
    let longest = reads.iter().map(|path| timed("GET", path, "", PROMPT)).max().unwrap();
    // Faulty text, whose plan does not wait for the switch.
    longest.max(timed("POST", "/v1/plan", "[vnic.x]\n", CHANGE))
}

/// Returns why the switch is unusable, if it is.
pub fn reason(agent: &RunningAgent) -> Option<String> {
    let host = agent.get("/v1/host").1;
    let places = host["places"].as_array().unwrap().clone();
    let switch = places.into_iter().find(|place| place["name"] == "switch").unwrap();
    switch["reason"].as_str().map(str::to_owned)
}

/// Returns the greeting of a switch that was just started.
pub fn hello() -> Reply {
    static STARTS: AtomicU64 = AtomicU64::new(1 << 40);
    let started = STARTS.fetch_add(1, Ordering::Relaxed);
    Reply::Hello(Hello {
        protocol: PROTOCOL,
        version: "hostile".into(),
        pid: 2,
        started,
        workers: 1,
        directable: true,
        shares_queues: true,
        knows_rdma: true,
        knows_zero_copy: true,
        rdma: vec![],
    })
}

/// Returns a fake switch and an agent that has a vNIC in force there.
pub fn scene(lab: &Lab) -> (tidegate_testkit::fake_switch::FakeSwitch, RunningAgent) {
    let (switch, agent) = (lab.switch(), lab.agent());
    assert_eq!(agent.apply(&lab.vnic("a", 1, "")).0, 200);
    until("in force", || (agent.vnic("a")["state"] == "in force").then_some(()));
    (switch, agent)
}

/// Serialises tests that fill this process with descriptors, and one that measures query times.
pub static MANY: Mutex<()> = Mutex::new(());
