//! MACs and names of this VM's network interfaces.

use std::fs;
use std::path::Path;

/// The interfaces: devices first, then interfaces made of them, such as a bond with a device's MAC.
#[derive(Debug, Default)]
pub struct Interfaces(Vec<(String, String)>);

impl Interfaces {
    /// Reads the kernel's interfaces below `root`; none if unreadable.
    pub fn read(root: &Path) -> Self {
        let mut found: Vec<(bool, String, String)> = fs::read_dir(root.join("sys/class/net"))
            .into_iter()
            .flatten()
            .flatten()
            .filter_map(|entry| {
                let mac = fs::read_to_string(entry.path().join("address")).ok()?;
                let made = !entry.path().join("device").exists();
                Some((made, entry.file_name().to_string_lossy().into_owned(), mac.trim().to_owned()))
            })
            .collect();
        found.sort();
        Self(found.into_iter().map(|(_, name, mac)| (name, mac)).collect())
    }

    /// Returns these, by name and MAC.
    #[cfg(test)]
    pub fn of<const N: usize>(all: [(&str, &str); N]) -> Self {
        Self(all.into_iter().map(|(name, mac)| (name.to_owned(), mac.to_owned())).collect())
    }

    /// Returns the name of the interface with a MAC.
    pub fn name(&self, mac: &str) -> Option<&str> {
        self.0.iter().find(|(_, m)| m.eq_ignore_ascii_case(mac)).map(|(name, _)| name.as_str())
    }

    /// Returns the MAC of `nic`, an interface's name or a MAC.
    pub fn mac(&self, nic: &str) -> Option<String> {
        let named = self.0.iter().find(|(name, _)| name == nic).map(|(_, mac)| mac.clone());
        named.or_else(|| is_mac(nic).then(|| nic.to_owned()))
    }
}

fn is_mac(text: &str) -> bool {
    let digits = |part: &str| part.len() == 2 && part.bytes().all(|b| b.is_ascii_hexdigit());
    text.split(':').count() == 6 && text.split(':').all(digits)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_and_macs() {
        let root = tempfile::tempdir().expect("a folder");
        for (name, mac, device) in [
            ("bond0", "52:54:00:00:00:01", false),
            ("eth0", "52:54:00:00:00:01", true),
            ("lo", "00:00:00:00:00:00", false),
        ] {
            let folder = root.path().join("sys/class/net").join(name);
            fs::create_dir_all(&folder).expect("made");
            fs::write(folder.join("address"), format!("{mac}\n")).expect("written");
            if device {
                fs::create_dir(folder.join("device")).expect("made");
            }
        }
        let interfaces = Interfaces::read(root.path());
        assert_eq!(interfaces.name("52:54:00:00:00:01"), Some("eth0"));
        assert_eq!(interfaces.name("52:54:00:00:00:02"), None);
        assert_eq!(interfaces.mac("bond0").as_deref(), Some("52:54:00:00:00:01"));
        assert_eq!(interfaces.mac("52:54:00:00:0A:02").as_deref(), Some("52:54:00:00:0A:02"));
        assert_eq!(interfaces.mac("eth1"), None);
        assert!(Interfaces::read(&root.path().join("elsewhere")).0.is_empty());
    }
}
