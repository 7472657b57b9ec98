//! Which process holds which key.
//!
//! ```text
//!  /proc: new numbers ──────────┐
//!  a sixth of the known ones ───┼─▶ descriptors ─▶ Table ─▶ key: processes
//!  all, if a key has no process ┘                    └────▶ vhost's own processes, by owner
//! ```
//!
//! To read the descriptors of all processes of a large host takes tenths of a second. So they are remembered: a process is looked at
//! when its number is new, then at every sixth look, since it may have ended and another one have its number, or may have opened
//! further devices; and all are when a key appears that no process holds, but seldom: a user who may connect to a contract's socket makes
//! new keys at will.

use super::kernel::Kernel;
use super::key::Key;
use super::stat::Stat;
use super::vm::Task;
use crate::roots::{Roots, first_names, numbers};
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::time::{Duration, Instant};
use tidegate_cores::stage::{Thread, ThreadKind};

/// Each process is looked at once in so many looks.
const TURNS: u64 = 6;

/// All processes are looked at no more often, whatever keys appear.
const ALL: Duration = Duration::from_secs(30);

/// Most descriptors of one process that are looked at; those above belong to no VM that libvirt would start.
pub const MOST_DESCRIPTORS: usize = 4096;

/// The processes, as of their last looks.
#[derive(Debug, Default)]
pub struct Table {
    known: HashMap<u32, Known>,
    turn: u64,
    /// Keys that no process held at the last look.
    missing: BTreeSet<Key>,
    /// When all processes were looked at for a missing key.
    all: Option<Instant>,
}

/// One process.
#[derive(Debug)]
struct Known {
    stat: Stat,
    keys: BTreeSet<Key>,
    /// Whether its descriptors could be read.
    readable: bool,
}

/// The processes at one look.
#[derive(Debug, Default)]
pub struct Holders {
    /// Processes by key, lowest number first.
    pub by_key: BTreeMap<Key, Vec<u32>>,
    /// Threads of vhost that are processes of the kernel (before Linux 6.4), by the process that they work for.
    pub vhost: BTreeMap<u32, Vec<Task>>,
    /// Processes of other users whose descriptors this process may not read.
    pub unreadable: usize,
    /// Processes with virtual CPUs of KVM.
    pub kvm: BTreeSet<u32>,
    /// Processes by name, of those that may contradict a plan.
    pub named: BTreeMap<String, Vec<u32>>,
}

impl Table {
    /// Looks for holders of `wanted`, and for processes with one of the names `known_as`.
    pub fn look(
        &mut self,
        now: Instant,
        (roots, kernel): (&Roots, &Kernel),
        wanted: &BTreeSet<Key>,
        known_as: &[&str],
    ) -> Holders {
        self.turn += 1;
        let pids: BTreeSet<u32> = numbers(&roots.proc).into_iter().collect();
        self.known.retain(|pid, _| pids.contains(pid));
        let turn = self.turn;
        let look_at = |this: &mut Self, all: bool| {
            for pid in &pids {
                let due = u64::from(*pid) % TURNS == turn % TURNS;
                if !all && !due && this.known.contains_key(pid) {
                    continue;
                }
                match read(roots, kernel, *pid, wanted) {
                    Some(known) => drop(this.known.insert(*pid, known)),
                    None => drop(this.known.remove(pid)),
                }
            }
        };
        // At the first look, all are new.
        let first = self.known.is_empty();
        look_at(self, false);
        let held: BTreeSet<&Key> = self.known.values().flat_map(|known| &known.keys).collect();
        let mut missing: BTreeSet<Key> = wanted.iter().filter(|key| !held.contains(key)).cloned().collect();
        let is_due = self.all.is_none_or(|all| now.saturating_duration_since(all) >= ALL);
        if first || missing.is_subset(&self.missing) {
            self.missing = missing;
        } else if is_due {
            look_at(self, true);
            self.all = Some(now);
            missing.retain(|key| !self.known.values().any(|known| known.keys.contains(key)));
            self.missing = missing;
        } else {
            // The others are looked for later.
            self.missing.retain(|key| missing.contains(key));
        }
        self.holders(wanted, known_as)
    }

    fn holders(&self, wanted: &BTreeSet<Key>, known_as: &[&str]) -> Holders {
        let mut found = Holders::default();
        let mut pids: Vec<_> = self.known.iter().collect();
        pids.sort_unstable_by_key(|(pid, _)| **pid);
        for (pid, known) in pids {
            for key in known.keys.intersection(wanted) {
                found.by_key.entry(key.clone()).or_default().push(*pid);
            }
            if let Some(owner) = known.stat.vhost_of().filter(|_| known.stat.is_kernel()) {
                let thread = Thread { process: *pid, thread: *pid, started: known.stat.started };
                let kind = Some(ThreadKind::Vhost);
                found.vhost.entry(owner).or_default().push(Task { thread, stat: known.stat.clone(), kind });
            }
            if let Some(name) = known_as.iter().find(|name| **name == known.stat.name) {
                found.named.entry((*name).to_owned()).or_default().push(*pid);
            }
            if known.keys.contains(&Key::Kvm) {
                found.kvm.insert(*pid);
            }
            found.unreadable += usize::from(!known.readable);
        }
        found
    }
}

/// Reads one process; `None` if it ended.
fn read(roots: &Roots, kernel: &Kernel, pid: u32, wanted: &BTreeSet<Key>) -> Option<Known> {
    let folder = roots.proc.join(pid.to_string());
    let stat = Stat::read(&folder)?;
    if stat.is_kernel() {
        return Some(Known { stat, keys: BTreeSet::new(), readable: true });
    }
    let readable = std::fs::read_dir(folder.join("fd")).is_ok();
    let descriptors = first_names(folder.join("fd"), MOST_DESCRIPTORS);
    let keys = descriptors.into_iter().filter_map(|fd| Key::of_descriptor(kernel, pid, &folder, &fd));
    // Most sockets of a host are of no interest, and there are many.
    let keys = keys.filter(|key| !matches!(key, Key::Socket(_)) || wanted.contains(key)).collect();
    Some(Known { stat, keys, readable })
}
