//! The agent's counts against those of the interface and iperf3.

use super::common::{Lab, RunningAgent, until};
use super::netns::super_frames::{Headers, Network, SuperFrame};
use super::netns::tap::{Request, Tap};
use super::netns::{Guest, in_namespace, run};
use super::{LIMITS, contract};
use serde_json::{Value, json};
use std::net::UdpSocket;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

/// Wire bytes per byte of TCP payload: Ethernet, IP, TCP with timestamps.
const TCP: f64 = 1514.0 / 1448.0;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Count {
    bytes: u64,
    frames: u64,
    dropped: u64,
}

impl Count {
    fn since(self, before: Self) -> Self {
        Self {
            bytes: self.bytes - before.bytes,
            frames: self.frames - before.frames,
            dropped: self.dropped - before.dropped,
        }
    }
}

/// Returns (tx, rx) of `web` from the API, as in `tidegate vnic show --json`.
fn agent_counts(agent: &RunningAgent) -> (Count, Count) {
    let stats = &agent.vnic("web")["stats"];
    let of = |way: &str| {
        let traffic = &stats[way];
        let dropped = traffic["dropped"].as_object().unwrap();
        Count {
            bytes: traffic["wire_bytes"].as_u64().unwrap(),
            frames: traffic["wire_frames"].as_u64().unwrap(),
            dropped: dropped.values().map(|n| n.as_u64().unwrap()).sum(),
        }
    };
    (of("tx"), of("rx"))
}

/// Returns (tx, rx) of the VM by the host's interface: tx before the limit, rx after it.
fn interface() -> (Count, Count) {
    let shown: Value = serde_json::from_str(&run("ip", "-j -s link show vnet4")).unwrap();
    let of = |way: &str| {
        let count = &shown[0]["stats64"][way];
        Count {
            bytes: count["bytes"].as_u64().unwrap(),
            frames: count["packets"].as_u64().unwrap(),
            dropped: 0,
        }
    };
    (of("rx"), of("tx"))
}

/// Sends datagrams without super-frames, about `per_second`; no listener is needed.
fn send_datagrams(to: &str, count: usize, per_second: u32) {
    // Several sockets, since waiting datagrams block their socket.
    let sockets: Vec<_> = (0..16).map(|_| UdpSocket::bind("0.0.0.0:0").unwrap()).collect();
    for (n, socket) in sockets.iter().cycle().take(count).enumerate() {
        socket.send_to(&[0; 1400], (to, 9)).unwrap();
        if n % 10 == 9 {
            std::thread::sleep(Duration::from_secs(10) / per_second);
        }
    }
}

/// Runs `body` with a guest and limits in force. Only the test's frames pass.
fn with_guest(body: impl FnOnce(&RunningAgent, &Guest)) {
    // No IPv6 neighbour discovery; a kernel without IPv6 has none.
    let _ = std::fs::write("/proc/sys/net/ipv6/conf/default/disable_ipv6", "1");
    let guest = Guest::new("vnet4", 1);
    let lab = Lab::shared();
    let _switch = lab.switch();
    let agent = lab.agent();
    let (status, answer) = agent.apply(&contract("web", 1, "vnet4", LIMITS));
    assert_eq!(status, 200, "{answer}");
    body(&agent, &guest);
}

/// Returns the counts once they are stable.
fn settled(agent: &RunningAgent) -> ((Count, Count), (Count, Count)) {
    let mut last = (agent_counts(agent), interface());
    until("nothing moves", || {
        std::thread::sleep(Duration::from_millis(200));
        let now = (agent_counts(agent), interface());
        let still = now == last;
        last = now;
        still.then_some(())
    });
    last
}

#[test]
fn counters_are_those_of_the_interface() {
    in_namespace("counters::counters_are_those_of_the_interface", || {
        with_guest(|agent, guest| {
            let (host, inside) = (guest.address(1), guest.address(2));
            let (ours, theirs) = settled(agent);
            guest.within(|_| send_datagrams(&host, 500, 2_000));
            send_datagrams(&inside, 300, 1_000);
            let (after, there) = settled(agent);
            let (tx, rx) = (after.0.since(ours.0), after.1.since(ours.1));
            assert_eq!((tx, rx), (there.0.since(theirs.0), there.1.since(theirs.1)));
            assert!(tx.frames >= 500 && rx.frames >= 300, "{tx:?} {rx:?}");

            // Far above the limits, sent and dropped frames are all frames.
            let (ours, theirs) = (after, there);
            guest.within(|_| send_datagrams(&host, 10_000, 1_000_000));
            let (after, there) = settled(agent);
            let (tx, offered) = (after.0.since(ours.0), there.0.since(theirs.0));
            assert!(tx.dropped > 0, "{tx:?}");
            assert_eq!(tx.frames + tx.dropped, offered.frames);

            let metrics = String::from_utf8(agent.raw("GET", "/metrics", "").1).unwrap();
            for line in [
                format!("tidegate_vnic_wire_bytes_total{{vnic=\"web\",direction=\"tx\"}} {}", after.0.bytes),
                format!(
                    "tidegate_vnic_wire_frames_total{{vnic=\"web\",direction=\"rx\"}} {}",
                    after.1.frames
                ),
                format!(
                    "tidegate_vnic_dropped_frames_total{{vnic=\"web\",direction=\"tx\",reason=\"pool_full\"}} {}",
                    after.0.dropped
                ),
            ] {
                assert!(metrics.contains(&line), "{line} is not in\n{metrics}");
            }
        });
    });
}

