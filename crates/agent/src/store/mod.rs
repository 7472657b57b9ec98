//! The contracts, and the owner of each.
//!
//! ```text
//!  /etc/tidegate/*.toml ──▶ files ──┐
//!                                   ├─▶ Contracts ──▶ reconciler ──▶ contracts.json (last good of all)
//!  API ─────────────────────────────┘   files win
//!  programs, through the API: libvirt:web1 ──▶ the contracts of each
//! ```
//!
//! - [`files`]: the configuration folder, watched

pub mod files;

use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, HashMap, HashSet};
use std::fmt;
use std::path::{Path, PathBuf};
use tidegate_contract::{Document, Errors, Host, Located, Vnic, merge};

/// The owner of a contract: no other owner may change it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Owner {
    File(PathBuf),
    /// A program that acts for a user or a domain through the API, such as `libvirt:web1`.
    Program(String),
    Api,
}

#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "{0:?} names no owner; expected KIND:NAME such as \"libvirt:web1\", the kind in small letters and not \"file\""
)]
pub struct NoOwner(String);

impl Owner {
    /// Parses the name of an owner: a program such as `libvirt:web1`, or `api`.
    pub fn named(text: &str) -> Result<Self, NoOwner> {
        let kind =
            |kind: &str| !kind.is_empty() && kind != "file" && kind.chars().all(|c| c.is_ascii_lowercase());
        match text.split_once(':') {
            None if text == "api" => Ok(Self::Api),
            Some((k, name)) if kind(k) && !name.is_empty() && !name.contains(char::is_control) => {
                Ok(Self::Program(text.into()))
            }
            _ => Err(NoOwner(text.into())),
        }
    }
}

impl fmt::Display for Owner {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::File(path) => write!(f, "file:{}", path.display()),
            Self::Program(name) => f.write_str(name),
            Self::Api => f.write_str("api"),
        }
    }
}

/// All contracts, by owner. The agent saves them, with the files' last good contents.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Contracts {
    /// The last good contents of each file.
    pub files: BTreeMap<PathBuf, Document>,
    #[serde(default)]
    pub programs: BTreeMap<String, Document>,
    pub api: Document,
}

/// A refused change to a contract of another owner.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Owned {
    /// `vNIC plc1` or `[host]`.
    pub what: String,
    pub owner: Owner,
}

impl fmt::Display for Owned {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let what = &self.what;
        match &self.owner {
            Owner::File(file) => write!(
                f,
                "{what} belongs to {}: change it there (the agent reads it within three seconds)",
                file.display()
            ),
            Owner::Program(name) => match name.strip_prefix("libvirt:") {
                Some(domain) => write!(
                    f,
                    "{what} belongs to the libvirt domain {domain:?}: change its <metadata> or <bandwidth> there"
                ),
                None => write!(f, "{what} belongs to {name}: change it there"),
            },
            Owner::Api => {
                write!(f, "{what} came through the API: change it there (tidegate vnic set, tidegate apply)")
            }
        }
    }
}

impl std::error::Error for Owned {}

impl Contracts {
    /// Merges all contracts, and checks the rules between them.
    pub fn merged(&self) -> Result<Document, Errors> {
        merge(self.documents().map(|(_, document)| document.clone()).collect())
    }

    fn documents(&self) -> impl Iterator<Item = (Owner, &Document)> {
        let files = self.files.iter().map(|(path, d)| (Owner::File(path.clone()), d));
        let programs = self.programs.iter().map(|(name, d)| (Owner::Program(name.clone()), d));
        files.chain(programs).chain([(Owner::Api, &self.api)])
    }

    pub fn vnics(&self) -> impl Iterator<Item = (Owner, &Located<Vnic>)> {
        self.documents().flat_map(|(owner, d)| d.vnics.iter().map(move |v| (owner.clone(), v)))
    }

    /// Returns one contract. To look up many, use [`Contracts::by_name`].
    pub fn vnic(&self, name: &str) -> Option<&Vnic> {
        self.vnics().map(|(_, v)| &v.value).find(|v| v.name == name)
    }

