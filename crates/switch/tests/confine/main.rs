//! What an intruder in control of a switch cannot do.
//!
//! ```text
//!  this test ──frames, control socket──▶ a switch in a process of its own, confined as the real one
//!      └──"worker 17"──▶ its stdin ──▶ attempt 17 on its worker ──▶ stdout ──"denied 1, 18 violations"
//! ```
//!
//! The switch process is this program again: it needs the main thread to itself, so this test prints in
//! libtest's format without libtest.

#[path = "../harness/mod.rs"]
mod harness;

mod attempts;

use attempts::{ABSTRACT_LEN, Attempt, Held, abstract_address};
use harness::{Guest, contract, udp, vnic};
use std::collections::BTreeSet;
use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::net::TcpListener;
use std::os::fd::{AsFd, AsRawFd, FromRawFd, OwnedFd};
use std::os::unix::net::UnixListener;
use std::os::unix::process::ExitStatusExt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;
use std::process::{Child, ChildStdin, ChildStdout, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};
use tempfile::TempDir;
use tidegate_evidence::Connection;
use tidegate_frontend::attack::counters::Waiters;
use tidegate_frontend::attack::sockets::{message, one_page, send_with};
use tidegate_frontend::front_end::{FrontEnd, Options};
use tidegate_switch::confine::{self, violation};
use tidegate_switch::control::{Attachment, Client};
use tidegate_switch::server;
use vhost::vhost_user::message::FrontendReq;

/// Environment variable: how the process confines itself. Unset in the test itself.
const ROLE: &str = "TIDEGATE_TEST_CONFINE";

const THREADS: [&str; 3] = ["worker", "main", "late"];

fn main() {
    if let Ok(role) = std::env::var(ROLE) {
        return be_switch(&role);
    }
    let tests: &[(&str, fn())] = &[
        ("what_is_forbidden_works_where_it_is_not", what_is_forbidden_works_where_it_is_not),
        ("a_compromised_switch_cannot", a_compromised_switch_cannot),
        ("every_thread_is_confined", every_thread_is_confined),
        ("landlock_alone_closes_files_ports_and_processes", landlock_alone_closes_files_ports_and_processes),
        ("rdma_opens_the_way_to_its_devices_alone", rdma_opens_the_way_to_its_devices_alone),
        (
            "rdma_leaves_the_files_of_its_devices_to_landlock_alone",
            rdma_leaves_the_files_of_its_devices_to_landlock_alone,
        ),
        ("the_kernel_does_not_know_clone3", the_kernel_does_not_know_clone3),
        ("a_panic_is_told", a_panic_is_told),
        ("a_crash_ends_the_process", a_crash_ends_the_process),
        ("ports_come_and_go_and_captures_run", ports_come_and_go_and_captures_run),
        ("what_it_needs_is_allowed", what_it_needs_is_allowed),
        ("objects_are_told_apart", objects_are_told_apart),
        ("threads_must_not_be_there_yet", threads_must_not_be_there_yet),
    ];
    let filters: Vec<String> = std::env::args().skip(1).filter(|word| !word.starts_with('-')).collect();
    let wanted = |name: &str| filters.is_empty() || filters.iter().any(|filter| name.contains(filter));
    if std::env::args().any(|word| word == "--list") {
        return tests.iter().for_each(|(name, _)| println!("{name}: test"));
    }
    let (mut passed, mut failed) = (0, 0);
    for (name, test) in tests.iter().filter(|(name, _)| wanted(name)) {
        let well = catch_unwind(AssertUnwindSafe(test)).is_ok();
        println!("test {name} ... {}", if well { "ok" } else { "FAILED" });
        if well { passed += 1 } else { failed += 1 }
    }
    let filtered = tests.len() - passed - failed;
    let verdict = if failed == 0 { "ok" } else { "FAILED" };
    println!(
        "\ntest result: {verdict}. {passed} passed; {failed} failed; 0 ignored; 0 measured; {filtered} filtered out"
    );
    std::process::exit(i32::from(failed > 0));
}

