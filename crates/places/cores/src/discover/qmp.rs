//! The threads of a QEMU that does not name them, by its monitor (QMP).
//!
//! ```text
//!  look ─ question ─▶ a thread of its own: command line ─▶ socket ─▶ QMP: query-cpus-fast, query-iothreads
//!  next look ◀─ kinds by thread ─────────────────────────────┘
//! ```
//!
//! The emulator may be in the guest's hands. It can make a reader of its command line wait without end, name any socket as its
//! monitor, exchange that socket meanwhile, and answer slowly or without end. So a thread of its own asks; the file that is connected is the
//! one that was found to be a socket at which the same process listens; and answers are bounded in time and size. A process that keeps the
//! thread waiting is not asked again, and another thread asks the others, a few times. Most monitors have another client (libvirt), and
//! do not answer: then the threads stay unknown.

use super::descriptor::SocketFile;
use super::peers;
use super::table::MOST_DESCRIPTORS;
use crate::roots::{Roots, first_names};
use rustix::fs::ResolveFlags;
use rustix::net::sockopt::socket_peercred;
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType, connect, socket_with};
use serde_json::Value;
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::io::{self, Read, Write};
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::sync::mpsc::{SyncSender, sync_channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};
use tidegate_cores::stage::ThreadKind;

/// For one monitor, all answers together.
const PATIENCE: Duration = Duration::from_millis(500);
/// Most bytes of one monitor: 4,096 virtual CPUs have 1 MB.
const MOST_BYTES: usize = 2 << 20;
/// Longest command line that is read.
const LONGEST_LINE: u64 = 256 << 10;
/// Most monitors that wait for their turn; others are asked at a later look.
const MOST_WAITING: usize = 64;
/// A process is asked again after this time: virtual CPUs may be added.
const AGAIN: Duration = Duration::from_secs(60);

/// A process that takes longer, with its monitors and the scheduler's pauses, makes the thread wait on purpose.
const STUCK: Duration = Duration::from_secs(10);
/// Most threads that wait so; then no monitor is asked until one of them ends.
const MOST_STUCK: usize = 4;
/// Most threads of one VM; more than any has virtual CPUs.
const MOST_KINDS: usize = 4096;

/// Kinds of threads by number.
pub type Kinds = BTreeMap<u32, ThreadKind>;

/// A process, told from later ones of its number by its start.
type Process = (u32, u64);

/// Asks monitors.
#[derive(Debug, Default)]
pub struct Asker {
    worker: Option<Worker>,
    answers: Arc<Mutex<HashMap<Process, Kinds>>>,
    asked: HashMap<Process, Instant>,
    /// Processes that made a thread wait.
    stuck: BTreeSet<Process>,
    /// Held by each thread until it ends.
    threads: Arc<()>,
}

/// The thread that asks.
#[derive(Debug)]
struct Worker {
    questions: SyncSender<(Process, PathBuf)>,
    /// The process that it asks, and since when.
    at: Arc<Mutex<Option<(Process, Instant)>>>,
}

impl Asker {
    /// Returns the known kinds of a process's threads, and asks for them if they are unknown or old. Never waits.
    pub fn kinds(&mut self, roots: &Roots, process: u32, started: u64, now: Instant) -> Kinds {
        self.leave_stuck(now);
        let process = (process, started);
        let is_old = self.asked.get(&process).is_none_or(|asked| now.duration_since(*asked) >= AGAIN);
        let due = is_old && !self.stuck.contains(&process);
        let folder = roots.proc.join(process.0.to_string());
        if due && self.worker().is_some_and(|worker| worker.questions.try_send((process, folder)).is_ok()) {
            self.asked.insert(process, now);
        }
        let answers = self.answers.lock().unwrap_or_else(PoisonError::into_inner);
        answers.get(&process).cloned().unwrap_or_default()
    }

    /// Forgets processes that are over.
    pub fn keep(&mut self, is_there: impl Fn(u32) -> bool) {
        self.asked.retain(|(process, _), _| is_there(*process));
        self.stuck.retain(|(process, _)| is_there(*process));
        let mut answers = self.answers.lock().unwrap_or_else(PoisonError::into_inner);
        answers.retain(|(process, _), _| is_there(*process));
    }

