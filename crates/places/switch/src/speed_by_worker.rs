//! Frames from a NIC to a vNIC of another worker than the uplink's: by that worker's own socket, or by crossing from the uplink's, in turns.
//! By hand, as root: `cargo test --release -p tidegate-place-switch --features measure --lib speed_by_worker -- --nocapture`

use crate::sockets::{self, Sockets};
use crate::speed::run;
use crate::xdp::direct::{Table, wanted};
use rustix::net::{AddressFamily, SocketAddrUnix, SocketType, bind, listen, socket};
use std::fs::read_to_string;
use std::time::{Duration, Instant};
use tidegate_contract::{Host, Uplink, Vnic};
use tidegate_evidence::Connection;
use tidegate_frontend::front_end::{FrontEnd, Options};
use tidegate_switch::frame::VnetHdr;
use tidegate_switch::server::Switch;
use tidegate_switch::server::ports::Connect;
use tidegate_switch::server::uplinks;
use tidegate_switch::stats::Reader;

const VLAN: u16 = 42;
const WORKERS: usize = 2;
/// Turns of each way, and how long one takes.
const TURNS: (usize, Duration) = (20, Duration::from_millis(400));
/// Frames on their way: fewer than one receiver may hold of the memory of an uplink, and than rings have room for.
const ON_THE_WAY: u64 = 64;
const LENGTHS: [usize; 2] = [60, 1514];

/// Frames received, time, and each worker's CPU time (ns).
#[derive(Clone, Copy, Default)]
struct Sum {
    frames: u64,
    time: u64,
    cpu: [u64; WORKERS],
}

fn uplink(kind: &str, device: &str) -> Uplink {
    let text = format!(
        r#"{{"name":"net0","kind":"{kind}","device":"{device}","rate":"100gbit",
            "peers":[{{"name":"lan","segments":[{VLAN}],"stamps":false}}]}}"#
    );
    serde_json::from_str(&text).unwrap()
}

fn vnic(number: u8) -> Vnic {
    let text = format!(
        "[vnic.v{number}]\nattach = {{ vhost-user = \"/tmp/unused-v{number}\" }}\n\
         mac = \"02:00:00:00:00:{number:02x}\"\nsegment = {VLAN}\n"
    );
    tidegate_contract::parse(&text, "test").unwrap().vnics.remove(0).value
}

/// Returns the CPU time of the workers' threads (ns).
fn cpu() -> [u64; WORKERS] {
    let mut times = [0; WORKERS];
    for task in std::fs::read_dir("/proc/self/task").unwrap().flatten() {
        let name = read_to_string(task.path().join("comm")).unwrap_or_default();
        if let Some(worker) = name.trim().strip_prefix("worker-").and_then(|n| n.parse::<usize>().ok()) {
            let ran = read_to_string(task.path().join("schedstat")).unwrap_or_default();
            times[worker] = ran.split(' ').next().and_then(|ns| ns.parse().ok()).unwrap_or_default();
        }
    }
    times
}

