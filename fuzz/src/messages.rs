//! What a front end says on its socket: bytes, cut where it likes, with descriptors of several kinds.
//!
//! The device behind it works on its rings after every message, as a worker does.

use crate::bytes::Bytes;
use crate::send;
use rustix::event::{EventfdFlags, eventfd};
use rustix::fs::{MemfdFlags, ftruncate, memfd_create};
use std::collections::BTreeMap;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::sync::{Arc, LazyLock, Mutex, MutexGuard};
use std::time::Duration;
use tidegate_contract::Mac;
use tidegate_switch::vhost_user::kick::Kick;
use tidegate_switch::vhost_user::notifier::Call;
use tidegate_switch::vhost_user::session::handle_stream;
use tidegate_switch::vhost_user::status::ConnectionStatus;
use tidegate_switch::vhost_user::{PortControl, VringSetup};
use tidegate_switch::virtio::{Chain, DirtyLog, Features, GuestMemory, Queue, RingLayout};
use tidegate_switch::worker::moving::Outcome;

/// Bytes of the memory a front end may share.
const MEMORY: u64 = 0x1_0000;
/// VIRTIO_F_RING_PACKED.
const PACKED: u64 = 1 << 34;
/// VIRTIO_F_IN_ORDER.
const IN_ORDER: u64 = 1 << 35;
/// VIRTIO_F_EVENT_IDX.
const EVENT_IDX: u64 = 1 << 29;
/// VIRTIO_F_INDIRECT_DESC.
const INDIRECT: u64 = 1 << 28;

/// Descriptors that may be sent: memory twice, an eventfd, a pipe.
static FILES: LazyLock<[OwnedFd; 4]> = LazyLock::new(|| {
    let memory = || {
        let fd = memfd_create("fuzz", MemfdFlags::CLOEXEC).expect("a memfd");
        ftruncate(&fd, MEMORY).expect("its length");
        fd
    };
    let event = eventfd(0, EventfdFlags::CLOEXEC).expect("an eventfd");
    [memory(), memory(), event, std::io::pipe().expect("a pipe").1.into()]
});

/// What is told to a port, obeyed on the spot.
#[derive(Default)]
struct Device {
    features: u64,
    memory: Option<Arc<GuestMemory>>,
    queues: BTreeMap<u16, Queue>,
    log: Option<DirtyLog>,
    /// Where used rings are in the log.
    used_logs: BTreeMap<u16, u64>,
}

impl Device {
    /// Takes up to four available chains of each ring, and gives each back.
    fn work(&mut self) {
        let mut chain = Chain::new();
        let (log, used_logs) = (self.log.as_ref(), &self.used_logs);
        self.queues.retain(|index, queue| {
            for _ in 0..4 {
                let popped = queue.available().and_then(|_| match index % 2 {
                    0 => queue.pop_writable(&mut chain),
                    _ => queue.pop_readable(&mut chain),
                });
                match popped {
                    Ok(true) => {
                        log.inspect(|log| log.mark_chain(&chain, u32::MAX));
                        queue.complete(chain.head(), 0);
                    }
                    Ok(false) => break,
                    Err(error) if error.is_fatal() => return false,
                    Err(_) => queue.complete(chain.head(), 0),
                }
            }
            let _ = queue.publish();
            if let (Some(log), Some(at)) = (log, used_logs.get(index)) {
                log.mark_guest(*at, 6 + 8 * u64::from(queue.size()));
            }
            true
        });
    }
}

/// The port's and the fuzzer's.
#[derive(Clone, Default)]
struct Shared(Arc<Mutex<Device>>);

impl Shared {
    fn lock(&self) -> MutexGuard<'_, Device> {
        self.0.lock().expect("no holder of the lock panicked")
    }
}

impl PortControl for Shared {
    fn set_features(&mut self, features: u64) {
        self.lock().features = features;
    }

    fn set_memory(&mut self, memory: Arc<GuestMemory>) -> Result<(), String> {
        let mut device = self.lock();
        for queue in device.queues.values_mut() {
            queue.remap(memory.clone()).map_err(|error| error.to_string())?;
        }
        if let Some(log) = &device.log {
            device.log = Some(log.with_memory(memory.clone()).map_err(|error| error.to_string())?);
        }
        device.memory = Some(memory);
        Ok(())
    }

    fn set_log(&mut self, log: Option<DirtyLog>) {
        self.lock().log = log;
    }

