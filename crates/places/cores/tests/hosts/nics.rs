//! Interrupts and queues.

use crate::lab::*;
use tidegate_contract::{Attach, Vnic};
use tidegate_cores::stage::{Handle, Kind, Queue, Stage};
use tidegate_place_cores::discover::Found;
use tidegate_testkit::contract::vnic;

#[test]
fn a_function_and_its_interrupts() {
    let attach = Attach::Vf { pf: "eth0".into(), index: 1, options: Default::default() };
    let mut lab = Lab::new("eight-cores", vec![Vnic { attach, ..vnic("a", 1) }], vec![]);
    let device = "/sys/devices/pci0000:00/0000:00:03.0/virtfn1";
    lab.tree.file(&format!("{device}/iommu_group"), "-> ../../kernel/iommu_groups/17");
    lab.tree.file(&format!("{device}/msi_irqs/90"), "msix");
    lab.tree.file("/sys/kernel/irq/90/actions", "vfio-msix[0](0000:00:03.1)");
    lab.tree.file("/proc/irq/90/smp_affinity_list", "2");
    lab.tree.file("/sys/class/vfio/17/dev", "241:17");
    qemu(&lab.tree, 100, "none");
    descriptor(&lab.tree, 100, 20, "/dev/vfio/17", "");
    qemu(&lab.tree, 200, "none");
    descriptor(&lab.tree, 200, 20, "/dev/vfio/17", "fake");
    let found = lab.look();
    let expected = [
        (Kind::HardIrq, 90),
        (Kind::Vcpu, 103),
        (Kind::Vcpu, 104),
        (Kind::Emulator, 100),
        (Kind::Emulator, 102),
    ];
    assert_eq!(kinds(&found, "a"), expected);
    let irqs: Vec<_> = found.stages.iter().filter(|stage| stage.handle.kind() == Kind::HardIrq).collect();
    assert_eq!(irqs.len(), 3, "and those of the physical function");
    assert!(
        irqs.iter()
            .any(|irq| irq.present == [2].into() && irq.handle.to_string().contains("eth0 vfio-msix[0]"))
    );
}

#[test]
fn queues_and_interrupts_of_a_nic() {
    let mut lab = Lab::new("eight-cores", vec![], vec![]);
    lab.host.cores.steer = vec!["eth0".into(), "none".into(), "..".into()];
    lab.tree.file("/sys/class/net/eth0/queues/rx-1/rps_cpus", "f0");
    lab.tree.file("/proc/stat", "cpu0 0 0 0 0 0 0 0 0 0 0\ncpu1 0 0 0 0 0 0 0 0 0 0");
    lab.tree.file("/sys/kernel/irq/30/per_cpu_count", "0,0");
    lab.tree.file("/sys/kernel/irq/31/per_cpu_count", "0,0");
    lab.look();
    lab.tree.file("/proc/stat", "cpu0 100 0 0 700 0 0 200 0 0 0\ncpu1 0 0 0 1000 0 0 0 0 0 0");
    lab.tree.file("/sys/kernel/irq/30/per_cpu_count", "3000,0");
    lab.tree.file("/sys/kernel/irq/31/per_cpu_count", "1000,0");
    lab.tree.file("/sys/class/net/eth0/statistics/rx_packets", "4000");
    let found = lab.look();
    let queue = |queue| Queue { device: "eth0".into(), queue };
    let get = |handle: Handle| found.stages.iter().find(|stage| stage.handle == handle).unwrap();
    let receive = [0, 1].map(|number| get(Handle::Receive(queue(number))));
    assert_eq!(receive[0].present, [0].into(), "where its interrupt arrives");
    assert_eq!(receive[1].present, [4, 5, 6, 7].into(), "where it is steered");
    let by = receive.each_ref().map(|stage| stage.pinned_by.as_deref());
    assert_eq!(by, [None, Some("its rps_cpus, which another program set")]);
    // Of 200 ticks in ten seconds three quarters: 15 %.
    assert_eq!((receive[0].load, receive[0].measured), (150_000, true));
    assert_eq!(
        (receive[1].load, receive[1].measured),
        (100, false),
        "its softirqs are elsewhere: 200 frames/s of 500 ns"
    );
    assert_eq!(get(Handle::Transmit(queue(1))).present.len(), 8);
    let irq = get(Handle::Irq { number: 30, name: "eth0-TxRx-0".into() });
    assert_eq!(irq.present, [0].into());
    assert_eq!((found.cpu_busy[&0], found.cpu_busy[&1]), (300_000, 0));
    let link = found.links.iter().find(|link| link.to == receive[0].handle).unwrap();
    assert_eq!((&link.from, link.frames), (&irq.handle, 200));
    assert_eq!(found.links.len(), 2, "{:?}", found.links);
}

