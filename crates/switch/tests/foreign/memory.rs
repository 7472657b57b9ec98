//! A port whose pages are missing bears the cost, and the switch refuses files that are not memory.

use crate::closing::upgrade;
use crate::fuse;
use crate::harness::netns::in_mounts;
use crate::harness::{Guest, TestSwitch, contract, ring, udp, vnic, with_header};
use crate::pulse::{Attacked, Pulse, keeps};
use rustix::fs::{FallocateFlags, fallocate};
use std::fs::File;
use std::os::fd::{AsFd, AsRawFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};
use tidegate_evidence::Connection;
use tidegate_frontend::attack::sockets::{message, send_with};
use tidegate_frontend::attack::{self, Target};
use tidegate_frontend::driver::Buffer;
use tidegate_frontend::front_end::{FrontEnd, Options};
use vhost::vhost_user::VhostUserProtocolFeatures;
use vhost::vhost_user::message::FrontendReq;
use vhost::{VhostBackend, VhostUserMemoryRegionInfo};

/// Bytes punched out at once: enough for each hole to be an event.
const PUNCHED: u64 = 512 << 20;

fn send_from(front: &mut FrontEnd, at: u64, len: usize) -> bool {
    let ring = front.ring(1);
    while ring.reap().is_some() {}
    let added = ring.add(&[Buffer::readable(at, len as u32)]).is_some();
    if ring.publish() {
        front.kick(1).unwrap();
    }
    added
}

#[test]
fn the_port_that_punches_holes_pays_for_them() {
    punched_at_their_expense(attack::memory::punch_holes);
}

/// By its block count the file has no holes: it has blocks behind its end.
#[test]
fn holes_that_are_hidden_are_found() {
    punched_at_their_expense(attack::memory::punch_holes_unseen);
}

fn punched_at_their_expense(attack: fn(&Target<'_>, u64) -> std::io::Result<()>) {
    let host = TestSwitch::new(1);
    host.add(&contract(&vnic("hostile", 3, "")));
    let pulse = Pulse::start(&host);
    let punch = move |socket: std::path::PathBuf, stop: &AtomicBool, steps: &std::sync::atomic::AtomicU64| {
        attack(&Target { socket: &socket, stop, steps }, PUNCHED)
    };
    let attacked = Attacked::by(punch, host.socket("hostile"));
    attacked.wait_for(1);
    let start = Instant::now();
    while host.port("hostile").held.quarantine.is_none() {
        assert!(start.elapsed() < Duration::from_secs(120), "{:?}", host.port("hostile"));
        std::thread::sleep(Duration::from_millis(10));
    }
    let reason = host.port("hostile").held.quarantine.unwrap().reason;
    assert!(reason.contains("waited") && reason.contains("page of the guest's memory"), "{reason}");
    keeps(&pulse, 0.6, || pulse.in_time(Duration::from_secs(2)));
    attacked.end();
    let others = host.switch.ports().into_iter().filter(|port| port.vnic.name != "hostile");
    assert!(others.clone().all(|port| port.held.events == 0), "{:?}", others.collect::<Vec<_>>());
}

/// Punches out pages that the guest gave up, and uses them again, as QEMU's balloon does.
#[test]
fn a_balloon_is_no_attack() {
    const ABOVE: u64 = 64 << 20;
    let host = TestSwitch::new(1);
    let options = Options { memory_size: 256 << 20, ..ring(256) };
    let mut guest = host.guest_with(&vnic("balloon", 3, ""), options);
    let mut peer = host.guest_with(&vnic("peer", 4, ""), ring(1024));
    // A real attack, so that the worker looks for the owner of holes.
    host.add(&contract(&vnic("hostile", 5, "")));
    let punch = |socket: std::path::PathBuf, stop: &AtomicBool, steps: &std::sync::atomic::AtomicU64| {
        attack::memory::punch_holes(&Target { socket: &socket, stop, steps }, PUNCHED)
    };
    let attacked = Attacked::by(punch, host.socket("hostile"));
    let memory = guest.front.memory().clone();
    let over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let pages = (memory.size() - ABOVE) / (2 << 20);
            for n in 0.. {
                if over.load(Ordering::Relaxed) {
                    return;
                }
                let at = ABOVE + n * 7 % pages * (2 << 20);
                let flags = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
                fallocate(memory.fd(), flags, at, 2 << 20).unwrap();
                std::thread::sleep(Duration::from_micros(500));
            }
        });
        let (start, mut sent, mut got, mut n) = (Instant::now(), 0u64, 0, 0u64);
        let frame = with_header(12, [0; 12], &udp(peer.mac(), guest.mac(), &[7; 1000]));
        while start.elapsed() < Duration::from_secs(6) {
            // After deflation the pages are new, and frames come from them.
            n += 1;
            let at = ABOVE + n * 4096 * 513 % (memory.size() - ABOVE - 8192);
            memory.write(at, &frame);
            sent += u64::from(send_from(&mut guest.front, at, frame.len()));
            got += peer.drain() as u64;
            std::thread::sleep(Duration::from_micros(200));
        }
        over.store(true, Ordering::Relaxed);
        assert!(sent > 100 && got > 0, "{got} of {sent}");
    });
    attacked.end();
    let port = host.port("balloon");
    assert_eq!((port.held.quarantines, port.connection), (0, Connection::Up), "{port:?}");
    assert_eq!(host.port("peer").held.events, 0);
}

