//! The thread that has each worker on its CPU, and all other threads off it. It also counts the CPUs, under each `--cpus`: on
//! one alone no worker [waits awake](crate::server::busy_poll).
//!
//! Nothing tells it that a CPU went offline or that a cpuset changed: the kernel then moves threads by itself. So it looks each
//! second, while a worker has a CPU or a deadline is in force.

use super::choice::choose;
use super::load::Load;
use super::{Cpus, Host, host, list};
use crate::server::Switch;
use crate::worker::WorkerHandle;
use rustix::io::Errno;
use rustix::thread::{CpuSet, Pid, gettid, sched_getaffinity};
use std::io;
use std::sync::Arc;
use std::time::Duration;
use tidegate_service::housekeeping;

/// How often it looks while a worker has a CPU, or a deadline is in force.
const PAUSE: Duration = Duration::from_secs(1);

/// What it knows.
pub struct Keeper {
    cpus: Cpus,
    host: Host,
    load: Load,
    /// By worker: its thread.
    threads: Vec<Pid>,
    /// By worker: the CPU that it is to have.
    own: Vec<Option<usize>>,
    /// How many CPUs the process could use when it looked last, where the kernel told.
    count: Option<usize>,
    /// What the kernel refused last: it is said once.
    refused: Option<(Option<usize>, Errno)>,
    /// It was said that no worker can have a CPU.
    too_few: bool,
}

impl Keeper {
    /// One that has done nothing yet.
    pub fn new(cpus: Cpus, mut host: Host, workers: &[WorkerHandle]) -> Self {
        let threads: Vec<_> = workers.iter().map(|worker| worker.call(|_| gettid())).collect();
        // With a list nothing is chosen by the load of CPUs: then the file is closed, which tells what the whole host does.
        let stat = host.take_stat().filter(|_| cpus == Cpus::Auto);
        Self {
            cpus,
            host,
            load: Load::new(stat),
            own: vec![None; threads.len()],
            count: None,
            threads,
            refused: None,
            too_few: false,
        }
    }

    /// Looks once, and puts right what is not as it is to be. `realtime` says which workers carry frames with deadlines. Returns
    /// whether it is to look again after a while.
    pub fn look(&mut self, workers: &[WorkerHandle], realtime: &[bool]) -> bool {
        let wanted = match &self.cpus {
            Cpus::Auto => realtime.to_vec(),
            Cpus::List(cpus) => (0..workers.len()).map(|worker| worker < cpus.len()).collect(),
            Cpus::None => {
                // The CPUs are counted, no more.
                let any = realtime.contains(&true);
                if any {
                    self.count = self.host.allowed().ok().map(|allowed| allowed.len());
                }
                return any;
            }
        };
        let any = wanted.contains(&true);
        if !any && self.own.iter().all(Option::is_none) {
            return false;
        }
        let own = match self.host.allowed() {
            Ok(allowed) => {
                self.count = Some(allowed.len());
                self.choose(&allowed, &wanted)
            }
            Err(error) => {
                self.say_refused(None, error);
                return any;
            }
        };
        let before = std::mem::replace(&mut self.own, own);
        if before != self.own {
            self.load.forget();
        }
        for (worker, handle) in workers.iter().enumerate() {
            self.place(handle, worker, before[worker]);
        }
        any
    }

    /// A CPU for each worker that is `wanted`, and what is left for all other threads.
    fn choose(&mut self, allowed: &[usize], wanted: &[bool]) -> Vec<Option<usize>> {
        let own = match &self.cpus {
            Cpus::List(cpus) => {
                let given = cpus.iter().map(|cpu| allowed.contains(cpu).then_some(*cpu));
                given.chain(std::iter::repeat(None)).take(wanted.len()).collect()
            }
            _ => {
                let load = self.load.look(&self.threads, &self.own).unwrap_or_default();
                choose(allowed, self.host.cores(), wanted, &self.own, &load)
            }
        };
        let none = own.iter().all(Option::is_none);
        if none && wanted.contains(&true) && !std::mem::replace(&mut self.too_few, true) {
            tracing::warn!(
                cpus = list::text(allowed),
                "no worker can have a CPU of its own: this takes two that the process may use; whatever else runs on \
                 this one delays real-time frames"
            );
        }
        self.too_few &= none;
        // Before the workers come. The calling thread was set to all that are allowed.
        housekeeping::set_cpus(&left(allowed, &own, self.host.base()));
        housekeeping::follow_again();
        own
    }

