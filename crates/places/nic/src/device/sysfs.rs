//! What only files say: /sys/class/net, of the network namespace that /sys was mounted in.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

/// The device of a netdev that can have VFs.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Device {
    pub bus: String,
    pub address: String,
    pub driver: String,
    pub total_vfs: Option<u16>,
    /// PCI vendor and device.
    pub pci_id: Option<(u16, u16)>,
    /// PCI addresses of the VFs.
    pub vfs: BTreeMap<u16, String>,
}

/// Reads the device of a netdev; `None` where it can have no VFs.
pub fn device(root: &Path, name: &str) -> Option<Device> {
    let folder = root.join(name).join("device");
    fs::metadata(folder.join("sriov_numvfs")).ok()?;
    let text = |file: &str| fs::read_to_string(folder.join(file)).ok().map(|text| text.trim().to_owned());
    let hex = |file| u16::from_str_radix(text(file)?.strip_prefix("0x")?, 16).ok();
    let mut vfs = BTreeMap::new();
    for entry in fs::read_dir(&folder).into_iter().flatten().flatten() {
        let file_name = entry.file_name();
        let number = file_name.to_str().and_then(|n| n.strip_prefix("virtfn")).and_then(|n| n.parse().ok());
        if let (Some(number), Some(address)) = (number, target(&entry.path())) {
            vfs.insert(number, address);
        }
    }
    Some(Device {
        bus: target(&folder.join("subsystem"))?,
        address: target(&folder)?,
        driver: target(&folder.join("driver")).unwrap_or_default(),
        total_vfs: text("sriov_totalvfs").and_then(|n| n.parse().ok()),
        pci_id: hex("vendor").zip(hex("device")),
        vfs,
    })
}

/// Returns the folder of all netdevs.
pub fn root() -> PathBuf {
    "/sys/class/net".into()
}

/// Returns the file with the registers of a PCI device.
pub fn registers(address: &str) -> PathBuf {
    Path::new("/sys/bus/pci/devices").join(address).join("resource0")
}

/// The last part of what a symbolic link names.
fn target(link: &Path) -> Option<String> {
    Some(fs::read_link(link).ok()?.file_name()?.to_str()?.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::symlink;

    #[test]
    fn a_pf_is_distinguished_from_netdevs_without_vfs() {
        let root = tempfile::tempdir().expect("a folder");
        let pci = root.path().join("0000:03:00.0");
        for folder in
            [&pci, &root.path().join("eth0"), &root.path().join("eth1"), &root.path().join("0000:03:10.0")]
        {
            fs::create_dir_all(folder).expect("a folder");
        }
        symlink(&pci, root.path().join("eth0/device")).expect("a link");
        for (name, target) in [
            ("subsystem", "/sys/bus/pci"),
            ("driver", "/sys/bus/pci/drivers/igb"),
            ("virtfn0", "../0000:03:10.0"),
        ] {
            symlink(target, pci.join(name)).expect("a link");
        }
        assert_eq!(device(root.path(), "eth0"), None, "without sriov_numvfs");
        let files = [
            ("sriov_numvfs", "1\n"),
            ("sriov_totalvfs", "7\n"),
            ("vendor", "0x8086\n"),
            ("device", "0x10c9\n"),
        ];
        for (name, text) in files {
            fs::write(pci.join(name), text).expect("written");
        }
        let found = Device {
            bus: "pci".into(),
            address: "0000:03:00.0".into(),
            driver: "igb".into(),
            total_vfs: Some(7),
            pci_id: Some((0x8086, 0x10c9)),
            vfs: [(0, "0000:03:10.0".into())].into(),
        };
        assert_eq!(device(root.path(), "eth0"), Some(found));
        assert_eq!(device(root.path(), "eth1"), None, "a virtual netdev");
        assert_eq!(device(root.path(), "eth2"), None);
    }
}
