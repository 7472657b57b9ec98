//! An agent and a switch as child processes.

use rustix::thread::{UnshareFlags, unshare_unsafe};
use std::collections::BTreeMap;
use std::fs::File;
use std::io::{self, Read, Write};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

const PATIENCE: Duration = Duration::from_secs(10);
/// Lines of each log that an error shows.
const LINES: usize = 8;

/// A vNIC: name, MAC and further lines of its contract (TOML).
pub type Vnic<'a> = (&'a str, [u8; 6], &'a str);

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Work {
    pub frames: u64,
    /// Time that the worker charged to it (ns).
    pub ns: u64,
}

/// An agent and a switch; killed when dropped.
#[derive(Debug)]
pub struct Host {
    tidegate: PathBuf,
    cpus: Vec<usize>,
    folder: PathBuf,
    switch: Option<Child>,
    agent: Option<Child>,
}

impl Host {
    /// Starts both with these vNICs in one segment, and a worker on each of `cpus`; if `cpus` is empty, one
    /// worker that is not pinned.
    ///
    /// # Errors
    /// The program is missing, or does not come up within 10 s.
    pub fn start(tidegate: &Path, cpus: &[usize], vnics: &[Vnic<'_>]) -> io::Result<Self> {
        let folder = std::env::temp_dir().join(format!("tidegate-bench-{}", std::process::id()));
        std::fs::create_dir_all(folder.join("etc"))?;
        std::fs::create_dir_all(folder.join("state"))?;
        let (tidegate, cpus) = (tidegate.to_owned(), cpus.to_vec());
        let mut host = Self { tidegate, cpus, folder, switch: None, agent: None };
        let contract = |(name, mac, lines): &Vnic<'_>| {
            let mac = mac.map(|byte| format!("{byte:02x}")).join(":");
            let socket = host.socket(name);
            let socket = socket.display();
            format!(
                "[vnic.{name}]\nattach = {{ vhost-user = \"{socket}\" }}\nmac = \"{mac}\"\nsegment = 1\n{lines}\n"
            )
        };
        let contracts: String = vnics.iter().map(contract).collect();
        std::fs::write(host.folder.join("etc/contracts.toml"), contracts)?;
        host.start_switch()?;
        wait_for(&host.folder.join("switch.sock"))?;
        let path = |name: &str| host.folder.join(name).display().to_string();
        let arguments = [
            ["agent".into(), "--config".into(), path("etc")].as_slice(),
            &["--state".into(), path("state"), "--switch".into(), path("switch.sock")],
            &["--api".into(), path("api.sock"), "--socket-root".into(), host.folder.display().to_string()],
        ]
        .concat();
        host.agent = Some(host.spawn_apart("agent", &arguments)?);
        vnics.iter().try_for_each(|(name, ..)| wait_for(&host.socket(name)))?;
        Ok(host)
    }

    pub fn socket(&self, vnic: &str) -> PathBuf {
        self.folder.join(format!("{vnic}.sock"))
    }

    /// Starts a switch without waiting for it.
    ///
    /// # Errors
    /// It cannot be started.
    pub fn start_switch(&mut self) -> io::Result<()> {
        self.switch = Some(self.spawn("switch", &self.switch_arguments())?);
        Ok(())
    }

    fn switch_arguments(&self) -> Vec<String> {
        let socket = self.folder.join("switch.sock").display().to_string();
        let mut arguments = vec!["switch".into(), "--socket".into(), socket];
        if !self.cpus.is_empty() {
            let cpus = self.cpus.iter().map(usize::to_string).collect::<Vec<_>>();
            arguments.extend(["--workers".into(), cpus.len().to_string(), "--cpus".into(), cpus.join(",")]);
        }
        arguments
    }

    /// Kills the switch (kill -9), and waits for its end.
    ///
    /// # Errors
    /// The system refused.
    pub fn kill(&mut self) -> io::Result<()> {
        if let Some(mut switch) = self.switch.take() {
            switch.kill()?;
            switch.wait()?;
        }
        Ok(())
    }

