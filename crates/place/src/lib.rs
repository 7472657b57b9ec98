//! A place: a part of the host that keeps contracts, such as the host switch, the kernel, a NIC.
//!
//! ```text
//!                     ┌──────────────────────── Place ─────────────────────────┐
//!  attachment ───────▶│ capabilities, notes ─▶ Capabilities: deadline? minimum? │
//!  coming vNICs ─────▶│ observe ─▶ Observed: vNICs in force, evidence, obstacles │
//!  Wanted, Observed ─▶│ plan    ─▶ Plan: actions, claims; or Refusals   (pure)   │
//!  actions ──────────▶│ prepare ─▶ on disk: facts that a successor needs         │
//!  action ───────────▶│ apply   ─▶ done wholly or not at all                     │
//!  contracts in force▶│ accept  ─▶ no way back is needed any more                │
//!                     └──────────────────────────────────────────────────────────┘
//!  claims of all places ─▶ host::conflicts ─▶ if any: refused before any place acts
//! ```
//!
//! # Adding a place
//!
//! 1. `crates/places/NAME`: a crate; its `lib.rs` opens with the picture of its flow. `tidegate_testkit::toy_place` is an example.
//! 2. A type of [`Action`]; [`ContractChange`] suffices for most.
//! 3. `impl Place`: `capabilities` claims its attachments, `plan` is pure and uses [`difference`].
//! 4. A `tidegate_durable::Journal` for facts that a successor needs, with `cut::point()` after each step that leaves something.
//! 5. An attachment, and keys of its own, in `crates/contract`: the parser, the checks, `docs/reference/contract.md`.
//! 6. Evidence in terms of `tidegate_evidence`; new figures go there.
//! 7. Netlink messages that name no type of the place go to `crates/netlink`, the others stay in the place. eBPF programs go beside
//!    the Rust file that loads them.
//! 8. Commands of its own: a file in `crates/tidegate/src/commands`.
//! 9. Its `install` takes a [`Site`], and one line in `crates/tidegate/src/places.rs` calls it. The agent does not change.
//! 10. The property tests of the reconciler run against it; `tests/NAME` tests it on a host.
//!
//! # Files
//!
//! - `place`: the trait
//! - `action`: one change at a place
//! - `wanted`, `observed`: the two sides that a plan compares
//! - [`difference`]: the comparison that all places share
//! - [`host`]: CPUs and budgets that several places take from
//! - `refusal`: reasons for a "no", and for a failure
//! - [`installed`]: a place whose types only it knows
//! - `pair_ports`: source ports of real-time pairs, and which pairs may use theirs
//! - `key_ring`: keys of segments that the network's controller gives
//! - [`offer`]: tables that a place learns elsewhere
//! - `site`: the installation of a place at an agent

mod action;
pub mod difference;
pub mod host;
pub mod installed;
mod key_ring;
mod observed;
pub mod offer;
mod pair_ports;
mod place;
mod refusal;
mod site;
mod wanted;

/// The systemd unit of the agent.
pub const AGENT: &str = "tidegate-agent";

pub use action::{Action, ContractChange, Effect};
pub use installed::Installed;
pub use key_ring::KeyRing;
pub use observed::{Observed, ObservedUplink, ObservedVnic, PlaceProgram};
pub use offer::{Offer, Offers, Taken};
pub use pair_ports::{Pair, PairPorts};
pub use place::{Capabilities, Capture, Place, Plan};
pub use refusal::{PlaceError, Refusal};
pub use site::{Installation, Site};
pub use wanted::{Adopt, HostWork, Network, Wanted};
