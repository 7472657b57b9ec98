//! An agent that dies at any point of an apply, with the toy place.

use std::collections::BTreeMap;
use std::path::Path;
use tidegate_agent::testing::{Choice, World, dies_anywhere};
use tidegate_contract::{Rate, Vnic};
use tidegate_place::Installed;
use tidegate_testkit::contract::netdev;
use tidegate_testkit::toy_place::ToyPlace;

struct ToyWorld(tempfile::TempDir);

impl ToyWorld {
    fn toy(&self) -> ToyPlace {
        ToyPlace::new(self.0.path()).unwrap()
    }
}

impl World for ToyWorld {
    fn new() -> Self {
        // In memory if possible: the suite saves thousands of times.
        let memory = Path::new("/dev/shm");
        let folder = if memory.is_dir() { memory.to_owned() } else { std::env::temp_dir() };
        let folder = tempfile::tempdir_in(folder).unwrap();
        std::fs::create_dir(folder.path().join("state")).unwrap();
        Self(folder)
    }

    fn folder(&self) -> &Path {
        self.0.path()
    }

    fn place(&self) -> Box<dyn Installed> {
        Box::new(self.toy())
    }

    fn vnic(&self, choice: Choice) -> Vnic {
        let kind = if choice.other_kind { "veth" } else { "vnet" };
        let mut vnic =
            netdev(&format!("v{}", choice.name), choice.mac, &format!("{kind}{}", choice.attachment));
        vnic.tx.max = Rate::from_bits(choice.rate * 1_000_000);
        vnic
    }

    fn in_force(&self) -> BTreeMap<String, Vnic> {
        self.toy().in_force()
    }

    fn check(&self, expected: &BTreeMap<String, Vnic>) {
        let files = std::fs::read_dir(self.0.path().join("enforced")).unwrap().count();
        assert_eq!(files, expected.len(), "a file is left over");
    }
}

#[test]
fn an_apply_that_dies_anywhere_is_wholly_done_or_wholly_undone() {
    dies_anywhere::<ToyWorld>(20);
}