#[test]
fn frames_a_second_by_their_workers_socket_and_by_crossing() {
    if !tidegate_testkit::own_network_or_skip() {
        return;
    }
    run("ip link add near numrxqueues 2 numtxqueues 2 type veth peer name far numrxqueues 2 numtxqueues 2");
    for device in ["near", "far"] {
        run(&format!("ip link set {device} up promisc on"));
        run(&format!("ethtool -K {device} rxvlan off"));
    }
    let switch = Switch::start(WORKERS, &[], None).unwrap();
    switch.set_host(Host::default()).unwrap();
    let near = uplink("xdp", "near");
    let mut made = sockets::open(&near, WORKERS).unwrap();
    let (mut direct, _) = made.xdp.take().unwrap();
    let Sockets { receive, send, pairs, notices, .. } = made;
    let copies = receive.iter().map(|socket| socket.try_clone().unwrap()).collect();
    let handed = uplinks::Sockets { receive: copies, send, pairs, ports: vec![], notices };
    switch.set_uplink(near, (vec![], vec![], Default::default()), Some(handed)).unwrap();
    let status = switch.uplinks().remove(0);
    // The one of both that is at the other worker.
    let folder = tempfile::tempdir().unwrap();
    for number in 1..=2 {
        let (vnic, path) = (vnic(number), folder.path().join(format!("v{number}")));
        let listener = socket(AddressFamily::UNIX, SocketType::STREAM, None).unwrap();
        bind(&listener, &SocketAddrUnix::new(&path).unwrap()).unwrap();
        listen(&listener, 1).unwrap();
        switch.set_port(vnic, Connect::Listener(listener)).unwrap();
    }
    let port = switch.ports().into_iter().find(|port| port.worker != status.worker).unwrap();
    let options = Options { queue_size: 1024, ..Options::default() };
    let mut guest = FrontEnd::connect(folder.path().join(&port.vnic.name), options).unwrap();
    while switch.ports().iter().all(|port| port.connection != Connection::Up) {
        std::thread::sleep(Duration::from_millis(1));
    }
    let (table, _) = wanted(&[VLAN], &status.sockets, std::iter::once((&port.vnic, port.worker)));
    assert_eq!(table.len(), 1);
    // Its frames have a virtio header.
    let sender = crate::packet::open(&uplink("packet", "far")).unwrap();
    for len in LENGTHS {
        let mut sent_bytes = vec![0; VnetHdr::LEGACY_LEN + len + 4];
        let frame = &mut sent_bytes[VnetHdr::LEGACY_LEN..];
        frame[..6].copy_from_slice(&port.vnic.mac.0);
        frame[6..12].copy_from_slice(&[2, 0, 0, 0, 9, 9]);
        frame[12..18].copy_from_slice(&[0x81, 0, 0, VLAN as u8, 0x88, 0xb5]);
        let mut sums = [Sum::default(); 2];
        for turn in 0..2 * TURNS.0 {
            direct.follow(if turn % 2 == 0 { &table } else { const { &Table::new() } }).unwrap();
            let sum = &mut sums[turn % 2];
            let (began, before) = (Instant::now(), cpu());
            let (mut sent, mut received, mut bytes) = (0, 0, vec![]);
            while began.elapsed() < TURNS.1 || received < sent {
                while sent - received < ON_THE_WAY && began.elapsed() < TURNS.1 {
                    if rustix::net::send(&sender, &sent_bytes, rustix::net::SendFlags::empty()).is_err() {
                        break;
                    }
                    sent += 1;
                }
                while guest.receive_into(0, &mut bytes) {
                    received += 1;
                }
                assert!(
                    began.elapsed() < Duration::from_secs(20),
                    "{} of {sent} frames are lost: {:?} {:?}",
                    sent - received,
                    direct.counts(&status.sockets, &receive),
                    Reader::open(switch.region.file()).unwrap().vnic("net0").map(|uplink| uplink.tx)
                );
            }
            sum.frames += received;
            sum.time += began.elapsed().as_nanos() as u64;
            for ((sum, now), then) in sum.cpu.iter_mut().zip(cpu()).zip(before) {
                *sum += now - then;
            }
        }
        let [own, crossed] = sums.map(|Sum { frames, time, cpu }| {
            let each = |ns: u64| ns as f64 / frames as f64;
            (frames as f64 * 1e3 / time as f64, cpu.map(each))
        });
        for (what, (rate, cpu)) in [("own socket", own), ("crossing", crossed)] {
            println!(
                "{len:4} B, {what:10}: {rate:.3} M frames a second; CPU time of the uplink's worker {:.0} ns a frame, of the vNIC's {:.0} ns",
                cpu[status.worker], cpu[port.worker]
            );
        }
        let all = |cpu: [f64; WORKERS]| cpu.iter().sum::<f64>();
        println!(
            "{len:4} B: own socket / crossing: {:.2} of the frames a second, {:.2} of the workers' CPU time a frame",
            own.0 / crossed.0,
            all(own.1) / all(crossed.1)
        );
    }
}
