//! Beside others' programs in libxdp's dispatcher. Kernels of test machines may refuse extensions of programs: these run with Debian's,
//! in a guest.

use super::host::{Far, Near, pinned, run_here};
use super::stock::in_guest;
use super::veth::{table, to_port};
use crate::device::{Found, found, index};
use crate::dispatcher::Dispatcher;
use crate::steering::{AttachError, Options, Steering, detach_left};
use crate::table::Table;
use libbpf_rs::query::{ProgInfoIter, ProgInfoQueryOptions};
use libbpf_rs::{MapCore, MapFlags, MapHandle};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};
use tidegate_testkit::own_mounts;

const COUNTER: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/counter.bpf.o"));

/// This host, where libxdp keeps its records in a file system of the test's own; and the other's program as a file.
struct Host {
    near: Near,
    far: Far,
    folder: tempfile::TempDir,
    second: usize,
}

impl Host {
    /// Sends from the first CPU, so that frames for the second one are redirected.
    fn new() -> Self {
        own_mounts().unwrap();
        run_here("mount", "-t bpf -o mode=700 bpf /sys/fs/bpf");
        let near = Near::new();
        let far = Far::new(&near);
        let cpus: Vec<usize> = crate::cpus::online("/".as_ref()).unwrap().into_iter().collect();
        let first = cpus[0];
        far.run(move || pinned(first));
        let folder = tempfile::tempdir().unwrap();
        std::fs::write(folder.path().join("counter.o"), COUNTER).unwrap();
        Self { near, far, folder, second: cpus[1] }
    }

    fn counter(&self) -> PathBuf {
        self.folder.path().join("counter.o")
    }

    /// Loads the other's program, so many times; returns their numbers.
    fn load(&self, options: &str, times: usize) -> Vec<u32> {
        let before = dispatcher().map_or(vec![], |there| there.programs);
        let files = vec![self.counter().display().to_string(); times].join(" ");
        run_here("xdp-loader", &format!("load{options} near {files}"));
        let mut programs = dispatcher().unwrap().programs;
        programs.retain(|number| !before.contains(number));
        assert_eq!(programs.len(), times);
        programs
    }

    fn voice(&self) -> Table {
        table(vec![to_port("voice", 5001, self.second)], [])
    }

    fn attach(&self) -> Steering {
        Steering::attach("near", &Options::default(), &self.voice()).unwrap()
    }

    /// Sends frames of the entry; returns how many the entry and the other's program with this number counted.
    fn counted(&self, steering: &Steering, other: Option<u32>) -> [u64; 2] {
        let now = || [frames(steering), other.map_or(0, seen)];
        let before = now();
        let received = self.near.receive(5001, &self.far, 20);
        assert_eq!(received.lost, 0);
        assert!(received.cpus.iter().all(|cpu| *cpu == self.second as u32), "{:?}", received.cpus);
        let after = now();
        [after[0] - before[0], after[1] - before[1]]
    }
}

fn dispatcher() -> Option<Dispatcher> {
    match found(index("near").unwrap()).unwrap().1 {
        Found::Dispatcher(dispatcher) => Some(dispatcher),
        _ => None,
    }
}

fn frames(steering: &Steering) -> u64 {
    steering.counters().unwrap().entries["voice"].total().frames
}

/// Returns what the other's program with this number counted.
fn seen(number: u32) -> u64 {
    let options = ProgInfoQueryOptions::default().include_map_ids(true);
    let program = ProgInfoIter::with_query_opts(options).find(|program| program.id == number).unwrap();
    let map = MapHandle::from_map_id(program.map_ids[0]).unwrap();
    let value = map.lookup(&[0; 4], MapFlags::ANY).unwrap().unwrap();
    u64::from_ne_bytes(value.try_into().unwrap())
}

