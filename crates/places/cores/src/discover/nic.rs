//! The interrupts and queues of a network interface.
//!
//! ```text
//!  /sys/class/net/X/device/msi_irqs ─┬▶ /sys/kernel/irq/N/{actions,per_cpu_count} ─┐
//!                                    └▶ /proc/irq/N/effective_affinity_list ───────┼─▶ Nic
//!  /sys/class/net/X/queues/rx-N/rps_cpus, tx-N/xps_cpus, statistics ───────────────┘
//! ```

use crate::roots::{Roots, list, mask, names, number, numbered, numbers, text};
use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use tidegate_cores::cpus::Cpus;
use tidegate_cores::stage::{Handle, Queue};

/// Most queues of one direction, and most interrupts, of one interface.
const MOST: usize = 256;

/// One interface.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Nic {
    /// Its name.
    pub device: String,
    /// Its interrupts.
    pub irqs: Vec<Irq>,
    /// By queue, the CPUs to which the network stack of its frames is steered (`rps_cpus`); empty: where its interrupt is.
    pub receive: Vec<Cpus>,
    /// By queue, the CPUs that send through it (`xps_cpus`); empty: any.
    pub transmit: Vec<Cpus>,
    /// Frames received since the interface was made.
    pub received: u64,
    /// Frames sent.
    pub sent: u64,
    /// The interfaces whose frames it carries, as contracts name them.
    pub for_devices: BTreeSet<String>,
    /// The vNICs on the kernel's devices whose frames it carries.
    pub for_vnics: BTreeSet<String>,
}

/// One interrupt.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Irq {
    /// The kernel's number.
    pub number: u32,
    /// The driver's name for it.
    pub name: String,
    /// The queue that it serves, if its name tells.
    pub queue: Option<u16>,
    /// Whether it serves sent frames alone.
    pub transmit_only: bool,
    /// Where it arrives next: the CPU that the kernel chose among the allowed ones, or these.
    pub cpus: Cpus,
    /// The allowed ones; empty if they are not known.
    pub allowed: Cpus,
    /// The CPUs that its driver chose (`affinity_hint`); empty without such a choice.
    pub hint: Cpus,
    /// Times that it arrived, by CPU.
    pub counts: Vec<u64>,
    /// Whether the kernel manages it: no program may move it.
    pub managed: bool,
    /// The vNIC whose function it is of; `None`: the interface's own.
    pub vnic: Option<String>,
}

impl Nic {
    /// Reads an interface; `None` if there is none of that name.
    pub fn read(roots: &Roots, device: &str) -> Option<Self> {
        let folder = folder(roots, device)?;
        let counter = |name: &str| number(folder.join("statistics").join(name)).unwrap_or(0);
        let numbers = interrupts(&folder.join("device")).into_iter().take(MOST);
        Some(Self {
            device: device.to_owned(),
            irqs: numbers.map(|number| Irq::read(roots, number)).collect(),
            receive: queues(&folder, "rx-", "rps_cpus"),
            transmit: queues(&folder, "tx-", "xps_cpus"),
            received: counter("rx_packets"),
            sent: counter("tx_packets"),
            ..Self::default()
        })
    }

    /// Reads the receive queues of an interface alone.
    pub fn read_receive(roots: &Roots, device: &str) -> Option<Self> {
        let receive = queues(&folder(roots, device)?, "rx-", "rps_cpus");
        Some(Self { device: device.to_owned(), receive, ..Self::default() })
    }

    /// Adds the interrupts of a virtual function, which is a vNIC's.
    pub fn add_function(&mut self, roots: &Roots, index: u16, vnic: &str) {
        let device = roots.sys.join("class/net").join(&self.device).join(format!("device/virtfn{index}"));
        let numbers = interrupts(&device).into_iter().take(MOST);
        // Whatever queue it is, it is none of this interface.
        let irq = |number| Irq { vnic: Some(vnic.to_owned()), queue: None, ..Irq::read(roots, number) };
        self.irqs.extend(numbers.map(irq));
    }

    /// Returns the receive queues.
    pub fn receive_queues(&self) -> impl Iterator<Item = (u16, &Cpus)> {
        (0..).zip(&self.receive)
    }

    /// Returns the transmit queues.
    pub fn transmit_queues(&self) -> impl Iterator<Item = (u16, &Cpus)> {
        (0..).zip(&self.transmit)
    }

    /// Returns a queue's name.
    pub fn queue(&self, queue: u16) -> Queue {
        Queue { device: self.device.clone(), queue }
    }