    /// Leaves a thread alone that waits for too long: it ends after its question, if ever.
    fn leave_stuck(&mut self, now: Instant) {
        let at = |worker: &Worker| *worker.at.lock().unwrap_or_else(PoisonError::into_inner);
        let Some((process, since)) = self.worker.as_ref().and_then(at) else { return };
        if now.saturating_duration_since(since) >= STUCK {
            self.stuck.insert(process);
            self.worker = None;
            // Those that still waited for their turn among them.
            self.asked.clear();
        }
    }

    /// Returns the thread, which is started at the first question.
    fn worker(&mut self) -> Option<&Worker> {
        if self.worker.is_none() && Arc::strong_count(&self.threads) <= MOST_STUCK {
            let (questions, receiver) = sync_channel::<(Process, PathBuf)>(MOST_WAITING);
            let (answers, alive) = (Arc::clone(&self.answers), Arc::clone(&self.threads));
            let at = Arc::new(Mutex::new(None));
            let asks = Arc::clone(&at);
            let work = move || {
                let _alive = alive;
                let set = |to| *asks.lock().unwrap_or_else(PoisonError::into_inner) = to;
                for (process, folder) in receiver {
                    set(Some((process, Instant::now())));
                    let kinds = ask(&folder, process.0);
                    set(None);
                    if let Some(kinds) = kinds {
                        answers.lock().unwrap_or_else(PoisonError::into_inner).insert(process, kinds);
                    }
                }
            };
            let started = std::thread::Builder::new().name("cores-qmp".into()).spawn(work);
            self.worker = started.is_ok().then_some(Worker { questions, at });
        }
        self.worker.as_ref()
    }
}

/// Asks the monitors of a process in turn, until one answers.
fn ask(folder: &Path, process: u32) -> Option<Kinds> {
    let mut line = vec![];
    let file = std::fs::File::open(folder.join("cmdline")).ok()?;
    file.take(LONGEST_LINE).read_to_end(&mut line).ok()?;
    let arguments: Vec<_> = line.split(|byte| *byte == 0).map(String::from_utf8_lossy).collect();
    let arguments: Vec<&str> = arguments.iter().map(AsRef::as_ref).collect();
    let paths = monitors(&arguments).into_iter();
    paths.filter_map(|path| listener(folder, &path)).find_map(|socket| query(&socket, process).ok())
}

/// Returns the sockets of QMP monitors in a command line: `-qmp unix:PATH,...`, and a `-chardev socket,id=ID,path=PATH,...` of a `-mon
/// chardev=ID,mode=control`.
fn monitors(arguments: &[&str]) -> Vec<PathBuf> {
    let option = |text: &str, key: &str| {
        text.split(',').find_map(|part| part.strip_prefix(key)?.strip_prefix('=')).map(str::to_owned)
    };
    let pairs = || arguments.windows(2).map(|pair| (pair[0].trim_start_matches('-'), pair[1]));
    let direct = pairs().filter(|(name, _)| ["qmp", "qmp-pretty"].contains(name)).filter_map(|(_, value)| {
        let path = value.strip_prefix("unix:")?.split(',').next()?;
        Some(PathBuf::from(path))
    });
    let controls = pairs().filter(|(name, value)| *name == "mon" && value.contains("mode=control"));
    let ids: Vec<String> = controls.filter_map(|(_, value)| option(value, "chardev")).collect();
    let devices = pairs().filter(|(name, value)| *name == "chardev" && value.starts_with("socket,"));
    let of_monitors = devices.filter(|(_, value)| option(value, "id").is_some_and(|id| ids.contains(&id)));
    let named = of_monitors.filter_map(|(_, value)| option(value, "path").map(PathBuf::from));
    direct.chain(named).filter(|path| path.is_absolute()).take(4).collect()
}

/// Returns the socket file at this path, if the process itself listens there: to connect elsewhere could start a service. The
/// process cannot exchange the file that is returned.
fn listener(folder: &Path, path: &Path) -> Option<OwnedFd> {
    let (file, descriptor) = SocketFile::at(path, ResolveFlags::NO_SYMLINKS)?;
    let listening = peers::listening().ok()?;
    let inodes: Vec<u64> =
        listening.iter().filter(|socket| socket.file == Some(file)).map(|socket| socket.inode).collect();
    let descriptors = folder.join("fd");
    let holds = first_names(&descriptors, MOST_DESCRIPTORS)
        .iter()
        .filter_map(|fd| std::fs::read_link(descriptors.join(fd)).ok())
        .any(|link| {
            let inode = link.to_str().and_then(|link| link.strip_prefix("socket:[")?.strip_suffix(']'));
            inode.and_then(|inode| inode.parse().ok()).is_some_and(|inode| inodes.contains(&inode))
        });
    holds.then_some(descriptor)
}