#[test]
fn both_run_and_each_comes_and_goes_alone() {
    in_guest("tests::chained::both_run_and_each_comes_and_goes_alone", || {
        let host = Host::new();
        let [other] = host.load("", 1)[..] else { panic!() };
        let steering = host.attach();
        let there = dispatcher().unwrap();
        let [ours] = there.ours[..] else { panic!("{there:?}") };
        assert!(steering.is_chained() && steering.is_there().unwrap(), "{there:?}");
        assert_eq!((there.programs.len(), there.is_generic), (2, false));
        assert_eq!(host.counted(&steering, Some(other)), [20, 20]);

        // The next process finds table and counters, and changes nothing at the device.
        drop(steering);
        assert_eq!(host.near.receive(5001, &host.far, 20).lost, 0);
        let steering = host.attach();
        assert_eq!((dispatcher().unwrap(), frames(&steering)), (there, 40));

        // The other goes: ours stays, alone in another dispatcher. And comes again.
        run_here("xdp-loader", &format!("unload near --id {other}"));
        assert_eq!(dispatcher().unwrap().programs, [ours]);
        assert!(steering.is_there().unwrap());
        assert_eq!(host.counted(&steering, None), [20, 0]);
        // No descriptor of ours keeps it; the kernel frees its link some time after its record is gone.
        let is_kept = || ProgInfoIter::default().any(|program| program.id == other);
        let end = Instant::now() + Duration::from_secs(30);
        while is_kept() {
            assert!(Instant::now() < end, "the other's program stays in the kernel");
            std::thread::sleep(Duration::from_millis(50));
        }
        let [other] = host.load("", 1)[..] else { panic!() };
        assert_eq!(host.counted(&steering, Some(other)), [20, 20]);

        // Ours is taken out: that is seen, and it joins again.
        run_here("xdp-loader", &format!("unload near --id {ours}"));
        assert!(!steering.is_there().unwrap());
        drop(steering);
        let steering = host.attach();
        assert_eq!(host.counted(&steering, Some(other)), [20, 20]);

        // Another release takes its place.
        let larger = Options { entries: 2 * Options::default().entries, ..Options::default() };
        let next = Steering::attach("near", &larger, &host.voice()).unwrap();
        assert!(next.is_there().unwrap() && !steering.is_there().unwrap());
        assert_eq!(dispatcher().unwrap().programs.len(), 2);
        // The one that was replaced is not there to be removed.
        steering.detach().unwrap();
        assert_eq!(host.counted(&next, Some(other)), [20, 20]);

        // Ours goes: the other stays.
        next.detach().unwrap();
        let there = dispatcher().unwrap();
        assert_eq!((there.programs, there.ours), (vec![other], vec![]));
        let before = seen(other);
        assert_eq!(host.near.receive(5001, &host.far, 20).lost, 0);
        assert_eq!(seen(other) - before, 20);

        // The last one takes the dispatcher along.
        drop(host.attach());
        run_here("xdp-loader", &format!("unload near --id {other}"));
        assert!(detach_left("near").unwrap() && !detach_left("near").unwrap());
        assert_eq!(found(index("near").unwrap()).unwrap().1, Found::Nothing);
        let records: Vec<_> = std::fs::read_dir("/sys/fs/bpf/xdp").unwrap().flatten().collect();
        assert!(records.is_empty(), "{records:?}");
        let steering = host.attach();
        assert!(!steering.is_chained());
        steering.detach().unwrap();
    });
}

#[test]
fn a_redirected_frame_ends_the_chain() {
    in_guest("tests::chained::a_redirected_frame_ends_the_chain", || {
        let host = Host::new();
        let [after] = host.load(" --prio 91", 1)[..] else { panic!() };
        let steering = host.attach();
        assert_eq!(host.counted(&steering, Some(after)), [20, 0]);
        // Without an entry they stay on this CPU, and the chain goes on.
        let before = seen(after);
        assert_eq!(host.near.receive(5002, &host.far, 20).lost, 0);
        assert_eq!(seen(after) - before, 20);
        steering.detach().unwrap();
    });
}

