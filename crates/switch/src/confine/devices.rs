//! The files of RDMA devices: what libibverbs opens and reads of the devices that the command line names.
//!
//! ```text
//!  names ─▶ sys/class/infiniband_verbs/uverbsN/ibdev: one of them? ─▶ dev/infiniband/uverbsN            to read and write
//!                                                                 └─▶ folders and files of the device   to read
//! ```
//!
//! Kernels that have landlock tell of a device by netlink and ioctl. What is read of sysfs is how libraries choose a
//! driver, and drivers a CPU.

use std::fs;
use std::path::{Path, PathBuf};
use tidegate_contract::rdma::is_device_name;

/// Devices of programs, with the name of the RDMA device in `ibdev`.
const VERBS: &str = "sys/class/infiniband_verbs";
/// RDMA devices.
const DEVICES: &str = "sys/class/infiniband";
/// What may be read of the PCI function below a device; nothing that leads to its memory.
const OF_PCI: [&str; 6] = ["modalias", "vendor", "device", "numa_node", "local_cpus", "local_cpulist"];
/// Most entries of a folder that are looked at: a kernel makes no more devices (IB_UVERBS_MAX_DEVICES).
const ENTRIES: usize = 1024;

/// The files of devices.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct DeviceFiles {
    /// To read: folders with all in them, and files.
    pub(super) read: Vec<PathBuf>,
    /// To read, to write, and to ask by ioctl.
    pub(super) devices: Vec<PathBuf>,
}

impl DeviceFiles {
    /// Finds the files of devices below `root`, which is `/` but in tests. A device that is not there has none, and cannot be
    /// opened later.
    pub fn find(root: &Path, names: &[String]) -> Self {
        let mut files = Self { read: vec![root.join(VERBS).join("abi_version")], devices: vec![] };
        for entry in fs::read_dir(root.join(VERBS)).into_iter().flatten().flatten().take(ENTRIES) {
            let device = fs::read_to_string(entry.path().join("ibdev")).unwrap_or_default();
            let device = device.trim_end();
            if !is_uverbs(&entry.file_name())
                || !is_device_name(device)
                || !names.iter().any(|name| name == device)
            {
                continue;
            }
            let about = root.join(DEVICES).join(device);
            files.devices.push(root.join("dev/infiniband").join(entry.file_name()));
            files.read.extend(OF_PCI.map(|file| about.join("device").join(file)));
            files.read.extend([entry.path(), about]);
        }
        files
    }
}

/// Whether a file has the name of a device of programs: uverbs0, uverbs1, ...
fn is_uverbs(name: &std::ffi::OsStr) -> bool {
    let number = name.to_str().and_then(|name| name.strip_prefix("uverbs"));
    number.is_some_and(|number| !number.is_empty() && number.bytes().all(|byte| byte.is_ascii_digit()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_are_those_of_named_devices() {
        let dir = tempfile::tempdir().unwrap();
        let root = dir.path();
        assert_eq!(
            DeviceFiles::find(root, &["rxe0".into()]).devices,
            Vec::<PathBuf>::new(),
            "there is no device"
        );
        let entries = [
            ("uverbs0", "mlx5_0\n"),
            ("uverbs1", "rxe0\n"),
            ("uverbs2", ".."),
            ("abi_version", "rxe0"),
            ("uverbs", "rxe0"),
        ];
        for (entry, device) in entries {
            fs::create_dir_all(root.join(VERBS).join(entry)).unwrap();
            fs::write(root.join(VERBS).join(entry).join("ibdev"), device).unwrap();
        }
        let files = DeviceFiles::find(root, &["rxe0".into(), "..".into(), "rxe1".into()]);
        assert_eq!(files.devices, [root.join("dev/infiniband/uverbs1")]);
        assert!(files.read.contains(&root.join("sys/class/infiniband/rxe0")), "{files:?}");
        assert!(files.read.iter().all(|path| !path.to_str().unwrap().contains("mlx5_0")), "{files:?}");
    }
}
