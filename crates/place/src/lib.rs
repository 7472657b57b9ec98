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
//!  claims of all places ─▶ host::agree ─▶ conflicts: refused before any place acts
//! ```
//!
//! - `place`: the trait
//! - `action`: one change at a place
//! - `wanted`, `observed`: the two sides that a plan compares
//! - [`difference`]: the comparison that all places share
//! - [`host`]: CPUs and budgets that several places take from
//! - `refusal`: reasons for a "no", and for a failure
//! - [`installed`]: a place whose types only it knows

mod action;
pub mod difference;
pub mod host;
pub mod installed;
mod observed;
mod place;
mod refusal;
mod wanted;

pub use action::{Action, ContractChange, Effect};
pub use installed::Installed;
pub use observed::{Keeper, Observed, ObservedVnic};
pub use place::{Capabilities, Capture, Place, Plan};
pub use refusal::{PlaceError, Refusal};
pub use wanted::{Adopt, Wanted};
