//! What a real device, its kernel or this crate refuses, with which words, and that all goes on afterwards.

use rustix::fs::{MemfdFlags, ftruncate, memfd_create};
use rustix::mm::{MapFlags, ProtFlags, mmap};
use rustix::process::{Resource, Rlimit, setrlimit};
use std::net::IpAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};
use tidegate_verbs::conformance::{End, check_all as conform};
use tidegate_verbs::{
    Access, Address, Completion, CompletionQueue, Depths, Device, Error, GRH, LARGEST_Q_KEY, Library, Piece,
    QueuePair, Receive, Region, Send, Status,
};

const KEY: u32 = 7;
const DEPTHS: Depths = Depths { send: 8, receive: 8, pieces: 2 };

struct Parts {
    region: Arc<Region>,
    sends: Arc<CompletionQueue>,
    receives: Arc<CompletionQueue>,
    pair: QueuePair,
}

impl Parts {
    fn new(device: &Arc<Device>) -> Self {
        let queue = || CompletionQueue::new(device, 256).unwrap();
        let (region, sends, receives) = (Region::new(device, 8192).unwrap(), queue(), queue());
        let pair = QueuePair::new(device, &sends, &receives, DEPTHS, KEY).unwrap();
        Self { region, sends, receives, pair }
    }

    fn piece(&self, from: usize, len: u32) -> [Piece<'_>; 1] {
        [Piece { region: &self.region, from, len }]
    }

    /// Returns its first bytes, for a send.
    fn sent(&self) -> [Piece<'_>; 1] {
        self.piece(0, 64)
    }

    /// Returns its last bytes, for a receive.
    fn received(&self) -> [Piece<'_>; 1] {
        self.piece(4096, 4096)
    }

    fn send<'a>(&self, to: &'a Address, pieces: &'a [Piece<'a>]) -> Send<'a> {
        Send { id: 1, pieces, is_signalled: true, to, queue_pair: self.pair.number(), q_key: KEY }
    }
}