    /// Returns the stages of the receive queues.
    pub fn receive_handles(&self) -> Vec<Handle> {
        self.receive_queues().map(|(queue, _)| Handle::Receive(self.queue(queue))).collect()
    }

    /// Returns the stages of the transmit queues.
    pub fn transmit_handles(&self) -> Vec<Handle> {
        self.transmit_queues().map(|(queue, _)| Handle::Transmit(self.queue(queue))).collect()
    }

    /// Returns the interrupts of a receive queue.
    pub fn irqs_of(&self, queue: u16) -> impl Iterator<Item = &Irq> {
        self.irqs.iter().filter(move |irq| irq.queue == Some(queue) && !irq.transmit_only)
    }
}

impl Irq {
    /// Returns its stage; `device` is the interface.
    pub fn handle(&self, device: &str) -> Handle {
        let own = self.name.contains(device);
        let name = if own { self.name.clone() } else { format!("{device} {}", self.name) };
        Handle::Irq { number: self.number, name }
    }

    /// Whether a program gave it fewer CPUs than a new interrupt has, which are all of `usual` on one NUMA node. Its driver may have, and
    /// tells so.
    pub fn is_chosen(&self, usual: &[Cpus]) -> bool {
        let is_usual = || usual.iter().any(|cpus| cpus.is_subset(&self.allowed));
        !self.allowed.is_empty() && self.allowed != self.hint && !is_usual()
    }

    fn read(roots: &Roots, number: u32) -> Self {
        let kernel = roots.sys.join("kernel/irq").join(number.to_string());
        let name = text(kernel.join("actions")).unwrap_or_default();
        let (queue, transmit_only) = queue(&name);
        let counts = text(kernel.join("per_cpu_count")).unwrap_or_default();
        let proc = roots.proc.join("irq").join(number.to_string());
        let allowed = list(proc.join("smp_affinity_list")).unwrap_or_default();
        let effective = list(proc.join("effective_affinity_list")).unwrap_or_default();
        // Only there if debugfs is mounted and the kernel has CONFIG_GENERIC_IRQ_DEBUGFS.
        let debug = text(roots.sys.join("kernel/debug/irq/irqs").join(number.to_string()));
        Self {
            number,
            name,
            queue,
            transmit_only,
            cpus: arrives(&allowed, effective),
            allowed,
            hint: mask(proc.join("affinity_hint")).unwrap_or_default(),
            counts: counts.split(',').map(|count| count.trim().parse().unwrap_or(0)).collect(),
            managed: debug.is_some_and(|state| state.contains("IRQD_AFFINITY_MANAGED")),
            vnic: None,
        }
    }
}

/// Returns where an interrupt arrives next. Of one that was moved the kernel shows the CPU before until it has arrived once (`irq_move_irq`).
fn arrives(allowed: &Cpus, effective: Cpus) -> Cpus {
    let is_known = !effective.is_empty() && (allowed.is_empty() || effective.is_subset(allowed));
    if is_known { effective } else { allowed.clone() }
}

/// Returns the physical interfaces that are ports of the same bridge as `device`; none if it is in no bridge.
pub fn bridged(roots: &Roots, device: &str) -> Vec<String> {
    let Some(folder) = folder(roots, device) else { return vec![] };
    let mut ports = names(folder.join("master/brif"));
    ports.retain(|port| port != device && is_physical(roots, port));
    ports.sort_unstable();
    ports
}

/// Returns the interfaces that carry the frames of an interface: of a bond or a team its members, of a VLAN or macvtap the one below; the
/// interface itself if it is physical.
pub fn physical(roots: &Roots, device: &str) -> Vec<String> {
    let (mut open, mut seen, mut found) = (vec![device.to_owned()], vec![], vec![]);
    while let Some(device) = open.pop().filter(|_| seen.len() < MOST) {
        if seen.contains(&device) {
            continue;
        }
        if is_physical(roots, &device) {
            found.push(device.clone());
        }
        let below = folder(roots, &device).map(names).unwrap_or_default();
        open.extend(below.iter().filter_map(|name| name.strip_prefix("lower_")).map(str::to_owned));
        seen.push(device);
    }
    found.sort_unstable();
    found
}

fn is_physical(roots: &Roots, device: &str) -> bool {
    folder(roots, device).is_some_and(|folder| folder.join("device").exists())
}

/// Returns the folder of an interface that exists; names lead nowhere else.
fn folder(roots: &Roots, device: &str) -> Option<PathBuf> {
    let good = !device.is_empty() && !device.contains('/') && device != "." && device != "..";
    Some(roots.sys.join("class/net").join(device)).filter(|folder| good && folder.exists())
}

