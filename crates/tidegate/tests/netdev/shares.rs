//! Promises at the egress of a netdev: each sender's share, and priority.

use super::common::{Lab, until};
use super::netns::{Guest, in_namespace, ip};
use super::{contract, run};
use std::net::UdpSocket;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::time::{Duration, Instant};

/// Headers of a datagram on the wire: UDP, IP, Ethernet (bytes).
const HEADERS: u64 = 42;
const SINK: u8 = 5;
/// `rx.max` of the sink (bit/s).
const LIMIT: f64 = 12e6;
/// The sink's default burst, and one frame (bytes).
const BURST: f64 = 65_536.0 + 1_442.0;
const LOOKS: usize = 12;

#[derive(Default)]
struct Arrived {
    bytes: AtomicU64,
    /// Delay of each datagram with a send time (ns).
    delays: std::sync::Mutex<Vec<u64>>,
}

/// Makes `vnet1` to `vnet5` on one bridge, with 10.9.N.2.
fn bridged() -> Vec<Guest> {
    ip("link add br0 type bridge");
    ip("link set br0 up");
    let guest = |n: u8| {
        let guest = Guest::new(&format!("vnet{n}"), n);
        ip(&format!("addr flush dev vnet{n}"));
        ip(&format!("link set vnet{n} master br0"));
        guest.within(|address| ip(&format!("addr replace {address}/16 dev eth0")));
        guest
    };
    (1..=SINK).map(guest).collect()
}

/// Sends datagrams with their send time to the sink's port until `stop`.
fn send(port: u8, size: usize, at_once: usize, pause: Duration, start: Instant, stop: &AtomicBool) -> u64 {
    let socket = UdpSocket::bind("0.0.0.0:0").unwrap();
    let mut datagram = vec![0; size];
    let mut sent = 0;
    while !stop.load(Relaxed) {
        for _ in 0..at_once {
            datagram[..8].copy_from_slice(&(start.elapsed().as_nanos() as u64).to_ne_bytes());
            let done = socket.send_to(&datagram, (format!("10.9.{SINK}.2"), 9000 + u16::from(port)));
            sent += u64::from(done.is_ok());
        }
        std::thread::sleep(pause);
    }
    sent
}

fn receive(socket: &UdpSocket, from: &Arrived, start: Instant, stop: &AtomicBool) {
    socket.set_read_timeout(Some(Duration::from_millis(100))).unwrap();
    let mut datagram = [0; 2048];
    while !stop.load(Relaxed) {
        let Ok(n) = socket.recv(&mut datagram) else { continue };
        from.bytes.fetch_add(n as u64 + HEADERS, Relaxed);
        let sent = u64::from_ne_bytes(datagram[..8].try_into().unwrap());
        from.delays.lock().unwrap().push(start.elapsed().as_nanos() as u64 - sent);
    }
}

fn sent_by(netdev: &str) -> u64 {
    let all = std::fs::read_to_string("/proc/thread-self/net/dev").unwrap();
    let counters = all.lines().find_map(|line| line.trim().strip_prefix(&format!("{netdev}:"))).unwrap();
    counters.split_whitespace().nth(8).unwrap().parse().unwrap()
}

/// Looks at the sink until one of its windows (3 s) has the contracts' shares.
///
/// # Errors
/// The sink's tap exceeded its limit between two looks, or none of eight windows has the shares.
fn shared_as_promised(arrived: &[Arrived]) -> Result<(), String> {
    let mut looks: Vec<(Instant, [u64; 4], u64)> = Vec::new();
    let mut windows = Vec::new();
    while windows.len() < 8 {
        let began = Instant::now();
        let now = std::array::from_fn(|n| arrived[n].bytes.load(Relaxed));
        let at_tap = sent_by(&format!("vnet{SINK}"));
        for (before, _, then) in &looks {
            let bytes = at_tap - then;
            let most = 1.01 * LIMIT / 8.0 * before.elapsed().as_secs_f64() + BURST;
            if bytes as f64 > most {
                return Err(format!("{bytes} bytes in {:?}, at most {most}", before.elapsed()));
            }
        }
        looks.push((began, now, at_tap));
        let (first, then, _) = looks[looks.len().saturating_sub(LOOKS)];
        if looks.len().is_multiple_of(LOOKS) {
            let seconds = (began - first).as_secs_f64();
            let rate = |n: usize| (now[n] - then[n]) as f64 * 8.0 / seconds / 1e6;
            let [voice, data, heavy, other] = std::array::from_fn(rate);
            let sum = voice + data + heavy + other;
            // The limit less the voice and the minimum, 5.9 Mbit/s, is shared 1 : 4 : 1.
            if sum > 0.9 * LIMIT / 1e6 && data > 0.95 * 6.0 && (2.5..6.0).contains(&(heavy / other)) {
                return Ok(());
            }
            windows.push([voice, data, heavy, other]);
        }
        std::thread::sleep(Duration::from_millis(250));
    }
    Err(format!("no window has the shares, Mbit/s: {windows:?}"))
}