fn receive<'a>(pieces: &'a [Piece<'a>]) -> Receive<'a> {
    Receive { id: 2, pieces }
}

/// A kind of refusals.
type Refusal = fn(&Arc<Library>, &End, &End);

/// All kinds, each with its name. The last one gives the process a small limit on its locked memory.
const REFUSALS: [(&str, Refusal); 10] = [
    ("unknown devices", |library, a, _| unknown_devices(library, a)),
    ("sizes that no device has", |_, a, _| sizes(&a.device)),
    ("bytes beyond a region", |_, a, b| bytes_beyond_a_region(a, b)),
    ("parts of another opening", parts_of_another_opening),
    ("privileged Q_Keys", |_, a, b| keys(a, b)),
    ("more than a queue holds", |_, a, _| full_queues(a)),
    ("addresses that are not there", |_, a, _| addresses(a)),
    ("datagrams longer than a buffer, or than the MTU", |_, a, b| short_buffers(a, b)),
    ("memory of others that is not there, or may not be written", |_, a, b| memory_of_others(a, b)),
    ("more locked memory than the limit", |_, a, _| locked_memory(&a.device)),
];

/// Runs all checks, prints the name of each, and then has the device conform.
///
/// # Panics
/// Something is not refused, or not with the right words.
pub fn check_all(library: &Arc<Library>, a: &End, b: &End) {
    for (name, check) in REFUSALS {
        println!("refused: {name}");
        check(library, a, b);
    }
    conform(a, b);
}

fn unknown_devices(library: &Arc<Library>, a: &End) {
    for name in ["", "nonesuch0", "../uverbs0", "rxe0\0"] {
        let error = library.open(name).unwrap_err();
        assert!(
            matches!(error, Error::NoDevice { .. }) && error.to_string().contains(a.device.name()),
            "{error}"
        );
    }
}

fn sizes(device: &Arc<Device>) {
    for entries in [0, u32::MAX, i32::MAX as u32] {
        let error = CompletionQueue::new(device, entries).unwrap_err().to_string();
        assert!(error.starts_with("ibv_create_cq: "), "{entries}: {error}");
    }
    let queue = CompletionQueue::new(device, 16).unwrap();
    for depths in [Depths { send: u32::MAX, ..DEPTHS }, Depths { receive: u32::MAX, ..DEPTHS }] {
        let error = QueuePair::new(device, &queue, &queue, depths, KEY).unwrap_err().to_string();
        assert!(error.starts_with("ibv_create_qp: "), "{depths:?}: {error}");
    }
    for bytes in [0, usize::MAX] {
        let error = Region::new(device, bytes).unwrap_err().to_string();
        assert!(error.starts_with("mmap: "), "{bytes}: {error}");
    }
}

/// Asserts that requests were refused as invalid, after so many.
fn refused(posted: Result<(), (usize, Error)>, after: usize) {
    let (taken, error) = posted.unwrap_err();
    let is_invalid =
        matches!(&error, Error::Call { error, .. } if error.raw_os_error() == Some(libc::EINVAL));
    assert!(taken == after && is_invalid, "{taken}: {error}");
}

fn bytes_beyond_a_region(a: &End, b: &End) {
    let parts = Parts::new(&a.device);
    let to = Address::new(&a.device, a.gid, b.address, 0).unwrap();
    for (from, len) in [(8192, 1), (8191, 2), (usize::MAX, 1), (usize::MAX - 3, u32::MAX), (0, 8193)] {
        let wrong = parts.piece(from, len);
        let second = [parts.sent()[0], wrong[0]];
        // SAFETY: none is taken.
        unsafe {
            for pieces in [&wrong[..], &second[..]] {
                refused(parts.pair.post_send(&[parts.send(&to, pieces)]), 0);
                refused(parts.pair.post_receive(&[receive(pieces)]), 0);
            }
        }
    }
    let (right, wrong) = (parts.received(), parts.piece(8192, 4096));
    // SAFETY: the first one's bytes are never read.
    unsafe { refused(parts.pair.post_receive(&[receive(&right), receive(&wrong), receive(&right)]), 1) };
}

/// A device that was opened twice has nothing in common with itself: its objects are told apart, too.
fn parts_of_another_opening(library: &Arc<Library>, a: &End, b: &End) {
    let other = library.open(a.device.name()).unwrap();
    let (ours, theirs) = (Parts::new(&a.device), Parts::new(&other));
    let to = Address::new(&a.device, a.gid, b.address, 0).unwrap();
    let to_of_theirs = Address::new(&other, a.gid, b.address, 0).unwrap();
    let mixed = [ours.sent()[0], theirs.sent()[0]];
    // SAFETY: none is taken.
    unsafe {
        refused(ours.pair.post_send(&[ours.send(&to_of_theirs, &ours.sent())]), 0);
        for pieces in [&mixed[1..], &mixed[..]] {
            refused(ours.pair.post_send(&[ours.send(&to, pieces)]), 0);
            refused(ours.pair.post_receive(&[receive(pieces)]), 0);
        }
    }
    let error = QueuePair::new(&a.device, &theirs.sends, &ours.receives, DEPTHS, KEY).unwrap_err();
    assert!(error.to_string().contains("another device"), "{error}");
}

fn keys(a: &End, b: &End) {
    let parts = Parts::new(&a.device);
    let to = Address::new(&a.device, a.gid, b.address, 0).unwrap();
    let pieces = parts.sent();
    let send = Send { q_key: LARGEST_Q_KEY + 1, ..parts.send(&to, &pieces) };
    // SAFETY: none is taken.
    let (taken, error) = unsafe { parts.pair.post_send(&[send]) }.unwrap_err();
    assert!(taken == 0 && matches!(error, Error::QKey(0x8000_0000)), "{error}");
    let words = error.to_string();
    assert!(
        words.contains("0x80000000") && words.contains("EPERM") && words.contains("0x7fffffff"),
        "{words}"
    );
}

fn full_queues(a: &End) {
    let parts = Parts::new(&a.device);
    let pieces = parts.received();
    let many = vec![receive(&pieces); 1000];
    // SAFETY: the bytes are never read.
    let (taken, error) = unsafe { parts.pair.post_receive(&many) }.unwrap_err();
    // A device may have more room than asked for.
    assert!((DEPTHS.receive as usize..many.len()).contains(&taken), "{taken}: {error}");
    assert!(error.to_string().starts_with("ibv_post_recv: "), "{error}");
    // What was taken is flushed, and no more.
    parts.pair.fail().unwrap();
    let done = completions(&parts.receives, taken);
    assert!(done.iter().all(|done| (done.id, done.status) == (2, Status::Flushed)));
    assert_eq!(parts.receives.poll(&mut [Completion::default()]).unwrap(), 0);
}

fn addresses(a: &End) {
    let nowhere: IpAddr =
        if a.address.is_ipv4() { [192, 0, 2, 1].into() } else { [0x2001, 0xdb8, 0, 0, 0, 0, 0, 1].into() };
    for (from, to) in [(200, a.address), (a.gid, nowhere)] {
        let error = Address::new(&a.device, from, to, 0).unwrap_err().to_string();
        assert!(error.starts_with("ibv_create_ah: "), "{error}");
    }
}

/// A datagram longer than its buffer costs the receiver its queue pair; one longer than the MTU never leaves.
fn short_buffers(a: &End, b: &End) {
    let (from, to, next) = (Parts::new(&a.device), Parts::new(&b.device), Parts::new(&b.device));
    let address = Address::new(&a.device, a.gid, b.address, 0).unwrap();
    let long = Region::new(&a.device, 16384).unwrap();
    let send = |send: Send<'_>| {
        // SAFETY: the bytes are never written.
        unsafe { from.pair.post_send(&[send]) }.unwrap();
        completions(&from.sends, 1);
    };
    // SAFETY: the bytes are never read.
    unsafe {
        to.pair.post_receive(&[receive(&to.piece(4096, 64)), receive(&to.received())]).unwrap();
        next.pair.post_receive(&[receive(&next.received())]).unwrap();
    }
    let short = from.sent();
    send(Send { queue_pair: to.pair.number(), ..from.send(&address, &short) });
    let done = completions(&to.receives, 2);
    assert!(matches!(done[0].status, Status::Failed(_)), "{done:?}");
    assert_eq!(done[1].status, Status::Flushed, "the queue pair is in the error state");

    let queue_pair = next.pair.number();
    let long = [Piece { region: &long, from: 0, len: 5000 }];
    send(Send { queue_pair, ..from.send(&address, &long) });
    send(Send { queue_pair, ..from.send(&address, &short) });
    let done = completions(&next.receives, 1);
    assert_eq!((done[0].status, done[0].bytes), (Status::Success, 64 + GRH as u32), "the short one");
}

