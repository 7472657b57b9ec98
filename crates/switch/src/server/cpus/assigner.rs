//! The thread that puts each worker on its CPU, and all other threads off it. Under each `--cpus` it also
//! counts the CPUs: on a single one no worker [waits awake](crate::server::busy_poll).
//!
//! The kernel moves threads without notice when a CPU goes offline or a cpuset changes. So the thread checks
//! each second, while a worker has a CPU or a deadline is in force.

use super::choice::{Choice, choose_directed};
use super::load::Load;
use super::{Cpus, Host, host, list};
use crate::server::Switch;
use crate::worker::WorkerHandle;
use rustix::io::Errno;
use rustix::thread::{CpuSet, Pid, gettid, sched_getaffinity};
use std::collections::BTreeMap;
use std::io;
use std::sync::Arc;
use std::time::Duration;
use tidegate_service::housekeeping;

/// Interval of the checks while a worker has a CPU, or a deadline is in force.
const PAUSE: Duration = Duration::from_secs(1);

/// The state of the thread.
pub struct CpuAssigner {
    cpus: Cpus,
    host: Host,
    load: Load,
    threads: Vec<Pid>,
    /// Each worker's CPU.
    own: Vec<Option<usize>>,
    /// The CPUs that each worker was last given; `None` before the first time.
    given: Vec<Option<CpuSet>>,
    /// Number of CPUs of the process at the last check, if the kernel reported it.
    count: Option<usize>,
    /// The kernel's last refusal, logged once.
    refused: Option<(Option<usize>, Errno)>,
    /// The log has the warning that no worker can have a CPU.
    too_few: bool,
    /// Why workers are not on the CPUs directed, at the last check.
    not_followed: BTreeMap<usize, String>,
}

impl CpuAssigner {
    /// Returns an assigner that has not changed any thread yet.
    pub fn new(cpus: Cpus, mut host: Host, workers: &[WorkerHandle]) -> Self {
        let threads: Vec<_> = workers.iter().map(|worker| worker.call(|_| gettid())).collect();
        // With a list, the load is irrelevant, and the file reveals the whole host's activity: close it.
        let stat = host.take_stat().filter(|_| cpus == Cpus::Auto);
        Self {
            cpus,
            host,
            load: Load::new(stat),
            own: vec![None; threads.len()],
            given: vec![None; threads.len()],
            count: None,
            threads,
            refused: None,
            too_few: false,
            not_followed: BTreeMap::new(),
        }
    }