    fn set_used_log(&mut self, index: u16, log: Option<u64>) {
        let mut device = self.lock();
        match log {
            Some(at) => device.used_logs.insert(index, at),
            None => device.used_logs.remove(&index),
        };
    }

    fn listen_at(&mut self, _: usize, kick: &Kick) -> Result<(), String> {
        self.listen(kick)
    }

    fn move_to(&mut self, _: usize, _: Vec<(u16, Kick)>) -> Outcome {
        Err("there is one worker".into())
    }

    fn announce(&mut self, mac: Mac) -> bool {
        !mac.is_group()
    }

    fn start_queue(&mut self, index: u16, setup: VringSetup) -> Result<(), String> {
        assert!(setup.size > 0 && setup.size <= 32768, "{setup:?}");
        let layout = RingLayout { size: setup.size, desc: setup.desc, avail: setup.avail, used: setup.used };
        let mut device = self.lock();
        let has = |feature| device.features & feature != 0;
        let features = Features {
            packed: has(PACKED),
            event_idx: has(EVENT_IDX),
            indirect: has(INDIRECT),
            in_order: has(IN_ORDER),
        };
        let memory = device.memory.clone().expect("memory comes first");
        let queue = Queue::new(memory, layout, setup.base, features).map_err(|error| error.to_string())?;
        device.used_logs.extend(setup.log.map(|at| (index, at)));
        assert!(device.queues.insert(index, queue).is_none(), "queue {index} runs already");
        Ok(())
    }

    fn stop_queue(&mut self, index: u16) -> Option<u32> {
        self.lock().queues.remove(&index).map(|queue| queue.base())
    }

    fn enable_queue(&mut self, _index: u16, _enabled: bool) {}

    fn set_call(&mut self, _index: u16, _call: Option<Call>) {}

    fn listen(&mut self, _kick: &Kick) -> Result<(), String> {
        Ok(())
    }

    fn forget(&mut self, _kick: &Kick) {}

    fn set_kick(&mut self, _index: u16, _kick: Option<Kick>) {}

    fn disconnect(&mut self, _reason: &str) {
        let mut device = self.lock();
        device.queues.clear();
        device.used_logs.clear();
        (device.memory, device.log) = (None, None);
    }
}

/// Sends `data` in pieces: each begins with its length and which descriptors come with it.
///
/// # Panics
/// Where the switch would.
pub fn run(data: &[u8]) {
    for memory in &FILES[..2] {
        // As a guest leaves it that has been there.
        let mut bytes = [0; MEMORY as usize];
        bytes[MEMORY as usize - 1] = 1;
        rustix::io::pwrite(memory, &bytes, 0).expect("a memfd takes it");
    }
    let Ok((front, back)) = UnixStream::pair() else { return };
    let mut bytes = Bytes::new(data);
    let pairs = 1 + u16::from(bytes.u8() & 1);
    let device = Shared::default();
    let status = ConnectionStatus::default();
    let mut pieces = Vec::new();
    while !bytes.is_empty() && pieces.len() < 64 {
        let (len, fds) = (bytes.u8(), bytes.u8());
        pieces.push((bytes.take(len.into()), fds));
    }
    let mut pieces = pieces.into_iter();
    handle_stream(&back, &mut device.clone(), &status, pairs, || {
        device.lock().work();
        pieces.next().is_some_and(|(piece, fds)| send(&front, piece, &chosen(fds)))
    });
    let device = device.lock();
    assert!(device.queues.is_empty() && device.memory.is_none(), "it was told of the end");
    while is_called() {
        std::thread::sleep(Duration::from_micros(100));
    }
}

/// Whether a thread that calls drivers is still there. The port does not wait for its end, but what it has
/// not freed yet would be taken for a leak.
fn is_called() -> bool {
    let tasks = std::fs::read_dir("/proc/self/task").expect("the threads of this process");
    // A thread may end meanwhile.
    tasks.flatten().any(|task| {
        std::fs::read_to_string(task.path().join("comm")).is_ok_and(|name| name.starts_with("call "))
    })
}

/// Two bits of `fds` say how many, the others which.
fn chosen(fds: u8) -> Vec<BorrowedFd<'static>> {
    (0..usize::from(fds & 3)).map(|i| FILES[usize::from(fds >> (2 + 2 * i) & 3)].as_fd()).collect()
}
