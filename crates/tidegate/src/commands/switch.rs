//! `tidegate switch`.

use crate::exit::Failure;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};
use tidegate_contract::rdma::is_device_name;
use tidegate_evidence::RDMA_DEVICES;
use tidegate_switch::confine::User;
use tidegate_switch::control::Client;
use tidegate_switch::quota::PORT_MEMORY;
use tidegate_switch::server::cpus::{Cpus, list};

/// Default of `--socket`, and of the agent's `--switch`.
pub const SOCKET: &str = "/run/tidegate/switch/control.sock";

/// Arguments of `switch`.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// Control socket for the agent
    #[arg(long, value_name = "PATH", default_value = SOCKET)]
    socket: PathBuf,
    /// Worker threads; each carries the traffic of the vNICs it owns
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u16).range(1..=64))]
    workers: u16,
    /// CPUs for the workers alone. auto: one for each worker with deadlines to keep, while there are any, which the switch
    /// chooses; none: no worker has one; a list such as 2,3 or 4-7: one for each worker, in their order, always
    #[arg(long, value_name = "WHICH", default_value = "auto", value_parser = which_cpus)]
    cpus: Cpus,
    /// Whether vNICs are moved between workers: real-time ones apart from best-effort taps, and those that talk onto one
    #[arg(long, value_name = "WHICH", value_enum, default_value_t)]
    placement: Placement,
    /// Run the workers under SCHED_FIFO at this priority, 1 to 99 (needs CAP_SYS_NICE)
    #[arg(long, value_name = "P", value_parser = clap::value_parser!(u8).range(1..=99))]
    fifo_priority: Option<u8>,
    /// Most memory that one front end may share, GiB
    #[arg(long, value_name = "GIB", default_value_t = PORT_MEMORY >> 30, value_parser = clap::value_parser!(u64).range(1..=32_768))]
    guest_memory: u64,
    /// RDMA device for uplinks with `rdma`, by its name in /sys/class/infiniband; can be given up to 8 times. Its user needs
    /// access to /dev/infiniband, and memory that it may lock (RLIMIT_MEMLOCK)
    #[arg(long, value_name = "DEVICE", value_parser = rdma_device)]
    rdma: Vec<String>,
    /// User to become before the first frame, by name or number; needs root
    #[arg(long, value_name = "USER", conflicts_with = "no_confinement")]
    user: Option<String>,
    /// Keep all rights and allow every system call: for debugging alone
    #[arg(long)]
    no_confinement: bool,
    /// Take the place of the switch that runs at the control socket, in the middle of its traffic
    #[arg(long)]
    replace: bool,
    /// Return when it has the place, and leave it running: for ExecReload= of a systemd unit
    #[arg(long, requires = "replace")]
    detach: bool,
}

/// Which worker carries a vNIC's traffic.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, clap::ValueEnum)]
enum Placement {
    /// Real-time vNICs and best-effort taps get different workers, vNICs that talk with each other one
    #[default]
    Auto,
    /// Each stays at the worker that had the fewest when it was made
    Fixed,
}

fn which_cpus(text: &str) -> Result<Cpus, String> {
    match text {
        "auto" => Ok(Cpus::Auto),
        "none" => Ok(Cpus::None),
        text => list::parse(text).map(Cpus::List).map_err(|error| format!("{error}; or write auto or none")),
    }
}

/// How long a new switch may take to replace the running one.
const PATIENCE: Duration = Duration::from_secs(30);

fn rdma_device(text: &str) -> Result<String, String> {
    let wrong = || {
        format!("{text:?} is no name of an RDMA device: `ls /sys/class/infiniband` shows those of this host")
    };
    is_device_name(text).then(|| text.to_owned()).ok_or_else(wrong)
}

fn each_device_once(devices: &[String]) -> Result<(), Failure> {
    if devices.len() > RDMA_DEVICES {
        return Err(Failure::usage(format!(
            "--rdma names {} devices; a switch uses at most {RDMA_DEVICES}",
            devices.len()
        )));
    }
    match devices.iter().enumerate().find(|(at, device)| devices[..*at].contains(device)) {
        Some((_, twice)) => Err(Failure::usage(format!("--rdma names {twice} twice; name each device once"))),
        None => Ok(()),
    }
}

