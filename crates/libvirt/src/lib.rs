//! libvirt's domains as contracts.
//!
//! ```text
//!  domain XML: a hook's standard input, ──▶ domain ─┬─ <interface>: attachment, <bandwidth> ─┐
//!  /run/libvirt/qemu/NAME.xml, a file               └─ <metadata>: contracts by MAC ─────────┴─▶ translate ─▶ Vnic, notes
//!                                                                                                    └─▶ Errors: line, column
//!  a running domain's state ──▶ running: threads, pins
//!  what a hook is called with ──▶ hook: check, put, remove, nothing
//!  states of all domains, owners at the agent ──▶ follow: which to put, which to remove
//! ```
//!
//! Pure: no I/O, no clock. The caller reads, asks the agent, and waits.
//!
//! - [`domain`]: the relevant parts of the XML
//! - [`bandwidth`]: libvirt's `<bandwidth>` as keys of a contract
//! - `memory`: whether a device may read a domain's memory
//! - [`metadata`]: contracts inside `<metadata>`
//! - `xml`: reads XML, with errors that point at line and column
//! - [`mod@translate`]: from both to contracts
//! - [`hook`]: reactions to libvirt's calls
//! - [`follow`]: reactions to changes without a call
//! - [`room`]: unneeded contracts that are in the way
//! - [`running`]: a running domain's threads, and the CPUs that libvirt chose for them
//! - [`script`]: the file that libvirt runs

pub mod bandwidth;
pub mod domain;
pub mod follow;
pub mod hook;
mod memory;
pub mod metadata;
pub mod room;
pub mod running;
pub mod script;
pub mod translate;
mod xml;

pub use translate::{Translation, translate};

/// Prefix of a domain's owner at the agent: `libvirt:NAME`.
pub const OWNER: &str = "libvirt:";

/// Returns the owner of a domain's contracts.
pub fn owner(domain: &str) -> String {
    format!("{OWNER}{domain}")
}
