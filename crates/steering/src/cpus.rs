//! CPUs that are online.

use std::path::Path;
use std::{fs, io};
use tidegate_cores::cpus::{Cpus, from_list};

/// Returns the CPUs that are online; `root` is `/`, or a recorded tree.
///
/// # Errors
/// sysfs does not say.
pub(crate) fn online(root: &Path) -> io::Result<Cpus> {
    let text = fs::read_to_string(root.join("sys/devices/system/cpu/online"))?;
    from_list(&text).ok_or_else(|| io::Error::other(format!("{text:?} is no list of CPUs")))
}