/// Memory that is not all there is an error, and no signal for the process that registers. Memory that goes later is sent.
fn memory_of_others(a: &End, b: &End) {
    let (device, page) = (&a.device, 4096);
    let file = memfd_create("short", MemfdFlags::CLOEXEC).unwrap();
    ftruncate(&file, 2 * page as u64).unwrap();
    let map = |how| {
        // SAFETY: new pages, at no given address; they stay until the process ends.
        unsafe { mmap(std::ptr::null_mut(), 4 * page, how, MapFlags::SHARED, &file, 0) }.unwrap().cast::<u8>()
    };
    let both = map(ProtFlags::READ | ProtFlags::WRITE);
    let register = |start: *mut u8, pages: usize, access| {
        // SAFETY: mapped until the process ends; what is not there is refused by the kernel.
        unsafe { Region::over(device, start, pages * page, Arc::new(()), access) }
    };
    for access in [Access::Read, Access::Write] {
        for (start, pages) in [(both, 3), (both.wrapping_add(2 * page), 1), (both.wrapping_add(page + 1), 1)]
        {
            let error = register(start, pages, access).unwrap_err();
            let is_fault =
                matches!(&error, Error::Call { error, .. } if error.raw_os_error() == Some(libc::EFAULT));
            assert!(is_fault && error.to_string().starts_with("ibv_reg_mr"), "{error}");
        }
        // Neither begins nor ends at a page.
        let odd = both.wrapping_add(1);
        // SAFETY: the same.
        let region = unsafe { Region::over(device, odd, 2 * page - 2, Arc::new(()), access) }.unwrap();
        assert_eq!((region.start(), region.len()), (odd, 2 * page - 2));
    }
    assert!(register(map(ProtFlags::READ), 2, Access::Write).is_err());
    // A file that becomes shorter takes its pages from the mapping, not from the device.
    // SAFETY: two pages of the file.
    unsafe { both.write_bytes(7, 2 * page) };
    let region = register(both, 2, Access::Read).unwrap();
    ftruncate(&file, 0).unwrap();
    let (from, to) = (Parts::new(device), Parts::new(&b.device));
    let address = Address::new(device, a.gid, b.address, 0).unwrap();
    let gone = [Piece { region: &region, from: page, len: 64 }];
    // SAFETY: the bytes are read after the completions.
    unsafe {
        to.pair.post_receive(&[receive(&to.received())]).unwrap();
        let queue_pair = to.pair.number();
        from.pair.post_send(&[Send { queue_pair, ..from.send(&address, &gone) }]).unwrap();
    }
    assert_eq!(completions(&from.sends, 1)[0].status, Status::Success);
    assert_eq!(completions(&to.receives, 1)[0].status, Status::Success);
    // SAFETY: the completion gave these bytes back.
    let came = unsafe { std::slice::from_raw_parts(to.region.start().add(4096 + GRH), 64) };
    assert_eq!(came, [7; 64]);
}

