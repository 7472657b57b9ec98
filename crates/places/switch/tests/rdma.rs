//! RDMA on its way to a switch: turned on and off at an uplink that is there, never told to an earlier release, and judged
//! by what the devices are now.
//!
//! ```text
//!  Wanted: uplink.rdma, vnic.transport ─▶ SwitchPlace ─▶ FakeSwitch, which has devices or knows none
//! ```

use std::sync::Arc;
use std::time::{Duration, Instant};
use tidegate_contract::{Attach, Host, Transport, Uplink, Vnic};
use tidegate_evidence::RdmaDevice;
use tidegate_paths::Paths;
use tidegate_place::{Action, Adopt, HostWork, Network, Place, Refusal, Wanted};
use tidegate_place_switch::{Options, SwitchPlace};
use tidegate_testkit::contract::vnic;
use tidegate_testkit::fake_switch::FakeSwitch;

struct Scene {
    switch: FakeSwitch,
    place: SwitchPlace,
    uplink: Uplink,
    vnics: Vec<Vnic>,
    folder: tempfile::TempDir,
}

/// Returns a switch with a device that has the uplink's address; `ports` are those of the uplink.
fn scene(ports: [u16; 2]) -> Scene {
    let folder = tempfile::tempdir().unwrap();
    let socket = folder.path().join("switch.sock");
    let switch = FakeSwitch::start(&socket);
    switch.state().rdma = vec![RdmaDevice {
        name: "rxe0".into(),
        is_active: true,
        mtu: 4096,
        link: "ethernet".into(),
        addresses: vec!["127.0.0.1".parse().unwrap()],
        ..RdmaDevice::default()
    }];
    let state = folder.path().join("state");
    std::fs::create_dir(&state).unwrap();
    let options = Options { socket, observe_cpu: false };
    let paths = Paths::new(&[folder.path().into()], &[]).unwrap();
    let (place, _) = SwitchPlace::new(&options, &state, paths, Arc::new(|| ())).unwrap();
    let uplink = serde_json::from_value(serde_json::json!({
        "name": "net0", "local": "127.0.0.1", "port": ports[0], "notice_port": ports[1], "rate": "10gbit",
        "peers": [{ "name": "b", "address": "127.0.0.2" }],
    }));
    Scene { switch, place, uplink: uplink.unwrap(), vnics: vec![], folder }
}

impl Scene {
    /// Looks, plans and acts; returns the labels of the steps.
    fn round(&mut self) -> Result<Vec<&'static str>, Vec<Refusal>> {
        let end = Instant::now() + Duration::from_secs(20);
        let (observed, facts) = loop {
            // The connections before end at the first look.
            match self.place.observe(&[]) {
                Ok(seen) => break seen,
                Err(why) => assert!(Instant::now() < end, "{why}"),
            }
            std::thread::sleep(Duration::from_millis(10));
        };
        let network = Network { uplinks: vec![self.uplink.clone()], ..Network::default() };
        let wanted = Wanted {
            host: &Host::default(),
            network: &network,
            vnics: &self.vnics,
            adopt: Adopt::No,
            claims: &[],
            work: HostWork::NONE,
        };
        let plan = self.place.plan(&wanted, &observed, &facts)?;
        plan.actions.iter().for_each(|action| self.place.apply(action).unwrap());
        Ok(plan.actions.iter().map(Action::label).collect())
    }

    /// Wants a vNIC by RDMA.
    fn want_vnic(&mut self) {
        let mut vnic = vnic("a", 1);
        vnic.transport = Transport::Rdma;
        if let Attach::VhostUser { path, .. } = &mut vnic.attach {
            *path = self.folder.path().join("a.sock");
        }
        self.vnics.push(vnic);
    }

    fn rdma_in_switch(&self) -> Option<String> {
        self.switch.state().uplinks["net0"].uplink.rdma.clone()
    }
}

#[test]
fn rdma_is_turned_on_and_off_at_an_uplink_that_is_there() {
    let mut scene = scene([15_789, 15_790]);
    for rdma in [None, Some("rxe0"), Some("rxe1"), None] {
        scene.uplink.rdma = rdma.map(Into::into);
        assert!(!scene.round().unwrap().is_empty());
        assert_eq!(scene.rdma_in_switch().as_deref(), rdma);
        assert!(scene.round().unwrap().is_empty(), "it is in force");
    }
}

#[test]
fn an_earlier_release_is_told_of_no_rdma_and_new_contracts_are_refused() {
    let mut scene = scene([15_791, 15_792]);
    scene.uplink.rdma = Some("rxe0".into());
    scene.switch.state().earlier = true;
    scene.round().unwrap();
    assert_eq!(scene.rdma_in_switch(), None);
    assert!(scene.round().unwrap().is_empty(), "not again and again");
    scene.want_vnic();
    let refused = scene.round().unwrap_err();
    assert!(refused[0].reason.contains("knows no RDMA: upgrade it"), "{refused:?}");
    // After an upgrade it is as the contract says.
    scene.switch.state().earlier = false;
    scene.switch.restart();
    scene.round().unwrap();
    assert_eq!(scene.rdma_in_switch().as_deref(), Some("rxe0"));
    let transport = |scene: &Scene| scene.switch.state().ports["a"].vnic.transport;
    assert_eq!(transport(&scene), Transport::Rdma);
    // And after a downgrade the contract in force goes on as VXLAN.
    scene.switch.state().earlier = true;
    scene.switch.restart();
    scene.round().unwrap();
    assert_eq!((scene.rdma_in_switch(), transport(&scene)), (None, Transport::Uplink));
    assert!(scene.round().unwrap().is_empty());
}

#[test]
fn a_release_that_copies_is_told_of_no_zero_copy_and_new_contracts_are_refused() {
    let mut scene = scene([15_795, 15_796]);
    scene.uplink.rdma = Some("rxe0".into());
    scene.switch.state().copies = true;
    scene.want_vnic();
    scene.vnics[0].zero_copy = true;
    let refused = scene.round().unwrap_err();
    assert!(refused[0].reason.starts_with("zero-copy = true cannot be kept: this switch"), "{refused:?}");
    let there = |scene: &Scene| {
        let vnic = &scene.switch.state().ports["a"].vnic;
        (vnic.transport, vnic.zero_copy)
    };
    for earlier in [false, true] {
        scene.switch.state().copies = false;
        scene.switch.state().earlier = false;
        scene.switch.restart();
        scene.round().unwrap();
        assert_eq!(there(&scene), (Transport::Rdma, true), "after an upgrade");
        // After a downgrade the contract in force goes on with copies, or as VXLAN.
        scene.switch.state().copies = true;
        scene.switch.state().earlier = earlier;
        scene.switch.restart();
        scene.round().unwrap();
        let transport = if earlier { Transport::Uplink } else { Transport::Rdma };
        assert_eq!(there(&scene), (transport, false));
        assert!(scene.round().unwrap().is_empty(), "not again and again");
    }
}

#[test]
fn an_address_that_the_device_gets_later_is_seen() {
    let mut scene = scene([15_793, 15_794]);
    let addresses = std::mem::take(&mut scene.switch.state().rdma[0].addresses);
    scene.uplink.rdma = Some("rxe0".into());
    scene.round().unwrap();
    scene.want_vnic();
    let refused = scene.round().unwrap_err();
    assert!(refused[0].reason.contains("no RoCE v2 GID of 127.0.0.1"), "{refused:?}");
    scene.switch.state().rdma[0].addresses = addresses;
    scene.round().unwrap();
    assert_eq!(scene.switch.ports(), ["a"]);
}
