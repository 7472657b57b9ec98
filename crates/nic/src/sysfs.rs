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

/// Of a netdev; `None` where its device can have no VFs.
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

/// Of all netdevs.
pub fn root() -> PathBuf {
    "/sys/class/net".into()
}

/// The file with the registers of a PCI device.
pub fn registers(address: &str) -> PathBuf {
    Path::new("/sys/bus/pci/devices").join(address).join("resource0")
}

/// The last part of what a symbolic link names.
fn target(link: &Path) -> Option<String> {
    Some(fs::read_link(link).ok()?.file_name()?.to_str()?.to_owned())
}