    /// Starts a switch that replaces the running one, and waits for the end of the old one.
    ///
    /// # Errors
    /// The new switch ends, or the old one is still running after 10 s.
    pub fn replace(&mut self) -> io::Result<()> {
        let mut arguments = self.switch_arguments();
        arguments.push("--replace".into());
        let mut new = self.spawn("switch", &arguments)?;
        let end = Instant::now() + PATIENCE;
        if let Some(mut old) = self.switch.take() {
            while old.try_wait()?.is_none() {
                if new.try_wait()?.is_some() || Instant::now() > end {
                    self.switch = Some(old);
                    return Err(io::Error::other(format!(
                        "the switch was not replaced: {}",
                        self.last_words()
                    )));
                }
                std::thread::sleep(Duration::from_millis(1));
            }
        }
        self.switch = Some(new);
        Ok(())
    }

    /// Returns the frames from guests that the switch dropped, by reason, from the agent's API.
    ///
    /// # Errors
    /// The agent does not answer, or its answer is no list of vNICs.
    pub fn dropped(&self) -> io::Result<BTreeMap<String, u64>> {
        let vnics = self.vnics()?;
        dropped(&vnics).ok_or_else(|| io::Error::other(format!("the agent's API answered: {vnics}")))
    }

    /// Returns all vNICs from the agent's API.
    ///
    /// # Errors
    /// As [`dropped`](Self::dropped).
    pub fn vnics(&self) -> io::Result<serde_json::Value> {
        let mut api = UnixStream::connect(self.folder.join("api.sock"))?;
        api.set_read_timeout(Some(PATIENCE))?;
        api.write_all(b"GET /v1/vnics HTTP/1.1\r\nHost: tidegate\r\nConnection: close\r\n\r\n")?;
        let mut answer = String::new();
        api.read_to_string(&mut answer)?;
        body_of(&answer).ok_or_else(|| io::Error::other(format!("the agent's API answered: {answer}")))
    }

    /// Returns the switch's process id; 0 if none runs.
    pub fn switch_pid(&self) -> u32 {
        self.switch.as_ref().map_or(0, Child::id)
    }

    /// Returns the worker time that each vNIC used so far, from the agent's API.
    ///
    /// # Errors
    /// As [`dropped`](Self::dropped).
    pub fn work(&self) -> io::Result<BTreeMap<String, Work>> {
        let vnics = self.vnics()?;
        work(&vnics).ok_or_else(|| io::Error::other(format!("the agent's API answered: {vnics}")))
    }

    fn spawn(&self, name: &str, arguments: &[String]) -> io::Result<Child> {
        let log = File::options().create(true).append(true).open(self.folder.join(format!("{name}.log")))?;
        let mut command = Command::new(&self.tidegate);
        command.args(arguments).stdin(Stdio::null()).stdout(log.try_clone()?).stderr(log);
        let tidegate = self.tidegate.display();
        command.spawn().map_err(|error| io::Error::other(format!("cannot start {tidegate}: {error}")))
    }

    /// As [`spawn`](Self::spawn), in its own network namespace if this process may create one: a namespace
    /// has one agent. Without that right the agent cannot change interfaces, so it disturbs no other agent.
    fn spawn_apart(&self, name: &str, arguments: &[String]) -> io::Result<Child> {
        let apart = || {
            // SAFETY: unshares neither descriptors nor directories.
            let _ = unsafe { unshare_unsafe(UnshareFlags::NEWNET) };
            self.spawn(name, arguments)
        };
        // A child starts in the namespace of the thread that starts it; the thread ends here.
        std::thread::scope(|scope| scope.spawn(apart).join()).unwrap_or_else(|_| {
            Err(io::Error::other(format!("cannot start the {name}: its thread panicked")))
        })
    }

