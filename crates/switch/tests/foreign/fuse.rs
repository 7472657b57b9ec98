//! A file system in a process (FUSE) of one file, which answers, or does not.

use std::ffi::CString;
use std::fs::File;
use std::io::{Read, Write};
use std::os::fd::AsRawFd;
use std::path::PathBuf;
use std::sync::{Arc, Mutex};

/// What is asked (linux/fuse.h, `enum fuse_opcode`).
const LOOKUP: u32 = 1;
const FORGET: u32 = 2;
const GETATTR: u32 = 3;
const OPEN: u32 = 14;
const STATFS: u32 = 17;
const RELEASE: u32 = 18;
const FLUSH: u32 = 25;
const INIT: u32 = 26;
const INTERRUPT: u32 = 36;

/// A mount; gone with the namespace it is in.
pub struct Mount {
    folder: PathBuf,
    daemon: Arc<Daemon>,
}

/// The process that serves it: a thread of this one.
struct Daemon {
    device: File,
    /// Questions that wait until it speaks again; `None` while it speaks.
    held_back: Mutex<Option<Vec<Vec<u8>>>>,
}

impl Mount {
    /// Mounts it, and answers in a thread.
    pub fn new() -> Self {
        let folder = std::env::temp_dir().join(format!("tidegate-fuse-{}", std::process::id()));
        std::fs::create_dir_all(&folder).unwrap();
        let device = File::options().read(true).write(true).open("/dev/fuse").unwrap();
        let [source, kind] = ["tidegate", "fuse"].map(|word| CString::new(word).unwrap());
        let target = CString::new(folder.to_str().unwrap()).unwrap();
        let (uid, gid) = (rustix::process::getuid().as_raw(), rustix::process::getgid().as_raw());
        let data = format!("fd={},rootmode=40000,user_id={uid},group_id={gid}", device.as_raw_fd());
        let data = CString::new(data).unwrap();
        let flags = libc::MS_NOSUID | libc::MS_NODEV;
        // SAFETY: strings that end with 0, live for the call.
        let mounted = unsafe {
            libc::mount(source.as_ptr(), target.as_ptr(), kind.as_ptr(), flags, data.as_ptr().cast())
        };
        assert_eq!(mounted, 0, "{}", std::io::Error::last_os_error());
        let daemon = Arc::new(Daemon { device, held_back: Mutex::new(None) });
        let serving = daemon.clone();
        std::thread::spawn(move || serving.serve());
        Self { folder, daemon }
    }

    /// The file, opened.
    pub fn file(&self) -> File {
        File::options().read(true).write(true).open(self.folder.join("memory")).unwrap()
    }

    /// Answers nothing any more.
    pub fn fall_silent(&self) {
        self.daemon.held_back.lock().unwrap().get_or_insert_default();
    }

    /// Answers again, also what it was asked before.
    pub fn speak_again(&self) {
        let held_back = self.daemon.held_back.lock().unwrap().take();
        held_back.iter().flatten().for_each(|request| self.daemon.answer(request));
    }
}

impl Drop for Mount {
    fn drop(&mut self) {
        // Or this process would never end: each of its descriptors is closed by asking.
        self.speak_again();
        let target = CString::new(self.folder.to_str().unwrap()).unwrap();
        // SAFETY: a string that ends with 0.
        unsafe { libc::umount2(target.as_ptr(), libc::MNT_DETACH) };
        let _ = std::fs::remove_dir(&self.folder);
    }
}

/// A `struct fuse_attr`: a folder, or a file of a MiB.
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

impl Daemon {
    fn serve(&self) {
        let mut request = vec![0; 1 << 17];
        while let Ok(len) = (&self.device).read(&mut request) {
            let request = &request[..len];
            match &mut *self.held_back.lock().unwrap() {
                Some(held_back) => held_back.push(request.to_vec()),
                None => self.answer(request),
            }
        }
    }

    fn answer(&self, request: &[u8]) {
        let code = u32::from_ne_bytes(request[4..8].try_into().unwrap());
        let [unique, node] = [8, 16].map(|at| u64::from_ne_bytes(request[at..at + 8].try_into().unwrap()));
        let (error, body) = match code {
            FORGET | INTERRUPT => return,
            // Version 7.31, no features; 16 requests at once, writes of a page.
            INIT => {
                let half =
                    |words: &[u32]| words.iter().flat_map(|word| word.to_ne_bytes()).collect::<Vec<_>>();
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
        let _ = (&self.device).write(&reply);
    }
}