fn be_switch(role: &str) {
    let mut words = std::env::args().skip(1);
    let mut word = || words.next().unwrap();
    let (dir, parent, port) = (word(), word().parse().unwrap(), word().parse().unwrap());
    let held = Held::new(Path::new(&dir), parent, port);
    let listener = UnixListener::bind(Path::new(&dir).join("switch.sock")).unwrap();
    let options = server::Options {
        socket: "/nonexistent".into(),
        workers: 1,
        cpus: server::cpus::Cpus::None,
        realtime_priority: None,
        replace: false,
        guest_memory: tidegate_switch::quota::PORT_MEMORY,
        fixed: true,
        rdma: vec![],
        user: None,
        confined: role != "open",
    };
    if role == "threaded" {
        std::thread::spawn(std::thread::park);
        return println!("{}", confine::enclose(None, confine::Files::None).unwrap_err());
    }
    let _log = tidegate_log::init(0);
    tidegate_log::hold();
    let of_rdma = role.starts_with("rdma");
    let enclosed = match of_rdma {
        true => {
            let files = confine::DeviceFiles::find(Path::new(&dir), &["rxe0".into()]);
            Some(confine::enclose(None, confine::Files::OfRdma(files)).unwrap())
        }
        false => server::enclose(&options).unwrap(),
    };
    let switch = server::Switch::start(1, &[], None).unwrap();
    match (role, enclosed) {
        // As if a device were open.
        ("rdma", Some(enclosed)) => {
            enclosed.seal(&switch.region.layout().denied_calls, confine::Calls::WithVerbs).unwrap();
        }
        ("landlock" | "rdma landlock", _) => {}
        (_, enclosed) => server::seal(enclosed, &switch).unwrap(),
    }
    let served = switch.clone();
    std::thread::spawn(move || server::serve(&served, &listener));
    let held: &'static Held = Box::leak(Box::new(held));
    println!("up");
    let all = attempts::all();
    for line in std::io::stdin().lines() {
        let line = line.unwrap();
        let (thread, number) = line.split_once(' ').unwrap();
        let done = match (thread, number.parse::<usize>()) {
            ("panic", _) => std::thread::spawn(|| panic!("told")).join().map_err(|_| 0),
            ("crash", _) => {
                // SAFETY: none: this crash is the test.
                unsafe { std::ptr::null_mut::<u8>().write_volatile(1) };
                Ok(())
            }
            ("clone3", _) => {
                // SAFETY: the kernel refuses the call before it reads the arguments, or because they are
                // empty.
                let result = unsafe { libc::syscall(libc::SYS_clone3, 0, 0) };
                assert_eq!(result, -1);
                Err(std::io::Error::last_os_error().raw_os_error().unwrap())
            }
            ("needed", _) => needed().map_err(|error| error.raw_os_error().unwrap()),
            ("main", Ok(n)) => attempts::make(all[n], held),
            ("late", Ok(n)) => {
                let attempt = all[n];
                std::thread::spawn(move || attempts::make(attempt, held)).join().unwrap()
            }
            (_, Ok(n)) => {
                let attempt = all[n];
                switch.workers[0].call(move |_| attempts::make(attempt, held))
            }
            (_, Err(_)) => panic!("{line}"),
        };
        println!("{} {}", done.err().unwrap_or(0), violation::count());
    }
}

