//! Soft limits that guests request over sockets, with a fake switch.

#![allow(clippy::disallowed_macros, clippy::disallowed_methods, reason = "these are the program's own rules")]

mod common;

use common::{Lab, RunningAgent, until};
use serde_json::json;
use std::io::{BufRead, BufReader, Write};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::PathBuf;
use std::time::Duration;

/// QEMU's side of a VM's limit port, and the guest.
struct Guest {
    path: PathBuf,
    listener: UnixListener,
    stream: Option<BufReader<UnixStream>>,
}

impl Guest {
    fn new(lab: &Lab, name: &str) -> Self {
        let path = lab.path(&format!("{name}.limit"));
        let listener = UnixListener::bind(&path).unwrap();
        Self { path, listener, stream: None }
    }

    fn vnic(&self, lab: &Lab, name: &str, mac: u8, more: &str) -> String {
        lab.vnic(name, mac, &format!("guest = \"{}\"\n{more}", self.path.display()))
    }

    fn stream(&mut self) -> &mut BufReader<UnixStream> {
        let listener = &self.listener;
        self.stream.get_or_insert_with(|| {
            let (stream, _) = listener.accept().unwrap();
            stream.set_read_timeout(Some(Duration::from_secs(30))).unwrap();
            BufReader::new(stream)
        })
    }

    fn write(&mut self, bytes: &[u8]) {
        self.stream().get_mut().write_all(bytes).unwrap();
    }

    fn line(&mut self) -> String {
        let mut line = String::new();
        self.stream().read_line(&mut line).unwrap();
        line.trim_end().to_owned()
    }

    /// Returns the answer's lines, without version and tag.
    fn ask(&mut self, ask: &str) -> Vec<String> {
        self.write(format!("1 t {ask}\n").as_bytes());
        let mut lines = Vec::new();
        loop {
            let line = self.line();
            let said = line.strip_prefix("1 t ").unwrap_or_else(|| panic!("{line:?}"));
            lines.push(said.to_owned());
            if !said.starts_with("vnic ") {
                return lines;
            }
        }
    }
}

fn set(agent: &RunningAgent, name: &str, key: &str, value: &str) {
    let body = json!({"set": {key: value}}).to_string();
    let (status, answer) = agent.request("PATCH", &format!("/v1/vnics/{name}"), &body);
    assert_eq!(status, 200, "{answer}");
}

#[test]
fn a_guest_lowers_its_own_limit_as_with_ulimit() {
    let lab = Lab::new();
    let switch = lab.switch();
    let agent = lab.agent();
    let (mut guest, mut other) = (Guest::new(&lab, "g"), Guest::new(&lab, "o"));
    let text = guest.vnic(&lab, "a", 1, "tx = { max = \"500mbit\", min = \"450mbit\" }\nto = [\"r\"]")
        + &guest.vnic(&lab, "b", 2, "")
        + &other.vnic(&lab, "c", 3, "tx.max = \"1gbit\"")
        + &lab.vnic("r", 4, "rx.max = \"1gbit\"");
    let (status, answer) = agent.apply(&text);
    assert_eq!(status, 200, "{answer}");
    let mac = |n: u8| format!("52:54:00:00:00:{n:02x}");
    let (a, b) = (mac(1), mac(2));
    let all = |a_soft: &str, a_now: &str, b_soft: &str, b_now: &str| {
        vec![
            format!("vnic a {a} 500mbit {a_soft} {a_now}"),
            format!("vnic b {b} none {b_soft} {b_now}"),
            "ok".to_owned(),
        ]
    };
    assert_eq!(guest.ask("limit"), all("none", "500mbit", "none", "none"));
    let contracts = lab.path("state/contracts.json");
    let written = common::identity(&contracts);
    switch.log();
    assert_eq!(guest.ask(&format!("set {a} 400mbit")), ["ok"]);
    assert_eq!(switch.log(), ["set a Unchanged"]);
    assert_eq!(common::identity(&contracts), written, "contracts were written");
    {
        let state = switch.state();
        let tx = &state.ports["a"].vnic.tx;
        assert_eq!((tx.max, tx.min), (Some("400mbit".parse().unwrap()), Some("400mbit".parse().unwrap())));
        assert_eq!(state.ports["a"].vnic.guest, None);
    }
    let view = agent.vnic("a");
    let shown = ["soft", "tx_in_force", "state"].map(|key| view[key].as_str().unwrap().to_owned());
    assert_eq!(shown, ["400mbit", "400mbit", "in force"], "{view}");
    assert_eq!(
        (&view["contract"]["tx"]["max"], &view["limits"]["tx_bps"]),
        (&json!("500mbit"), &json!(400_000_000))
    );

    // All of a VM's vNICs or none, never another VM's.
    let refused = guest.ask("set * 600mbit");
    assert_eq!(
        refused,
        ["error refused the soft limit 600mbit is above the hard limit 500mbit: set at most 500mbit"]
    );
    assert!(
        guest.ask(&format!("set {} 1mbit", mac(3)))[0].starts_with("error refused this VM has no network")
    );
    assert!(guest.ask("set * 0mbit")[0].starts_with("error refused "));
    assert_eq!(guest.ask("set * 300mbit"), ["ok"]);
    assert_eq!(guest.ask("limit"), all("300mbit", "300mbit", "300mbit", "300mbit"));
    assert_eq!(other.ask("limit"), [format!("vnic c {} 1gbit none 1gbit", mac(3)), "ok".into()]);

    // A higher hard limit keeps the soft limit; a lower one lowers it for good.
    set(&agent, "a", "tx.max", "800mbit");
    assert!(guest.ask("limit")[0].ends_with("800mbit 300mbit 300mbit"));
    set(&agent, "a", "tx.min", "100mbit");
    set(&agent, "a", "tx.max", "200mbit");
    set(&agent, "a", "tx.max", "800mbit");
    assert!(guest.ask("limit")[0].ends_with("800mbit 200mbit 200mbit"));

    drop(guest.stream.take());
    agent.stop();
    switch.log();
    let agent = lab.agent();
    assert_eq!((agent.vnic("a")["soft"].as_str(), switch.log()), (Some("200mbit"), vec!["host".to_owned()]));
    assert!(guest.ask("limit")[0].ends_with("800mbit 200mbit 200mbit"));
    let metrics = String::from_utf8(agent.raw("GET", "/metrics", "").1).unwrap();
    assert!(metrics.contains("vnic_soft_limit_bits_per_second{vnic=\"a\"} 200000000"), "{metrics}");
    assert!(
        metrics.contains("vnic_contract_bits_per_second{vnic=\"a\",direction=\"tx\",kind=\"max\"} 800000000")
    );

    // The agent restores the limit in force, not the contract's.
    switch.state().ports.get_mut("a").unwrap().vnic.tx.max = Some("800mbit".parse().unwrap());
    let in_switch = || switch.state().ports["a"].vnic.tx.max;
    until("put right", || (in_switch() == "200mbit".parse().ok()).then_some(()));
    assert_eq!(guest.ask("set * none"), ["ok"]);
    assert_eq!(in_switch(), "800mbit".parse().ok());

    assert_eq!(guest.ask(&format!("set {b} 1mbit")), ["ok"]);
    assert_eq!(agent.request("DELETE", "/v1/vnics/b", "").0, 200);
    agent.apply(&guest.vnic(&lab, "b", 2, ""));
    assert_eq!(agent.vnic("b").get("soft"), None);
}

