//! `tidegate switch`.

use crate::exit::Failure;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::str::FromStr;
use std::time::{Duration, Instant};
use tidegate_switch::confine::User;
use tidegate_switch::control::Client;
use tidegate_switch::quota::PORT_MEMORY;

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
    /// CPUs to pin the workers to, in their order, such as 2,3 or 4-7; not pinned where absent
    #[arg(long, value_name = "LIST")]
    cpus: Option<CpuList>,
    /// Whether vNICs are moved between workers: real-time ones apart from best-effort taps, and those that talk onto one
    #[arg(long, value_name = "WHICH", value_enum, default_value_t)]
    placement: Placement,
    /// Run the workers under SCHED_FIFO at this priority, 1 to 99 (needs CAP_SYS_NICE)
    #[arg(long, value_name = "P", value_parser = clap::value_parser!(u8).range(1..=99))]
    fifo_priority: Option<u8>,
    /// Most memory that one front end may share, GiB
    #[arg(long, value_name = "GIB", default_value_t = PORT_MEMORY >> 30, value_parser = clap::value_parser!(u64).range(1..=32_768))]
    guest_memory: u64,
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

/// CPU numbers as in `2,3` or `4-7`, the form of cpuset(7).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CpuList(Vec<usize>);

impl FromStr for CpuList {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let mut cpus = Vec::new();
        for part in text.split(',') {
            let (first, last) = part.split_once('-').unwrap_or((part, part));
            let cpu = |text: &str| {
                text.trim()
                    .parse::<usize>()
                    .ok()
                    .filter(|n| *n < 65_536)
                    .ok_or_else(|| format!("`{part}` is neither a CPU number nor a range such as 4-7"))
            };
            let (first, last) = (cpu(first)?, cpu(last)?);
            if first > last {
                return Err(format!("`{part}` runs backwards"));
            }
            cpus.extend(first..=last);
        }
        Ok(Self(cpus))
    }
}

/// How long a switch may take to have the place of another one.
const PATIENCE: Duration = Duration::from_secs(30);

/// Each CPU is for one worker: the switch would not use one without, and would not say so.
fn enough_workers(workers: u16, cpus: Option<&CpuList>) -> Result<(), Failure> {
    match cpus {
        Some(CpuList(cpus)) if cpus.len() > usize::from(workers) => Err(Failure::usage(format!(
            "--cpus names {} CPUs for --workers {workers}: each CPU is for one worker, so say --workers {} or name fewer",
            cpus.len(),
            cpus.len(),
        ))),
        _ => Ok(()),
    }
}

/// Runs the switch until it is told to stop.
pub fn run(args: Args) -> Result<(), Failure> {
    enough_workers(args.workers, args.cpus.as_ref())?;
    if args.detach {
        return detach(&args.socket);
    }
    let options = tidegate_switch::Options {
        socket: args.socket,
        workers: args.workers.into(),
        cpus: args.cpus.map_or_else(Vec::new, |list| list.0),
        realtime_priority: args.fifo_priority,
        user: args.user.as_deref().map(User::find).transpose().map_err(Failure::failed)?,
        confined: !args.no_confinement,
        replace: args.replace,
        guest_memory: args.guest_memory << 30,
        fixed: args.placement == Placement::Fixed,
    };
    // It gives up rights that threads would keep.
    tidegate_log::hold();
    tidegate_switch::run(options).map_err(Failure::failed)
}

/// Runs this very command line, without `--detach`, and waits until that switch answers at `socket`.
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
                "it did not take the place of the running switch: {status}"
            )));
        }
        if Instant::now() > end {
            // The new process has not got it, and must not get it later, when this one no longer expects that.
            let _ = child.kill();
            let _ = child.wait();
            return Err(Failure::failed(format!("it did not answer within {} s", PATIENCE.as_secs())));
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
        let list = |text: &str| text.parse::<CpuList>().unwrap();
        assert!(enough_workers(1, None).is_ok());
        assert!(enough_workers(2, Some(&list("3,1"))).is_ok());
        assert!(enough_workers(4, Some(&list("3,1"))).is_ok(), "the rest is not pinned");
        let error = enough_workers(1, Some(&list("2-4"))).unwrap_err();
        assert!(error.message.contains("say --workers 3"), "{error:?}");
    }

    #[test]
    fn cpu_lists() {
        assert_eq!("3".parse(), Ok(CpuList(vec![3])));
        assert_eq!("0,4-6,2".parse(), Ok(CpuList(vec![0, 4, 5, 6, 2])));
        for wrong in ["", "a", "1,", "3-1", "-1", "1-99999999"] {
            assert!(wrong.parse::<CpuList>().is_err(), "{wrong}");
        }
    }
}
