//! Probes the running kernel by real steps in a network namespace of their own.
//!
//! ```text
//!  thread ─ unshare ─▶ empty namespace: lo ─ the plan for both directions ─▶ each step done?
//!                      (gone with the thread)                            └─▶ read back: a second plan is empty?
//! ```
//!
//! A kernel may lack a module, load it only now, or lack the attributes we use. These are the real steps,
//! so success here means success there.

use crate::ebpf::mark::Marks;
use crate::ebpf::police::Bucket;
use crate::handle::Handle;
use crate::limit::Limit;
use crate::tc::kernel::Kernel;
use crate::tc::network::{Network, Setting};
use crate::tc::plan::settle_link;
use crate::tc::queueing::{Flows, Host, Qdiscs};
use crate::tc::shaping::Sides;
use crate::tc::step::{Device, Step};
use tidegate_contract::frame::{SUPER_FRAME, TAGGED_FRAME};
use tidegate_contract::{Bytes, Rate};

/// The kernel's missing feature for each direction of a netdev; `None` if it has all.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Missing {
    /// For limits of frames that the host sends into a device: on a tap, those that the VM receives.
    pub egress: Option<String>,
    /// For limits of frames that the host receives from one.
    pub ingress: Option<String>,
    /// For a policer there.
    pub police: Option<String>,
    /// For priority marks there.
    pub marks: Option<String>,
}

/// Above 34 Gbit/s the kernel takes a rate from an attribute of its own.
const WIDE: u64 = 40_000_000_000;

/// Probes the features. Changes nothing outside a temporary namespace; may make the kernel load modules.
///
/// # Errors
/// The namespace cannot be made: it needs CAP_SYS_ADMIN and CAP_NET_ADMIN.
pub fn probe() -> Result<Missing, String> {
    in_namespace(|| {
        let limit =
            Rate::from_bits(WIDE).and_then(|r| Limit::new(r, Bytes::new(5_000_000), None, TAGGED_FRAME).ok());
        let none = Sides::default();
        let police = Some(Bucket { rate: WIDE / 8, burst: 5_000_000 });
        Ok(Missing {
            egress: attempt(Sides { egress: limit, ..none })?,
            ingress: attempt(Sides { ingress: limit, ..none })?,
            police: attempt(Sides { police, ..none })?,
            marks: attempt(Sides { marks: Some(Marks::from_burst(5_000_000)), ..none })?,
        })
    })
}

/// Probes the qdiscs for short queues: each is made once at a root, and read back. Changes nothing outside
/// a temporary namespace; may make the kernel load modules.
///
/// # Errors
/// As for [`probe`].
pub fn probe_queues() -> Result<Qdiscs, String> {
    in_namespace(|| {
        let (target, interval, memory) = (4882, 97_656, 1 << 20);
        let has = Qdiscs {
            tbf: has(Setting::Cut { largest: 2500 })?,
            fq_codel: has(Setting::FqCodel { target, interval, memory })?,
            cake: has(Setting::Cake { target, interval, memory, hosts: Some(Host::Source), split: true })?,
            congestion: false,
        };
        let needed = has.tbf && !has.fq_codel && !has.cake;
        Ok(Qdiscs { congestion: needed && marks_congestion(has)?, ..has })
    })
}

/// Whether the kernel runs the program that marks without separate flows, at both ends of a device.
fn marks_congestion(has: Qdiscs) -> Result<bool, String> {
    let kernel = Qdiscs { congestion: true, ..has };
    let flows = Some(Flows {
        target: 5_000_000,
        interval: 100_000_000,
        per_host: false,
        frame: TAGGED_FRAME as u32,
        kernel,
    });
    let limit = Rate::from_bits(20_000_000)
        .and_then(|r| Limit::new(r, Bytes::new(SUPER_FRAME), None, TAGGED_FRAME).ok());
    let sides = Sides { egress: limit, ingress: limit, flows: (flows, flows), ..Sides::default() };
    let lacks = attempt(sides)?;
    if let Some(lacks) = &lacks {
        tracing::warn!("no congestion is marked: this kernel lacks {lacks}");
    }
    Ok(lacks.is_none())
}

/// Whether a qdisc has the requested settings at the namespace's loopback.
fn has(setting: Setting) -> Result<bool, String> {
    let (mut kernel, network) = look()?;
    let (index, link) = network.by_name("lo").ok_or(NO_LOOPBACK)?;
    let device = Device::Netdev { index, name: link.name.clone() };
    let (parent, handle) = (Handle::ROOT, Handle::new(1, 0));
    let deletion = Step::DeleteQdisc { device: device.clone(), parent, handle };
    let made = Step::SetQdisc { device, parent, handle, setting: setting.clone(), replace: true };
    if let Err(e) = kernel.apply(&made) {
        tracing::debug!("for short queues: {e}");
        return Ok(false);
    }
    let observed = kernel.observe().map_err(|e| e.to_string())?;
    let observed =
        observed.netdevs.get(&index).and_then(|link| link.root()).is_some_and(|q| q.setting == setting);
    kernel.apply(&deletion).map_err(|e| e.to_string())?;
    Ok(observed)
}