#[test]
fn a_worker_without_a_cpu_blames_no_port() {
    let cpu = rustix::thread::sched_getcpu();
    let host = TestSwitch::on(1, &[cpu]);
    let lazy = Options { preallocate: false, memory_size: 64 << 20, ..ring(256) };
    let mut a = host.guest_with(&vnic("a", 1, ""), lazy);
    let mut b = host.guest_with(&vnic("b", 2, ""), ring(1024));
    let over = Arc::new(AtomicBool::new(false));
    let stop = over.clone();
    let (told, is_realtime) = std::sync::mpsc::channel();
    let hog = std::thread::spawn(move || {
        let mut set = rustix::thread::CpuSet::new();
        set.set(cpu);
        rustix::thread::sched_setaffinity(None, &set).unwrap();
        let param = libc::sched_param { sched_priority: 1 };
        // SAFETY: a plain call on this thread with a valid parameter.
        let realtime = unsafe { libc::sched_setscheduler(0, libc::SCHED_FIFO, &raw const param) } == 0;
        told.send(realtime).unwrap();
        while !stop.load(Ordering::Relaxed) {
            let until = Instant::now() + Duration::from_millis(50);
            while Instant::now() < until {}
            std::thread::sleep(Duration::from_millis(20));
        }
    });
    // Without that permission the effect is the same, but slower.
    println!("the CPU is taken by a real-time thread: {}", is_realtime.recv().unwrap());
    let (start, mut n) = (Instant::now(), 0u64);
    let memory = a.front.memory().clone();
    let frame = with_header(12, [0; 12], &udp(b.mac(), a.mac(), &[7; 1000]));
    while start.elapsed() < Duration::from_secs(6) {
        n += 1;
        let at = (8 << 20) + n * 4096 % (48 << 20);
        memory.write(at, &frame);
        send_from(&mut a.front, at, frame.len());
        b.drain();
        std::thread::sleep(Duration::from_micros(200));
    }
    over.store(true, Ordering::Relaxed);
    hog.join().unwrap();
    let worker = &host.stats.workers()[0];
    assert!(worker.longest_loop_ns > 1_000_000, "it was late: {} us", worker.longest_loop_ns / 1000);
    for port in host.switch.ports() {
        assert_eq!((port.held.events, port.connection), (0, Connection::Up), "{port:?}");
    }
}

fn share(front: &mut FrontEnd, file: impl AsFd, bytes: u64) -> Result<(), String> {
    let memory = front.memory().clone();
    let own = VhostUserMemoryRegionInfo {
        guest_phys_addr: 0,
        memory_size: memory.size(),
        userspace_addr: memory.user_addr(),
        mmap_offset: 0,
        mmap_handle: memory.fd().as_raw_fd(),
    };
    let other = VhostUserMemoryRegionInfo {
        guest_phys_addr: 1 << 40,
        memory_size: bytes,
        userspace_addr: 1 << 40,
        mmap_offset: 0,
        mmap_handle: file.as_fd().as_raw_fd(),
    };
    front.protocol().unwrap().set_mem_table(&[own, other]).map(drop).map_err(|error| error.to_string())
}

fn file_of(bytes: u64) -> File {
    let file = tempfile::tempfile_in(env!("CARGO_MANIFEST_DIR")).unwrap();
    file.set_len(bytes).unwrap();
    file
}

