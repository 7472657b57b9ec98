//! The places of this host, in the order in which they plan and act. A new place is one line here.
//!
//! ```text
//!  Options ─▶ install ─▶ Places ─▶ tidegate_agent
//! ```

use tidegate_agent::{Install, Places, Site};
use tidegate_durable::DurableError;
use tidegate_place::Installed;
use tidegate_place_kernel::KernelPlace;
use tidegate_place_nic::NicPlace;
use tidegate_place_switch::SwitchPlace;
pub use tidegate_place_switch::{KeepOff, Options};

/// Installs all places; `options` are those of the host switch.
pub fn install(options: Options) -> Install {
    Box::new(move |site| all(&options, site))
}

fn all(options: &Options, site: &Site<'_>) -> Result<Places, DurableError> {
    let Site { state, paths, wake } = site;
    let (switch, switch_damage) = SwitchPlace::new(options, state, (*paths).clone(), wake.clone())?;
    let (kernel, kernel_damage) = KernelPlace::new(state)?;
    let (nic, nic_damage) = NicPlace::new(state)?;
    let capture = Some(switch.capture());
    let installed: Vec<Box<dyn Installed>> = vec![Box::new(switch), Box::new(kernel), Box::new(nic)];
    let kernel_damage = kernel_damage.map(|damage| ("kernel state", damage));
    let nic_damage = nic_damage.map(|damage| ("nic state", damage));
    let damage = switch_damage.into_iter().chain(kernel_damage).chain(nic_damage).collect();
    Ok(Places { installed, capture, damage })
}
