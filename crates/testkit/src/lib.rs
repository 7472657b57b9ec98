//! Helpers of tests and benchmarks. Not shipped.
//!
//! ```text
//!  test ─ need, unless_skipped ─▶ the machine can: the test runs
//!                               └ it cannot: "skipped: why", counted by scripts/test; in CI the test fails
//!
//!  test ─ in_namespace ─▶ unshare(1) ─▶ this test once more, in a process with namespaces of its own
//!       └ own_network, own_mounts ────▶ namespaces of the calling thread
//! ```
//!
//! - `contract`: example contracts
//! - `fake_switch`: the switch's side of the control socket, without a data plane
//! - `toy_place`: a place in less than 150 lines
//! - `simulation`: a simulated NIC and its control loop
//! - `skip`: tests that a machine cannot run
//! - `namespace`: namespaces for one test

pub mod contract;
pub mod fake_switch;
pub mod namespace;
pub mod simulation;
pub mod skip;
pub mod toy_place;

pub use namespace::{
    Kind, in_namespace, is_inside, own_mounts, own_mounts_or_skip, own_network, own_network_or_skip,
};
pub use skip::{need, skipped, unless_skipped};
