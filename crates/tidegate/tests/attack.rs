//! A member of the API group against the agent's rights: contracts name a folder that is swapped for a
//! symbolic link to another program's.
//!
//! ```text
//!  vm/yard ◀─ exchanged, as fast as it goes ─▶ vm/link ─▶ vault: a.sock of root's
//!     └─ a.sock: what contracts name
//! ```

#![allow(clippy::disallowed_macros, clippy::disallowed_methods, reason = "these are the program's own rules")]

mod common;

use common::{Lab, RunningAgent, identity, until};
use rustix::fs::{AtFlags, CWD, RenameFlags, renameat_with, unlinkat};
use std::os::unix::fs::{MetadataExt, symlink};
use std::os::unix::net::UnixListener;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};
use tidegate_agent::Options;
use tidegate_testkit::fake_switch::FakeSwitch;

/// The owner that contracts name.
const STRANGER: u32 = 4242;
/// Length of an attack. A path resolved twice costs root its socket within a hundred contracts.
const SPAN: Duration = Duration::from_secs(8);

/// Exchanges two names until dropped.
struct Swapper {
    over: Arc<AtomicBool>,
    swaps: Arc<AtomicU64>,
    thread: Option<JoinHandle<()>>,
}

impl Swapper {
    fn start(a: PathBuf, b: PathBuf) -> Self {
        let (over, swaps) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicU64::new(0)));
        let (done, counted) = (Arc::clone(&over), Arc::clone(&swaps));
        let thread = std::thread::spawn(move || {
            while !done.load(Ordering::Relaxed) {
                renameat_with(CWD, &a, CWD, &b, RenameFlags::EXCHANGE).unwrap();
                counted.fetch_add(1, Ordering::Relaxed);
            }
        });
        Self { over, swaps, thread: Some(thread) }
    }
}

impl Drop for Swapper {
    fn drop(&mut self) {
        self.over.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            let ended = thread.join();
            assert!(ended.is_ok() || std::thread::panicking(), "the swapper panicked");
        }
    }
}

/// Whether this test may change owners; with `CI=true` it must.
fn may_chown() -> bool {
    tidegate_testkit::need("only root may give a file away", rustix::process::geteuid().is_root())
}

struct Scene {
    agent: RunningAgent,
    switch: FakeSwitch,
    /// Root's socket.
    root_socket: PathBuf,
    /// Dropped last: the other fields need the folder when they end.
    lab: Lab,
}

impl Scene {
    fn new() -> (Self, UnixListener) {
        let lab = Lab::new();
        for folder in ["vm", "vm/yard", "vault"] {
            std::fs::create_dir(lab.path(folder)).unwrap();
        }
        symlink(lab.path("vault"), lab.path("vm/link")).unwrap();
        let root_socket = lab.path("vault/a.sock");
        let listener = UnixListener::bind(&root_socket).unwrap();
        (Self { switch: lab.switch(), agent: lab.agent(), root_socket, lab }, listener)
    }

    fn swap(&self) -> Swapper {
        Swapper::start(self.lab.path("vm/yard"), self.lab.path("vm/link"))
    }

    /// Returns a contract with its socket in `folder`, and further attachment keys.
    fn vnic(&self, folder: &str, keys: &str) -> String {
        self.lab.vnic("a", 1, "").replace("a.sock\"", &format!("{folder}/a.sock\", {keys}"))
    }
}

/// Applies contracts while their folder is swapped; `owners` holds their sockets' owners and modes. With
/// `live` another program listens at root's socket, otherwise it looks left behind by an agent.
fn attack(live: bool, owners: &[(&str, &str)]) {
    if !may_chown() {
        return;
    }
    let (scene, listener) = Scene::new();
    let _listener = live.then_some(listener);
    let (lab, agent, root_socket) = (&scene.lab, &scene.agent, &scene.root_socket);
    let before = (identity(root_socket), owner_and_mode(root_socket));
    let vnic = |folder: &str, owner: &str, mode: &str| {
        scene.vnic(folder, &format!("owner = \"{owner}\", socket-mode = \"{mode}\""))
    };
    let yard = std::fs::File::open(lab.path("vm/yard")).unwrap();
    let swapper = scene.swap();
    let (end, mut tried) = (Instant::now() + SPAN, 0);
    while Instant::now() < end {
        for (owner, mode) in owners {
            agent.apply(&vnic("vm/yard", owner, mode));
            tried += 1;
            assert!(root_socket.symlink_metadata().is_ok(), "attempt {tried}: a file of root's was removed");
            let now = (identity(root_socket), owner_and_mode(root_socket));
            assert_eq!(now, before, "attempt {tried}: a file of root's was given away");
        }
        agent.request("DELETE", "/v1/vnics/a", "");
        // A socket that the agent did not find would block the next attempt.
        let _ = unlinkat(&yard, "a.sock", AtFlags::empty());
    }
    let swaps = swapper.swaps.load(Ordering::Relaxed);
    drop(swapper);
    assert!(tried > 50 && swaps > 1_000, "{tried} contracts and {swaps} swaps are no attack");
    let entries: Vec<_> = std::fs::read_dir(lab.path("vault")).unwrap().collect();
    assert_eq!(entries.len(), 1, "a file was made outside of the folder: {entries:?}");
    let folder = if lab.path("vm/yard").is_symlink() { "vm/link" } else { "vm/yard" };
    let (status, answer) = agent.apply(&vnic(folder, "4242", "0640"));
    assert_eq!(status, 200, "{answer}");
    let socket = lab.path(folder).join("a.sock");
    assert_eq!(owner_and_mode(&socket), (STRANGER, 0o640));
    assert_eq!(agent.request("DELETE", "/v1/vnics/a", "").0, 200);
    assert!(!socket.exists());
}

