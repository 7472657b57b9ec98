//! The places of this host, in the order in which they plan and act. A new place is one line here.
//!
//! ```text
//!  Options ─▶ install ─▶ Installations ─▶ tidegate_agent
//! ```

use tidegate_agent::Install;
pub use tidegate_place_switch::{KeepOff, Options};

/// Installs all places; `options` are those of the host switch.
pub fn install(options: Options) -> Install {
    Box::new(move |site| {
        Ok(vec![
            tidegate_place_switch::install(site, &options)?,
            tidegate_place_kernel::install(site)?,
            tidegate_place_nic::install(site)?,
        ])
    })
}
