//! What a grant is worth, and what becomes of paths and registrations around it.

use super::*;
use tidegate_controller_api::Key;

fn pair() -> Pair {
    Pair::new("net0", "plc1", "plc9")
}

fn granted() -> Lab {
    let folder = tempfile::tempdir().unwrap();
    let mut lab = Lab::new(&folder.keep());
    assert_eq!(lab.change(), Ok(()));
    assert_eq!(lab.unpromised(), None);
    lab
}

fn contains(lab: &mut Lab, part: &str) -> bool {
    lab.unpromised().is_some_and(|why| why.contains(part))
}

#[test]
fn a_grant_beyond_the_budget_is_none() {
    let folder = tempfile::tempdir().unwrap();
    let mut lab = Lab::new(folder.path());
    lab.said.bound.store(10_000_000, Ordering::SeqCst);
    let why = lab.change().unwrap_err();
    assert!(why.contains("its bound is 10000000 ns, and at most 1000000 ns were asked for"), "{why}");
    lab.vnics[0].on_refused = Some(OnRefused::BestEffort);
    assert_eq!(lab.change(), Ok(()));
    assert!(contains(&mut lab, "is not as it was asked for"));
    lab.said.bound.store(0, Ordering::SeqCst);
    lab.until("a path within its budget", |lab| lab.unpromised().is_none());
}

#[test]
fn a_path_that_became_another_one_is_not_promised() {
    let mut lab = granted();
    lab.said.refuses.store(true, Ordering::SeqCst);
    lab.said.paths.lock().unwrap().get_mut("plc1>plc9").unwrap().request.rate /= 2;
    lab.until("an operator's path", |lab| contains(lab, "path to plc9"));
    lab.until("its port is taken away", |lab| lab.ports.granted("net0") == Some([].into()));
    lab.said.refuses.store(false, Ordering::SeqCst);
    lab.until("its own path", |lab| lab.unpromised().is_none());
    lab.until("its port", |lab| lab.ports.granted("net0") == Some([pair()].into()));
}

#[test]
fn another_port_needs_another_grant_also_without_a_controller() {
    let mut lab = granted();
    lab.said.away.store(true, Ordering::SeqCst);
    lab.ports.tell([(pair(), 49_170)]);
    assert!(contains(&mut lab, "another source port"));
    lab.ports.tell([]);
    assert!(contains(&mut lab, "another source port"));
    lab.said.away.store(false, Ordering::SeqCst);
    lab.ports.tell([(pair(), 49_170)]);
    lab.until("the path from the new port", |lab| lab.unpromised().is_none());
}

#[test]
fn more_than_was_granted_has_no_port_of_its_own() {
    let mut lab = granted();
    assert_eq!(lab.ports.granted("net0"), Some([pair()].into()));
    lab.said.away.store(true, Ordering::SeqCst);
    lab.vnics[0].tx.max = "30mbit".parse().ok();
    let actions = lab.plan().unwrap();
    lab.place.prepare(&actions.iter().collect::<Vec<_>>()).unwrap();
    assert_eq!(lab.ports.granted("net0"), Some([].into()), "before the host switch has the contract");
    assert_eq!(lab.change(), Ok(()));
    assert_eq!(lab.ports.granted("net0"), Some([].into()));
    // Nor for an agent that begins now.
    let Lab { said, ports, network, vnics, evidence, .. } = lab;
    let folder = tempfile::tempdir().unwrap();
    drop(folder);
    lab = Lab {
        place: place(&tempfile::tempdir().unwrap().keep(), &said, &ports, Offers::default()),
        said,
        ports,
        network,
        vnics,
        evidence,
        started: 1,
        refused: vec![],
    };
    lab.said.away.store(false, Ordering::SeqCst);
    assert_eq!(lab.change(), Ok(()));
    lab.until("the grant", |lab| lab.ports.granted("net0") == Some([pair()].into()));
    // Less is within it.
    lab.said.away.store(true, Ordering::SeqCst);
    lab.vnics[0].tx.max = "10mbit".parse().ok();
    assert_eq!(lab.change(), Ok(()));
    assert_eq!(lab.ports.granted("net0"), Some([pair()].into()));
    lab.network.controller = None;
    lab.repair();
    assert_eq!(lab.ports.granted("net0"), None, "no controller, no condition");
}

#[test]
fn a_refused_change_gives_the_port_back() {
    let mut lab = granted();
    lab.said.refuses.store(true, Ordering::SeqCst);
    lab.vnics[0].tx.max = "30mbit".parse().ok();
    assert!(lab.change().is_err());
    assert_eq!(lab.ports.granted("net0"), Some([pair()].into()));
}

