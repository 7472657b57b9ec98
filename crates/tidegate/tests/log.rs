//! What front ends and API users can do to the logs of switch and agent, and what an unread log does to
//! both.
//!
//! ```text
//!  liar ── kicks that no worker can listen to, nonsense, over and over ──▶ tidegate switch ── stderr ──▶ read, or not
//!  a ──────────────────────── frames ──────────────────────────────────────────▶ b
//!  tidegate apply, rm, over and over ──▶ tidegate agent ── stderr ──▶ read, or not
//! ```

#![allow(clippy::disallowed_macros, clippy::disallowed_methods, reason = "these are the program's own rules")]

use rustix::event::epoll;
use rustix::net::SendFlags;
use std::ffi::OsStr;
use std::io::{BufRead, BufReader, PipeReader, PipeWriter, Read, Write};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};
use tidegate_contract::Vnic;
use tidegate_evidence::Connection;
use tidegate_frontend::front_end::{FrontEnd, Options};
use tidegate_service::scm;
use tidegate_switch::control::{Attachment, Client};

const PROGRAM: &str = env!("CARGO_BIN_EXE_tidegate");

const PATIENCE: Duration = Duration::from_secs(20);

/// Lies by which a log without limits would be seen.
const FLOOD: u64 = 500;
/// After that a line has counted those that were suppressed.
const SUMMARY: Duration = Duration::from_secs(13);

/// A process whose standard error is the smallest pipe.
struct Process {
    child: Child,
    log: Option<PipeReader>,
    /// The pipe's other end, shared with the process.
    into_log: Option<PipeWriter>,
}

impl Process {
    fn start(arguments: &[&OsStr]) -> Self {
        let (log, into_log) = std::io::pipe().unwrap();
        rustix::pipe::fcntl_setpipe_size(&log, 4096).unwrap();
        let child = Command::new(PROGRAM)
            .env_remove("RUST_LOG")
            .arg("-v")
            .args(arguments)
            .stderr(into_log.try_clone().unwrap())
            .spawn()
            .unwrap();
        Self { child, log: Some(log), into_log: Some(into_log) }
    }

    /// As if the log's reader had stopped.
    fn fill_log(&mut self) {
        let mut pipe = self.into_log.take().unwrap();
        rustix::io::ioctl_fionbio(&pipe, true).unwrap();
        while pipe.write(b"x").is_ok() {}
        // The process shares the open file, and must block.
        rustix::io::ioctl_fionbio(&pipe, false).unwrap();
    }

    /// Reads the log until the process ends.
    fn read_log(&mut self) -> JoinHandle<Vec<String>> {
        drop(self.into_log.take());
        let log = self.log.take().unwrap();
        std::thread::spawn(move || BufReader::new(log).lines().map(Result::unwrap).collect())
    }

    fn kill(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        self.kill();
    }
}

struct Switch {
    process: Process,
    dir: tempfile::TempDir,
}

impl Switch {
    fn start() -> Self {
        let dir = tempfile::tempdir().unwrap();
        let socket = dir.path().join("switch.sock");
        let process = Process::start(&[
            "switch".as_ref(),
            "--no-confinement".as_ref(),
            "--socket".as_ref(),
            socket.as_os_str(),
        ]);
        let switch = Self { process, dir };
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
        let vnic = tidegate_contract::parse(&contract(&self.socket(name), name, mac), "test")
            .unwrap()
            .vnics
            .remove(0);
        let listener = UnixListener::bind(self.socket(name)).unwrap();
        self.client().unwrap().set_port(&vnic.value, Attachment::Listener(listener.as_fd())).unwrap();
        vnic.value
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
}

fn contract(socket: &Path, name: &str, mac: u8) -> String {
    format!(
        "[vnic.{name}]\nattach = {{ vhost-user = \"{}\" }}\nmac = \"52:54:00:00:00:{mac:02x}\"\nsegment = 7\n",
        socket.display()
    )
}

struct Agent {
    process: Process,
    switch: Switch,
}

impl Agent {
    fn start() -> Self {
        // A network namespace allows one agent.
        let _ = tidegate_testkit::own_network();
        let switch = Switch::start();
        let path = |name: &str| switch.socket(name).into_os_string();
        let [etc, state, control, api] = ["etc", "state", "switch.sock", "api.sock"].map(path);
        let options = ["agent", "--config", "--state", "--switch", "--api", "--socket-root"].map(OsStr::new);
        let [agent, config, in_state, to_switch, at_api, below] = options;
        let root = switch.dir.path().as_os_str();
        let arguments: [&OsStr; 11] =
            [agent, config, &etc, in_state, &state, to_switch, &control, at_api, &api, below, root];
        let agent = Self { process: Process::start(&arguments), switch };
        until("the agent answers", || agent.tidegate(&["vnic", "ls"], "").status.success());
        agent
    }