#[test]
fn policed_frames_are_counted_and_do_not_wait() {
    in_namespace("counters::policed_frames_are_counted_and_do_not_wait", || {
        with_guest(|agent, guest| {
            let limits = "tx = { max = \"20mbit\", method = \"police\" }";
            let (status, answer) = agent.apply(&contract("web", 1, "vnet4", limits));
            assert_eq!(status, 200, "{answer}");
            assert!(answer["notes"].to_string().contains("are dropped, no frame waits there"), "{answer}");
            let (ours, theirs) = settled(agent);
            let host = guest.address(1);
            guest.within(|_| send_datagrams(&host, 5_000, 1_000_000));
            let (after, there) = settled(agent);
            let (tx, offered) = (after.0.since(ours.0), there.0.since(theirs.0));
            assert_eq!(tx.frames + tx.dropped, offered.frames);
            let stats = &agent.vnic("web")["stats"];
            assert_eq!(stats["tx"]["dropped"]["policed"].as_u64(), Some(after.0.dropped));
            assert!(tx.dropped > 0 && stats["delay"]["count"] == 0, "{stats:#}");

            // A burst too short for TCP: plan, apply and the vNIC warn.
            let warns = |told: &Value| told.to_string().contains("its burst lasts 26 ms at its rate");
            assert!(!warns(&answer) && !warns(&agent.vnic("web")["reason"]));
            let short = "tx = { max = \"20mbit\", burst = \"64KiB\", method = \"police\" }";
            for route in ["/v1/plan", "/v1/apply"] {
                let (status, told) = agent.request("POST", route, &contract("web", 1, "vnet4", short));
                assert!(status == 200 && warns(&told["notes"]), "{route}: {told}");
            }
            until("it is shown", || warns(&agent.vnic("web")["reason"]).then_some(()));

            // A shaped queue that is full has another reason.
            assert_eq!(agent.apply(&contract("web", 1, "vnet4", LIMITS)).0, 200);
            until("it waits", || {
                guest.within(|_| send_datagrams(&host, 5, 1_000_000));
                (agent.vnic("web")["stats"]["delay"]["count"] != 0).then_some(())
            });
            for (wrong, why) in [
                ("tx = { method = \"police\" }", "tx.method needs tx.max"),
                ("tx = { max = \"9bit\", method = \"police\" }", "counts whole bytes per second"),
            ] {
                let (status, answer) = agent.apply(&contract("web", 1, "vnet4", wrong));
                assert!((400..500).contains(&status) && answer.to_string().contains(why), "{answer}");
            }
        });
    });
}

/// Returns a TCP super-frame over IPv6.
fn super_frame(tags: usize, extensions: usize) -> SuperFrame {
    let network = vec![Network::V6 { extensions: vec![(0, 0); extensions] }];
    let headers = Headers { tags: vec![0x8100; tags], network, tcp: Some(0) };
    let request = Request {
        flags: Request::NEEDS_CSUM,
        gso_type: Request::TCPV6,
        hdr_len: 0,
        gso_size: 1_000,
        csum_start: (54 + 4 * tags + 8 * extensions) as u16,
        csum_offset: 16,
    };
    SuperFrame { headers, payload: 3_000, request, pokes: vec![], cut: None }
}

