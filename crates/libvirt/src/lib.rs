//! What libvirt says of its domains, as contracts.
//!
//! ```text
//!  domain XML: a hook's standard input, ──▶ domain ─┬─ <interface>: attachment, <bandwidth> ─┐
//!  /run/libvirt/qemu/NAME.xml, a file               └─ <metadata>: contracts by MAC ─────────┴─▶ translate ─▶ Vnic, notes
//!                                                                                                    └─▶ Errors: line, column
//!  what a hook is called with ──▶ hook: check, put, remove, nothing
//!  states of all domains, owners at the agent ──▶ follow: which to put, which to remove
//! ```
//!
//! Pure: no I/O, no clock. The caller reads, asks the agent, and waits.
//!
//! - [`domain`]: XML to what matters of it here
//! - [`bandwidth`]: libvirt's `<bandwidth>` in the words of a contract
//! - [`metadata`]: contracts inside `<metadata>`
//! - [`mod@translate`]: both to contracts
//! - [`hook`]: what to do when libvirt calls
//! - [`follow`]: what to do when a domain changes without a call
//! - [`room`]: whose contracts are in the way and of no use
//! - [`script`]: the file that libvirt runs

pub mod bandwidth;
pub mod domain;
pub mod follow;
pub mod hook;
pub mod metadata;
pub mod room;
pub mod script;
pub mod translate;
mod xml;

pub use translate::{Translation, translate};

/// Who owns the contracts of a domain, as the agent knows it: `libvirt:NAME`.
pub const OWNER: &str = "libvirt:";

/// The owner of a domain's contracts.
pub fn owner(domain: &str) -> String {
    format!("{OWNER}{domain}")
}
