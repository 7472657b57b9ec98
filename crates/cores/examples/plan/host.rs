//! A generated host: two sockets, SMT, VMs with vNICs on vhost-net or on the host switch.

use std::collections::BTreeMap;
use tidegate_cores::costs::Costs;
use tidegate_cores::cpus::Cpus;
use tidegate_cores::machine::{Cpu, Machine};
use tidegate_cores::problem::{Assignment, Problem};
use tidegate_cores::stage::{Handle, Link, Queue, Stage, Thread, ThreadKind};

/// `SplitMix64` (Steele, Lea, Flood: Fast Splittable Pseudorandom Number Generators, 2014).
struct Random(u64);

impl Random {
    fn below(&mut self, end: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (mixed ^ (mixed >> 31)) % end
    }

    fn between(&mut self, first: u64, last: u64) -> u32 {
        (first + self.below(last - first + 1)) as u32
    }
}

/// The numbering of Linux on such a machine: first one CPU of each core, then their siblings; eight cores share a cache, half of the
/// cores are on each of two nodes.
fn machine(cpus: usize) -> Machine {
    let cores = cpus.div_ceil(2);
    let of = |cpu: usize| {
        let core = cpu % cores;
        let node = core * 2 / cores;
        Cpu { core: core as u32, cache: (core / 8 + node * 1000) as u32, node: node as u32, isolated: false }
    };
    Machine {
        cpus: (0..cpus).map(|cpu| (cpu, of(cpu))).collect(),
        nics: [("eth0".into(), 0), ("eth1".into(), 1)].into(),
    }
}

struct Host {
    random: Random,
    stages: Vec<Stage>,
    links: Vec<Link>,
    threads: u32,
    all: Cpus,
}

impl Host {
    fn stage(&mut self, handle: Handle, vnic: &str, load: u32) -> Handle {
        let vnics = if vnic.is_empty() { vec![] } else { vec![vnic.into()] };
        let present = self.all.clone();
        self.stages.push(Stage {
            handle: handle.clone(),
            vnics,
            realtime: false,
            load,
            measured: true,
            present,
            pinned_by: None,
        });
        handle
    }

    fn thread(&mut self, kind: ThreadKind, vnic: &str, load: u32) -> Handle {
        self.threads += 1;
        let thread = Thread { process: 1, thread: self.threads, started: 0 };
        self.stage(Handle::Thread { kind, thread, name: vnic.into() }, vnic, load)
    }

    fn link(&mut self, from: &Handle, to: &Handle, frames: u32) {
        self.links.push(Link { from: from.clone(), to: to.clone(), frames });
    }
}

/// Builds a host of `cpus` CPUs with `vnics` vNICs, each of a VM of its own with one or two vCPUs; equal for equal seeds.
///
/// Three vNICs of four are on vhost-net: a queue of a NIC, its receive stack, the thread, a vCPU, and transmission. The others are
/// ports of the host switch's workers, which talk with each other in groups of four. Every fiftieth has a deadline.
pub fn generate(cpus: usize, vnics: usize, seed: u64) -> Problem {
    let machine = machine(cpus);
    let all = machine.online();
    let mut host = Host { random: Random(seed), stages: vec![], links: vec![], threads: 1000, all };
    let workers = (vnics / 60).clamp(2, 8);
    // About three fifths of the CPUs are busy.
    let part = cpus as f64 * 0.6e6 / vnics.max(1) as f64;
    let load =
        |host: &mut Host, share: f64| (part * share * f64::from(host.random.between(10, 190)) / 100.0) as u32;
    for worker in 0..workers {
        host.stage(Handle::Worker(worker), "", 20_000);
    }
    let queues = (cpus / 4).clamp(1, 32) as u16;
    let mut receive = BTreeMap::new();
    let mut transmit = BTreeMap::new();
    for device in ["eth0", "eth1"] {
        for queue in 0..queues {
            let irq = Handle::Irq {
                number: u32::from(queue) + 100 * u32::from(device == "eth1"),
                name: format!("{device}-TxRx-{queue}"),
            };
            let irq_load = load(&mut host, 0.05 * vnics as f64 / f64::from(queues) / 2.0);
            let irq = host.stage(irq, "", irq_load);
            let of = Queue { device: device.into(), queue };
            let stack_load = load(&mut host, 0.15 * vnics as f64 / f64::from(queues) / 2.0);
            let stack = host.stage(Handle::Receive(of.clone()), "", stack_load);
            host.link(&irq, &stack, stack_load / 4);
            receive.insert((device, queue), stack);
            let out = host.stage(Handle::Transmit(of), "", irq_load / 2);
            transmit.insert((device, queue), out);
        }
    }
    let mut ports = vec![];
    for number in 0..vnics {
        let vnic = format!("vm{number}");
        let realtime = number % 50 == 7;
        let vcpu_load = load(&mut host, 0.4);
        let vcpu = host.thread(ThreadKind::Vcpu, &vnic, vcpu_load);
        if host.random.below(2) == 0 {
            let other = load(&mut host, 0.1);
            host.thread(ThreadKind::Vcpu, &vnic, other);
        }
        let emulator = load(&mut host, 0.02);
        host.thread(ThreadKind::Emulator, &vnic, emulator);
        let work = load(&mut host, 0.25);
        // About 2 us a frame.
        let frames = work / 2;
        if number % 4 == 3 {
            let port = host.stage(Handle::Port(vnic.clone()), &vnic, work / 2);
            host.link(&port, &vcpu, frames);
            ports.push((port, realtime));
        } else {
            let vhost = host.thread(ThreadKind::Vhost, &vnic, work);
            host.link(&vhost, &vcpu, frames);
            let device = ["eth0", "eth1"][host.random.below(2) as usize];
            let queue = host.random.below(u64::from(queues)) as u16;
            host.link(&receive[&(device, queue)].clone(), &vhost, frames / 2);
            host.link(&vhost, &transmit[&(device, queue)].clone(), frames / 2);
        }
        host.stages.last_mut().expect("just added").realtime = realtime;
    }
    for four in ports.chunks(4) {
        for pair in four.windows(2) {
            let frames = host.random.between(1_000, 40_000);
            host.link(&pair[0].0, &pair[1].0, frames);
        }
    }
    let Host { stages, links, all, .. } = host;
    Problem {
        machine,
        stages,
        links,
        costs: Costs::priors(),
        usable: all,
        housekeeping: Cpus::new(),
        adopt: false,
        in_force: Assignment::default(),
    }
}