/// Makes the system calls that no test above causes but the switch needs: for inflight regions, restored
/// connections, lost guest memory, and memory that it gives back.
fn needed() -> std::io::Result<()> {
    use rustix::fs::{MemfdFlags, SealFlags, fcntl_add_seals, fcntl_get_seals, ftruncate, memfd_create};
    use rustix::mm::{MapFlags, ProtFlags};
    let file = memfd_create("inflight", MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING)?;
    ftruncate(&file, 8192)?;
    rustix::io::pwrite(&file, b"header", 0)?;
    fcntl_add_seals(&file, SealFlags::SHRINK)?;
    fcntl_get_seals(&file)?;
    rustix::thread::sched_setaffinity(None, &rustix::thread::sched_getaffinity(None)?)?;
    let (protection, anywhere) = (ProtFlags::READ | ProtFlags::WRITE, std::ptr::null_mut());
    // SAFETY: replaces a page of a new mapping by an anonymous page, and unmaps the mapping.
    unsafe {
        let start = rustix::mm::mmap(anywhere, 8192, protection, MapFlags::SHARED, &file, 0)?;
        let flags = MapFlags::PRIVATE | MapFlags::FIXED;
        rustix::mm::mmap_anonymous(start, 4096, protection, flags)?;
        rustix::mm::munmap(start, 8192)?;
    }
    let (mut a, mut b) = std::os::unix::net::UnixStream::pair()?;
    a.write_all(b"replayed")?;
    a.shutdown(std::net::Shutdown::Both)?;
    std::io::Read::read_to_end(&mut b, &mut vec![])?;
    drop(b.try_clone()?);
    // Heaps of several threads at the same time shrink, as those of many ports do.
    let pieces = || std::hint::black_box((0..64).map(|_| vec![0u8; 64 << 10]).collect::<Vec<_>>());
    let both = std::sync::Barrier::new(3);
    std::thread::scope(|scope| {
        for _ in 0..3 {
            scope.spawn(|| {
                let held = pieces();
                both.wait();
                drop(held);
            });
        }
    });
    drop(std::thread::spawn(move || drop(pieces())).join());
    Ok(())
}

/// Makes two RDMA devices, rxe0 and rxe1, of files.
fn make_devices(root: &Path) {
    let write = |path: String, text: &str| {
        let path = root.join(path);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, text).unwrap();
    };
    for n in 0..2 {
        write(format!("sys/class/infiniband_verbs/uverbs{n}/ibdev"), &format!("rxe{n}\n"));
        write(format!("sys/class/infiniband/rxe{n}/node_type"), "1: CA\n");
        write(format!("sys/class/infiniband/rxe{n}/device/vendor"), "0x15b3\n");
        write(format!("dev/infiniband/uverbs{n}"), "");
    }
}

struct Suspect {
    child: Child,
    orders: ChildStdin,
    answers: BufReader<ChildStdout>,
    dir: TempDir,
    _listener: TcpListener,
    _abstract: OwnedFd,
}

impl Suspect {
    fn start(role: &str) -> Self {
        let dir = tempfile::tempdir().unwrap();
        fs::write(dir.path().join("victim"), "alive").unwrap();
        make_devices(dir.path());
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let log = fs::File::create(dir.path().join("log")).unwrap();
        let mut child = Command::new(std::env::current_exe().unwrap())
            .arg(dir.path())
            .arg(std::process::id().to_string())
            .arg(listener.local_addr().unwrap().port().to_string())
            .env(ROLE, role)
            .env("RUST_BACKTRACE", "1")
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(log)
            .spawn()
            .unwrap();
        let (orders, answers) = (child.stdin.take().unwrap(), BufReader::new(child.stdout.take().unwrap()));
        Self { child, orders, answers, dir, _listener: listener, _abstract: abstract_listener() }
    }

    fn up(role: &str) -> Self {
        let mut suspect = Self::start(role);
        let said = suspect.line();
        assert_eq!(said, "up", "{}", suspect.log());
        suspect
    }

    fn line(&mut self) -> String {
        let mut line = String::new();
        self.answers.read_line(&mut line).unwrap();
        line.trim_end().to_owned()
    }

    fn order(&mut self, thread: &str, number: usize) -> String {
        writeln!(self.orders, "{thread} {number}").unwrap();
        self.line()
    }

    /// Returns the error number (0: success) and the violations so far.
    fn answer(&mut self, thread: &str, number: usize) -> (i32, u64) {
        let said = self.order(thread, number);
        let parsed = said.split_once(' ').and_then(|(e, n)| Some((e.parse().ok()?, n.parse().ok()?)));
        parsed.unwrap_or_else(|| panic!("{said:?}: {}", self.log()))
    }

    fn log(&self) -> String {
        fs::read_to_string(self.dir.path().join("log")).unwrap()
    }

    fn client(&self) -> Client {
        Client::connect(&self.dir.path().join("switch.sock")).unwrap()
    }