    pub fn last_words(&self) -> String {
        let tail = |name: &str| {
            let log = std::fs::read_to_string(self.folder.join(format!("{name}.log"))).unwrap_or_default();
            let lines: Vec<&str> = log.lines().collect();
            lines[lines.len().saturating_sub(LINES)..].join("\n  ")
        };
        format!("\n  {}\n  {}", tail("switch"), tail("agent"))
    }
}

impl Drop for Host {
    fn drop(&mut self) {
        for child in [&mut self.agent, &mut self.switch].into_iter().flatten() {
            // Both fail only if the process has ended already.
            let _ = child.kill();
            let _ = child.wait();
        }
        if std::env::var_os("TIDEGATE_KEEP").is_none() {
            let _ = std::fs::remove_dir_all(&self.folder);
        }
    }
}

fn body_of(answer: &str) -> Option<serde_json::Value> {
    let (_, body) = answer.split_once("\r\n\r\n")?;
    serde_json::from_str(body).ok()
}

/// Reads every vNIC's `stats.work` by name; a vNIC without a worker used no time.
fn work(vnics: &serde_json::Value) -> Option<BTreeMap<String, Work>> {
    let of = |vnic: &serde_json::Value| {
        let name = vnic.get("name")?.as_str()?.to_owned();
        let frames = vnic.pointer("/stats/tx/frames")?.as_u64()?;
        let Some(work) = vnic.pointer("/stats/work").and_then(serde_json::Value::as_object) else {
            return Some((name, Work { frames, ns: 0 }));
        };
        let stages = ["take_ns", "deliver_ns", "buffers_ns", "kicks_ns"];
        let ns = stages.into_iter().map(|stage| work.get(stage)?.as_u64()).sum::<Option<u64>>()?;
        Some((name, Work { frames, ns }))
    };
    vnics.as_array()?.iter().map(of).collect()
}

fn dropped(vnics: &serde_json::Value) -> Option<BTreeMap<String, u64>> {
    let mut sum = BTreeMap::new();
    for vnic in vnics.as_array()? {
        for (reason, count) in vnic.pointer("/stats/tx/dropped")?.as_object()? {
            *sum.entry(reason.clone()).or_default() += count.as_u64()?;
        }
    }
    Some(sum)
}

fn wait_for(path: &Path) -> io::Result<()> {
    let end = Instant::now() + PATIENCE;
    while !path.exists() {
        if Instant::now() > end {
            return Err(io::Error::other(format!("{} does not appear", path.display())));
        }
        std::thread::sleep(Duration::from_millis(1));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_counts_of_all_vnics_are_read() {
        let vnic = |dropped: &str| format!(r#"{{"stats":{{"tx":{{"dropped":{dropped}}},"rx":{{}}}}}}"#);
        let body = format!("[{},{}]", vnic(r#"{"ring_share":3}"#), vnic(r#"{"ring_share":4,"vlan":1}"#));
        let sum = dropped(&body_of(&format!("HTTP/1.1 200 OK\r\ncontent-length: 1\r\n\r\n{body}")).unwrap())
            .unwrap();
        assert_eq!(sum, BTreeMap::from([("ring_share".into(), 7), ("vlan".into(), 1)]));
        let two = r#"[{"name":"a","stats":{"tx":{"frames":9},"work":{"take_ns":1,"deliver_ns":20,"buffers_ns":300,"kicks_ns":4000}}},
            {"name":"b","stats":{"tx":{"frames":2}}}]"#;
        let of = work(&serde_json::from_str(two).unwrap()).unwrap();
        assert_eq!(
            of,
            BTreeMap::from([
                ("a".into(), Work { frames: 9, ns: 4321 }),
                ("b".into(), Work { frames: 2, ns: 0 })
            ])
        );
        for wrong in ["", "HTTP/1.1 503\r\n\r\n{}", "x\r\n\r\n[{}]"] {
            assert_eq!(body_of(wrong).as_ref().and_then(dropped), None, "{wrong}");
        }
    }
}
