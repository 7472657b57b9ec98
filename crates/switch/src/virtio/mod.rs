//! Guest memory and virtqueues, as the device sees them.
//!
//! ```text
//!  SET_MEM_TABLE ─▶ memory: map, translate     SET_VRING_* ─▶ split: pop, complete, publish
//!                        ▲                                        │
//!                        └──────────── every address ─────────────┘
//! ```

pub mod memory;
