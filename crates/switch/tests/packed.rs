//! Repeats the tests of frames, queues and lying guests: by this test's name the harness lets its guests
//! negotiate packed rings.

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