    /// Checks once, and corrects differences. `realtime`: workers that carry frames with deadlines; `directed`: the CPUs of
    /// directed workers. Returns whether to check once more after a while.
    pub fn check(
        &mut self,
        workers: &[WorkerHandle],
        realtime: &[bool],
        directed: &BTreeMap<usize, usize>,
    ) -> bool {
        self.not_followed = self.prevails(directed);
        let wanted = match &self.cpus {
            Cpus::Auto => realtime.to_vec(),
            Cpus::List(cpus) => (0..workers.len()).map(|worker| worker < cpus.len()).collect(),
            Cpus::None => {
                let any = realtime.contains(&true);
                if any {
                    self.count = self.host.allowed().ok().map(|allowed| allowed.len());
                }
                return any;
            }
        };
        let any = wanted.contains(&true) || (self.cpus == Cpus::Auto && !directed.is_empty());
        if !any && self.own.iter().all(Option::is_none) {
            return false;
        }
        let own = match self.host.allowed() {
            Ok(allowed) => {
                self.count = Some(allowed.len());
                self.choose(&allowed, &wanted, directed)
            }
            Err(error) => {
                self.log_refusal(None, error);
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

    /// Returns why workers are not on the CPUs directed, if the option says otherwise.
    fn prevails(&self, directed: &BTreeMap<usize, usize>) -> BTreeMap<usize, String> {
        let (option, listed): (_, &[usize]) = match &self.cpus {
            Cpus::Auto => return BTreeMap::new(),
            Cpus::None => ("none".to_owned(), &[]),
            Cpus::List(cpus) => (list::text(cpus), cpus),
        };
        let others = directed.iter().filter(|(worker, cpu)| listed.get(**worker) != Some(cpu));
        let why = format!("the switch was started with --cpus {option}, which prevails");
        others.map(|(worker, _)| (*worker, why.clone())).collect()
    }

    /// Chooses CPUs for directed and `wanted` workers; other threads get the rest.
    fn choose(
        &mut self,
        allowed: &[usize],
        wanted: &[bool],
        directed: &BTreeMap<usize, usize>,
    ) -> Vec<Option<usize>> {
        let own = match &self.cpus {
            Cpus::List(cpus) => {
                let available = cpus.iter().map(|cpu| allowed.contains(cpu).then_some(*cpu));
                available.chain(std::iter::repeat(None)).take(wanted.len()).collect()
            }
            _ => {
                let load = self.load.measure(&self.threads, &self.own).unwrap_or_default();
                let cpus = (allowed, self.host.cores());
                let Choice { own, refused } = choose_directed(cpus, wanted, directed, &self.own, &load);
                self.not_followed = refused;
                own
            }
        };
        let none = own.iter().all(Option::is_none);
        if none && wanted.contains(&true) && !std::mem::replace(&mut self.too_few, true) {
            let obstacle = match &self.cpus {
                Cpus::List(listed) => format!(
                    "the process must be allowed to use a CPU of --cpus={}, or --cpus must name an allowed one",
                    list::text(listed)
                ),
                _ => "the process must be allowed to use at least two CPUs".into(),
            };
            tracing::warn!(
                cpus = list::text(allowed),
                "no worker can have a CPU of its own: {obstacle}; other threads on the worker's CPU delay \
                 real-time frames"
            );
        }
        self.too_few &= none;
        // Before the workers move there. The calling thread has all allowed CPUs.
        housekeeping::set_cpus(&housekeeping_cpus(allowed, &own, self.host.base()));
        housekeeping::follow_again();
        own
    }

    /// Puts a worker on its CPU, or on the CPUs of all other threads.
    fn place(&mut self, handle: &WorkerHandle, worker: usize, before: Option<usize>) {
        let cpu = self.own[worker];
        let Some(wanted) = cpu.map(|cpu| host::set([cpu])).or_else(housekeeping::cpus) else { return };
        // A set of all CPUs matches whatever the kernel leaves of it, so also fewer CPUs that were given before.
        let is_given = cpu == before && self.given[worker] == Some(wanted);
        if is_given
            && sched_getaffinity(Some(self.threads[worker])).is_ok_and(|is| self.host.matches(&is, &wanted))
        {
            return;
        }
        let outcome = handle.call(move |worker| worker.run_on(&wanted, cpu));
        self.given[worker] = outcome.is_ok().then_some(wanted);
        match outcome {
            Err(error) => {
                self.not_followed.entry(worker).or_insert_with(|| format!("the kernel refuses: {error}"));
                self.log_refusal(Some(worker), error);
            }
            Ok(()) if cpu == before && !is_given => {}
            Ok(()) if cpu == before => {
                tracing::info!(
                    worker,
                    cpu,
                    "worker runs on its own CPUs again, after another program or the kernel had changed them"
                );
            }
            Ok(()) => match cpu {
                Some(cpu) => tracing::info!(worker, cpu, "worker has a CPU of its own"),
                None => tracing::info!(worker, "worker has no CPU of its own any more"),
            },
        }
    }

    fn log_refusal(&mut self, worker: Option<usize>, error: Errno) {
        if self.refused.replace((worker, error)) != Some((worker, error)) {
            tracing::warn!(
                worker,
                %error,
                "worker cannot have a CPU of its own; the kernel's scheduler chooses its CPU"
            );
        }
    }
}

/// Returns the allowed CPUs without a worker; if there are none, `base`.
fn housekeeping_cpus(allowed: &[usize], own: &[Option<usize>], base: &CpuSet) -> CpuSet {
    let rest: Vec<usize> = allowed.iter().copied().filter(|cpu| !own.contains(&Some(*cpu))).collect();
    if rest.is_empty() || rest.len() == allowed.len() { *base } else { host::set(rest) }
}

/// Starts the thread and returns it, to be unparked on changes.
///
/// # Errors
/// The thread cannot start.
pub fn spawn(switch: &Arc<Switch>, mut assigner: CpuAssigner) -> io::Result<std::thread::Thread> {
    let switch = switch.clone();
    let look = move || {
        let mut hands_over = Vec::new();
        loop {
            let realtime = switch.realtime_workers();
            let directed = switch.directed.cpus();
            let needs_recheck = assigner.check(&switch.workers, &realtime, &directed);
            assigner.not_followed.retain(|worker, _| directed.contains_key(worker));
            switch.directed.note_workers(std::mem::take(&mut assigner.not_followed));
            switch.hand_over(&realtime, assigner.count, &mut hands_over);
            if let Some(cpus) = assigner.count {
                switch.set_cpu_count(cpus);
            }
            if needs_recheck {
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
    /// Returns which workers own a sender or receiver of frames with a deadline in force, also of another host's.
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
        let remotes = table.uplinks.values().flat_map(|uplink| &uplink.remotes);
        let far = remotes.filter(|remote| remote.deadline.is_some()).flat_map(|remote| &remote.to);
        for receiver in far.filter_map(|name| table.entries.get(name)) {
            realtime[receiver.worker] = true;
        }
        realtime
    }

    /// Wakes the assigner after a possible change of `realtime_workers`.
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
                // Binds nothing: other tests share the CPUs of other threads.
                let mut assigner = CpuAssigner::new(Cpus::None, Host::read().unwrap(), &[]);
                assert!(!assigner.check(&[], &[false], &BTreeMap::new()), "no deadline is in force");
                assert_eq!(assigner.count, None);
                assert!(assigner.check(&[], &[true], &BTreeMap::new()), "to be counted again");
                assert_eq!(assigner.count, Some(1));
            });
        });
    }

    #[test]
    fn a_receiver_of_another_hosts_deadline_makes_its_worker_real_time() {
        use std::net::UdpSocket;
        use tidegate_contract::{Nanos, Remote, Uplink, Vnic, testing};
        let switch = Switch::start(1, &[], None).unwrap();
        let sink = Vnic { deadline: None, to: vec![], ..testing::vnic("plc1") };
        switch.set_port(sink, crate::server::ports::Connect::NoFrontEnd).unwrap();
        let uplink = Uplink { local: Some([127, 0, 0, 1].into()), ..testing::uplink("net0") };
        let socket = || UdpSocket::bind("127.0.0.1:0").unwrap().into();
        let mut sockets = Some(crate::server::uplinks::Sockets {
            receive: vec![socket()],
            send: vec![socket()],
            pairs: vec![],
            ports: vec![],
            notices: None,
        });
        for deadline in [None, Some(Nanos::new(1_000_000))] {
            let remote = Remote { deadline, to: vec!["plc1".into()], ..testing::remote("plc9") };
            switch
                .set_uplink(uplink.clone(), (vec![remote], vec![], Default::default()), sockets.take())
                .unwrap();
            assert_eq!(switch.realtime_workers(), [deadline.is_some()]);
        }
    }
}