fn owner_and_mode(path: &Path) -> (u32, u32) {
    let metadata = path.symlink_metadata().unwrap();
    (metadata.uid(), metadata.mode() & 0o7777)
}

#[test]
fn a_socket_of_roots_is_not_given_away() {
    attack(true, &[("4242", "0666"), ("0", "0600")]);
}

#[test]
fn a_socket_of_roots_is_not_removed() {
    // The second owner does not exist, so the agent undoes the change.
    attack(false, &[("4242", "0666"), ("no-such-user", "0666")]);
}

#[test]
fn the_agent_connects_to_no_socket_of_roots() {
    let (scene, listener) = Scene::new();
    listener.set_nonblocking(true).unwrap();
    let swapper = scene.swap();
    let guest = format!("guest = \"{}\"", scene.lab.path("vm/yard/a.sock").display());
    let end = Instant::now() + SPAN;
    while Instant::now() < end {
        // The agent connects to QEMU at the first path, and to the guest's port at the second.
        for text in [scene.vnic("vm/yard", "mode = \"client\""), scene.lab.vnic("b", 2, &guest)] {
            scene.agent.apply(&text);
            assert!(listener.accept().is_err(), "the agent spoke to a program of root's");
        }
        for name in ["a", "b"] {
            scene.agent.request("DELETE", &format!("/v1/vnics/{name}"), "");
        }
    }
    drop(swapper);
}

#[test]
fn a_path_outside_of_the_roots_is_refused_before_anything_changes() {
    let (scene, _listener) = Scene::new();
    let (lab, agent) = (&scene.lab, &scene.agent);
    let away = tempfile::tempdir().unwrap();
    let away = away.path().display();
    let socket = |path: &str| {
        format!(
            "[vnic.a]\nattach = {{ vhost-user = \"{path}\" }}\nmac = \"52:54:00:00:00:01\"\nsegment = 1\n"
        )
    };
    let tap = |path: &str| {
        format!(
            "[vnic.a]\nattach = {{ tap = \"t0\", netns = \"{path}\" }}\nmac = \"52:54:00:00:00:01\"\nsegment = 1\n"
        )
    };
    let guest = lab.vnic("a", 1, &format!("guest = \"{away}/limit\""));
    for (text, said) in [
        (socket(&format!("{away}/a.sock")), "is not below"),
        (socket(&format!("{away}/a.sock")).replace("\" }", "\", mode = \"client\" }"), "is not below"),
        (socket("/srv/vm/a.sock"), "--socket-root /srv/vm"),
        (guest, "is not below"),
        (tap(&format!("{away}/netns")), "is not below"),
        (tap("/proc/1/ns/net"), "--netns-root /proc"),
    ] {
        // Together with an allowed vNIC: neither is accepted.
        let (status, answer) = agent.apply(&(text.clone() + &lab.vnic("b", 2, "")));
        let why = answer["details"][0].as_str().unwrap_or_default();
        assert!(status == 422 && why.contains("vNIC a") && why.contains(said), "{text}{answer}");
        let plan = agent.request("POST", "/v1/plan", &text).1;
        assert!(plan["refusals"][0].as_str().unwrap().contains("is not below"), "{plan}");
    }
    let (status, answer) = agent.apply(&socket(&format!("{}/../a.sock", lab.path("vm").display())));
    assert!(status == 400 && answer.to_string().contains("without \\\"..\\\""), "{answer}");
    assert_eq!(agent.get("/v1/vnics").1.as_array().unwrap().len(), 0);
    assert!(!lab.path("b.sock").exists() && !lab.path("a.sock").exists());
}

