//! What front ends can do to the log of a switch, and the log to other front ends.
//!
//! ```text
//!  liar ── kicks that no worker can listen to, nonsense, over and over ──▶ tidegate switch ── stderr ──▶ read, or not
//!  a ──────────────────────── frames ───────────────────────────────────────────▶ b
//! ```

use rustix::event::epoll;
use rustix::net::{SendAncillaryBuffer, SendAncillaryMessage, SendFlags, sendmsg};
use std::io::{BufRead, BufReader, IoSlice, PipeReader, PipeWriter, Read, Write};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::PathBuf;
use std::process::{Child, Command};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};
use tidegate_contract::Vnic;
use tidegate_frontend::front_end::{FrontEnd, Options};
use tidegate_switch::control::{Client, Connection, Link};

const PATIENCE: Duration = Duration::from_secs(20);

/// `tidegate switch`, its standard error a pipe of the smallest size.
struct Switch {
    child: Child,
    dir: tempfile::TempDir,
    log: Option<PipeReader>,
    /// The other end, which the switch has too.
    into_log: Option<PipeWriter>,
}

impl Switch {
    fn start() -> Self {
        let dir = tempfile::tempdir().unwrap();
        let (log, into_log) = std::io::pipe().unwrap();
        rustix::pipe::fcntl_setpipe_size(&log, 4096).unwrap();
        let child = Command::new(env!("CARGO_BIN_EXE_tidegate"))
            .env_remove("RUST_LOG")
            .args(["-v", "switch", "--no-confinement", "--socket"])
            .arg(dir.path().join("switch.sock"))
            .stderr(into_log.try_clone().unwrap())
            .spawn()
            .unwrap();
        let switch = Self { child, dir, log: Some(log), into_log: Some(into_log) };
        until("the switch answers", || switch.client().is_some());
        switch
    }

    fn client(&self) -> Option<Client> {
        let mut client = Client::connect(&self.dir.path().join("switch.sock")).ok()?;
        client.hello().ok().map(|_| client)
    }

    fn socket(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    fn add(&self, name: &str, mac: u8) -> Vnic {
        let text = format!(
            "[vnic.{name}]\nattach = {{ vhost-user = \"{}\" }}\nmac = \"52:54:00:00:00:{mac:02x}\"\nsegment = 7\n",
            self.socket(name).display()
        );
        let vnic = tidegate_contract::parse(&text, "test").unwrap().vnics.remove(0).value;
        let listener = UnixListener::bind(self.socket(name)).unwrap();
        self.client().unwrap().set_port(&vnic, Link::Listener(listener.as_fd())).unwrap();
        vnic
    }

    fn guest(&self, name: &str, mac: u8) -> FrontEnd {
        self.add(name, mac);
        let front = FrontEnd::connect(self.socket(name), Options::default()).unwrap();
        let is_up = || {
            let ports = self.client().unwrap().ports().unwrap();
            ports.iter().any(|port| port.vnic.name == name && port.connection == Connection::Up)
        };
        until("it is up", is_up);
        front
    }

    /// Whoever reads the log has stopped: there is room for no byte more.
    fn fill_log(&mut self) {
        let mut pipe = self.into_log.take().unwrap();
        rustix::io::ioctl_fionbio(&pipe, true).unwrap();
        while pipe.write(b"x").is_ok() {}
        // The switch has the same open file, and is to block.
        rustix::io::ioctl_fionbio(&pipe, false).unwrap();
    }

    /// All that is logged within `time`, line by line.
    fn lines(&mut self, time: Duration) -> Vec<String> {
        drop(self.into_log.take());
        let log = self.log.take().unwrap();
        let child = self.child.id();
        let reading = std::thread::spawn(move || BufReader::new(log).lines().map(Result::unwrap).collect());
        std::thread::sleep(time);
        // Its end ends the log.
        let child = rustix::process::Pid::from_raw(child as i32).unwrap();
        rustix::process::kill_process(child, rustix::process::Signal::KILL).unwrap();
        reading.join().unwrap()
    }
}

impl Drop for Switch {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn until(what: &str, mut is_so: impl FnMut() -> bool) {
    let start = Instant::now();
    while !is_so() {
        assert!(start.elapsed() < PATIENCE, "never: {what}");
        std::thread::sleep(Duration::from_millis(10));
    }
}

/// Epolls in one another, as deep as the kernel allows: one more takes none of them (ELOOP).
fn unpollable() -> Vec<OwnedFd> {
    let mut nested: Vec<OwnedFd> = Vec::new();
    loop {
        let outer = epoll::create(epoll::CreateFlags::CLOEXEC).unwrap();
        if let Some(inner) = nested.last()
            && epoll::add(&outer, inner, epoll::EventData::new_u64(0), epoll::EventFlags::IN).is_err()
        {
            return nested;
        }
        nested.push(outer);
    }
}

/// SET_VRING_KICK of virtqueue 1, with `kick` for its descriptor.
fn send_kick(stream: &UnixStream, kick: &OwnedFd) -> rustix::io::Result<()> {
    let message: Vec<u8> = [12u32, 1, 8, 1, 0].iter().flat_map(|word| word.to_ne_bytes()).collect();
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut ancillary = SendAncillaryBuffer::new(&mut space);
    let kicks = [kick.as_fd()];
    ancillary.push(SendAncillaryMessage::ScmRights(&kicks));
    sendmsg(stream, &[IoSlice::new(&message)], &mut ancillary, SendFlags::NOSIGNAL).map(drop)
}

/// A front end that gives the switch things to complain about, as fast as it can.
struct Liar {
    over: Arc<AtomicBool>,
    thread: Option<JoinHandle<u64>>,
}

impl Liar {
    fn start(switch: &Switch, lie: fn(&PathBuf, &AtomicBool) -> u64) -> Self {
        switch.add("liar", 9);
        let (path, over) = (switch.socket("liar"), Arc::new(AtomicBool::new(false)));
        let told = over.clone();
        Self { over, thread: Some(std::thread::spawn(move || lie(&path, &told))) }
    }

