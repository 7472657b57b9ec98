//! Child processes that die with the demo, whatever ends it.

use super::order::{Answer, Figures, Order};
use super::tenant::Role;
use super::{SceneError, clock};
use clap::ValueEnum;
use rustix::process::Signal;
use std::fs::{self, File};
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream as StdStream;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use tokio::io::{AsyncBufReadExt, AsyncWriteExt, BufReader};
use tokio::net::UnixStream;

/// Name of the switch's process. The process applies [`clock::wake_soon`], which its threads inherit; with
/// real-time priority the worker takes that itself.
pub const SWITCH: &str = "switch";

/// Lines of the log that an error shows.
const LOG_LINES: usize = 12;

/// A child process that runs this program; killed when dropped.
#[derive(Debug)]
pub struct Process {
    name: String,
    child: Child,
    log: PathBuf,
}

impl Process {
    /// Starts `tidegate ARGUMENTS`. Standard error goes to `dir/NAME.log`, as does standard output if `io`
    /// is `None`.
    ///
    /// Must be called from the process's main thread: the kernel kills the child when the thread that
    /// started it ends (PR_SET_PDEATHSIG of prctl(2)).
    pub fn start(
        name: &str,
        arguments: &[&str],
        dir: &Path,
        io: Option<OwnedFd>,
    ) -> Result<Self, SceneError> {
        let failed = |e: io::Error| SceneError::new(format!("cannot start {name}: {e}"));
        let log = dir.join(format!("{name}.log"));
        let file = File::create(&log).map_err(failed)?;
        let mut command = Command::new(std::env::current_exe().map_err(failed)?);
        command.args(arguments).stderr(file.try_clone().map_err(failed)?);
        match io {
            Some(io) => command.stdin(io.try_clone().map_err(failed)?).stdout(io),
            None => command.stdin(Stdio::null()).stdout(file),
        };
        // Its own process group, so that Ctrl-C reaches only the demo.
        command.process_group(0);
        let (parent, prompt) = (rustix::process::getpid(), name == SWITCH);
        // SAFETY: between fork and exec only prctl, sched_setattr and getppid run: system calls without
        // locks or allocation.
        unsafe {
            command.pre_exec(move || {
                rustix::process::set_parent_process_death_signal(Some(Signal::KILL))?;
                if prompt {
                    clock::wake_soon();
                }
                // The parent may have died before the line above.
                if rustix::process::getppid() == Some(parent) {
                    Ok(())
                } else {
                    Err(io::ErrorKind::Other.into())
                }
            });
        }
        let child = command.spawn().map_err(failed)?;
        Ok(Self { name: name.into(), child, log })
    }

    pub fn id(&self) -> u32 {
        self.child.id()
    }

    /// Returns an error if the process has ended.
    pub fn check(&mut self) -> Result<(), SceneError> {
        match self.child.try_wait() {
            Ok(None) => Ok(()),
            Ok(Some(status)) => Err(self.error(&format!("ended ({status})"))),
            Err(e) => Err(self.error(&e.to_string())),
        }
    }

    /// Creates an error about the process, with the end of its log.
    pub fn error(&self, reason: &str) -> SceneError {
        let log = fs::read_to_string(&self.log).unwrap_or_default();
        let lines: Vec<&str> = log.lines().collect();
        let tail = &lines[lines.len().saturating_sub(LOG_LINES)..];
        let mut text = format!("{}: {reason}", self.name);
        for line in tail {
            text += &format!("\n  | {line}");
        }
        SceneError::new(text)
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        // Both fail only if the process is gone already.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// A tenant's process, and the dialogue with it.
#[derive(Debug)]
pub struct Tenant {
    process: Process,
    stream: BufReader<UnixStream>,
}

impl Tenant {
    /// Starts a tenant and waits for its namespace.
    pub async fn start(name: &str, role: Role, dir: &Path) -> Result<Self, SceneError> {
        let failed = |e: io::Error| SceneError::new(format!("cannot start tenant {name}: {e}"));
        let (ours, theirs) = StdStream::pair().map_err(failed)?;
        ours.set_nonblocking(true).map_err(failed)?;
        let role = role.to_possible_value().map_or_else(String::new, |v| v.get_name().to_owned());
        let process = Process::start(name, &["demo-tenant", &role], dir, Some(theirs.into()))?;
        let stream = BufReader::new(UnixStream::from_std(ours).map_err(failed)?);
        let mut tenant = Self { process, stream };
        tenant.answer().await?;
        Ok(tenant)
    }

    /// Returns the path of the tenant's network namespace.
    pub fn namespace(&self) -> String {
        format!("/proc/{}/ns/net", self.process.id())
    }

    pub async fn ask(&mut self, order: &Order) -> Result<Figures, SceneError> {
        let mut line = serde_json::to_vec(order).map_err(|e| self.process.error(&e.to_string()))?;
        line.push(b'\n');
        let written = self.stream.get_mut().write_all(&line).await;
        written.map_err(|e| self.process.error(&e.to_string()))?;
        self.answer().await
    }

    pub fn check(&mut self) -> Result<(), SceneError> {
        self.process.check()
    }

    async fn answer(&mut self) -> Result<Figures, SceneError> {
        let mut line = String::new();
        let read = self.stream.read_line(&mut line).await;
        match read.map(|_| serde_json::from_str(&line)) {
            Ok(Ok(Answer::Done)) => Ok(Figures::default()),
            Ok(Ok(Answer::Figures(figures))) => Ok(figures),
            Ok(Ok(Answer::Failed(why))) => Err(self.process.error(&why)),
            Ok(Err(_)) => Err(self.process.error("broke off")),
            Err(e) => Err(self.process.error(&e.to_string())),
        }
    }
}
