//! The states of running domains: one file each in `/run/libvirt/qemu`.
//!
//! libvirt replaces the file by a rename when a domain starts and at each change, and removes it when the
//! domain stops. So a file is never half-written, and there is no need to ask libvirt.

use std::collections::{BTreeMap, BTreeSet};
use std::io::{self, ErrorKind};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

pub const FOLDER: &str = "/run/libvirt/qemu";

/// Where states are read.
#[derive(Debug, clap::Args)]
pub struct Folder {
    /// libvirt's folder with the states of running domains
    #[arg(long = "run-dir", value_name = "DIR", default_value = FOLDER)]
    path: PathBuf,
}

/// Distinguishes two versions of a state.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Stamp {
    ino: u64,
    mtime: (i64, i64),
    size: u64,
}

impl Folder {
    /// Returns the versions of all states, by domain; empty if the folder is missing, because libvirt has
    /// not started yet.
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
                // The domain stopped after the folder was listed.
                Err(e) if e.kind() == ErrorKind::NotFound => {}
                Err(e) => return Err(e),
            }
        }
        Ok(states)
    }

    pub fn running(&self) -> io::Result<BTreeSet<String>> {
        Ok(self.states()?.into_keys().collect())
    }

    pub fn read(&self, domain: &str) -> io::Result<String> {
        std::fs::read_to_string(self.file(domain))
    }

    pub fn file(&self, domain: &str) -> PathBuf {
        self.path.join(format!("{domain}.xml"))
    }

    pub fn path(&self) -> &Path {
        &self.path
    }
}