#[test]
fn a_guest_learns_of_a_refusal_and_an_operator_comes_first() {
    let lab = Lab::new();
    let mut switch = lab.switch();
    let agent = lab.agent();
    let mut guest = Guest::new(&lab, "g");
    let text =
        guest.vnic(&lab, "a", 1, "tx.max = \"500mbit\"") + &guest.vnic(&lab, "b", 2, "tx.max = \"500mbit\"");
    agent.apply(&text);
    switch.state().refuse.insert("b".into());
    switch.log();
    assert!(guest.ask("set * 400mbit")[0].contains("the fake switch refuses this port"));
    assert_eq!(switch.log(), ["set a Unchanged", "set a Unchanged"], "what was done is taken back");
    assert!(guest.ask("limit")[0].ends_with("500mbit none 500mbit"));
    switch.state().refuse.clear();
    assert_eq!(guest.ask("set * 400mbit"), ["ok"]);
    // A soft limit that the place no longer accepts does not block the contract.
    switch.state().refuse_tx = Some("400mbit".parse().unwrap());
    let (status, answer) = agent.request("PATCH", "/v1/vnics/a", r#"{"set": {"weight": "7"}}"#);
    assert_eq!(status, 200, "{answer}");
    let view = agent.vnic("a");
    assert_eq!((view.get("soft"), view["tx_in_force"].as_str()), (None, Some("500mbit")), "{view}");
    assert_eq!(agent.vnic("b")["soft"], "400mbit");
    // Only a change with an effect on the switch needs the switch.
    switch.kill();
    for (weight, expected) in [(7, 200), (8, 503)] {
        let body = json!({"set": {"weight": weight.to_string()}}).to_string();
        let (status, answer) = agent.request("PATCH", "/v1/vnics/a", &body);
        assert_eq!(status, expected, "{answer}");
    }
}

#[test]
fn misbehaving_guests_do_no_harm() {
    let lab = Lab::new();
    let _switch = lab.switch();
    let agent = lab.agent();
    let (mut bad, mut good) = (Guest::new(&lab, "bad"), Guest::new(&lab, "good"));
    let text =
        bad.vnic(&lab, "a", 1, "tx.max = \"500mbit\"") + &good.vnic(&lab, "b", 2, "tx.max = \"500mbit\"");
    agent.apply(&text);
    let mut flood = bad.stream().get_ref().try_clone().unwrap();
    let flooding = std::thread::spawn(move || {
        for n in 0..100_000 {
            let line = format!("1 flood set * {}mbit\n", 100 + n % 2);
            if flood.write_all(line.as_bytes()).is_err() {
                return;
            }
        }
    });
    for rate in ["300mbit", "200mbit", "100mbit"] {
        assert_eq!(good.ask(&format!("set * {rate}")), ["ok"]);
        set(&agent, "b", "weight", &rate[..1]);
        assert_eq!(agent.vnic("b")["soft"], rate);
    }
    bad.stream().get_ref().shutdown(std::net::Shutdown::Both).unwrap();
    flooding.join().unwrap();
    bad.stream = None;
    // After a reconnect, an endless line and garbage get one answer and end the connection.
    bad.write(&[b'x'; 4000]);
    assert!(bad.line().starts_with("1 - error malformed a line has at most 256 bytes"));
    let mut garbage = bad.stream().get_ref().try_clone().unwrap();
    while garbage.write_all(&[0xff; 512]).is_ok() {}
    bad.stream = None;
    assert_eq!(bad.ask("limit").last().unwrap(), "ok");
    assert_eq!(good.ask("limit").last().unwrap(), "ok");
}