    pub fn by_name(&self) -> HashMap<&str, &Vnic> {
        self.vnics().map(|(_, v)| (v.value.name.as_str(), &v.value)).collect()
    }

    /// Returns the `[host]` table, or its default.
    pub fn host(&self) -> Host {
        self.documents().find_map(|(_, d)| Some(d.host.as_ref()?.value.clone())).unwrap_or_default()
    }

    fn owner_of(&self, name: &str) -> Option<Owner> {
        self.vnics().find(|(_, v)| v.value.name == name).map(|(owner, _)| owner)
    }

    fn refuse_others(&self, name: &str, owner: &Owner) -> Result<(), Owned> {
        match self.owner_of(name) {
            Some(other) if other != *owner => Err(Owned { what: format!("vNIC {name}"), owner: other }),
            _ => Ok(()),
        }
    }

    /// Returns an owner's contracts, added empty if there are none. Callers must not change a file's contracts.
    fn document(&mut self, owner: &Owner) -> &mut Document {
        match owner {
            Owner::File(path) => self.files.entry(path.clone()).or_default(),
            Owner::Program(name) => self.programs.entry(name.clone()).or_default(),
            Owner::Api => &mut self.api,
        }
    }

    /// Adds and changes the contracts of `document`; with `prune` removes the owner's other vNICs.
    pub fn merge(&mut self, owner: &Owner, document: Document, prune: bool) -> Result<(), Owned> {
        let named: HashMap<&str, &Vnic> =
            document.vnics.iter().map(|new| (new.value.name.as_str(), &new.value)).collect();
        if prune {
            self.document(owner).vnics.retain(|old| named.contains_key(old.value.name.as_str()));
        }
        // A contract that a file already has is no change.
        let mut unchanged = HashSet::new();
        for (other, there) in self.vnics().filter(|(other, _)| other != owner) {
            let name = there.value.name.as_str();
            match (named.get(name), &other) {
                (None, _) => {}
                (Some(new), Owner::File(_)) if **new == there.value => {
                    unchanged.insert(name.to_owned());
                }
                (Some(_), _) => return Err(Owned { what: format!("vNIC {name}"), owner: other }),
            }
        }
        let own = &mut self.document(owner).vnics;
        let mut places: HashMap<String, usize> =
            own.iter().enumerate().map(|(n, old)| (old.value.name.clone(), n)).collect();
        for vnic in document.vnics.into_iter().filter(|new| !unchanged.contains(&new.value.name)) {
            match places.get(&vnic.value.name) {
                Some(place) => own[*place] = vnic,
                None => {
                    places.insert(vnic.value.name.clone(), own.len());
                    own.push(vnic);
                }
            }
        }
        if let Some(host) = document.host {
            let of_other = self.documents().find_map(|(other, d)| Some((other, d.host.as_ref()?)));
            match of_other.filter(|(other, _)| other != owner) {
                Some((_, h)) if h.value == host.value => {}
                Some((other, _)) => return Err(Owned { what: "[host]".into(), owner: other }),
                None => self.document(owner).host = Some(host),
            }
        }
        // A program without contracts is no owner.
        self.programs.retain(|_, d| *d != Document::default());
        Ok(())
    }

    pub fn set(&mut self, owner: &Owner, vnic: Located<Vnic>) -> Result<(), Owned> {
        self.refuse_others(&vnic.value.name, owner)?;
        let vnics = &mut self.document(owner).vnics;
        match vnics.iter_mut().find(|v| v.value.name == vnic.value.name) {
            Some(old) => *old = vnic,
            None => vnics.push(vnic),
        }
        Ok(())
    }

    /// Removes a contract of the API; returns whether it existed.
    pub fn remove_api(&mut self, name: &str) -> Result<bool, Owned> {
        self.refuse_others(name, &Owner::Api)?;
        let before = self.api.vnics.len();
        self.api.vnics.retain(|v| v.value.name != name);
        Ok(self.api.vnics.len() < before)
    }