    fn guest(&self, client: &mut Client, name: &str, n: u8) -> Guest {
        let path = self.dir.path().join(format!("{name}.sock"));
        let _ = fs::remove_file(&path);
        let listener = UnixListener::bind(&path).unwrap();
        let vnic = contract(&vnic(name, n, ""));
        client.set_port(&vnic, Attachment::Listener(listener.as_fd())).unwrap();
        let front = FrontEnd::connect(&path, Options::default()).unwrap();
        let end = Instant::now() + harness::PATIENCE;
        let up = |client: &mut Client| {
            let ports = client.ports().unwrap();
            ports.iter().any(|port| port.vnic.name == name && port.connection == Connection::Up)
        };
        while !up(client) {
            assert!(Instant::now() < end, "{name} does not come up: {}", self.log());
            std::thread::sleep(Duration::from_millis(1));
        }
        Guest { vnic, front }
    }

    fn end(&mut self) -> ExitStatus {
        let end = Instant::now() + harness::PATIENCE;
        loop {
            if let Some(status) = self.child.try_wait().unwrap() {
                return status;
            }
            assert!(Instant::now() < end, "it does not end: {}", self.log());
            std::thread::sleep(Duration::from_millis(5));
        }
    }
}

impl Drop for Suspect {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn abstract_listener() -> OwnedFd {
    // SAFETY: plain calls with valid arguments; the descriptor is new, not owned elsewhere.
    unsafe {
        let fd = OwnedFd::from_raw_fd(libc::socket(libc::AF_UNIX, libc::SOCK_STREAM | libc::SOCK_CLOEXEC, 0));
        let address = abstract_address(std::process::id());
        let bound = libc::bind(fd.as_raw_fd(), (&raw const address).cast(), ABSTRACT_LEN as u32);
        assert_eq!(bound, 0, "{}", std::io::Error::last_os_error());
        assert_eq!(libc::listen(fd.as_raw_fd(), 8), 0);
        fd
    }
}

#[track_caller]
fn frames_flow(a: &mut Guest, b: &mut Guest, mark: &[u8]) {
    for (from, to) in [(0, 1), (1, 0)] {
        let guests = [&mut *a, &mut *b];
        let frame = udp(guests[to].mac(), guests[from].mac(), mark);
        guests[from].send(&frame);
        let [a, b] = guests;
        let receiver = if to == 0 { a } else { b };
        // An announcement may come first.
        while receiver.receive() != frame {}
    }
}

/// A denial proves nothing for a call that never works.
fn what_is_forbidden_works_where_it_is_not() {
    let mut tried = 0;
    for (number, Attempt { name, works, .. }) in attempts::all().into_iter().enumerate() {
        if *works {
            // A process each: many attempts change or replace it.
            let said = Suspect::up("open").order("main", number);
            assert!(said == "0 0" || said == "escaped", "unconfined, one cannot {name}: {said}");
            tried += 1;
        }
    }
    assert!(tried >= 40);
}

fn a_compromised_switch_cannot() {
    let mut suspect = Suspect::up("confined");
    let mut client = suspect.client();
    let (mut a, mut b) = (suspect.guest(&mut client, "a", 1), suspect.guest(&mut client, "b", 2));
    frames_flow(&mut a, &mut b, b"before");
    let (mut expected, mut wrong) = (0, vec![]);
    for thread in THREADS {
        for (number, attempt) in attempts::all().into_iter().enumerate() {
            expected += 1;
            let (error, violations) = suspect.answer(thread, number);
            if (error, violations) != (libc::EPERM, expected) {
                wrong.push(format!("{} ({thread}): error {error}, {violations} violations", attempt.name));
                expected = violations;
            }
            frames_flow(&mut a, &mut b, attempt.name.as_bytes());
        }
    }
    report(expected as usize, &wrong);
    assert!(wrong.is_empty(), "a compromised switch may\n{}", wrong.join("\n"));
    assert!(!suspect.dir.path().join("new").exists());
    assert_eq!(fs::read_to_string(suspect.dir.path().join("victim")).unwrap(), "alive");

    let (_, stats, _) = client.hello().unwrap();
    assert_eq!(stats.denied_calls(), expected, "what the agent is told");

    // The log names each violation up to a limit, then only the count.
    let told = Instant::now();
    let log = loop {
        let log = suspect.log();
        if log.contains("more suppressed") {
            break log;
        }
        assert!(told.elapsed() < Duration::from_secs(30), "{log}");
        std::thread::sleep(Duration::from_millis(50));
    };
    let lines: Vec<&str> = log.lines().filter(|line| line.contains(": denied system call")).collect();
    let (lines, summaries): (Vec<_>, Vec<_>) =
        lines.into_iter().partition(|line| !line.contains("suppressed"));
    assert!(summaries.len() < 20, "{summaries:?}");
    let mut calls = BTreeSet::new();
    for (number, attempt) in attempts::all().into_iter().enumerate() {
        let violation = format!("to thread worker-0, violation {}:", number + 1);
        let call = format!("denied system call {} ", attempt.call);
        match lines.iter().find(|line| line.contains(&violation)) {
            Some(line) => assert!(line.contains(&call), "{line}"),
            // The log already names this call often enough.
            None => assert!(calls.contains(&attempt.call), "{violation} of {call} is not told of:\n{log}"),
        }
        calls.insert(attempt.call);
    }
    assert!(lines[0].contains("(openat)"), "{}", lines[0]);
    assert!(lines.len() < 180, "{} lines of {expected}", lines.len());
}

/// Writes the confinement part of docs/reliability.md.
fn report(attempts: usize, wrong: &[String]) {
    let all = attempts::all();
    let named = |wanted: &[&str]| {
        let is_wanted = |name: &&str| wanted.iter().any(|word| name.contains(word));
        all.iter().map(|attempt| attempt.name).filter(is_wanted).collect::<Vec<_>>().join("; ")
    };
    let asked = "denied, counted, logged; frames flow between";
    let seen = match wrong {
        [] => format!("{attempts} of {attempts}, from {} threads", THREADS.len()),
        _ => format!("not so: {}", wrong.join("; ")),
    };
    let measure = format!("{} things that a switch in somebody else's hands may try", all.len());
    let unconfined = all.iter().filter(|attempt| attempt.works).count();
    let rows = [
        harness::report::row(measure, asked, seen, wrong.is_empty()),
        harness::report::info("of those, with files".into(), named(&["file", "folder"])),
        harness::report::info("with sockets to the outside".into(), named(&["socket", "port"])),
        harness::report::info("with programs and processes".into(), named(&["program", "process"])),
        harness::report::info(
            "that do work in a process that is not confined".into(),
            unconfined.to_string(),
        ),
    ];
    let note = "Each attempt is a system call made by the switch's own threads, after it has confined itself \
        as `tidegate switch` does.";
    harness::report::write("confinement", "confine", &rows, &[note]);
}

fn every_thread_is_confined() {
    let suspect = Suspect::up("confined");
    let mut client = suspect.client();
    let (mut a, mut b) = (suspect.guest(&mut client, "a", 1), suspect.guest(&mut client, "b", 2));
    frames_flow(&mut a, &mut b, b"up");
    let mut threads = BTreeSet::new();
    for task in fs::read_dir(format!("/proc/{}/task", suspect.child.id())).unwrap() {
        let status = fs::read_to_string(task.unwrap().path().join("status")).unwrap();
        let value = |key: &str| {
            let line = status.lines().find_map(|line| line.strip_prefix(key)).unwrap();
            line.trim_start_matches(':').trim().to_owned()
        };
        threads.insert(value("Name"));
        for set in ["CapInh", "CapPrm", "CapEff", "CapAmb"] {
            assert_eq!(value(set), "0000000000000000", "{set}: {status}");
        }
        assert_eq!((value("NoNewPrivs").as_str(), value("Seccomp").as_str()), ("1", "2"), "{status}");
    }
    for name in ["worker-0", "warden", "ager", "control", "port a", "port b"] {
        assert!(threads.contains(name), "{name}: {threads:?}");
    }
}

/// With an RDMA device, one more call passes, and no other.
fn rdma_opens_the_way_to_its_devices_alone() {
    let mut suspect = Suspect::up("rdma");
    let mut client = suspect.client();
    let (mut a, mut b) = (suspect.guest(&mut client, "a", 1), suspect.guest(&mut client, "b", 2));
    frames_flow(&mut a, &mut b, b"before");
    let mut expected = 0;
    for (number, attempt) in attempts::all().into_iter().enumerate() {
        let answer = suspect.answer("worker", number);
        if attempt.name == "ask an RDMA device" {
            assert_eq!(answer, (libc::ENOTTY, expected), "its stdin is none");
        } else {
            expected += 1;
            assert_eq!(answer, (libc::EPERM, expected), "{}", attempt.name);
        }
    }
    frames_flow(&mut a, &mut b, b"after");
}

/// What is left if the filter has a hole: the files of the devices that the command line names.
fn rdma_leaves_the_files_of_its_devices_to_landlock_alone() {
    // SAFETY: only asks for the interface's version (LANDLOCK_CREATE_RULESET_VERSION).
    let abi = unsafe { libc::syscall(libc::SYS_landlock_create_ruleset, 0, 0, 1) };
    if !tidegate_testkit::need("this kernel has no landlock", abi >= 1) {
        return;
    }
    let attempt = |name: &str| attempts::all().iter().position(|attempt| attempt.name == name).unwrap();
    for (role, of_device) in [("landlock", libc::EACCES), ("rdma landlock", 0)] {
        let mut suspect = Suspect::up(role);
        for (name, error) in [
            ("open its RDMA device", of_device),
            ("read about its RDMA device", of_device),
            ("open another RDMA device", libc::EACCES),
            ("read about another RDMA device", libc::EACCES),
            ("write about its RDMA device", libc::EACCES),
            ("open a file about devices", libc::EACCES),
            ("open a file", libc::EACCES),
            ("create a file", libc::EACCES),
            ("remove a file", libc::EACCES),
            ("execute a program", libc::EACCES),
        ] {
            assert_eq!(suspect.answer("worker", attempt(name)), (error, 0), "{role}: {name}");
        }
    }
}

/// Landlock alone, without the filter above it, answers EACCES for files and ports, EPERM for the rest.
fn landlock_alone_closes_files_ports_and_processes() {
    // SAFETY: only asks for the interface's version (LANDLOCK_CREATE_RULESET_VERSION).
    let abi = unsafe { libc::syscall(libc::SYS_landlock_create_ruleset, 0, 0, 1) };
    if !tidegate_testkit::need("this kernel has no landlock", abi >= 1) {
        return;
    }
    let mut suspect = Suspect::up("landlock");
    let closed = [
        (1, "open a file", libc::EACCES),
        (1, "create a file", libc::EACCES),
        (1, "make a folder", libc::EACCES),
        (1, "remove a file", libc::EACCES),
        (1, "execute a program", libc::EACCES),
        (3, "cut a file short", libc::EACCES),
        (4, "connect a TCP socket it was handed", libc::EACCES),
        (4, "take a TCP port", libc::EACCES),
        (6, "connect to an abstract Unix socket", libc::EPERM),
        (6, "signal another process", libc::EPERM),
    ];
    for (since, name, errno) in closed.into_iter().filter(|one| one.0 <= abi) {
        let number = attempts::all().iter().position(|attempt| attempt.name == name).unwrap();
        for thread in THREADS {
            assert_eq!(
                suspect.answer(thread, number),
                (errno, 0),
                "{name} on {thread}, ABI {since} of {abi}"
            );
        }
    }
}

fn the_kernel_does_not_know_clone3() {
    let mut suspect = Suspect::up("confined");
    assert_eq!(suspect.answer("clone3", 0), (libc::ENOSYS, 0));
    drop(suspect);
    assert_eq!(Suspect::up("open").answer("clone3", 0), (libc::EINVAL, 0));
}

fn a_panic_is_told() {
    let mut suspect = Suspect::up("confined");
    suspect.answer("panic", 0);
    let log = suspect.log();
    assert!(log.contains("panicked at") && log.contains("told"), "{log}");
    let mut client = suspect.client();
    let (mut a, mut b) = (suspect.guest(&mut client, "a", 1), suspect.guest(&mut client, "b", 2));
    frames_flow(&mut a, &mut b, b"and the others go on");
}

fn a_crash_ends_the_process() {
    let mut suspect = Suspect::up("confined");
    writeln!(suspect.orders, "crash 0").unwrap();
    let status = suspect.end();
    assert_eq!((status.signal(), status.core_dumped()), (Some(libc::SIGSEGV), false), "{status}");
}

fn ports_come_and_go_and_captures_run() {
    let mut suspect = Suspect::up("confined");
    let mut client = suspect.client();
    let (mut reader, writer) = std::io::pipe().unwrap();
    for round in 0..5 {
        let (mut a, mut b) = (suspect.guest(&mut client, "a", 1), suspect.guest(&mut client, "b", 2));
        if round == 0 {
            client.capture("a", 9000, writer.as_fd()).unwrap();
        }
        frames_flow(&mut a, &mut b, b"captured");
        client.remove_port("a").unwrap();
        client.remove_port("b").unwrap();
    }
    drop(writer);
    let mut captured = vec![];
    std::io::Read::read_to_end(&mut reader, &mut captured).unwrap();
    let found = captured.windows(8).filter(|bytes| *bytes == b"captured").count();
    assert_eq!(found, 2, "one frame each way");
    // The filter denies none of the switch's own calls.
    assert_eq!(suspect.answer("clone3", 0).1, 0, "{}", suspect.log());
}

fn what_it_needs_is_allowed() {
    let mut suspect = Suspect::up("confined");
    let answer = suspect.answer("needed", 0);
    assert_eq!(answer, (0, 0), "{}", suspect.log());
}

/// Without files of /proc, and without calls that a file system may never answer.
fn objects_are_told_apart() {
    let mut suspect = Suspect::up("confined");
    let mut client = suspect.client();
    let path = suspect.dir.path().join("hostile.sock");
    let listener = UnixListener::bind(&path).unwrap();
    client.set_port(&contract(&vnic("hostile", 3, "")), Attachment::Listener(listener.as_fd())).unwrap();
    let epoll = rustix::event::epoll::create(rustix::event::epoll::CreateFlags::CLOEXEC).unwrap();
    let counter = rustix::event::eventfd(0, rustix::event::EventfdFlags::CLOEXEC).unwrap();
    let waiters = Waiters::on(&counter, 300_000).unwrap();
    let file = fs::File::open("/proc/self/maps").unwrap();
    let cases = [
        (FrontendReq::SET_VRING_CALL, vec![0; 8], epoll.as_fd(), "is not an eventfd"),
        (FrontendReq::SET_VRING_CALL, vec![0; 8], counter.as_fd(), "to signal the driver's call eventfd"),
        (FrontendReq::SET_MEM_TABLE, one_page(), epoll.as_fd(), "not a file"),
        (FrontendReq::SET_MEM_TABLE, one_page(), file.as_fd(), "not memory but on a file system"),
    ];
    for (code, payload, descriptor, expected) in cases {
        let stream = std::os::unix::net::UnixStream::connect(&path).unwrap();
        send_with(&stream, &message(code, &payload), &[descriptor]).unwrap();
        let end = Instant::now() + harness::PATIENCE;
        loop {
            let ports = client.ports().unwrap();
            let why = ports.iter().find_map(|port| port.last_error.clone()).unwrap_or_default();
            if why.contains(expected) {
                break;
            }
            assert!(Instant::now() < end, "{code:?}: {why:?}, expected {expected}: {}", suspect.log());
            std::thread::sleep(Duration::from_millis(1));
        }
    }
    drop(waiters);
    let (mut a, mut b) = (suspect.guest(&mut client, "a", 1), suspect.guest(&mut client, "b", 2));
    frames_flow(&mut a, &mut b, b"others");
    assert_eq!(suspect.answer("clone3", 0).1, 0, "{}", suspect.log());
}

fn threads_must_not_be_there_yet() {
    let said = Suspect::start("threaded").line();
    assert!(said.contains("has 2 threads"), "{said}");
}