/// Waits for so many completions.
fn completions(queue: &CompletionQueue, count: usize) -> Vec<Completion> {
    let (mut all, end) = (vec![], Instant::now() + Duration::from_secs(20));
    while all.len() < count {
        let mut some = [Completion::default(); 64];
        let found = queue.poll(&mut some).unwrap();
        all.extend_from_slice(&some[..found]);
        assert!(Instant::now() < end, "{} of {count} completions", all.len());
    }
    all
}

fn locked_memory(device: &Arc<Device>) {
    let limit = 1 << 20;
    setrlimit(Resource::Memlock, Rlimit { current: Some(limit), maximum: Some(limit) }).unwrap();
    let error = Region::new(device, 2 << 20).unwrap_err().to_string();
    assert!(error.contains("ibv_reg_mr") && error.contains("RLIMIT_MEMLOCK"), "{error}");
    // The failed one is not counted any more.
    for _ in 0..4 {
        Region::new(device, 256 << 10).unwrap();
    }
}

/// Checks that a device which root opened takes no sends of another user, and that this is told.
///
/// # Errors
/// Of `become_user`.
///
/// # Panics
/// A send is taken.
pub fn foreign_user<E>(a: &End, b: &End, become_user: impl FnOnce() -> Result<(), E>) -> Result<(), E> {
    let parts = Parts::new(&a.device);
    let to = Address::new(&a.device, a.gid, b.address, 0).unwrap();
    become_user()?;
    // SAFETY: the bytes are never written.
    let (_, error) = unsafe { parts.pair.post_send(&[parts.send(&to, &parts.sent())]) }.unwrap_err();
    let is_access = matches!(&error, Error::Call { error, .. } if error.raw_os_error() == Some(libc::EACCES));
    assert!(is_access, "{error}");
    assert_eq!(parts.sends.poll(&mut [Completion::default()]).unwrap(), 0);
    Ok(())
}
