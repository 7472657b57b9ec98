//! Directions on their way from the plan of CPUs to a switch: passed once, again to another process, never to an earlier release.

use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};
use tidegate_contract::{Host, Vnic};
use tidegate_cores::directions::Directions;
use tidegate_cores::stage::Handle;
use tidegate_paths::Paths;
use tidegate_place::{Action, Adopt, HostWork, Network, Observed, Place, Wanted};
use tidegate_place_switch::{Options, SwitchPlace};
use tidegate_testkit::contract::vnic;
use tidegate_testkit::fake_switch::FakeSwitch;

struct Scene {
    switch: FakeSwitch,
    place: SwitchPlace,
    vnics: Vec<Vnic>,
    _folder: tempfile::TempDir,
}

fn scene(earlier: bool) -> Scene {
    let folder = tempfile::tempdir().unwrap();
    let socket = folder.path().join("switch.sock");
    let switch = FakeSwitch::start(&socket);
    switch.state().earlier = earlier;
    let state = folder.path().join("state");
    std::fs::create_dir(&state).unwrap();
    let options = Options { socket, observe_cpu: false };
    let paths = Paths::new(&[folder.path().into()], &[]).unwrap();
    let (place, _) = SwitchPlace::new(&options, &state, paths, Arc::new(|| ())).unwrap();
    let vnics = vec![at(folder.path(), "a", 1), at(folder.path(), "b", 2)];
    let mut scene = Scene { switch, place, vnics, _folder: folder };
    scene.round(&Directions::default());
    scene.switch.log();
    scene
}

fn at(folder: &Path, name: &str, mac: u8) -> Vnic {
    let mut vnic = vnic(name, mac);
    if let tidegate_contract::Attach::VhostUser { path, .. } = &mut vnic.attach {
        *path = folder.join(format!("{name}.sock"));
    }
    vnic
}

impl Scene {
    /// The connections before end at the first look.
    fn wait_for_a_look(&mut self) {
        let end = Instant::now() + Duration::from_secs(20);
        while let Err(why) = self.place.observe(&[]) {
            assert!(Instant::now() < end, "{why}");
            std::thread::sleep(Duration::from_millis(10));
        }
    }

    /// Looks, plans with these directions, and acts; returns the look and the labels of the steps.
    fn round(&mut self, directions: &Directions) -> (Observed, Vec<&'static str>) {
        let (observed, facts) = self.place.observe(&[]).unwrap();
        let work = HostWork { directions: Some(directions.clone()), ..HostWork::default() };
        let wanted = Wanted {
            host: &Host::default(),
            network: Network::NONE,
            vnics: &self.vnics,
            adopt: Adopt::No,
            claims: &[],
            work: &work,
        };
        let plan = self.place.plan(&wanted, &observed, &facts).unwrap();
        plan.actions.iter().for_each(|action| self.place.apply(action).unwrap());
        (observed, plan.actions.iter().map(Action::label).collect())
    }
}

fn directions() -> Directions {
    Directions { workers: [(0, 1)].into(), vnics: [("a".to_owned(), 0)].into() }
}

#[test]
fn directions_reach_each_process_of_the_switch_once() {
    let mut scene = scene(false);
    assert_eq!(scene.round(&directions()).1, ["direct workers"]);
    for _ in 0..3 {
        assert!(scene.round(&directions()).1.is_empty());
    }
    assert_eq!(
        (scene.switch.log(), scene.switch.state().directions.clone()),
        (vec!["direct".to_owned()], directions())
    );
    scene.switch.restart();
    scene.wait_for_a_look();
    let steps = scene.round(&directions()).1;
    assert!(steps.contains(&"direct workers"), "{steps:?}");
    assert_eq!(scene.switch.state().directions, directions());
}

#[test]
fn the_work_of_the_switch_is_reported_as_stages() {
    let mut scene = scene(false);
    let (observed, _) = scene.round(&Directions::default());
    let handles: Vec<_> = observed.stages.iter().map(|stage| stage.handle.clone()).collect();
    assert_eq!(handles, [Handle::Worker(0), Handle::Port("a".into()), Handle::Port("b".into())]);
    assert_eq!(observed.stages[0].vnics, ["a", "b"]);
    assert!(observed.stages.iter().all(|stage| stage.pinned_by.is_none() && !stage.realtime));
}

#[test]
fn a_switch_of_an_earlier_release_is_not_directed_and_the_plan_knows() {
    let mut scene = scene(true);
    for _ in 0..3 {
        let (observed, steps) = scene.round(&directions());
        assert!(steps.is_empty(), "{steps:?}");
        let pinned = |stage: &tidegate_cores::stage::Stage| {
            stage.pinned_by.as_ref().is_some_and(|by| by.contains("earlier release"))
        };
        assert!(observed.stages.iter().all(pinned) && observed.stages.len() == 3);
    }
    assert!(scene.switch.log().is_empty());
}

#[test]
fn a_refused_direction_undoes_no_change_and_is_told() {
    let mut scene = scene(false);
    scene.switch.answer_with(|stream, request, _| {
        use tidegate_switch::control::message::{Reply, Request};
        matches!(request, Request::Direct(_))
            && tidegate_switch::control::channel::send(
                stream,
                &Reply::Refused("there is no worker 7".into()),
                &[],
            )
            .is_ok()
    });
    scene.wait_for_a_look();
    assert_eq!(scene.round(&directions()).1, ["direct workers"]);
    let not_followed = scene.round(&directions()).0.not_followed;
    assert_eq!(not_followed.len(), 2);
    assert!(not_followed[&Handle::Worker(0)].contains("there is no worker 7"), "{not_followed:?}");
    assert!(scene.round(&directions()).1.is_empty(), "not at once again");
}
