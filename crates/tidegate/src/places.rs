//! The places of this host, in the order in which they plan and act. A new place is one line here.
//!
//! ```text
//!  Options ─▶ install ─▶ Installations ─▶ tidegate_agent
//! ```

use tidegate_agent::Install;
pub use tidegate_place_cores::{KeepOff, Options as CoresOptions};
pub use tidegate_place_switch::Options as SwitchOptions;

/// Installs all places. The last one plans CPUs for the work of all others.
pub fn install(switch: SwitchOptions, cores: CoresOptions) -> Install {
    Box::new(move |site| {
        Ok(vec![
            tidegate_place_switch::install(site, &switch)?,
            tidegate_place_kernel::install(site)?,
            tidegate_place_nic::install(site)?,
            tidegate_place_network::install(site)?,
            tidegate_place_cores::install(site, &cores)?,
        ])
    })
}
