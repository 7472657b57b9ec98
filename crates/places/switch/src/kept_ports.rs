//! The source ports that pairs have had, on disk: a switch that is started anew, and an uplink that is made anew, give
//! them the same again.
//!
//! ```text
//!  switch: ports of pairs ─▶ learn ─▶ port ─▶ pair, by uplink ─▶ on disk
//!                                          └─ of(uplink) ─▶ PortOrders ─▶ switch
//! ```
//!
//! A network with a controller refuses a path whose port another path has. So pairs must not exchange ports, nor
//! must a new pair get the port of one that has just gone, while another is free. A port belongs to the pair that had it
//! last.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use tidegate_contract::network_paths::MOST_PAIRS;
use tidegate_durable::{DurableError, Journal};
use tidegate_evidence::PairStatus;
use tidegate_switch::control::PairPort;

/// Most ports of an uplink that are kept: sockets that are made anew may have others.
const MOST: usize = 4 * MOST_PAIRS;

/// vNIC and remote of each port.
type Owners = BTreeMap<u16, (String, String)>;

/// By uplink.
#[derive(Debug)]
pub(crate) struct KeptPorts(Journal<String, Owners>);

impl KeptPorts {
    /// Reads the ports in the state folder. The second value describes damage.
    pub(crate) fn load(state: &Path) -> Result<(Self, Option<String>), DurableError> {
        let (journal, damage) = Journal::load(state.join("pair-ports.json"))?;
        Ok((Self(journal), damage))
    }

    /// Enters the ports that an uplink's pairs have now; [`Self::save`] writes them.
    pub(crate) fn learn(&mut self, uplink: &str, pairs: &[PairStatus]) {
        let with_port = pairs.iter().filter_map(|pair| Some((pair, pair.port?))).take(MOST_PAIRS);
        let now: Owners =
            with_port.map(|(pair, port)| (port, (pair.vnic.clone(), pair.remote.clone()))).collect();
        if now.is_empty() {
            return;
        }
        let mut owners = self.0.get(uplink).cloned().unwrap_or_default();
        let present: BTreeSet<_> = now.values().collect();
        owners.retain(|_, pair| !present.contains(pair));
        if owners.len() + now.len() > MOST {
            owners.clear();
        }
        owners.extend(now);
        self.0.set(uplink.to_owned(), Some(owners));
    }

    /// Returns the ports of an uplink's pairs, of those that have gone, too.
    pub(crate) fn of(&self, uplink: &str) -> Vec<PairPort> {
        let owners = self.0.get(uplink).into_iter().flatten();
        let pair = |(port, (vnic, remote)): (&u16, &(String, String))| PairPort {
            vnic: vnic.clone(),
            remote: remote.clone(),
            port: *port,
        };
        owners.map(pair).collect()
    }

    /// Writes the ports to disk, if they changed.
    pub(crate) fn save(&mut self) -> Result<(), DurableError> {
        // A host without uplinks has no file.
        if self.0.entries().is_empty() { Ok(()) } else { self.0.save() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn status(vnic: &str, port: u16) -> PairStatus {
        let text = format!(r#"{{"vnic":"{vnic}","remote":"far","port":{port}}}"#);
        serde_json::from_str(&text).unwrap()
    }

    fn ports(kept: &KeptPorts) -> Vec<(String, u16)> {
        kept.of("net0").into_iter().map(|pair| (pair.vnic, pair.port)).collect()
    }

    #[test]
    fn a_port_belongs_to_the_pair_that_had_it_last() {
        let folder = tempfile::tempdir().unwrap();
        let (mut kept, damage) = KeptPorts::load(folder.path()).unwrap();
        assert_eq!(damage, None);
        kept.learn("net0", &[status("z", 49_156), status("a", 49_157)]);
        kept.learn("net0", &[]);
        kept.learn("net0", &[status("a", 49_157)]);
        let both = [("z".to_owned(), 49_156), ("a".to_owned(), 49_157)];
        assert_eq!(ports(&kept), both, "z has gone, and its port is still known as its own");
        kept.save().unwrap();
        assert_eq!(ports(&KeptPorts::load(folder.path()).unwrap().0), both);
        kept.learn("net0", &[status("a", 49_157), status("b", 49_156)]);
        assert_eq!(ports(&kept), [("b".to_owned(), 49_156), ("a".to_owned(), 49_157)]);
        kept.learn("net0", &[status("a", 49_200), status("b", 49_156)]);
        assert_eq!(ports(&kept), [("b".to_owned(), 49_156), ("a".to_owned(), 49_200)], "other sockets");
    }

    #[test]
    fn ports_of_pairs_that_went_are_bounded() {
        let folder = tempfile::tempdir().unwrap();
        let (mut kept, _) = KeptPorts::load(folder.path()).unwrap();
        for port in 1..10_000 {
            kept.learn("net0", &[status(&format!("v{port}"), port)]);
        }
        assert!(ports(&kept).len() <= MOST);
        assert!(ports(&kept).contains(&("v9999".into(), 9999)));
    }
}