#[test]
fn super_frames_that_are_dropped_have_a_reason() {
    in_namespace("counters::super_frames_that_are_dropped_have_a_reason", || {
        let lab = Lab::new();
        let _switch = lab.switch();
        let agent = lab.agent();
        let guest = Tap::with_requests("vnet5");
        let send = |frame: &SuperFrame| assert!(guest.send(&frame.request, &frame.bytes()));
        let police = "tx = { max = \"1gbit\", method = \"police\" }";
        let shape = "tx = { max = \"1gbit\" }";
        let unreadable = (super_frame(0, 17), "unknown_headers");
        let tagged = (super_frame(2, 0), "double_tagged");
        for (limits, (frame, reason)) in [(police, &unreadable), (shape, &tagged)] {
            assert_eq!(agent.apply(&contract("web", 1, "vnet5", limits)).0, 200);
            let dropped = || agent.vnic("web")["stats"]["tx"]["dropped"].clone();
            let fits = super_frame(1, 16);
            send(&fits);
            until("what can be carried is sent", || {
                (agent.vnic("web")["stats"]["tx"]["wire_bytes"].as_u64()? >= fits.wire().bytes - 12)
                    .then_some(())
            });
            assert_eq!(dropped(), json!({}), "{limits}");
            send(frame);
            until("it is counted", || (dropped() == json!({ *reason: 1 })).then_some(()));
            let why = agent.get("/v1/vnics/web/why").1.to_string();
            assert!(why.contains(reason), "{why}");
            let metrics = String::from_utf8(agent.raw("GET", "/metrics", "").1).unwrap();
            assert!(metrics.contains(&format!("reason=\"{reason}\"")), "{metrics}");
        }
    });
}

#[test]
fn waits_are_measured() {
    in_namespace("counters::waits_are_measured", || {
        with_guest(|agent, guest| {
            let host = guest.address(1);
            let waited = || agent.vnic("web")["stats"]["delay"]["count"].as_u64().unwrap();
            // Measured from the first look after the limit came into force.
            until("waits are measured", || {
                guest.within(|_| send_datagrams(&host, 1, 1_000_000));
                (waited() > 0).then_some(())
            });
            let (before, _) = settled(agent).0;
            let measured = waited();
            let begin = Instant::now();
            guest.within(|_| send_datagrams(&host, 5_000, 1_000_000));
            let (after, _) = settled(agent).0;
            let took = begin.elapsed().as_nanos() as u64;
            let tx = after.since(before);
            let stats = &agent.vnic("web")["stats"];
            let delay = &stats["delay"];
            // The kernel sometimes skips the program for a few frames in a row.
            let once = tx.frames * 3 / 4..=tx.frames;
            assert!(once.contains(&(waited() - measured)), "each frame once, of {}: {stats:#}", tx.frames);
            assert!(tx.dropped > 0, "{tx:?}");
            // The queue was full: 8 ms at the limit, more with queueing by flow.
            let max = delay["max"].as_u64().unwrap();
            assert!((6_000_000..took).contains(&max), "{max} of {took}");
            let throttled = stats["throttled_ns"].as_u64().unwrap();
            assert!((max..took).contains(&throttled), "{max} {throttled} of {took}");

            // A VM that comes back has none of the earlier waits.
            let (status, answer) = agent.raw("DELETE", "/v1/vnics/web", "");
            assert_eq!(status, 200, "{}", String::from_utf8_lossy(&answer));
            assert_eq!(agent.apply(&contract("web", 1, "vnet4", LIMITS)).0, 200);
            until("it is measured anew", || (waited() < tx.frames).then_some(()));
        });
    });
}

/// Transfers 12 MB of TCP in super-frames. Returns iperf3's received payload (bytes).
fn iperf(guest: &Guest, from_guest: bool) -> f64 {
    let mut server = Command::new("iperf3").arg("-s").stdout(Stdio::null()).spawn().expect("iperf3");
    let reverse: &[&str] = if from_guest { &[] } else { &["-R"] };
    let host = guest.address(1);
    let received = until("iperf3 listens", || {
        let client = guest.within(|_| {
            let words = ["-c", &host, "-n", "12M", "-J"];
            Command::new("iperf3").args(words).args(reverse).output().expect("iperf3")
        });
        // iperf3 succeeds even without a connection.
        let report: Value = serde_json::from_slice(&client.stdout).ok()?;
        report["end"]["sum_received"]["bytes"].as_f64()
    });
    server.kill().unwrap();
    server.wait().unwrap();
    received
}

#[test]
fn super_frames_are_counted_as_on_the_wire() {
    in_namespace("counters::super_frames_are_counted_as_on_the_wire", || {
        with_guest(|agent, guest| {
            // FIFO keeps super-frames whole, and its longer queue causes few retransmissions.
            let fifo = r#"{"set": {"queueing": "fifo"}}"#;
            assert_eq!(agent.request("PATCH", "/v1/vnics/web", fifo).0, 200);
            for from_guest in [true, false] {
                let pick = |((tx, rx), _): ((Count, Count), _)| if from_guest { tx } else { rx };
                let before = pick(settled(agent));
                let received = iperf(guest, from_guest);
                let count = pick(settled(agent)).since(before);
                let ratio = count.bytes as f64 / (received * TCP);
                assert!((0.99..1.05).contains(&ratio), "{ratio}: {count:?} for {received} bytes of payload");
                let payload = received / count.frames as f64;
                assert!((1250.0..1449.0).contains(&payload), "{payload} bytes of payload per frame");
            }
        });
    });
}
