//! What tests of several crates need of a machine. For tests alone.
//!
//! ```text
//!  test ─ need, unless_skipped ─▶ the machine can: the test runs
//!                               └ it cannot: "skipped: why", counted by scripts/test; in CI the test fails
//!
//!  test ─ in_namespace ─▶ unshare(1) ─▶ this test once more, in a process with namespaces of its own
//!       └ own_network, own_mounts ────▶ namespaces of the calling thread
//! ```
//!
//! - [`skip`]: tests that a machine cannot run
//! - [`namespace`]: namespaces of a test's own

pub mod namespace;
pub mod skip;

pub use namespace::{Kind, in_namespace, is_inside, own_mounts, own_network};
pub use skip::{need, skipped, unless_skipped};