/// Asks the monitor that listens at a socket file, which is open (`O_PATH`).
fn query(socket: &OwnedFd, process: u32) -> io::Result<Kinds> {
    let refused = |why: &str| io::Error::other(why.to_owned());
    // A monitor with a full queue of clients would make a blocking call wait.
    let stream = socket_with(
        AddressFamily::UNIX,
        SocketType::STREAM,
        SocketFlags::NONBLOCK | SocketFlags::CLOEXEC,
        None,
    )?;
    connect(&stream, &SocketAddrUnix::new(format!("/proc/self/fd/{}", socket.as_raw_fd()))?)?;
    let stream = UnixStream::from(stream);
    stream.set_nonblocking(false)?;
    let peer = socket_peercred(&stream)?;
    if u32::try_from(peer.pid.as_raw_nonzero().get()) != Ok(process) {
        return Err(refused("another process listens"));
    }
    let mut monitor = Monitor { stream, until: Instant::now() + PATIENCE, left: MOST_BYTES, buffer: vec![] };
    // The greeting.
    monitor.line()?;
    monitor.execute("qmp_capabilities")?;
    let mut kinds = Kinds::new();
    for (command, kind) in [("query-cpus-fast", ThreadKind::Vcpu), ("query-iothreads", ThreadKind::Io)] {
        let answer = monitor.execute(command)?;
        let threads = answer.as_array().into_iter().flatten();
        let numbers = threads.filter_map(|thread| u32::try_from(thread.get("thread-id")?.as_u64()?).ok());
        kinds.extend(numbers.take(MOST_KINDS).map(|number| (number, kind)));
    }
    Ok(kinds)
}

/// A conversation with a monitor.
struct Monitor {
    stream: UnixStream,
    until: Instant,
    left: usize,
    buffer: Vec<u8>,
}

impl Monitor {
    /// Executes a command, and returns its answer; events in between are skipped.
    fn execute(&mut self, command: &str) -> io::Result<Value> {
        self.stream.set_write_timeout(Some(PATIENCE))?;
        self.stream.write_all(format!("{{\"execute\":\"{command}\"}}\n").as_bytes())?;
        loop {
            let mut line = self.line()?;
            if line.get("error").is_some() {
                return Err(io::Error::other("the monitor refused"));
            }
            if let Some(answer) = line.get_mut("return") {
                return Ok(answer.take());
            }
        }
    }