const NO_LOOPBACK: &str = "a new network namespace has no loopback";

/// Returns the kernel, and its network.
fn look() -> Result<(Kernel, Network), String> {
    let mut kernel = Kernel::open().map_err(|e| format!("cannot talk to the kernel (netlink): {e}"))?;
    let network = kernel.observe().map_err(|e| e.to_string())?;
    Ok((kernel, network))
}

/// Runs `work` in a temporary network namespace.
pub(crate) fn in_namespace<T: Send + 'static>(
    work: impl FnOnce() -> Result<T, String> + Send + 'static,
) -> Result<T, String> {
    let thread = std::thread::Builder::new().name("probe".into()).spawn(|| {
        use rustix::thread::{UnshareFlags, unshare_unsafe};
        // SAFETY: only the network namespace becomes this thread's own; memory and descriptors stay shared.
        unsafe { unshare_unsafe(UnshareFlags::NEWNET) }.map_err(|e| {
            format!("cannot make a network namespace for tests of this kernel: {e} (it needs CAP_SYS_ADMIN)")
        })?;
        work()
    });
    let thread = thread.map_err(|e| format!("cannot start a thread: {e}"))?;
    thread.join().unwrap_or_else(|_| Err("the thread that tries the kernel panicked".into()))
}

/// Returns the missing feature for these sides, on the namespace's loopback.
fn attempt(sides: Sides) -> Result<Option<String>, String> {
    let (mut kernel, network) = look()?;
    let (lo, _) = network.by_name("lo").ok_or(NO_LOOPBACK)?;
    for step in settle_link(lo, sides, &network).steps {
        if let Err(e) = kernel.apply(&step) {
            return Ok(Some(format!("{} ({e})", feature(&step))));
        }
    }
    let leftovers = settle_link(lo, sides, &kernel.observe().map_err(|e| e.to_string())?).steps;
    let odd = leftovers.first().map(|step| {
        format!("{}: this kernel accepted the setting, and reports another value for it", feature(step))
    });
    Ok(odd)
}

/// Returns the feature of a step by its name in the kernel's configuration.
fn feature(step: &Step) -> &'static str {
    match step {
        Step::AddIfb | Step::DeleteIfb | Step::RaiseIfb => "interfaces of kind ifb (CONFIG_IFB)",
        Step::SetQdisc { setting: Setting::Bfifo { .. }, .. } => "qdisc bfifo (CONFIG_NET_SCH_FIFO)",
        // Not probed here: limits have no such queues.
        Step::SetQdisc { setting: Setting::Cut { .. }, .. } => "qdisc tbf (CONFIG_NET_SCH_TBF)",
        Step::SetQdisc { setting: Setting::FqCodel { .. }, .. } => "qdisc fq_codel (CONFIG_NET_SCH_FQ_CODEL)",
        Step::SetQdisc { setting: Setting::Cake { .. }, .. } => "qdisc cake (CONFIG_NET_SCH_CAKE)",
        Step::SetQdisc { parent: Handle::CLSACT, .. } => "qdisc clsact (CONFIG_NET_SCH_INGRESS)",
        Step::SetQdisc { .. }
        | Step::DeleteQdisc { .. }
        | Step::SetClass { .. }
        | Step::DeleteClass { .. } => "qdisc htb (CONFIG_NET_SCH_HTB)",
        Step::DeleteFilter { .. } => "filter u32 (CONFIG_NET_CLS_U32)",
        Step::AddClassifier { .. }
        | Step::Classify { .. }
        | Step::Unclassify { .. }
        | Step::Mark { .. }
        | Step::MarkCongestion { .. }
        | Step::Police { .. } => "eBPF programs as filters (CONFIG_BPF_SYSCALL, CONFIG_NET_CLS_BPF)",
        // Not probed here.
        Step::Restore { .. } => "what others made",
        Step::SetVlans { .. } | Step::DeleteVlans { .. } => {
            "VLANs of bridge ports (CONFIG_BRIDGE_VLAN_FILTERING)"
        }
        Step::Redirect { .. } => "action mirred for filter u32 (CONFIG_NET_CLS_U32, CONFIG_NET_ACT_MIRRED)",
    }
}
