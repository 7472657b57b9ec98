//! The states of running domains, as libvirt keeps them: one file each in `/run/libvirt/qemu`.
//!
//! libvirt writes such a file beside and renames it, when a domain starts and at each change; it removes it when the
//! domain stops. So a file is never half-written, and asking libvirt is not needed.

use std::collections::{BTreeMap, BTreeSet};
use std::io::{self, ErrorKind};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

/// libvirt's folder, unless another is given.
pub const FOLDER: &str = "/run/libvirt/qemu";

/// Where states are read.
#[derive(Debug, clap::Args)]
pub struct Folder {
    /// libvirt's folder with the states of running domains
    #[arg(long = "run-dir", value_name = "DIR", default_value = FOLDER)]
    path: PathBuf,
}

/// Tells one version of a state from another.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Stamp {
    ino: u64,
    mtime: (i64, i64),
    size: u64,
}

impl Folder {
    /// The states there are, by domain. None where the folder is missing: libvirt has not started yet.
    pub fn states(&self) -> io::Result<BTreeMap<String, Stamp>> {
        let entries = match std::fs::read_dir(&self.path) {
            Err(e) if e.kind() == ErrorKind::NotFound => return Ok(BTreeMap::new()),
            other => other?,
        };
        let mut states = BTreeMap::new();
        for entry in entries {
            let path = entry?.path();
            let name = path.file_name().and_then(|n| n.to_str()).and_then(|n| n.strip_suffix(".xml"));
            let Some(name) = name else { continue };
            match std::fs::metadata(&path) {
                Ok(meta) if meta.is_file() => {
                    let mtime = (meta.mtime(), meta.mtime_nsec());
                    states.insert(name.to_owned(), Stamp { ino: meta.ino(), mtime, size: meta.len() });
                }
                Ok(_) => {}
                // Stopped since it was listed.
                Err(e) if e.kind() == ErrorKind::NotFound => {}
                Err(e) => return Err(e),
            }
        }
        Ok(states)
    }

    /// The domains that run; without the domains of folders that cannot be read.
    pub fn running(&self) -> io::Result<BTreeSet<String>> {
        Ok(self.states()?.into_keys().collect())
    }

    /// The state of a domain.
    pub fn read(&self, domain: &str) -> io::Result<String> {
        std::fs::read_to_string(self.file(domain))
    }

    /// Where the state of a domain is.
    pub fn file(&self, domain: &str) -> PathBuf {
        self.path.join(format!("{domain}.xml"))
    }

    /// The folder.
    pub fn path(&self) -> &Path {
        &self.path
    }
}