    /// Has a worker on its CPU, or where all other threads are.
    fn place(&mut self, handle: &WorkerHandle, worker: usize, before: Option<usize>) {
        let cpu = self.own[worker];
        let Some(wanted) = cpu.map(|cpu| host::set([cpu])).or_else(housekeeping::cpus) else { return };
        if cpu == before
            && sched_getaffinity(Some(self.threads[worker])).is_ok_and(|is| self.host.same(&is, &wanted))
        {
            return;
        }
        match handle.call(move |worker| worker.run_on(&wanted, cpu)) {
            Err(error) => self.say_refused(Some(worker), error),
            Ok(()) if cpu == before => {
                tracing::info!(worker, cpu, "worker is back where it is to run: its CPUs had been changed");
            }
            Ok(()) => match cpu {
                Some(cpu) => tracing::info!(worker, cpu, "worker has a CPU of its own"),
                None => tracing::info!(worker, "worker has no CPU of its own any more"),
            },
        }
    }

    fn say_refused(&mut self, worker: Option<usize>, error: Errno) {
        if self.refused.replace((worker, error)) != Some((worker, error)) {
            tracing::warn!(
                worker,
                %error,
                "worker cannot have a CPU of its own; it runs where the scheduler puts it"
            );
        }
    }
}

/// What of the allowed CPUs is no worker's own; where nothing is, all that a thread may have, which is `base`.
fn left(allowed: &[usize], own: &[Option<usize>], base: &CpuSet) -> CpuSet {
    let rest: Vec<usize> = allowed.iter().copied().filter(|cpu| !own.contains(&Some(*cpu))).collect();
    if rest.is_empty() || rest.len() == allowed.len() { *base } else { host::set(rest) }
}

/// Starts the thread; returns it, for those who know that something changed.
///
/// # Errors
/// No thread.
pub fn spawn(switch: &Arc<Switch>, mut keeper: Keeper) -> io::Result<std::thread::Thread> {
    let switch = switch.clone();
    let look = move || {
        let mut hands_over = Vec::new();
        loop {
            let realtime = switch.realtime_workers();
            let again = keeper.look(&switch.workers, &realtime);
            switch.hand_over(&realtime, keeper.count, &mut hands_over);
            if let Some(cpus) = keeper.count {
                switch.cpus_counted(cpus);
            }
            if again {
                std::thread::park_timeout(PAUSE);
            } else {
                std::thread::park();
            }
        }
    };
    let thread = std::thread::Builder::new().name("cpus".into()).spawn(look)?;
    Ok(thread.thread().clone())
}

impl Switch {
    /// Which workers own a port that sends frames with a deadline that is in force, or one that such frames are for.
    pub fn realtime_workers(&self) -> Vec<bool> {
        let mut realtime = vec![false; self.workers.len()];
        let table = self.lock();
        for entry in table.entries.values() {
            if entry.vnic.deadline.is_none() || entry.suspended().is_some() {
                continue;
            }
            realtime[entry.worker] = true;
            for name in &entry.vnic.to {
                if let Some(receiver) = table.entries.get(name) {
                    realtime[receiver.worker] = true;
                }
            }
        }
        realtime
    }

    /// Which worker carries frames with deadlines may have changed.
    pub(in crate::server) fn realtime_changed(&self) {
        if let Some(thread) = self.cpus.get() {
            thread.unpark();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::server::cpus::host::{numbers, set};
    use rustix::thread::sched_setaffinity;

    #[test]
    fn cpus_are_counted_while_a_deadline_is_in_force() {
        let first = numbers(&sched_getaffinity(None).unwrap())[0];
        std::thread::scope(|scope| {
            scope.spawn(|| {
                sched_setaffinity(None, &set([first])).unwrap();
                // One that binds nothing: what is left to other threads is the process's, and of other tests, too.
                let mut keeper = Keeper::new(Cpus::None, Host::look().unwrap(), &[]);
                assert!(!keeper.look(&[], &[false]), "no deadline is in force");
                assert_eq!(keeper.count, None);
                assert!(keeper.look(&[], &[true]), "to be counted again");
                assert_eq!(keeper.count, Some(1));
            });
        });
    }
}