    fn tidegate(&self, arguments: &[&str], input: &str) -> Output {
        let mut child = Command::new(PROGRAM)
            .env("TIDEGATE_API", self.switch.socket("api.sock"))
            .args(arguments)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        child.stdin.take().unwrap().write_all(input.as_bytes()).unwrap();
        child.wait_with_output().unwrap()
    }
}

fn until(what: &str, mut is_so: impl FnMut() -> bool) {
    let start = Instant::now();
    while !is_so() {
        assert!(start.elapsed() < PATIENCE, "never: {what}");
        std::thread::sleep(Duration::from_millis(10));
    }
}

/// Returns epolls nested as deep as the kernel allows: one more fails (ELOOP).
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

/// Sends SET_VRING_KICK of virtqueue 1.
fn send_kick(stream: &UnixStream, kick: &OwnedFd) -> std::io::Result<()> {
    let message: Vec<u8> = [12u32, 1, 8, 1, 0].iter().flat_map(|word| word.to_ne_bytes()).collect();
    scm::send(stream, &message, &[kick.as_fd()], SendFlags::empty()).map(drop)
}

/// How often a front end lied, and whether it is to stop.
#[derive(Default)]
struct Lies {
    told: AtomicU64,
    stop: AtomicBool,
}

impl Lies {
    fn go_on(&self) -> bool {
        !self.stop.load(Ordering::SeqCst)
    }

    fn count(&self) {
        self.told.fetch_add(1, Ordering::SeqCst);
    }
}

/// A front end that makes the switch complain.
struct Liar {
    lies: Arc<Lies>,
    thread: Option<JoinHandle<()>>,
}

impl Liar {
    fn start(switch: &Switch, lie: fn(&PathBuf, &Lies)) -> Self {
        switch.add("liar", 9);
        let (path, lies) = (switch.socket("liar"), Arc::new(Lies::default()));
        let of_thread = lies.clone();
        Self { lies, thread: Some(std::thread::spawn(move || lie(&path, &of_thread))) }
    }

    /// Returns how often it lied until now.
    fn lies(&self) -> u64 {
        self.lies.told.load(Ordering::SeqCst)
    }

    /// Returns how often it lied.
    fn stop(&mut self) -> u64 {
        self.lies.stop.store(true, Ordering::SeqCst);
        self.thread.take().unwrap().join().unwrap();
        self.lies()
    }
}

/// Sends kicks that cannot be polled, and reconnects after refusals.
fn bad_kicks(path: &PathBuf, lies: &Lies) {
    let nested = unpollable();
    let kick = nested.last().unwrap();
    while lies.go_on() {
        let Ok(front) = FrontEnd::connect(path, Options::default()) else { continue };
        while lies.go_on() && send_kick(front.stream().unwrap(), kick).is_ok() {
            lies.count();
        }
    }
}

fn nonsense(path: &PathBuf, lies: &Lies) {
    while lies.go_on() {
        let Ok(mut stream) = UnixStream::connect(path) else { continue };
        let _ = stream.write_all(b"GET / HTTP/1.1\r\nHost: switch\r\n\r\n");
        let _ = stream.read(&mut [0; 64]);
        lies.count();
    }
}

/// Counts the frames that reach `to` within `time`, from a greedy sender.
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
    for (name, lie) in [("bad kicks", bad_kicks as fn(&PathBuf, &Lies)), ("nonsense", nonsense)] {
        let mut switch = Switch::start();
        let mut liar = Liar::start(&switch, lie);
        let (lines, start) = (switch.process.read_log(), Instant::now());
        // Suppressed lines are counted each ten seconds; a busy machine takes longer for a flood.
        while start.elapsed() < SUMMARY || liar.lies() <= FLOOD {
            assert!(start.elapsed() < 10 * PATIENCE, "{name}: {} lies are no flood", liar.lies());
            std::thread::sleep(Duration::from_millis(100));
        }
        let seconds = start.elapsed().as_secs() as usize;
        switch.process.kill();
        let (lines, lies) = (lines.join().unwrap(), liar.stop());
        println!("{name}: {lies} lies in {seconds} s, {} lines", lines.len());
        let most = (3 * seconds).min(lies as usize / 4);
        assert!(
            lines.len() <= most,
            "{name}: {} lines of {lies} lies in {seconds} s:\n{}",
            lines.len(),
            lines[..most].join("\n")
        );
        let has_summary = lines.iter().any(|line| line.contains("more suppressed"));
        assert!(has_summary, "{name}: nobody is told that lines are missing:\n{}", lines.join("\n"));
    }
}