/// Returns the masks of an interface's queues.
fn queues(folder: &Path, prefix: &str, file: &str) -> Vec<Cpus> {
    let folder = folder.join("queues");
    let found = numbered::<u16>(&folder, prefix).into_iter().take(MOST);
    found.map(|queue| mask(folder.join(format!("{prefix}{queue}/{file}"))).unwrap_or_default()).collect()
}

/// Returns the interrupts of a device.
fn interrupts(device: &Path) -> Vec<u32> {
    let msi = |device: &Path| Some(numbers::<u32>(device.join("msi_irqs"))).filter(|found| !found.is_empty());
    // Of a virtio device, the PCI device has them.
    let above = || {
        let real = device.canonicalize().ok()?;
        real.file_name()?.to_str()?.strip_prefix("virtio")?;
        msi(real.parent()?)
    };
    let line = || number::<u32>(device.join("irq")).filter(|irq| *irq > 0).map(|irq| vec![irq]);
    msi(device).or_else(above).or_else(line).unwrap_or_default()
}

/// Returns the queue that an interrupt serves, by its name, and whether of sent frames alone: `eth0-TxRx-3` and `mlx5_comp3@pci:...`
/// serve queue 3, `virtio4-output.0` sends, `virtio4-config` and `mlx5_async0@pci:...` serve none.
fn queue(name: &str) -> (Option<u16>, bool) {
    let own = name.split('@').next().unwrap_or_default().to_ascii_lowercase();
    let digits = own.bytes().rev().take_while(u8::is_ascii_digit).count();
    let (kind, digits) = own.split_at(own.len() - digits);
    let receives = ["rx", "input", "comp"].iter().any(|word| kind.contains(word));
    let sends = ["tx", "output"].iter().any(|word| kind.contains(word));
    // Names without a word for their direction are those of queues in both, such as `eth0-3`: a number after a separator.
    let plain =
        kind.ends_with(['-', '.']) && !["async", "cmd", "misc", "mbx"].iter().any(|word| kind.contains(word));
    let queue = digits.parse().ok().filter(|_| receives || sends || plain);
    (queue, sends && !receives)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_new_interrupt_has_the_cpus_of_a_node() {
        let usual = [[0, 1].into(), [2, 3].into()];
        let is_chosen = |allowed: &[usize], hint: &[usize]| {
            let [allowed, hint] = [allowed, hint].map(|cpus| cpus.iter().copied().collect());
            Irq { allowed, hint, ..Irq::default() }.is_chosen(&usual)
        };
        assert!(!is_chosen(&[0, 1, 2, 3], &[]) && !is_chosen(&[2, 3], &[]) && !is_chosen(&[], &[]));
        assert!(is_chosen(&[1, 2], &[]) && is_chosen(&[0], &[]) && is_chosen(&[0], &[1]));
        assert!(!is_chosen(&[0], &[0]), "its driver's");
    }

    #[test]
    fn an_interrupt_that_was_moved_and_has_not_arrived_since_counts_where_it_will() {
        let next = |allowed: &[usize], effective: &[usize]| {
            let [allowed, effective] =
                [allowed, effective].map(|cpus| cpus.iter().copied().collect::<Cpus>());
            arrives(&allowed, effective).into_iter().collect::<Vec<_>>()
        };
        assert_eq!(next(&[4, 5, 6, 7], &[5]), [5]);
        assert_eq!(next(&[0], &[5]), [0]);
        assert_eq!((next(&[0, 1], &[]), next(&[], &[5])), (vec![0, 1], vec![5]));
    }

    #[test]
    fn names_of_drivers() {
        let cases = [
            ("eth0-TxRx-3", Some(3), false),
            ("i40e-eth0-TxRx-12", Some(12), false),
            ("mlx5_comp3@pci:0000:01:00.0", Some(3), false),
            ("mlx5_async0@pci:0000:01:00.0", None, false),
            ("virtio4-input.0", Some(0), false),
            ("virtio4-output.1", Some(1), true),
            ("virtio4-config", None, false),
            ("ens3f0-rx-1", Some(1), false),
            ("ens3f0-tx-1", Some(1), true),
            ("eth0-fp-2", Some(2), false),
            ("eth0-3", Some(3), false),
            ("eth0", None, false),
            ("i40e-0000:3b:00.0:misc", None, false),
            ("", None, false),
            ("99999999", None, false),
        ];
        for (name, expected, transmit_only) in cases {
            assert_eq!(queue(name), (expected, transmit_only), "{name}");
        }
    }
}