#[test]
fn paths_that_no_contract_wants_are_released() {
    let mut lab = granted();
    {
        let mut paths = lab.said.paths.lock().unwrap();
        let there = paths["plc1>plc9"].clone();
        for (vnic, source, lasting) in [("ghost", "h1", false), ("kept", "h1", true), ("theirs", "h7", false)]
        {
            let mut path = there.clone();
            path.request.vnic = vnic.into();
            let Key::Udp(key) = &mut path.request.key else { panic!("{path:?}") };
            (path.request.source, key.source_port) = (source.into(), 50_000);
            (path.name, path.lasting) = (path.request.name(), lasting);
            paths.insert(path.name.clone(), path);
        }
    }
    lab.until("the release", |lab| !lab.said.releases.lock().unwrap().is_empty());
    let names: Vec<String> = lab.said.paths.lock().unwrap().keys().cloned().collect();
    assert_eq!(names, ["kept>plc9", "plc1>plc9", "theirs>plc9"]);
    assert_eq!(lab.unpromised(), None);
}

#[test]
fn a_term_that_goes_back_stops_nothing() {
    let folder = tempfile::tempdir().unwrap();
    let mut lab = Lab::new(folder.path());
    lab.said.term.store(u64::MAX - 1, Ordering::SeqCst);
    assert_eq!(lab.change(), Ok(()));
    lab.said.term.store(0, Ordering::SeqCst);
    lab.until("the newest View", |lab| lab.place.view().is_some_and(|view| view.term == 1));
    lab.said.paths.lock().unwrap().clear();
    lab.until("the path asked for anew", |lab| lab.said.paths.lock().unwrap().contains_key("plc1>plc9"));
}

#[test]
fn a_path_that_takes_long_keeps_no_renewal_waiting() {
    let folder = tempfile::tempdir().unwrap();
    let mut lab = Lab::new(folder.path());
    lab.said.slow.store(true, Ordering::SeqCst);
    assert_eq!(lab.change(), Ok(()), "a change does not wait for ever");
    let before = lab.said.registrations.lock().unwrap().len();
    lab.until("two renewals", |lab| lab.said.registrations.lock().unwrap().len() >= before + 2);
    lab.said.slow.store(false, Ordering::SeqCst);
    lab.until("the path", |lab| lab.unpromised().is_none());
}

#[test]
fn a_busy_controller_has_not_decided() {
    let folder = tempfile::tempdir().unwrap();
    let mut lab = Lab::new(folder.path());
    lab.said.busy.store(true, Ordering::SeqCst);
    lab.vnics[0].on_unreachable = Some(OnUnreachable::Wait);
    let why = lab.change().unwrap_err();
    assert!(why.contains("too much to do"), "{why}");
    lab.vnics[0].on_unreachable = None;
    assert_eq!(lab.change(), Ok(()));
    assert!(contains(&mut lab, "waits: the controller has too much to do"));
    lab.said.busy.store(false, Ordering::SeqCst);
    lab.until("the path", |lab| lab.unpromised().is_none());
}

#[test]
fn many_changes_wait_once_for_a_controller_that_is_mute() {
    let folder = tempfile::tempdir().unwrap();
    let mut lab = Lab::new(folder.path());
    lab.said.mute.store(true, Ordering::SeqCst);
    lab.vnics[0].on_unreachable = Some(OnUnreachable::Wait);
    let begin = Instant::now();
    assert!(lab.change().is_err());
    let first = begin.elapsed();
    let begin = Instant::now();
    assert!(lab.change().is_err());
    assert!(begin.elapsed() < first / 2, "the second one does not wait again");
    lab.said.mute.store(false, Ordering::SeqCst);
    lab.until("an answer", |lab| lab.place.view().is_some());
    assert_eq!(lab.change(), Ok(()));
}

#[test]
fn a_host_leaves_when_its_name_is_gone_and_the_change_accepted() {
    let mut lab = granted();
    lab.network.controller.as_mut().unwrap().urls.push("http://127.0.0.1:2".into());
    assert_eq!(lab.change(), Ok(()));
    assert_eq!(lab.unpromised(), None, "it is the same network");
    lab.said.refuses.store(true, Ordering::SeqCst);
    lab.network.controller.as_mut().unwrap().host = "h8".into();
    lab.vnics[0].tx.max = "30mbit".parse().ok();
    assert!(lab.change().is_err());
    lab.network.controller.as_mut().unwrap().host = "h1".into();
    lab.vnics = vec![plc1()];
    lab.said.refuses.store(false, Ordering::SeqCst);
    lab.until("the path", |lab| lab.unpromised().is_none());
    // The name that was tried is gone again, the one before stays.
    lab.until("the end of the new name", |lab| *lab.said.left.lock().unwrap() == ["h8"]);
    lab.network.controller.as_mut().unwrap().host = "h9".into();
    assert_eq!(lab.change(), Ok(()));
    lab.until("the end of the old name", |lab| *lab.said.left.lock().unwrap() == ["h8", "h1"]);
    // Another network has promised nothing yet.
    lab.said.waits.store(true, Ordering::SeqCst);
    lab.network.controller.as_mut().unwrap().urls = vec!["http://127.0.0.1:9".into()];
    assert_eq!(lab.change(), Ok(()));
    assert!(lab.unpromised().is_some());
}