#[test]
fn an_unread_log_stops_no_frame() {
    let mut switch = Switch::start();
    let (mut a, mut b) = (switch.guest("a", 1), switch.guest("b", 2));
    switch.process.fill_log();
    let alone = carried(&mut a, &mut b, Duration::from_secs(1));
    let mut liar = Liar::start(&switch, bad_kicks);
    std::thread::sleep(Duration::from_secs(2));
    let beside = carried(&mut a, &mut b, Duration::from_secs(1));
    let answers = switch.client().is_some_and(|mut client| client.ports().is_ok());
    println!("frames in a second: {alone} alone, {beside} while nobody reads the log");
    assert!(answers, "the switch does not answer while nobody reads its log");
    assert!(beside * 10 > alone, "{beside} frames while nobody reads the log, {alone} before");
    drop(switch);
    liar.stop();
}

#[test]
fn a_user_of_the_api_fills_no_log() {
    let mut agent = Agent::start();
    let (of_agent, of_switch) = (agent.process.read_log(), agent.switch.process.read_log());
    let (rounds, began) = (400, Instant::now());
    for round in 0..rounds {
        let name = format!("v{round}");
        let text = contract(&agent.switch.socket(&name), &name, 1);
        let applied = agent.tidegate(&["apply", "-f", "-"], &text);
        assert!(applied.status.success(), "{applied:?}");
        let refused = agent.tidegate(&["apply", "-f", "-"], "[vnic.v]\n");
        assert!(!refused.status.success(), "{refused:?}");
        assert!(agent.tidegate(&["vnic", "rm", &name], "").status.success());
    }
    agent.process.kill();
    agent.switch.process.kill();
    for (process, lines) in [("agent", of_agent), ("switch", of_switch)] {
        let lines = lines.join().unwrap();
        // Four kinds of lines, and their summaries: each 100 at once, then one a second.
        let most = 4 * (100 + began.elapsed().as_secs() as usize);
        println!("{process}: {} lines of {rounds} rounds, at most {most}", lines.len());
        assert!(lines.len() < most, "{process}: {} lines, the last {:?}", lines.len(), lines.last());
    }
}

#[test]
fn an_unread_log_stops_no_query() {
    let mut agent = Agent::start();
    agent.process.fill_log();
    let began = Instant::now();
    for round in 0..3 {
        let name = format!("v{round}");
        let text = contract(&agent.switch.socket(&name), &name, round);
        for (arguments, input) in [
            (&["plan", "-f", "-"][..], text.as_str()),
            (&["apply", "-f", "-"], &text),
            (&["vnic", "ls"], ""),
            (&["vnic", "show", &name], ""),
            (&["why", &name], ""),
            (&["vnic", "rm", &name], ""),
        ] {
            let done = agent.tidegate(arguments, input);
            assert!(done.status.success(), "{arguments:?} after {:?}: {done:?}", began.elapsed());
        }
    }
    println!("18 commands in {:?}", began.elapsed());
}