    /// Sets a file's contents, `None` if the file is gone. The file takes over the vNICs and the `[host]` table that
    /// the API or a program had set; returns their names.
    pub fn set_file(&mut self, path: &Path, document: Option<Document>) -> Vec<String> {
        let Some(document) = document else {
            self.files.remove(path);
            return vec![];
        };
        let mut taken_over = Vec::new();
        let named: HashSet<&str> = document.vnics.iter().map(|new| new.value.name.as_str()).collect();
        for others in self.programs.values_mut().chain([&mut self.api]) {
            others.vnics.retain(|old| {
                let keep = !named.contains(old.value.name.as_str());
                if !keep {
                    taken_over.push(format!("vNIC {}", old.value.name));
                }
                keep
            });
            if document.host.is_some() && others.host.take().is_some() {
                taken_over.push("[host]".into());
            }
        }
        self.programs.retain(|_, d| *d != Document::default());
        self.files.insert(path.to_owned(), document);
        taken_over
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tidegate_testkit::contract::vnic;

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
        contracts.merge(&Owner::Api, document(&["a", "b"]), false).unwrap();
        assert_eq!(contracts.set_file(Path::new("/x.toml"), Some(document(&["b", "c"]))), ["vNIC b"]);
        assert_eq!(names(&contracts), ["file:/x.toml b", "file:/x.toml c", "api a"]);

        let changed = Located::without_line(Vnic { weight: 9, ..vnic("c", b'c') }, "test");
        let refused = contracts.set(&Owner::Api, changed).unwrap_err();
        assert_eq!(refused.owner, Owner::File("/x.toml".into()));
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
        contracts.merge(&Owner::Api, document(&["a", "b"]), false).unwrap();
        contracts.merge(&Owner::Api, document(&["b", "c", "f"]), true).unwrap();
        assert_eq!(names(&contracts), ["file:/x.toml f", "api b", "api c"]);
    }

    #[test]
    fn the_host_table_of_a_file_belongs_to_the_file() {
        let mut contracts = Contracts::default();
        let mut host = document(&[]);
        host.host = Some(Located::without_line(Host::default(), "x"));
        contracts.set_file(Path::new("/x.toml"), Some(host.clone()));
        contracts.merge(&Owner::Api, host.clone(), false).unwrap();
        host.host.as_mut().unwrap().value.flood_burst = tidegate_contract::Bytes::new(1);
        assert_eq!(contracts.merge(&Owner::Api, host, false).unwrap_err().what, "[host]");
    }

    #[test]
    fn each_owner_changes_only_its_own_contracts() {
        let mut contracts = Contracts::default();
        let web = Owner::named("libvirt:web 1").unwrap();
        contracts.merge(&Owner::Api, document(&["a"]), false).unwrap();
        contracts.merge(&web, document(&["b", "c"]), true).unwrap();
        let text = contracts.merge(&web, document(&["a"]), true).unwrap_err().to_string();
        assert!(text.contains("vNIC a came through the API"), "{text}");
        contracts.merge(&Owner::Api, document(&["a", "d"]), true).unwrap();
        contracts.merge(&web, document(&["c"]), true).unwrap();
        assert_eq!(names(&contracts), ["libvirt:web 1 c", "api a", "api d"]);
        let text = contracts.remove_api("c").unwrap_err().to_string();
        assert!(text.contains("belongs to the libvirt domain \"web 1\""), "{text}");
        assert_eq!(contracts.set_file(Path::new("/x.toml"), Some(document(&["c"]))), ["vNIC c"]);
        contracts.merge(&web, document(&["c"]), true).unwrap();
        assert_eq!(names(&contracts), ["file:/x.toml c", "api a", "api d"], "said by a file already");
        assert!(contracts.programs.is_empty());
    }

    #[test]
    fn owners_have_a_kind_and_a_name() {
        assert_eq!(Owner::named("api"), Ok(Owner::Api));
        for wrong in ["", "web1", "libvirt:", ":web1", "file:/etc/x.toml", "Libvirt:a", "libvirt:a\nb"] {
            assert!(Owner::named(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn contracts_saved_by_older_agents_are_read() {
        let contracts: Contracts =
            serde_json::from_str(r#"{"files":{},"api":{"host":null,"vnics":[]}}"#).unwrap();
        assert_eq!(contracts, Contracts::default());
    }
}
