//! The CPUs that take an interrupt: `/proc/irq/N/smp_affinity_list`.

use crate::settings::step::Found;
use std::io;
use std::path::Path;
use tidegate_cores::cpus;

const FOLDER: &str = "/proc/irq";

/// Returns the CPUs of an interrupt; `None` without such an interrupt.
pub fn read(number: u32) -> Result<Option<Found>, String> {
    let folder = Path::new(FOLDER).join(number.to_string());
    let value = match std::fs::read_to_string(folder.join("smp_affinity_list")) {
        Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(None),
        other => other.map_err(|e| format!("cannot read the CPUs of interrupt {number}: {e}"))?,
    };
    let value = cpus::from_list(&value).map(|cpus| cpus::list(&cpus));
    let value = value.ok_or_else(|| format!("the CPUs of interrupt {number} are no list"))?;
    let handlers = handlers(&folder).map_err(|e| format!("cannot read {}: {e}", folder.display()))?;
    if handlers.is_empty() {
        return Err(format!("interrupt {number} has no handler at present: its device is down"));
    }
    Ok(Some(Found { index: index(&handlers), value }))
}

/// Sets the CPUs of an interrupt.
pub fn write(number: u32, value: &str) -> Result<(), String> {
    let path = Path::new(FOLDER).join(number.to_string()).join("smp_affinity_list");
    std::fs::write(path, value).map_err(|e| {
        let why = match e.raw_os_error() {
            // irq_can_set_affinity_usr of kernel/irq/manage.c.
            Some(libc::EIO) => " (its driver, or the kernel, keeps its CPUs)",
            Some(libc::EACCES | libc::EPERM | libc::EROFS) => {
                " (the packaged agent needs the drop-in cores.conf)"
            }
            _ => "",
        };
        format!("cannot give interrupt {number} CPU {value}: {e}{why}")
    })
}

/// Returns the names of an interrupt's handlers: the kernel makes a folder for each.
fn handlers(folder: &Path) -> io::Result<Vec<String>> {
    let mut names = Vec::new();
    for entry in std::fs::read_dir(folder)? {
        let entry = entry?;
        if entry.file_type()?.is_dir() {
            names.push(entry.file_name().to_string_lossy().into_owned());
        }
    }
    names.sort();
    Ok(names)
}

/// Returns a number that tells apart the devices that have an interrupt's number one after the other (FNV-1a).
fn index(handlers: &[String]) -> u32 {
    let bytes = handlers.iter().flat_map(|name| name.bytes().chain([0]));
    bytes.fold(0x811c_9dc5, |hash, byte| (hash ^ u32::from(byte)).wrapping_mul(0x0100_0193))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_interrupt_without_a_number_here_is_gone() {
        assert_eq!(read(u32::MAX), Ok(None));
        assert!(write(u32::MAX, "0").is_err());
    }

    #[test]
    fn devices_with_one_number_are_told_apart() {
        let names = |names: &[&str]| names.iter().map(|name| (*name).to_owned()).collect::<Vec<_>>();
        assert_eq!(index(&names(&["eth0-rx-0"])), index(&names(&["eth0-rx-0"])));
        assert_ne!(index(&names(&["eth0-rx-0"])), index(&names(&["eth1-rx-0"])));
        assert_ne!(index(&names(&["ab", "c"])), index(&names(&["a", "bc"])));
    }
}
