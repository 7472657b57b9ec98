//! Real sockets between a synthetic front end and a port's thread.

mod device;
mod heir;
mod hostile;
mod listener;
mod memory;
mod protocol;
mod refused;

use super::config::PortConfig;
use super::listener::{PortThread, SocketEnd};
use super::status::{ConnectionStatus, Snapshot, State};
use device::Device;
use rustix::event::{EventfdFlags, eventfd};
use rustix::net::SendFlags;
use std::io::{Read, Write};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard, mpsc};
use std::time::Duration;
use tempfile::TempDir;
use tidegate_frontend::front_end::{FrontEnd, Options, PROTOCOL_FEATURES, VERSION_1};
use tidegate_frontend::memory::SharedMemory;
use tidegate_service::scm;
use vhost::VhostUserMemoryRegionInfo;
use vhost::vhost_user::message::FrontendReq;

/// Only a test that fails waits this long.
const PATIENCE: Duration = Duration::from_secs(20);

/// A port over a device that records its calls.
struct Port {
    thread: PortThread,
    status: Arc<ConnectionStatus>,
    device: Arc<Mutex<Device>>,
    path: PathBuf,
    _dir: TempDir,
}

impl Port {
    fn server(queue_pairs: u16) -> Self {
        Self::server_with(PortConfig { message_timeout: PATIENCE, ..PortConfig::new("test", queue_pairs) })
    }

    fn server_with(config: PortConfig) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("port.sock");
        let listener = UnixListener::bind(&path).unwrap();
        Self::spawn(dir, path, config, SocketEnd::Listener(listener.into()))
    }

    /// Returns a port in client mode, and the front end's end of its first stream.
    fn client() -> (Self, UnixStream) {
        let (theirs, ours) = UnixStream::pair().unwrap();
        let dir = tempfile::tempdir().unwrap();
        let config = PortConfig::new("test", 1);
        let port = Self::spawn(dir, PathBuf::new(), config, SocketEnd::Stream(ours.into()));
        (port, theirs)
    }

    fn spawn(dir: TempDir, path: PathBuf, config: PortConfig, end: SocketEnd) -> Self {
        let status = Arc::new(ConnectionStatus::default());
        let device = Arc::new(Mutex::new(Device::default()));
        let control = Box::new(device.clone());
        let thread = PortThread::spawn(config, end, control, status.clone()).unwrap();
        Self { thread, status, device, path, _dir: dir }
    }

    fn connect(&self, options: Options) -> FrontEnd {
        FrontEnd::connect(&self.path, options).unwrap()
    }

    fn dial(&self) -> UnixStream {
        let stream = UnixStream::connect(&self.path).unwrap();
        // A missing answer fails a test; it does not hang all of them.
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        stream
    }

    fn device(&self) -> MutexGuard<'_, Device> {
        self.device.lock().unwrap()
    }

    /// Returns the device's calls since the last look.
    fn events(&self) -> Vec<String> {
        std::mem::take(&mut self.device().events)
    }

    fn wait(&self, wanted: impl Fn(&Snapshot) -> bool) -> Snapshot {
        self.status.wait(PATIENCE, wanted).unwrap_or_else(|| {
            panic!("not reached; now {:?}", self.status.snapshot());
        })
    }

    /// Waits until the `n`th front end is gone.
    fn wait_gone(&self, n: u64) -> Snapshot {
        self.wait(|now| now.connects == n && now.state == State::Waiting)
    }
}

/// Waits for its sender to go when dropped.
struct Slow(mpsc::Receiver<()>);

impl Drop for Slow {
    fn drop(&mut self) {
        let _ = self.0.recv();
    }
}

/// Returns how often the thread of this name was switched.
fn switches(thread: &str) -> u64 {
    let tasks = std::fs::read_dir("/proc/self/task").unwrap();
    let task = tasks
        .map(|task| task.unwrap().path())
        // Threads of other tests end meanwhile.
        .find(|task| std::fs::read_to_string(task.join("comm")).is_ok_and(|name| name.trim_end() == thread))
        .unwrap();
    let status = std::fs::read_to_string(task.join("status")).unwrap();
    let lines = status.lines().filter(|line| line.contains("ctxt_switches"));
    lines.map(|line| line.split_whitespace().last().unwrap().parse::<u64>().unwrap()).sum()
}

fn two_pairs() -> Options {
    Options { queue_pairs: 2, queue_size: 64, ..Options::default() }
}

fn one_pair() -> Options {
    Options { queue_size: 64, ..Options::default() }
}

/// A message as it is on the socket. Flags: 1 is the version, 8 asks for an acknowledgement.
fn message(code: FrontendReq, flags: u32, payload: &[u8]) -> Vec<u8> {
    let mut bytes = words(&[code.into(), flags, payload.len() as u32]);
    bytes.extend(payload);
    bytes
}

fn words(words: &[u32]) -> Vec<u8> {
    words.iter().flat_map(|word| word.to_ne_bytes()).collect()
}

/// The payload of a reply of 8 bytes.
fn reply(stream: &mut impl Read) -> [u8; 8] {
    let mut bytes = [0; 20];
    stream.read_exact(&mut bytes).unwrap();
    assert_eq!(bytes[4..12], words(&[5, 8]));
    bytes[12..].try_into().unwrap()
}