#[test]
fn contracts_accepted_earlier_stay_in_force() {
    let (scene, _listener) = Scene::new();
    let Scene { lab, agent, .. } = &scene;
    let guest = format!("guest = \"{}\"", lab.path("limit").display());
    assert_eq!(agent.apply(&(lab.vnic("old", 1, &guest) + &lab.vnic("gone", 3, ""))).0, 200);
    let Scene { lab, agent, switch, .. } = scene;
    agent.stop();
    let mut options = lab.options();
    options.socket_roots = vec![lab.path("vm")];
    let agent = RunningAgent::start(options, lab.places()).unwrap();
    assert_eq!(agent.vnic("old")["state"], "in force", "{}", agent.vnic("old"));
    let new = lab.vnic("new", 2, "").replace("new.sock", "vm/new.sock");
    let (status, answer) = agent.apply(&new);
    assert_eq!(status, 200, "{answer}");
    let (status, answer) = agent.request("PATCH", "/v1/vnics/old", r#"{"set": {"tx.max": "5mbit"}}"#);
    assert_eq!(status, 200, "{answer}");
    // A socket outside the root stays.
    assert_eq!(agent.request("DELETE", "/v1/vnics/gone", "").0, 200);
    assert!(lab.path("gone.sock").exists());
    // Nor is its port made again.
    std::fs::remove_file(lab.path("old.sock")).unwrap();
    switch.state().ports.remove("old");
    until("it is said", || {
        let view = agent.vnic("old");
        let why = view["reason"].as_str().unwrap_or_default();
        (view["state"] == "failed" && why.contains("is not below")).then_some(())
    });
    assert_eq!(agent.vnic("new")["state"], "in force");
}

/// A folder below a root stays a link to another program's folder without such a file.
#[test]
fn a_setting_is_forgotten_only_where_its_namespace_is_gone() {
    let lab = Lab::new();
    for folder in ["ns", "ns/here", "away", "state"] {
        std::fs::create_dir(lab.path(folder)).unwrap();
    }
    symlink(lab.path("away"), lab.path("ns/link")).unwrap();
    let names = ["ns/gone", "ns/here/gone", "ns/none/gone", "ns/link/gone"].map(|name| lab.path(name));
    let entry = |netns: &PathBuf| {
        serde_json::json!([
            {"rps": {"netns": netns, "device": "eth0", "queue": 0}},
            {"index": 1, "before": "0", "ours": "1", "repairs": 0}
        ])
    };
    let record = lab.path("state/own-cpus.json");
    let before: Vec<_> = names.iter().map(entry).collect();
    std::fs::write(&record, serde_json::json!({"version": 1, "value": before}).to_string()).unwrap();
    let _switch = lab.switch();
    let options = Options { netns_roots: vec![lab.path("ns")], ..lab.options() };
    let agent = RunningAgent::start(options, lab.places()).unwrap();
    let recorded = until("the agent has looked", || {
        let record: serde_json::Value = serde_json::from_slice(&std::fs::read(&record).ok()?).ok()?;
        let recorded = record["value"].as_array()?.clone();
        (recorded.len() < before.len()).then_some(recorded)
    });
    let settings: Vec<_> = recorded.iter().map(|entry| &entry[0]).collect();
    assert_eq!(settings, [&entry(&names[3])[0]]);
    let missing = || agent.get("/v1/status").1["own_cpus"]["missing"].as_str().map(str::to_owned);
    let why = until("it is told", missing);
    assert!(why.contains("ns/link/gone leads over a symbolic link"), "{why}");
}

#[test]
fn a_fifo_that_is_named_as_a_namespace_is_not_opened() {
    use rustix::fs::{FileType, Mode, mknodat};
    let lab = Lab::new();
    let _switch = lab.switch();
    let agent =
        RunningAgent::start(Options { netns_roots: vec![lab.path("etc")], ..lab.options() }, lab.places())
            .unwrap();
    let fifo = lab.path("etc/netns");
    mknodat(CWD, &fifo, FileType::Fifo, Mode::RWXU, 0).unwrap();
    let (opened, received) = std::sync::mpsc::channel();
    let writer = fifo.clone();
    let writer =
        std::thread::spawn(move || opened.send(std::fs::OpenOptions::new().write(true).open(writer).is_ok()));
    let shown = fifo.display();
    let text = format!(
        "[vnic.t]\nattach = {{ tap = \"t0\", netns = \"{shown}\" }}\nmac = \"52:54:00:00:00:01\"\nsegment = 1\n"
    );
    let (status, answer) = agent.apply(&text);
    assert!(status == 422 && answer.to_string().contains("is no network namespace"), "{answer}");
    assert!(received.recv_timeout(Duration::from_millis(300)).is_err(), "who waits at the FIFO noticed");
    drop(std::fs::File::open(&fifo).unwrap());
    writer.join().unwrap().unwrap();
}
