//! Rehearses the restoration of foreign objects in a temporary network namespace.

use super::{Object, TakenOver};
use crate::tc::kernel::Kernel;
use crate::tc::network::Netdev;
use crate::tc::probe::in_namespace;
use crate::tc::shaping::Ends;

/// Makes them on another interface, reads them back, and compares. Changes nothing outside the temporary
/// namespace. `name` is that of the original interface, for messages.
///
/// # Errors
/// An object cannot be restored as it is; the text names it with the reason.
pub fn rehearse(taken_over: &TakenOver, name: &str) -> Result<(), String> {
    let (taken_over, name) = (taken_over.clone(), name.to_owned());
    in_namespace(move || {
        let mut kernel = Kernel::open().map_err(|e| format!("cannot talk to the kernel (netlink): {e}"))?;
        let network = kernel.observe().map_err(|e| e.to_string())?;
        let (index, lo) = network.by_name("lo").ok_or("a new network namespace has no loopback")?;
        let here = TakenOver { index, ..taken_over.clone() };
        for step in here.restore(&Netdev { name: name.clone(), ..lo.clone() }, Ends::BOTH) {
            kernel.apply(&step).map_err(|e| e.to_string())?;
        }
        let made = kernel.foreign(index, Ends::BOTH)?;
        for (wanted, found) in [(&here.egress, &made.egress), (&here.ingress, &made.ingress)] {
            if let Some(object) = differing(wanted, found) {
                return Err(format!("{object} of {name} cannot be restored exactly"));
            }
        }
        Ok(())
    })
}

/// Returns the first that differs.
fn differing<'a>(wanted: &'a [Object], found: &'a [Object]) -> Option<&'a Object> {
    wanted.iter().find(|o| !found.contains(o)).or_else(|| found.iter().find(|o| !wanted.contains(o)))
}