fn send_fds(stream: &UnixStream, bytes: &[u8], fds: &[BorrowedFd<'_>]) {
    scm::send(stream, bytes, fds, SendFlags::empty()).unwrap();
}

/// SET_MEM_TABLE of one region, into which the guest has written.
fn send_memory(stream: &UnixStream, memory: &SharedMemory) {
    memory.write(memory.guest_addr() + memory.size() - 1, &[1]);
    let numbers = [memory.guest_addr(), memory.size(), memory.user_addr(), 0];
    let mut payload = words(&[1, 0]);
    payload.extend(numbers.iter().flat_map(|number| number.to_ne_bytes()));
    let bytes = message(FrontendReq::SET_MEM_TABLE, 9, &payload);
    send_fds(stream, &bytes, &[memory.fd()]);
}

/// SET_VRING_ADDR of a ring of 4 entries at guest address `at`.
fn ring_addresses(index: u32, memory: &SharedMemory, at: u64) -> Vec<u8> {
    let mut payload = words(&[index, 0]);
    let at = memory.to_user(memory.guest_addr() + at);
    for address in [at, at + 0x200, at + 0x100, 0] {
        payload.extend(address.to_ne_bytes());
    }
    message(FrontendReq::SET_VRING_ADDR, 9, &payload)
}

/// Sets up memory and `count` queues of 4 entries, all acknowledged.
fn set_up_rings(stream: &mut UnixStream, memory: &SharedMemory, count: u32) {
    send_memory(stream, memory);
    assert_eq!(reply(stream), [0; 8]);
    for index in 0..count {
        let num = message(FrontendReq::SET_VRING_NUM, 9, &words(&[index, 4]));
        let addresses = ring_addresses(index, memory, u64::from(index) * 0x1000);
        for bytes in [num, addresses] {
            stream.write_all(&bytes).unwrap();
            assert_eq!(reply(stream), [0; 8]);
        }
        let kick = eventfd(0, EventfdFlags::empty()).unwrap();
        let bytes = message(FrontendReq::SET_VRING_KICK, 9, &words(&[index, 0]));
        send_fds(stream, &bytes, &[kick.as_fd()]);
        assert_eq!(reply(stream), [0; 8]);
    }
}

fn region(memory: &SharedMemory) -> VhostUserMemoryRegionInfo {
    VhostUserMemoryRegionInfo {
        guest_phys_addr: memory.guest_addr(),
        memory_size: memory.size(),
        userspace_addr: memory.user_addr(),
        mmap_offset: 0,
        mmap_handle: memory.fd().as_raw_fd(),
    }
}

fn frame(header: usize, tag: u8, len: usize) -> Vec<u8> {
    let mut frame = vec![0; header];
    frame.extend((0..len).map(|i| tag ^ i as u8));
    frame
}

/// Sends `count` frames on each pair, and expects them back.
fn exchange(port: &Port, guest: &mut FrontEnd, pairs: usize, count: u8) {
    let header = guest.header_len();
    for pair in 0..pairs {
        let frames: Vec<_> = (0..count).map(|tag| frame(header, tag, 100)).collect();
        let sent = guest.send_batch(pair, frames.iter().map(Vec::as_slice));
        assert_eq!(sent, frames.len());
        assert_eq!(port.device().reflect(), frames.len());
        for sent in &frames {
            let got = guest.receive(pair).expect("a frame came back");
            assert_eq!(got[header..], sent[header..]);
        }
        assert_eq!(guest.receive(pair), None);
        assert_eq!(guest.in_flight(pair), 0);
    }
}

/// Checks that the port serves the next front end.
fn assert_serves(port: &Port) {
    let before = port.status.snapshot().connects;
    let guest = port.connect(one_pair());
    assert_eq!(port.wait(|now| now.state == State::Ready).queue_pairs, 1);
    drop(guest);
    port.wait_gone(before + 1);
}

/// Waits until the `n`th front end was disconnected; returns the reason.
fn thrown_out(port: &Port, n: u64) -> String {
    let now = port.wait(|now| now.protocol_errors == n && now.state == State::Waiting);
    let reason = now.last_error.unwrap();
    let last = port.events().pop().unwrap();
    assert_eq!(last, format!("disconnect: {reason}"));
    reason
}

/// Negotiates all features.
fn prepare(raw: &mut UnixStream) {
    for bytes in
        [message(FrontendReq::GET_FEATURES, 1, &[]), message(FrontendReq::GET_PROTOCOL_FEATURES, 1, &[])]
    {
        raw.write_all(&bytes).unwrap();
        reply(raw);
    }
    let protocol = 1u64 | 1 << 3 | 1 << 12 | 1 << 15;
    let features = VERSION_1 | PROTOCOL_FEATURES;
    for (code, value) in
        [(FrontendReq::SET_PROTOCOL_FEATURES, protocol), (FrontendReq::SET_FEATURES, features)]
    {
        raw.write_all(&message(code, 9, &value.to_ne_bytes())).unwrap();
        assert_eq!(reply(raw), [0; 8]);
    }
}
