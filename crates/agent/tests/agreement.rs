//! Two places that need the same CPU: the change is refused before either acts.

use std::path::Path;
use tidegate_agent::testing::apply_once;
use tidegate_place::host::{Claim, Part, Resource};
use tidegate_place::{Installed, Place};
use tidegate_testkit::contract::netdev;
use tidegate_testkit::toy_place::ToyPlace;

fn place(folder: &Path, name: &'static str, part: Part) -> ToyPlace {
    let folder = folder.join(name);
    std::fs::create_dir_all(folder.join("state")).unwrap();
    let mut place = ToyPlace::new(&folder).unwrap();
    let purpose = format!("the workers of {name}");
    place.name = name;
    place.claims = vec![Claim { resource: Resource::Cpu(1), part, vnic: None, purpose }];
    place
}

#[test]
fn places_agree_before_any_of_them_acts() {
    let folder = tempfile::tempdir().unwrap();
    let contract = netdev("web", 1, "vnet1").to_toml();
    let outcome = |first, second| {
        let places = [place(folder.path(), "a", first), place(folder.path(), "b", second)];
        let places = places.map(|place| Box::new(place) as Box<dyn Installed>).into();
        apply_once(folder.path(), places, &contract)
    };
    let refused = outcome(Part::All, Part::Shared).unwrap_err();
    assert!(
        refused.contains(
            "CPU 1 is needed twice: by place a for the workers of a, which shares it with no other place"
        ),
        "{refused}"
    );
    let recorded = || Place::recorded(&place(folder.path(), "a", Part::All));
    assert_eq!(recorded(), [], "a place acted");
    outcome(Part::Shared, Part::Shared).unwrap();
    assert_eq!(recorded().len(), 1);
}
