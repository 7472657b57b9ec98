//! Machines for tests.

use tidegate_evidence::{ConflictReport, CoresReport, CpuReport, ImpossibleReport, PlanReport, StageReport};

/// Returns a measured stage; its name is its kind.
pub fn stage(kind: &str, vnics: &[&str], load: u32, present: &[usize], planned: &[usize]) -> StageReport {
    StageReport {
        stage: kind.into(),
        kind: kind.into(),
        vnics: vnics.iter().map(|name| (*name).into()).collect(),
        load,
        measured: true,
        present: present.into(),
        planned: planned.into(),
        ..StageReport::default()
    }
}

/// Two cores with two SMT siblings each: one with housekeeping, one with a real-time worker.
pub fn small() -> CoresReport {
    let cpu = |cpu: usize, busy| CpuReport {
        cpu,
        core: (cpu % 2) as u32,
        busy: Some(busy),
        ..CpuReport::default()
    };
    let named = |name: &str, reason: &str, stage: StageReport| StageReport {
        stage: name.into(),
        reason: reason.into(),
        ..stage
    };
    CoresReport {
        kept: false,
        cpus: vec![
            CpuReport { housekeeping: true, ..cpu(0, 113_000) },
            CpuReport { own: true, ..cpu(1, 407_000) },
            CpuReport { housekeeping: true, ..cpu(2, 30_000) },
            CpuReport { isolated: true, ..cpu(3, 0) },
        ],
        stages: vec![
            named(
                "worker 0",
                "real-time: a CPU of its own",
                stage("worker", &["plc1", "plc2"], 380_000, &[1], &[1]),
            ),
            StageReport {
                measured: false,
                ..named(
                    "interrupt 24 (eth1-0)",
                    "a program pinned it",
                    stage("hard-irq", &[], 40_000, &[0], &[]),
                )
            },
            named(
                "vCPU thread 4711 (CPU 0/KVM)",
                "beside the housekeeping",
                stage("vcpu", &["plc1"], 210_000, &[0, 1, 2, 3], &[2]),
            ),
            named(
                "vCPU thread 4712 (CPU 1/KVM)",
                "beside the housekeeping",
                stage("vcpu", &["plc1"], 190_000, &[0, 1, 2, 3], &[0]),
            ),
        ],
        plan: Some(PlanReport {
            cost_ns: 4_100_000,
            present_cost_ns: 9_800_000,
            lower_bound_ns: 4_000_000,
            exact: false,
            took_us: 310,
            impossible: vec![ImpossibleReport {
                vnic: "cam".into(),
                reason: "no CPU is left for it alone".into(),
            }],
        }),
        costs: "priors".into(),
        conflicts: vec![ConflictReport {
            with: "irqbalance".into(),
            what: "it moves the interrupts of eth1".into(),
            remedy: "systemctl disable --now irqbalance".into(),
        }],
        ..CoresReport::default()
    }
}

/// 64 cores with two siblings each, on two nodes; one worker with 500 vNICs, and 16 CPUs with vCPUs.
pub fn large() -> CoresReport {
    let cpu = |cpu: usize| {
        let core = (cpu % 64) as u32;
        CpuReport { cpu, core, cache: core / 32, node: core / 32, busy: Some(20_000), ..CpuReport::default() }
    };
    let names: Vec<String> = (0..500).map(|n| format!("vm{n}")).collect();
    let all: Vec<&str> = names.iter().map(String::as_str).collect();
    let mut stages: Vec<StageReport> =
        names.iter().enumerate().map(|(n, name)| stage("vcpu", &[name], 30_000, &[n % 16], &[])).collect();
    stages.push(stage("worker", &all, 900_000, &[33], &[33]));
    CoresReport { cpus: (0..128).map(cpu).collect(), stages, ..CoresReport::default() }
}