    /// Reads a line of JSON.
    fn line(&mut self) -> io::Result<Value> {
        loop {
            if let Some(end) = self.buffer.iter().position(|byte| *byte == b'\n') {
                let line: Vec<u8> = self.buffer.drain(..=end).collect();
                return serde_json::from_slice(&line).map_err(io::Error::from);
            }
            let left = self.until.saturating_duration_since(Instant::now());
            if left.is_zero() || self.left == 0 {
                return Err(io::Error::other("the monitor answered too slowly, or too much"));
            }
            self.stream.set_read_timeout(Some(left))?;
            let mut part = [0; 16 << 10];
            let size = self.stream.read(&mut part)?;
            if size == 0 {
                return Err(io::ErrorKind::UnexpectedEof.into());
            }
            self.left = self.left.saturating_sub(size);
            self.buffer.extend(&part[..size]);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::net::UnixListener;

    #[test]
    fn monitors_of_a_command_line() {
        let line = [
            "qemu",
            "-qmp",
            "unix:/a.sock,server=on,wait=off",
            "-chardev",
            "socket,id=m,path=/b.sock,server=on",
            "-mon",
            "chardev=m,mode=control",
            "-chardev",
            "socket,id=other,path=/c.sock",
            "-qmp",
            "tcp:localhost:1",
            "-qmp",
            "unix:relative",
            "-mon",
        ];
        assert_eq!(monitors(&line), [PathBuf::from("/a.sock"), "/b.sock".into()]);
    }

    fn open(path: &Path) -> OwnedFd {
        SocketFile::at(path, ResolveFlags::NO_SYMLINKS).unwrap().1
    }

    /// Answers as a monitor, `answers` in turn, and then stays connected until the client is gone.
    fn asked(answers: &'static [&'static str]) -> io::Result<Kinds> {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("qmp");
        let listener = UnixListener::bind(&path).unwrap();
        let monitor = std::thread::spawn(move || {
            let (mut stream, _) = listener.accept().unwrap();
            for answer in answers {
                // The client may have left.
                let _ = stream.write_all(format!("{answer}\n").as_bytes());
            }
            let _ = io::copy(&mut stream, &mut io::sink());
        });
        let kinds = query(&open(&path), std::process::id());
        monitor.join().unwrap();
        kinds
    }

    #[test]
    fn threads_by_kind() {
        let kinds = asked(&[
            r#"{"QMP": {"version": {}, "capabilities": []}}"#,
            r#"{"return": {}}"#,
            r#"{"event": "RESUME", "data": {}}"#,
            r#"{"return": [{"thread-id": 7, "cpu-index": 0}, {"thread-id": 8}, {"thread-id": -1}, {}]}"#,
            r#"{"return": [{"id": "a", "thread-id": 9}]}"#,
        ]);
        let expected = [(7, ThreadKind::Vcpu), (8, ThreadKind::Vcpu), (9, ThreadKind::Io)];
        assert_eq!(kinds.unwrap(), expected.into());
    }

    #[test]
    fn a_hostile_monitor_ends_the_conversation() {
        for answers in [&["x"] as &[_], &["{}", r#"{"error": {}}"#], &["[", ""], &[]] {
            assert!(asked(answers).is_err(), "{answers:?}");
        }
    }

    #[test]
    fn another_process_is_not_asked() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("qmp");
        let _listener = UnixListener::bind(&path).unwrap();
        assert!(query(&open(&path), 1).is_err());
    }

    #[test]
    fn the_socket_is_the_one_at_which_the_process_listens() {
        let folder = tempfile::tempdir().unwrap();
        let [own, others, link] = ["own", "others", "link"].map(|name| folder.path().join(name));
        let _listener = UnixListener::bind(&own).unwrap();
        std::os::unix::fs::symlink(&own, &link).unwrap();
        // The kernel may have no socket diagnosis.
        if peers::listening().is_err() {
            return;
        }
        let found = |path: &Path| listener(Path::new("/proc/self"), path).is_some();
        assert!(found(&own) && !found(&link) && !found(&folder.path().join("none")));
        // Another one in its place, which no process has any more.
        drop(UnixListener::bind(&others).unwrap());
        std::fs::rename(&others, &own).unwrap();
        assert!(!found(&own));
    }

    #[test]
    fn a_process_that_makes_a_thread_wait_does_not_keep_it_from_others() {
        let folder = tempfile::tempdir().unwrap();
        let roots = Roots::below(folder.path());
        let process = |number: u32| {
            let folder = roots.proc.join(number.to_string());
            std::fs::create_dir_all(&folder).unwrap();
            folder.join("cmdline")
        };
        // Reading a FIFO waits for a writer.
        let fifos: Vec<PathBuf> = (1..=6).map(process).collect();
        for fifo in &fifos {
            rustix::fs::mknodat(rustix::fs::CWD, fifo, rustix::fs::FileType::Fifo, rustix::fs::Mode::RWXU, 0)
                .unwrap();
        }
        let (mut asker, begin) = (Asker::default(), Instant::now());
        let is_asked = |asker: &Asker, number: u32| {
            let at = |worker: &Worker| worker.at.lock().unwrap().is_some_and(|((at, _), _)| at == number);
            asker.worker.as_ref().is_some_and(at)
        };
        for number in 1..=4 {
            asker.kinds(&roots, number, 1, begin);
            while !is_asked(&asker, number) {
                std::thread::yield_now();
            }
            assert_eq!(asker.kinds(&roots, number, 1, Instant::now() + STUCK * 2), Kinds::new());
            assert!(asker.stuck.contains(&(number, 1)) && !asker.asked.contains_key(&(number, 1)));
        }
        // Four threads wait: no further one is started.
        asker.kinds(&roots, 5, 1, begin);
        assert!(asker.worker.is_none() && asker.asked.is_empty());
        // One is set free, and the next question has a thread.
        drop(std::fs::OpenOptions::new().write(true).open(&fifos[0]).unwrap());
        while !asker.asked.contains_key(&(6, 1)) {
            asker.kinds(&roots, 6, 1, begin);
            std::thread::yield_now();
        }
        asker.keep(|_| false);
        assert!(asker.stuck.is_empty());
        for fifo in &fifos[1..4] {
            drop(std::fs::OpenOptions::new().write(true).open(fifo).unwrap());
        }
    }
}