fn median(mut delays: Vec<u64>) -> u64 {
    delays.sort_unstable();
    delays[delays.len() / 2]
}

#[test]
fn each_sender_gets_what_it_was_promised() {
    in_namespace("shares::each_sender_gets_what_it_was_promised", || {
        let guests = bridged();
        let lab = Lab::shared();
        let _switch = lab.switch();
        let agent = lab.agent();
        let to_sink = |name: &str, n: u8, more: &str| {
            contract(name, n, &format!("vnet{n}"), &format!("{more}\nto = [\"sink\"]"))
        };
        let contracts = [
            to_sink("voice", 1, "tx = { max = \"2mbit\", burst = \"4kB\" }\ndeadline = \"100ms\""),
            to_sink("data", 2, "tx = { min = \"6mbit\" }"),
            to_sink("heavy", 3, "weight = 4"),
            contract("sink", SINK, &format!("vnet{SINK}"), "rx = { max = \"12mbit\" }\nqueueing = \"fifo\""),
        ];
        let (status, answer) = agent.apply(&contracts.concat());
        assert_eq!(status, 200, "{answer}");
        let bound = agent.vnic("voice")["promises"].to_string();
        assert!(bound.contains("\"deadline_ns\":100000000"), "{}", agent.vnic("voice"));

        let (start, stop) = (Instant::now(), &AtomicBool::new(false));
        let sink = guests.last().unwrap();
        let arrived: Vec<Arrived> = (1..SINK).map(|_| Arrived::default()).collect();
        std::thread::scope(|scope| {
            for (port, from) in (1_u8..).zip(&arrived) {
                let socket = sink.within(|_| UdpSocket::bind(("0.0.0.0", 9000 + u16::from(port))).unwrap());
                scope.spawn(move || receive(&socket, from, start, stop));
            }
            for (port, guest) in (1_u8..SINK).zip(&guests) {
                // The first is the voice; each of the others alone exceeds the sink's limit many times.
                let (size, at_once, pause) = if port == 1 { (160, 1, 10) } else { (1400, 24, 3) };
                let pause = Duration::from_millis(pause);
                scope.spawn(move || guest.within(|_| send(port, size, at_once, pause, start, stop)));
            }
            std::thread::sleep(Duration::from_secs(1));
            let shared = shared_as_promised(&arrived);
            stop.store(true, Relaxed);
            shared.unwrap_or_else(|why| panic!("{why}"));
        });
        let delays = |n: usize| median(arrived[n].delays.lock().unwrap().clone());
        assert!(delays(0) * 5 < delays(3), "the voice goes first: {} and {} ns", delays(0), delays(3));

        // The place counts the same voice frames, each at most once.
        let came = arrived[0].delays.lock().unwrap().len() as u64;
        let delivered = || agent.vnic("voice")["stats"]["realtime_delivered"].as_u64().unwrap();
        until("they are counted", || (came / 2..=came + 20).contains(&delivered()).then_some(()));

        // A sender whose VM restarts gets its class again, without drift.
        let repaired = || agent.get("/v1/host").1["drift_repaired"].as_u64();
        let before = repaired();
        // Without the root class and the class of other traffic.
        let senders = || run("tc class show dev vnet5").lines().count() - 2;
        assert_eq!(senders(), 3);
        run("ip link del vnet2");
        until("its class is gone", || (senders() == 2).then_some(()));
        run("ip tuntap add vnet2 mode tap");
        until("it has one again", || (senders() == 3).then_some(()));
        assert_eq!(repaired(), before);

        for name in ["voice", "data", "heavy"] {
            let (status, answer) = agent.request("DELETE", &format!("/v1/vnics/{name}"), "");
            assert_eq!(status, 200, "{answer}");
        }
        let classes_after = run("tc class show dev vnet5");
        assert_eq!(classes_after.lines().count(), 1, "no sender has a share any more: {classes_after}");
    });
}
