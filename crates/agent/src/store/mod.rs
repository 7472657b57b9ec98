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
//! - `owner`: who may change a contract
//! - `tables`: tables of one kind, by owner
//! - `offered`: what the network's controller tells, beside the tables of others

pub mod files;
pub mod offered;
mod owner;
mod tables;

pub use owner::{Owned, Owner};

use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, HashMap};
use std::path::{Path, PathBuf};
use tidegate_contract::{
    Controller, Document, Errors, GivenPeer, Host, Located, Remote, SegmentKeys, Table, Uplink, Vnic, give,
    merge,
};
use tidegate_place::Network;

/// All contracts, by owner. The agent saves them, with the files' last good contents.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Contracts {
    /// The last good contents of each file.
    pub files: BTreeMap<PathBuf, Document>,
    #[serde(default)]
    pub programs: BTreeMap<String, Document>,
    pub api: Document,
    /// What a place offered as `controller:HOST`; the part of it that tables of others leave is among the programs'.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub offers: BTreeMap<String, Document>,
}

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

    /// Returns all tables of one kind.
    pub fn all<T: Table + 'static>(&self) -> impl Iterator<Item = (Owner, &Located<T>)> {
        self.documents().flat_map(|(owner, d)| T::of(d).iter().map(move |table| (owner.clone(), table)))
    }

    pub fn vnics(&self) -> impl Iterator<Item = (Owner, &Located<Vnic>)> {
        self.all()
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

    /// Returns the `[controller]` table.
    pub fn controller(&self) -> Option<Controller> {
        self.documents().find_map(|(_, d)| Some(d.controller.as_ref()?.value.clone()))
    }

    /// Returns the uplinks with all of their peers, of all owners.
    pub fn uplinks(&self) -> Vec<(Owner, Uplink)> {
        let controller = self.controller();
        let given: Vec<&GivenPeer> = self.all::<GivenPeer>().map(|(_, located)| &located.value).collect();
        let with_all = |(owner, located): (Owner, &Located<Uplink>)| {
            let mut uplink = located.value.clone();
            uplink.controlled = controller.as_ref().is_some_and(|controller| controller.serves(&uplink.name));
            give(std::slice::from_mut(&mut uplink), given.iter().copied());
            (owner, uplink)
        };
        self.all::<Uplink>().map(with_all).collect()
    }

    /// Returns one uplink.
    pub fn uplink(&self, name: &str) -> Option<Uplink> {
        self.uplinks().into_iter().map(|(_, uplink)| uplink).find(|uplink| uplink.name == name)
    }

    /// Returns what leads to other hosts as it is written: uplinks with their peers, and the controller.
    pub fn ways(&self) -> (BTreeMap<&str, &Uplink>, Option<Controller>) {
        let uplinks = self.all::<Uplink>().map(|(_, located)| (located.value.name.as_str(), &located.value));
        (uplinks.collect(), self.controller())
    }

    /// Returns the ways to other hosts, and the vNICs there, without keys.
    pub fn network(&self) -> Network {
        let mut network = Network {
            uplinks: self.uplinks().into_iter().map(|(_, uplink)| uplink).collect(),
            remotes: self.all::<Remote>().map(|(_, located)| located.value.clone()).collect(),
            keys: Vec::new(),
            controller: self.controller(),
        };
        network.uplinks.sort_by(|a, b| a.name.cmp(&b.name));
        network.remotes.sort_by(|a, b| a.name.cmp(&b.name));
        network
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

    /// Adds and changes the contracts of `document`; with `prune` removes the owner's other tables, but for `[host]`.
    pub fn merge(&mut self, owner: &Owner, document: Document, prune: bool) -> Result<(), Owned> {
        // What a controller tells yields to all others.
        self.set_offers_aside();
        let merged = self.merge_beside(owner, document, prune);
        self.settle_offers();
        merged
    }

    fn merge_beside(&mut self, owner: &Owner, document: Document, prune: bool) -> Result<(), Owned> {
        let Document { host, controller, vnics, uplinks, remotes, segments, peers } = document;
        self.merge_tables::<GivenPeer>(owner, peers, prune)?;
        self.merge_tables::<Vnic>(owner, vnics, prune)?;
        self.merge_tables::<Uplink>(owner, uplinks, prune)?;
        self.merge_tables::<Remote>(owner, remotes, prune)?;
        self.merge_tables::<SegmentKeys>(owner, segments, prune)?;
        if let Some(host) = host {
            let of_other = self.documents().find_map(|(other, d)| Some((other, d.host.as_ref()?)));
            match of_other.filter(|(other, _)| other != owner) {
                Some((_, h)) if h.value == host.value => {}
                Some((other, _)) => return Err(Owned { what: "[host]".into(), owner: other }),
                None => self.document(owner).host = Some(host),
            }
        }
        if prune && controller.is_none() {
            self.document(owner).controller = None;
        }
        if let Some(controller) = controller {
            let of_other = self.documents().find_map(|(other, d)| Some((other, d.controller.as_ref()?)));
            match of_other.filter(|(other, _)| other != owner) {
                Some((_, there)) if there.value == controller.value => {}
                Some((other, _)) => return Err(Owned { what: "[controller]".into(), owner: other }),
                None => self.document(owner).controller = Some(controller),
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
        self.settle_offers();
        Ok(())
    }

    /// Removes a contract of the API; returns whether it existed.
    pub fn remove_api(&mut self, name: &str) -> Result<bool, Owned> {
        self.refuse_others(name, &Owner::Api)?;
        let before = self.api.vnics.len();
        self.api.vnics.retain(|v| v.value.name != name);
        let is_gone = self.api.vnics.len() < before;
        self.settle_offers();
        Ok(is_gone)
    }

    /// Sets a file's contents, `None` if the file is gone. The file takes over the tables that the API or a program had
    /// set; returns their names.
    pub fn set_file(&mut self, path: &Path, document: Option<Document>) -> Vec<String> {
        self.set_offers_aside();
        let taken_over = self.set_file_beside(path, document);
        self.settle_offers();
        taken_over
    }

    fn set_file_beside(&mut self, path: &Path, document: Option<Document>) -> Vec<String> {
        let Some(document) = document else {
            self.files.remove(path);
            return vec![];
        };
        let mut taken_over = Vec::new();
        for others in self.programs.values_mut().chain([&mut self.api]) {
            tables::take_over::<Vnic>(others, &document, &mut taken_over);
            tables::take_over::<Uplink>(others, &document, &mut taken_over);
            tables::take_over::<Remote>(others, &document, &mut taken_over);
            tables::take_over::<SegmentKeys>(others, &document, &mut taken_over);
            if document.host.is_some() && others.host.take().is_some() {
                taken_over.push("[host]".into());
            }
            if document.controller.is_some() && others.controller.take().is_some() {
                taken_over.push("[controller]".into());
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
        Document { vnics: names.iter().map(located).collect(), ..Document::default() }
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
        for wrong in [
            "",
            "web1",
            "controller:h1",
            "libvirt:",
            ":web1",
            "file:/etc/x.toml",
            "Libvirt:a",
            "libvirt:a\nb",
        ] {
            assert!(Owner::named(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn uplinks_and_remotes_have_owners_too() {
        let net = |rate: &str| {
            let text = format!(
                "[uplink.net0]\nlocal = \"192.0.2.1\"\nrate = \"{rate}\"\npeer.host2.address = \"192.0.2.2\"\n\
                 [remote.plc9]\nmac = \"52:54:00:00:00:09\"\nsegment = 1\npeer = \"host2\"\n\
                 [segment.1]\nkey-file = \"/k\""
            );
            tidegate_contract::parse(&text, "net.toml").unwrap()
        };
        let owners = |contracts: &Contracts| {
            let uplinks =
                contracts.all::<Uplink>().map(|(o, u)| format!("{o} {} {}", u.value.name, u.value.rate));
            let others = contracts.all::<Remote>().map(|(o, r)| format!("{o} {}", r.value.name));
            let keys = contracts.all::<SegmentKeys>().map(|(o, k)| format!("{o} {}", k.value.segment));
            uplinks.chain(others).chain(keys).collect::<Vec<_>>()
        };
        let mut contracts = Contracts::default();
        contracts.merge(&Owner::Api, net("1gbit"), false).unwrap();
        contracts.merge(&Owner::Api, net("2gbit"), false).unwrap();
        assert_eq!(owners(&contracts), ["api net0 2gbit", "api plc9", "api 1"]);
        let text = contracts.merge(&Owner::named("libvirt:web").unwrap(), net("1gbit"), false).unwrap_err();
        assert!(text.to_string().starts_with("[uplink.net0] came through the API"), "{text}");
        let taken_over = contracts.set_file(Path::new("/x.toml"), Some(net("1gbit")));
        assert_eq!(taken_over, ["[uplink.net0]", "[remote.plc9]", "[segment.1]"]);
        assert_eq!(owners(&contracts), ["file:/x.toml net0 1gbit", "file:/x.toml plc9", "file:/x.toml 1"]);
        contracts.merge(&Owner::Api, net("1gbit"), false).unwrap();
        assert_eq!(contracts.merge(&Owner::Api, net("2gbit"), false).unwrap_err().what, "[uplink.net0]");

        let saved = serde_json::to_string(&contracts).unwrap();
        assert_eq!(serde_json::from_str::<Contracts>(&saved).unwrap(), contracts);
        assert_eq!(contracts.merged().unwrap().uplinks.len(), 1);
        contracts.set_file(Path::new("/x.toml"), None);
        contracts.merge(&Owner::Api, net("3gbit"), false).unwrap();
        contracts.merge(&Owner::Api, document(&["a"]), true).unwrap();
        assert_eq!((owners(&contracts).len(), names(&contracts)), (0, vec!["api a".to_owned()]));
    }

    #[test]
    fn the_controller_has_one_owner_and_its_uplinks_know_it() {
        let text = |host: &str| {
            let net = "[uplink.net0]\nlocal = \"192.0.2.1\"\nrate = \"1gbit\"\npeer.host2.address = \"192.0.2.2\"\n";
            let text = format!(
                "[controller]\nurl = [\"http://127.0.0.1:1\"]\nhost = \"{host}\"\ntoken-file = \"/t\"\n\
                 uplinks = [\"net0\"]\n{net}"
            );
            tidegate_contract::parse(&text, "net.toml").unwrap()
        };
        let mut contracts = Contracts::default();
        contracts.merge(&Owner::Api, text("h1"), false).unwrap();
        assert!(contracts.network().uplinks[0].controlled);
        assert!(contracts.uplink("net0").unwrap().controlled, "as places have it");
        let taken_over = contracts.set_file(Path::new("/x.toml"), Some(text("h2")));
        assert_eq!(taken_over, ["[uplink.net0]", "[controller]"]);
        assert_eq!(contracts.controller().unwrap().host, "h2");
        contracts.merge(&Owner::Api, text("h2"), false).unwrap();
        assert_eq!(contracts.merge(&Owner::Api, text("h3"), false).unwrap_err().what, "[controller]");
        contracts.set_file(Path::new("/x.toml"), None);
        contracts.merge(&Owner::Api, text("h1"), false).unwrap();
        assert_eq!(contracts.merged().unwrap().controller.unwrap().value.host, "h1");
        contracts.merge(&Owner::Api, document(&["a"]), true).unwrap();
        assert_eq!(contracts.controller(), None, "pruned");
        assert!(contracts.network().uplinks.is_empty());
    }

    #[test]
    fn contracts_saved_by_older_agents_are_read() {
        let contracts: Contracts =
            serde_json::from_str(r#"{"files":{},"api":{"host":null,"vnics":[]}}"#).unwrap();
        assert_eq!(contracts, Contracts::default());
        for uplink in ["null", "\"10gbit\""] {
            let host = format!(
                r#"{{"host_latency":"99us","uplink":{uplink},"flood":"10mbit","flood_burst":"1kB"}}"#
            );
            let text = format!(
                r#"{{"files":{{"/x.toml":{{"host":{{"value":{host},"file":"/x.toml","line":1}},"vnics":[]}}}},"api":{{"host":null,"vnics":[]}}}}"#
            );
            let contracts: Contracts = serde_json::from_str(&text).unwrap();
            assert_eq!(contracts.host().host_latency.get(), 99_000, "{uplink}");
            assert!(contracts.merged().unwrap().uplinks.is_empty());
        }
    }
}