#[test]
fn a_dispatcher_without_room_or_library_stays() {
    in_guest("tests::chained::a_dispatcher_without_room_or_library_stays", || {
        let host = Host::new();
        let refused = || {
            let before = dispatcher();
            let error = Steering::attach("near", &Options::default(), &host.voice()).unwrap_err();
            assert!(matches!(error, AttachError::NotJoined { .. }), "{error}");
            assert_eq!(dispatcher(), before);
            error.to_string()
        };
        host.load("", 1);
        // A library that is no library. xdp-loader has its own.
        let library = Path::new("/usr/lib").join(format!("{}-linux-gnu/libxdp.so.1", std::env::consts::ARCH));
        let library = std::fs::canonicalize(library).unwrap();
        run_here("mount", &format!("--bind /dev/null {}", library.display()));
        assert!(refused().contains("apt install libxdp1"), "{}", refused());
        run_here("umount", &library.display().to_string());
        // It is looked for again.
        host.attach().detach().unwrap();
        // As in a unit that does not open it.
        run_here("mount", "-o remount,bind,ro /sys/fs/bpf");
        let text = refused();
        assert!(text.contains("/sys/fs/bpf cannot be written: Read-only file system"), "{text}");
        run_here("mount", "-o remount,bind,rw /sys/fs/bpf");
        // As bpffs is mounted without options: every user could make the records.
        run_here("chmod", "1777 /sys/fs/bpf");
        let text = refused();
        assert!(text.contains("chmod 700 /sys/fs/bpf"), "{text}");
        run_here("chmod", "700 /sys/fs/bpf");

        host.load("", 8);
        let steering = host.attach();
        let there = dispatcher().unwrap();
        assert_eq!(there.programs.len(), 10);
        // Another release, without a free place.
        let larger = Options { entries: 2 * Options::default().entries, ..Options::default() };
        let next = Steering::attach("near", &larger, &host.voice()).unwrap();
        assert!(next.is_there().unwrap() && !steering.is_there().unwrap());
        next.detach().unwrap();
        host.load("", 1);
        let text = refused();
        assert!(text.contains("cannot join it: it has 10 programs, which is the most"), "{text}");
        assert!(text.contains("xdp-loader status near"), "{text}");
        assert!(!detach_left("near").unwrap());

        // In the kernel's own mode, which is not asked for.
        run_here("xdp-loader", "unload near --all");
        host.load(" --mode skb", 1);
        let text = refused();
        assert!(text.contains("xdp-loader load -m native"), "{text}");
        run_here("xdp-loader", "unload near --all");
        host.load("", 1);
        // Where libxdp finds none of its records, it changes nothing.
        run_here("mount", "-t bpf -o mode=700 bpf /sys/fs/bpf");
        let text = refused();
        assert!(text.contains("cannot join it: Device or resource busy (os error 16): "), "{text}");
        assert!(text.contains("libxdp: Existing program is not using a dispatcher"), "{text}");
    });
}

#[test]
fn others_come_and_go_at_the_same_time() {
    in_guest("tests::chained::others_come_and_go_at_the_same_time", || {
        let host = Host::new();
        let [stays] = host.load("", 1)[..] else { panic!() };
        let (done, counter) = (AtomicBool::new(false), host.counter());
        let (attached, refused) = std::thread::scope(|scope| {
            scope.spawn(|| {
                for _ in 0..8 {
                    // It may meet ours between two of its own steps, and fail.
                    let load =
                        Command::new("xdp-loader").args(["load", "near"]).arg(&counter).output().unwrap();
                    eprintln!("{}", String::from_utf8_lossy(&load.stderr));
                    let others = dispatcher().map_or(vec![], |there| there.programs).into_iter();
                    let is_other = |number: &u32| {
                        *number != stays && crate::program::name_of(*number).as_deref() == Some("counter")
                    };
                    for number in others.filter(is_other) {
                        let number = number.to_string();
                        let _ = Command::new("xdp-loader").args(["unload", "near", "--id", &number]).output();
                    }
                }
                done.store(true, Ordering::Relaxed);
            });
            let (mut attached, mut refused) = (0, 0);
            while !done.load(Ordering::Relaxed) {
                match Steering::attach("near", &Options::default(), &host.voice()) {
                    Ok(steering) => {
                        attached += 1;
                        let _ = steering.detach();
                    }
                    Err(error) => {
                        assert!(matches!(error, AttachError::NotJoined { .. }), "{error}");
                        refused += 1;
                    }
                }
            }
            (attached, refused)
        });
        assert!(attached > 2, "{attached} times, {refused} times refused");
        let steering = host.attach();
        let there = dispatcher().unwrap();
        assert_eq!(there.ours.len(), 1, "{there:?}");
        assert!(there.programs.contains(&stays), "{there:?}");
        assert_eq!(host.counted(&steering, Some(stays)), [20, 20]);
    });
}