    /// How often it lied.
    fn stop(&mut self) -> u64 {
        self.over.store(true, Ordering::SeqCst);
        self.thread.take().unwrap().join().unwrap()
    }
}

/// Kicks that cannot be polled; one connection after the other where the switch will not have them.
fn bad_kicks(path: &PathBuf, over: &AtomicBool) -> u64 {
    let (nested, mut lies) = (unpollable(), 0);
    let kick = nested.last().unwrap();
    while !over.load(Ordering::SeqCst) {
        let Ok(front) = FrontEnd::connect(path, Options::default()) else { continue };
        while !over.load(Ordering::SeqCst) && send_kick(front.stream().unwrap(), kick).is_ok() {
            lies += 1;
        }
    }
    lies
}

/// Connections that say nonsense.
fn nonsense(path: &PathBuf, over: &AtomicBool) -> u64 {
    let mut lies = 0;
    while !over.load(Ordering::SeqCst) {
        let Ok(mut stream) = UnixStream::connect(path) else { continue };
        let _ = stream.write_all(b"GET / HTTP/1.1\r\nHost: switch\r\n\r\n");
        let _ = stream.read(&mut [0; 64]);
        lies += 1;
    }
    lies
}

/// Frames that reach `to` within `time`, of a sender that always has some.
fn carried(from: &mut FrontEnd, to: &mut FrontEnd, time: Duration) -> u64 {
    let frame =
        [&[0; 12][..], &[0x52, 0x54, 0, 0, 0, 2], &[0x52, 0x54, 0, 0, 0, 1], &[0x88, 0xb5], &[0; 986]];
    let (frame, mut bytes, mut count) = (frame.concat(), Vec::new(), 0);
    let start = Instant::now();
    while start.elapsed() < time {
        while from.push(0, &frame) {}
        from.flush(0);
        while to.receive_into(0, &mut bytes) {
            count += 1;
        }
        std::thread::sleep(Duration::from_micros(200));
    }
    count
}

#[test]
fn a_front_end_fills_no_log() {
    for (name, lie) in [("bad kicks", bad_kicks as fn(&PathBuf, &AtomicBool) -> u64), ("nonsense", nonsense)]
    {
        let mut switch = Switch::start();
        let mut liar = Liar::start(&switch, lie);
        let time = Duration::from_secs(13);
        let lines = switch.lines(time);
        let lies = liar.stop();
        println!("{name}: {lies} lies in {} s, {} lines", time.as_secs(), lines.len());
        assert!(lies > 500, "{name}: {lies} lies are no flood");
        assert!(
            lines.len() < 40,
            "{name}: {} lines of {lies} lies:\n{}",
            lines.len(),
            lines[..40].join("\n")
        );
        let told = lines.iter().any(|line| line.contains("more suppressed"));
        assert!(told, "{name}: nobody is told that lines are missing:\n{}", lines.join("\n"));
    }
}

#[test]
fn a_log_that_nobody_reads_stops_no_frame() {
    let mut switch = Switch::start();
    let (mut a, mut b) = (switch.guest("a", 1), switch.guest("b", 2));
    switch.fill_log();
    let alone = carried(&mut a, &mut b, Duration::from_secs(1));
    let mut liar = Liar::start(&switch, bad_kicks);
    std::thread::sleep(Duration::from_secs(2));
    let beside = carried(&mut a, &mut b, Duration::from_secs(1));
    // Whoever answers the agent does, too.
    let answers = switch.client().is_some_and(|mut client| client.ports().is_ok());
    println!("frames in a second: {alone} alone, {beside} while nobody reads the log");
    assert!(answers, "the switch does not answer while nobody reads its log");
    assert!(beside * 10 > alone, "{beside} frames while nobody reads the log, {alone} before");
    drop(switch);
    liar.stop();
}