#[test]
fn cpus_that_a_program_chose_for_interrupts_and_queues_and_those_that_a_driver_did() {
    let mut lab = Lab::new("eight-cores", vec![], vec![]);
    lab.host.cores.steer = vec!["eth0".into()];
    lab.tree.file("/proc/irq/default_smp_affinity", "3f");
    lab.tree.file("/proc/irq/30/affinity_hint", "01");
    lab.tree.file("/sys/class/net/eth0/queues/tx-0/xps_cpus", "01");
    lab.tree.file("/sys/class/net/eth0/queues/tx-1/xps_cpus", "c");
    let by = |found: &Found| -> Vec<String> {
        let by = |stage: &Stage| Some(format!("{}: {}", stage.handle, stage.pinned_by.as_ref()?));
        found.stages.iter().filter_map(by).collect()
    };
    let found = lab.look();
    let expected = [
        "interrupt 31 (eth0-TxRx-1): its smp_affinity, which another program set",
        "transmission of queue 1 of eth0: its xps_cpus, which another program set",
    ];
    assert_eq!(by(&found), expected, "of queue 0 its driver did");
    lab.tree.file("/proc/irq/31/smp_affinity_list", "0-5");
    assert_eq!(by(&lab.look()), expected[1..], "all of new interrupts");
    lab.tree.file("/proc/irq/30/smp_affinity_list", "4");
    assert_eq!(by(&lab.look()).len(), 2, "another one than its driver's");
}

/// The kernel shows where an interrupt arrived last until it arrives again.
#[test]
fn an_interrupt_that_was_moved_is_where_it_will_arrive() {
    let mut lab = Lab::new("guest-eight", vec![], vec![]);
    lab.host.cores.steer = vec!["eth0".into()];
    lab.tree.file("/proc/irq/default_smp_affinity", "ff");
    let irqs = |found: &Found| -> Vec<(Vec<usize>, bool)> {
        let irqs = found.stages.iter().filter(|stage| stage.handle.kind() == Kind::HardIrq);
        irqs.map(|irq| (irq.present.iter().copied().collect(), irq.pinned_by.is_some())).collect()
    };
    let before = irqs(&lab.look());
    assert_eq!((before.len(), before[0].clone()), (9, (vec![5], false)), "its own, and eight queues'");
    assert!(before.iter().all(|(_, pinned)| !pinned), "those of a node are the kernel's choice: {before:?}");
    lab.tree.file("/proc/irq/31/smp_affinity_list", "2");
    assert_eq!(irqs(&lab.look())[0].0, [2]);
    // A queue without frames still has its stack beside its interrupt.
    let found = lab.look();
    assert_eq!(found.links.len(), 8, "{:?}", found.links);
    assert!(found.links.iter().all(|link| link.frames > 0));
}

#[test]
fn the_nic_of_an_uplink_is_declared_or_has_its_address() {
    let text =
        "[uplink.net]\nlocal = \"192.0.2.1\"\nrate = \"1gbit\"\n[uplink.net.peer.b]\naddress = \"192.0.2.9\"";
    let parsed = tidegate_contract::parse(text, "a.toml").unwrap();
    for declared in [None, Some("eth0".to_owned())] {
        let mut lab = Lab::new("eight-cores", vec![], vec![]);
        // The address is a bond's; eth0 is below it.
        lab.tree.file("/sys/class/net/bond0/ifindex", "4");
        lab.tree.file("/sys/class/net/bond0/lower_eth0", "-> ../eth0");
        lab.network.uplinks = parsed.uplinks.iter().map(|uplink| uplink.value.clone()).collect();
        lab.network.uplinks[0].device = declared;
        lab.reported = vec![port("net")];
        lab.look();
        lab.tree.file("/sys/class/net/eth0/statistics/rx_packets", "2000");
        let found = lab.look();
        assert_eq!(found.stages.len(), 7, "two queues both ways, their interrupts, the port");
        let to_port = found.links.iter().filter(|link| link.to == Handle::Port("net".into()));
        assert_eq!(to_port.map(|link| link.frames).collect::<Vec<_>>(), [100, 100], "{:?}", found.links);
    }
}
