//! The contracts, and who owns each.
//!
//! ```text
//!  /etc/tidegate/*.toml ──▶ files ──┐
//!                                   ├─▶ Contracts ──▶ reconciler ──▶ contracts.json (last good of all)
//!  API ─────────────────────────────┘   files win
//! ```
//!
//! - [`files`]: the configuration folder, watched

pub mod files;

use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::fmt;
use std::path::{Path, PathBuf};
use tidegate_contract::{Document, Errors, Host, Located, Vnic, merge};

/// Who a contract belongs to: nobody else may change it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Owner {
    /// A file in the configuration folder.
    File(PathBuf),
    /// The API.
    Api,
}

impl fmt::Display for Owner {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::File(path) => write!(f, "file:{}", path.display()),
            Self::Api => f.write_str("api"),
        }
    }
}

/// All contracts, by owner. This is what is kept over restarts: the files' last good contents with it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Contracts {
    /// What each file says, or said when it was last good.
    pub files: BTreeMap<PathBuf, Document>,
    /// What came through the API.
    pub api: Document,
}

/// A change through the API to what a file owns.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{what} belongs to {}: change it there (the agent reads it within three seconds)", file.display())]
pub struct OwnedByFile {
    /// `vNIC plc1` or `[host]`.
    pub what: String,
    /// The file.
    pub file: PathBuf,
}

impl Contracts {
    /// Everything together, with the rules between contracts checked.
    pub fn merged(&self) -> Result<Document, Errors> {
        merge(self.files.values().cloned().chain([self.api.clone()]).collect())
    }

    /// All contracts with their owners.
    pub fn vnics(&self) -> impl Iterator<Item = (Owner, &Located<Vnic>)> {
        let files = self
            .files
            .iter()
            .flat_map(|(path, d)| d.vnics.iter().map(move |v| (Owner::File(path.clone()), v)));
        files.chain(self.api.vnics.iter().map(|v| (Owner::Api, v)))
    }

    /// One contract.
    pub fn vnic(&self, name: &str) -> Option<&Vnic> {
        let documents = self.files.values().chain([&self.api]);
        documents.flat_map(|d| &d.vnics).map(|v| &v.value).find(|v| v.name == name)
    }

    /// The host's declarations in force.
    pub fn host(&self) -> Host {
        let documents = self.files.values().chain([&self.api]);
        documents.filter_map(|d| d.host.as_ref()).map(|h| h.value.clone()).next().unwrap_or_default()
    }

    fn file_of(&self, name: &str) -> Option<&Path> {
        let owns = |d: &Document| d.vnics.iter().any(|v| v.value.name == name);
        self.files.iter().find(|(_, d)| owns(d)).map(|(path, _)| path.as_path())
    }

    fn refuse_file(&self, name: &str) -> Result<(), OwnedByFile> {
        match self.file_of(name) {
            Some(file) => Err(OwnedByFile { what: format!("vNIC {name}"), file: file.into() }),
            None => Ok(()),
        }
    }

    /// Adds and changes what `document` names; with `prune` removes the API's other vNICs.
    pub fn merge_api(&mut self, document: Document, prune: bool) -> Result<(), OwnedByFile> {
        if prune {
            self.api.vnics.retain(|old| document.vnics.iter().any(|new| new.value.name == old.value.name));
        }
        for vnic in document.vnics {
            let name = &vnic.value.name;
            // What a file already says is no change.
            if self.file_of(name).is_some() && self.vnic(name) == Some(&vnic.value) {
                continue;
            }
            self.set_api(vnic)?;
        }
        if let Some(host) = document.host {
            match self.files.iter().find(|(_, d)| d.host.is_some()) {
                Some((_, d)) if d.host.as_ref().is_some_and(|h| h.value == host.value) => {}
                Some((file, _)) => return Err(OwnedByFile { what: "[host]".into(), file: file.clone() }),
                None => self.api.host = Some(host),
            }
        }
        Ok(())
    }

    /// Adds or changes one.
    pub fn set_api(&mut self, vnic: Located<Vnic>) -> Result<(), OwnedByFile> {
        self.refuse_file(&vnic.value.name)?;
        match self.api.vnics.iter_mut().find(|v| v.value.name == vnic.value.name) {
            Some(old) => *old = vnic,
            None => self.api.vnics.push(vnic),
        }
        Ok(())
    }

    /// Removes one; whether it was there.
    pub fn remove_api(&mut self, name: &str) -> Result<bool, OwnedByFile> {
        self.refuse_file(name)?;
        let before = self.api.vnics.len();
        self.api.vnics.retain(|v| v.value.name != name);
        Ok(self.api.vnics.len() < before)
    }

    /// Takes a file's new contents, `None` where the file is gone. What the API had set of it is the file's
    /// now; returns those names.
    pub fn set_file(&mut self, path: &Path, document: Option<Document>) -> Vec<String> {
        let Some(document) = document else {
            self.files.remove(path);
            return vec![];
        };
        let mut taken = Vec::new();
        self.api.vnics.retain(|old| {
            let keep = document.vnics.iter().all(|new| new.value.name != old.value.name);
            if !keep {
                taken.push(format!("vNIC {}", old.value.name));
            }
            keep
        });
        if document.host.is_some() && self.api.host.take().is_some() {
            taken.push("[host]".into());
        }
        self.files.insert(path.to_owned(), document);
        taken
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::vnic;

    fn document(names: &[&str]) -> Document {
        let located = |n: &&str| Located::without_line(vnic(n, n.as_bytes()[0]), "test");
        Document { host: None, vnics: names.iter().map(located).collect() }
    }

    fn names(contracts: &Contracts) -> Vec<String> {
        contracts.vnics().map(|(o, v)| format!("{o} {}", v.value.name)).collect()
    }

    #[test]
    fn files_win_over_the_api() {
        let mut contracts = Contracts::default();
        contracts.merge_api(document(&["a", "b"]), false).unwrap();
        assert_eq!(contracts.set_file(Path::new("/x.toml"), Some(document(&["b", "c"]))), ["vNIC b"]);
        assert_eq!(names(&contracts), ["file:/x.toml b", "file:/x.toml c", "api a"]);

        let changed = Located::without_line(Vnic { weight: 9, ..vnic("c", b'c') }, "test");
        let refused = contracts.set_api(changed).unwrap_err();
        assert_eq!(refused.file, Path::new("/x.toml"));
        assert!(contracts.remove_api("b").is_err());
        assert_eq!(contracts.remove_api("a"), Ok(true));
        assert_eq!(contracts.remove_api("a"), Ok(false));
        contracts.set_file(Path::new("/x.toml"), None);
        assert!(names(&contracts).is_empty());
    }

    #[test]
    fn pruning_spares_files() {
        let mut contracts = Contracts::default();
        contracts.set_file(Path::new("/x.toml"), Some(document(&["f"])));
        contracts.merge_api(document(&["a", "b"]), false).unwrap();
        contracts.merge_api(document(&["b", "c", "f"]), true).unwrap();
        assert_eq!(names(&contracts), ["file:/x.toml f", "api b", "api c"]);
    }

    #[test]
    fn the_host_table_of_a_file_is_the_files() {
        let mut contracts = Contracts::default();
        let mut host = document(&[]);
        host.host = Some(Located::without_line(Host::default(), "x"));
        contracts.set_file(Path::new("/x.toml"), Some(host.clone()));
        contracts.merge_api(host.clone(), false).unwrap();
        host.host.as_mut().unwrap().value.flood_burst = tidegate_contract::Bytes::new(1);
        assert_eq!(contracts.merge_api(host, false).unwrap_err().what, "[host]");
    }
}
