//! libvirt's states of running domains: `/run/libvirt/qemu/NAME.xml`.

use crate::roots::{Roots, names, text};
use std::collections::BTreeMap;
use std::time::SystemTime;
use tidegate_libvirt::running::{Running, running};

/// Most domains.
const MOST: usize = 4096;

/// The states, as of the last look; a file that did not change is not read again.
#[derive(Debug, Default)]
pub struct States {
    files: BTreeMap<String, File>,
}

#[derive(Debug)]
struct File {
    changed: Option<SystemTime>,
    domain: Option<Running>,
}

impl States {
    /// Looks at the files.
    pub fn look(&mut self, roots: &Roots) {
        let folder = roots.run.join("libvirt/qemu");
        let mut names = names(&folder);
        names.retain(|name| name.ends_with(".xml"));
        names.truncate(MOST);
        self.files.retain(|name, _| names.contains(name));
        for name in names {
            let path = folder.join(&name);
            let changed = path.metadata().and_then(|metadata| metadata.modified()).ok();
            if self.files.get(&name).is_some_and(|file| file.changed.is_some() && file.changed == changed) {
                continue;
            }
            let domain = text(&path).and_then(|text| running(&text, &name).ok());
            self.files.insert(name, File { changed, domain });
        }
    }

    /// Returns the domains by QEMU's process.
    pub fn domains(&self) -> BTreeMap<u32, &Running> {
        let domains = self.files.values().filter_map(|file| file.domain.as_ref());
        domains.map(|domain| (domain.process, domain)).collect()
    }
}
