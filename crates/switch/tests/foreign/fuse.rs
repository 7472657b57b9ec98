//! A FUSE file system with one file, which answers or falls silent.
//!
//! Its thread has its own descriptor table. When the process is killed, the end of the thread closes the
//! device, and the kernel answers all requests. In a shared table, threads that wait for an answer would
//! keep the device open and never end.

use std::ffi::CString;
use std::fs::File;
use std::io::{Read, Write};
use std::os::fd::AsRawFd;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::channel;

/// Requests (linux/fuse.h, `enum fuse_opcode`).
const LOOKUP: u32 = 1;
const FORGET: u32 = 2;
const GETATTR: u32 = 3;
const OPEN: u32 = 14;
const STATFS: u32 = 17;
const RELEASE: u32 = 18;
const FLUSH: u32 = 25;
const INIT: u32 = 26;
const INTERRUPT: u32 = 36;

/// Interval of the check whether the silence is over (ms).
const LOOK: i32 = 10;

/// A mount, which disappears with its mount namespace.
pub struct Mount {
    folder: PathBuf,
    silent: Arc<AtomicBool>,
}

/// Holds back all answers. Drop it before the mount's files, since closing a file sends a request.
#[must_use = "it speaks again when this is dropped"]
pub struct Silence(Arc<AtomicBool>);

impl Drop for Silence {
    fn drop(&mut self) {
        self.0.store(false, Ordering::Relaxed);
    }
}

impl Mount {
    pub fn new() -> Self {
        let folder = std::env::temp_dir().join(format!("tidegate-fuse-{}", std::process::id()));
        std::fs::create_dir_all(&folder).unwrap();
        let silent = Arc::new(AtomicBool::new(false));
        let (served, is_silent) = (folder.clone(), silent.clone());
        let (told, mounted) = channel();
        std::thread::spawn(move || {
            // SAFETY: a plain call; this thread continues with a copy of the descriptors.
            assert_eq!(unsafe { libc::unshare(libc::CLONE_FILES) }, 0, "{}", std::io::Error::last_os_error());
            let device = mount(&served);
            told.send(()).unwrap();
            serve(&device, &is_silent);
        });
        mounted.recv().expect("a mount");
        Self { folder, silent }
    }

    pub fn file(&self) -> File {
        File::options().read(true).write(true).open(self.folder.join("memory")).unwrap()
    }

    /// Holds back all answers until the result is dropped.
    pub fn fall_silent(&self) -> Silence {
        self.silent.store(true, Ordering::Relaxed);
        Silence(self.silent.clone())
    }
}

impl Drop for Mount {
    fn drop(&mut self) {
        self.silent.store(false, Ordering::Relaxed);
        let target = CString::new(self.folder.to_str().unwrap()).unwrap();
        // SAFETY: the string ends with 0.
        unsafe { libc::umount2(target.as_ptr(), libc::MNT_DETACH) };
        let _ = std::fs::remove_dir(&self.folder);
    }
}

fn mount(folder: &Path) -> File {
    let device = File::options().read(true).write(true).open("/dev/fuse").unwrap();
    let [source, kind] = ["tidegate", "fuse"].map(|word| CString::new(word).unwrap());
    let target = CString::new(folder.to_str().unwrap()).unwrap();
    let (uid, gid) = (rustix::process::getuid().as_raw(), rustix::process::getgid().as_raw());
    let data = format!("fd={},rootmode=40000,user_id={uid},group_id={gid}", device.as_raw_fd());
    let data = CString::new(data).unwrap();
    let flags = libc::MS_NOSUID | libc::MS_NODEV;
    // SAFETY: the strings end with 0 and live during the call.
    let mounted =
        unsafe { libc::mount(source.as_ptr(), target.as_ptr(), kind.as_ptr(), flags, data.as_ptr().cast()) };
    assert_eq!(mounted, 0, "{}", std::io::Error::last_os_error());
    device
}

fn serve(device: &File, silent: &AtomicBool) {
    let (mut request, mut held_back) = (vec![0; 1 << 17], Vec::new());
    loop {
        let mut asked = libc::pollfd { fd: device.as_raw_fd(), events: libc::POLLIN, revents: 0 };
        // SAFETY: one live entry.
        let events = unsafe { libc::poll(&raw mut asked, 1, LOOK) };
        if events > 0 {
            let Ok(len) = (&*device).read(&mut request) else { return };
            held_back.push(request[..len].to_vec());
        }
        if !silent.load(Ordering::Relaxed) {
            held_back.drain(..).for_each(|request| answer(device, &request));
        }
    }
}

/// Returns a `struct fuse_attr`: of a folder, or of a file of 1 MiB.
fn attributes(node: u64) -> Vec<u8> {
    let folder = node == 1;
    let size: u64 = if folder { 0 } else { 1 << 20 };
    let mut bytes: Vec<u8> =
        [node, size, size / 512, 0, 0, 0].iter().flat_map(|word| word.to_ne_bytes()).collect();
    let mode = if folder { libc::S_IFDIR | 0o755 } else { libc::S_IFREG | 0o666 };
    bytes.extend([0, 0, 0, mode, 1, 0, 0, 0, 4096, 0].iter().flat_map(|word: &u32| word.to_ne_bytes()));
    bytes
}

fn words(words: &[u64]) -> Vec<u8> {
    words.iter().flat_map(|word| word.to_ne_bytes()).collect()
}

fn answer(device: &File, request: &[u8]) {
    let code = u32::from_ne_bytes(request[4..8].try_into().unwrap());
    let [unique, node] = [8, 16].map(|at| u64::from_ne_bytes(request[at..at + 8].try_into().unwrap()));
    let (error, body) = match code {
        FORGET | INTERRUPT => return,
        // Version 7.31, no features, 16 requests at once, writes of one page.
        INIT => {
            let half = |words: &[u32]| words.iter().flat_map(|word| word.to_ne_bytes()).collect::<Vec<_>>();
            (0, [half(&[7, 31, 0, 0, 12 << 16 | 16, 4096, 1, 0]), vec![0; 32]].concat())
        }
        LOOKUP => (0, [words(&[2, 0, 0, 0, 0]), attributes(2)].concat()),
        GETATTR => (0, [words(&[0, 0]), attributes(node)].concat()),
        OPEN => (0, words(&[0, 0])),
        STATFS => (0, words(&[0; 10])),
        RELEASE | FLUSH => (0, vec![]),
        _ => (-libc::ENOSYS, vec![]),
    };
    let length = (16 + body.len() as u32).to_ne_bytes();
    let reply = [&length[..], &error.to_ne_bytes(), &unique.to_ne_bytes(), &body].concat();
    let _ = (&*device).write(&reply);
}
