//! How often the agent connects to a switch that ends each conversation, however many clients query the
//! agent.
//!
//! ```text
//!  queries without end ──▶ agent ── connections, counted ──▶ switch that answers some questions and then breaks off
//! ```

#![allow(clippy::disallowed_macros, clippy::disallowed_methods, reason = "these are the program's own rules")]

mod common;

use common::{Lab, RunningAgent, until};
use std::net::Shutdown;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};
use tidegate_switch::control::channel::send;
use tidegate_switch::control::message::{Reply, Request};
use tidegate_testkit::fake_switch::open_descriptors;

/// Connections of a conversation, including one to find the switch and one to keep its descriptors.
const EACH: u64 = 3;

/// Queries the agent for `how_long`. Returns the count.
fn ask(agent: &RunningAgent, how_long: Duration) -> u64 {
    let (end, mut asked) = (Instant::now() + how_long, 0);
    while Instant::now() < end {
        let (status, answer) = agent.get("/v1/vnics/a");
        assert_eq!(status, 200, "{answer}");
        asked += 1;
    }
    asked
}

fn is_trusted(agent: &RunningAgent) -> bool {
    let host = agent.get("/v1/host").1;
    host["places"].as_array().unwrap().iter().any(|p| p["name"] == "switch" && p["reason"].is_null())
}

#[test]
fn a_switch_that_breaks_off_is_connected_to_at_a_bounded_rate() {
    let lab = Lab::new();
    let (switch, agent) = (lab.switch(), lab.agent());
    assert_eq!(agent.apply(&lab.vnic("a", 1, "")).0, 200);
    let answered = AtomicU64::new(0);
    let answered = std::sync::Arc::new(answered);
    // When the switch ends the conversation, and the conversations per second that the agent may begin.
    let kinds = [("hello", 1), ("ports", 1), ("the end of each answer", 10)];
    for (what, most) in kinds {
        let count = std::sync::Arc::clone(&answered);
        switch.answer_with(move |stream, request, _| {
            match (what, request) {
                ("hello", _) | ("ports", Request::Ports) => {}
                ("ports", _) => return false,
                (_, Request::Ports) => {
                    count.fetch_add(1, Ordering::SeqCst);
                    let _ = send(stream, &Reply::Ports(vec![]), &[]);
                }
                _ => return false,
            }
            let _ = stream.shutdown(Shutdown::Both);
            true
        });
        // Until the pause has grown and saved-up attempts are used.
        ask(&agent, Duration::from_secs(3));
        for asks in [true, false] {
            let before = switch.state().accepted;
            let seconds = 4;
            let asked = if asks {
                ask(&agent, Duration::from_secs(seconds))
            } else {
                std::thread::sleep(Duration::from_secs(seconds));
                0
            };
            let accepted = switch.state().accepted - before;
            println!(
                "it breaks off at {what}: {accepted} connections in {seconds} s, {asked} queries; open: {:?}",
                open_descriptors().unwrap()
            );
            assert!(accepted <= 2 * EACH * most * (seconds + 1), "{what}: {accepted} connections");
            // Clients get the last look.
            assert!(!asks || asked > accepted, "{what}: {asked} queries, {accepted} connections");
        }
        switch.answer_honestly();
        until("it is trusted again", || is_trusted(&agent).then_some(()));
    }
    assert!(answered.load(Ordering::SeqCst) > 0);
}