#[test]
fn on_a_disk_a_deadline_is_refused_and_others_are_carried() {
    use tidegate_switch::virtio::backing::{Backing, inspect};
    let file = file_of(1 << 20);
    let looked = inspect(&file);
    let why = format!("the checkout is not on a disk: {looked:?}");
    if !tidegate_testkit::need(&why, matches!(looked, Ok(Backing::Disk(_)))) {
        return;
    }
    let host = TestSwitch::new(1);
    let mut b = host.guest(&vnic("b", 2, ""));
    let mut a = host.guest(&vnic("a", 1, ""));
    share(&mut a.front, &file, 1 << 20).unwrap();
    let frame = udp(b.mac(), a.mac(), b"from a guest on a disk");
    a.send(&frame);
    while b.receive() != frame {}
    // The switch accepts no deadline later ...
    let limits = "tx = { max = \"10mbit\", burst = \"4kB\" }\ndeadline = \"5ms\"\nto = [\"b\"]";
    let refused = host
        .switch
        .set_port(contract(&vnic("a", 1, limits)), tidegate_switch::server::ports::Connect::Unchanged);
    assert!(refused.as_ref().is_err_and(|why| why.contains("is on a disk")), "{refused:?}");
    // ... and no such memory on a port with a deadline.
    let mut c: Guest = host.guest(&vnic("c", 3, limits));
    assert!(share(&mut c.front, &file, 1 << 20).is_err());
    host.until(|| host.port("c").connection == Connection::Waiting);
    let why = host.port("c").last_error.unwrap();
    assert!(why.contains("is on a disk") && why.contains("deadline"), "{why}");
    drop(a);
    host.until(|| host.port("a").connection == Connection::Waiting);
    host.change(&vnic("a", 1, limits));
}

#[test]
fn memory_of_a_file_system_in_a_process_is_refused() {
    in_mounts("memory::memory_of_a_file_system_in_a_process_is_refused", || {
        let fuse = fuse::Mount::new();
        let host = TestSwitch::new(1);
        host.add(&contract(&vnic("hostile", 3, "")));
        let pulse = Pulse::start(&host);
        let mut front = FrontEnd::connect(host.socket("hostile"), Options::default()).unwrap();
        let file = fuse.file();
        assert!(share(&mut front, &file, 4096).is_err());
        host.until(|| host.port("hostile").thrown_out.contains_key("message"));
        let why = host.port("hostile").last_error.unwrap();
        assert!(why.contains("not memory but on FUSE"), "{why}");
        drop((front, file));

        host.until(|| host.port("hostile").connection == Connection::Waiting);
        let mut front = FrontEnd::connect(host.socket("hostile"), Options::default()).unwrap();
        let file = fuse.file();
        let silence = fuse.fall_silent();
        assert!(share(&mut front, &file, 4096).is_err());
        host.until(|| host.port("hostile").last_error.is_some_and(|why| why.contains("does not answer")));
        host.until(|| host.port("hostile").closing);
        let start = Instant::now();
        host.switch.remove_port("hostile").unwrap();
        assert!(start.elapsed() < Duration::from_secs(2), "{:?}", start.elapsed());
        pulse.beats();
        drop(silence);
    });
}

/// A message may carry a descriptor that it does not need, and whose closing asks a silent file system.
#[test]
fn an_unwanted_file_delays_neither_a_removal_nor_an_upgrade() {
    const AT_ONCE: Duration = Duration::from_secs(5);
    in_mounts("memory::an_unwanted_file_delays_neither_a_removal_nor_an_upgrade", || {
        let fuse = fuse::Mount::new();
        let host = TestSwitch::new(1);
        let pulse = Pulse::start(&host);
        let file = fuse.file();
        let options = || Options {
            protocol_features: VhostUserProtocolFeatures::REPLY_ACK
                | VhostUserProtocolFeatures::CONFIGURE_MEM_SLOTS,
            ..Options::default()
        };
        let connect = |name: &str, number| {
            host.add(&contract(&vnic(name, number, "")));
            FrontEnd::connect(host.socket(name), options()).unwrap()
        };
        let (removed, upgraded) = (connect("removed", 3), connect("upgraded", 4));
        let silence = fuse.fall_silent();
        for front in [&removed, &upgraded] {
            // A region that does not exist: 8 bytes of padding, then its place.
            let message = message(FrontendReq::REM_MEM_REG, &[0; 40]);
            send_with(front.stream().unwrap(), &message, &[file.as_fd()]).unwrap();
        }
        host.until(|| host.port("removed").last_error.is_some() || host.port("removed").closing);
        let (switch, (done, is_done)) = (host.switch.clone(), std::sync::mpsc::channel());
        std::thread::spawn(move || done.send(switch.remove_port("removed").map(drop)));
        is_done.recv_timeout(AT_ONCE).expect("the removal does not wait").unwrap();
        host.until(|| host.port("upgraded").closing);
        let _both = upgrade(&host);
        pulse.beats();
        drop(silence);
    });
}