/// Refuses a list of more CPUs than workers: the switch would ignore the surplus CPUs silently.
fn enough_workers(workers: u16, cpus: &Cpus) -> Result<(), Failure> {
    match cpus {
        Cpus::List(cpus) if cpus.len() > usize::from(workers) => Err(Failure::usage(format!(
            "--cpus names {} CPUs for --workers {workers}: each CPU is for one worker, so write --workers {} or name fewer CPUs",
            cpus.len(),
            cpus.len(),
        ))),
        _ => Ok(()),
    }
}

pub fn run(args: Args) -> Result<(), Failure> {
    enough_workers(args.workers, &args.cpus)?;
    each_device_once(&args.rdma)?;
    if args.detach {
        return detach(&args.socket);
    }
    let options = tidegate_switch::Options {
        socket: args.socket,
        workers: args.workers.into(),
        cpus: args.cpus,
        realtime_priority: args.fifo_priority,
        user: args.user.as_deref().map(User::find).transpose().map_err(Failure::failed)?,
        confined: !args.no_confinement,
        replace: args.replace,
        guest_memory: args.guest_memory << 30,
        fixed: args.placement == Placement::Fixed,
        rdma: args.rdma,
    };
    // Threads would keep the rights that the switch gives up.
    tidegate_log::hold();
    tidegate_switch::run(options).map_err(Failure::failed)
}

/// Starts this command line without `--detach`, and waits until the new switch answers at `socket`.
fn detach(socket: &Path) -> Result<(), Failure> {
    let fail = |error: std::io::Error| Failure::failed(format!("cannot start the switch: {error}"));
    let program = std::env::current_exe().map_err(fail)?;
    let arguments = std::env::args_os().skip(1).filter(|argument| argument != "--detach");
    let mut child = Command::new(program).args(arguments).stdin(Stdio::null()).spawn().map_err(fail)?;
    let end = Instant::now() + PATIENCE;
    let answers =
        |pid: u32| Client::connect(socket).is_ok_and(|mut c| c.hello().is_ok_and(|h| h.0.pid == pid));
    while !answers(child.id()) {
        if let Some(status) = child.try_wait().map_err(fail)? {
            return Err(Failure::failed(format!(
                "the new switch did not take over from the running one: {status}"
            )));
        }
        if Instant::now() > end {
            // The new process must not take over later, when the caller no longer expects it.
            let _ = child.kill();
            let _ = child.wait();
            return Err(Failure::failed(format!(
                "the new switch did not answer within {} s",
                PATIENCE.as_secs()
            )));
        }
        std::thread::sleep(Duration::from_millis(5));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_cpu_is_left_without_a_worker() {
        let list = |text: &str| which_cpus(text).unwrap();
        assert!(enough_workers(1, &Cpus::Auto).is_ok());
        assert!(enough_workers(2, &list("3,1")).is_ok());
        assert!(enough_workers(4, &list("3,1")).is_ok(), "the rest has none");
        let error = enough_workers(1, &list("2-4")).unwrap_err();
        assert!(error.message.contains("write --workers 3"), "{error:?}");
    }

    #[test]
    fn devices_have_names_and_each_is_named_once() {
        assert_eq!(rdma_device("rxe0"), Ok("rxe0".into()));
        assert!(rdma_device("-x").is_err());
        let refused = rdma_device("../rxe0").unwrap_err();
        assert!(refused.contains("/sys/class/infiniband"), "{refused}");
        let names = |count: usize| (0..count).map(|n| format!("rxe{n}")).collect::<Vec<_>>();
        assert!(each_device_once(&names(RDMA_DEVICES)).is_ok());
        let refused = each_device_once(&names(RDMA_DEVICES + 1)).unwrap_err().message;
        assert!(refused.contains("names 9 devices; a switch uses at most 8"), "{refused}");
        let refused = each_device_once(&["a".into(), "b".into(), "a".into()]).unwrap_err().message;
        assert!(refused.contains("names a twice"), "{refused}");
    }

    #[test]
    fn cpus_are_a_word_or_a_list() {
        assert_eq!(which_cpus("auto"), Ok(Cpus::Auto));
        assert_eq!(which_cpus("none"), Ok(Cpus::None));
        assert_eq!(which_cpus("0,4-6,2"), Ok(Cpus::List(vec![0, 4, 5, 6, 2])));
        for wrong in ["", "automatic", "3-1"] {
            assert!(which_cpus(wrong).unwrap_err().contains("or write auto or none"), "{wrong}");
        }
    }
}
