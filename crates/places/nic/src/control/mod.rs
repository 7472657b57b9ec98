//! The traffic-engineering loop: from what was counted to what limits shall be. Pure.
//!
//! ```text
//!  counters ─▶ Usage ─▶ demand: what each wants ─▶ share: what each shall have ─▶ changes: what to set ─▶ NIC
//!   (host)                used, idle, wants more     minima, weights, maxima        lowered before raised
//! ```
//!
//! A NIC that knows only a maximum per virtual function (VF) keeps a minimum only if the sum of all maxima is not above
//! what its link carries: then each VF can send all it may, whatever the others do. So the [`Controller`] shares the
//! capacity out as maxima, again and again, by who uses how much. What a VF does not use is lent to the others, and is
//! its own again a few periods after it wants it. `docs/decisions/nic-control.md` says why.
//!
//! - [`terms`]: the link, its VFs, their tenants
//! - [`admission`]: whether all that is promised fits
//! - [`demand`](self): what a VF wants, told from what it used
//! - [`share`](self): weighted max-min shares above minima
//! - [`controller`]: both, once a period; which limits to set, in which order, and why
//! - [`pace`]: how long a period is

pub mod admission;
pub mod controller;
mod demand;
pub mod pace;
mod share;
pub mod terms;

pub use admission::{TermsError, admissible};
pub use controller::{Change, Controller, Counts, LimitReason, Standing};
pub use pace::Pace;
pub use terms::{Lending, LinkTerms, Member, Tenant, Usage};
