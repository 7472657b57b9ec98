//! Everything about frames, queues and guests that lie, once more with packed rings: the harness
//! sees what this test is called, and its guests negotiate them.

#![allow(clippy::duplicate_mod, reason = "each of these tests brings the harness, as it does alone")]

#[path = "flows.rs"]
mod flows;
#[path = "forwarding.rs"]
mod forwarding;
#[path = "held.rs"]
mod held;
#[path = "hostile.rs"]
mod hostile;
#[path = "lifecycle.rs"]
mod lifecycle;
#[path = "offloads.rs"]
mod offloads;
