//! A fake switch, an agent on its own thread, and a small HTTP client.

#![allow(dead_code, reason = "each test file uses its part")]

use serde_json::Value;
use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};
use tidegate::places::{self, KeepOff};
use tidegate_agent::{Agent, Error, Install, Options};
use tidegate_testkit::fake_switch::FakeSwitch;
use tokio::sync::oneshot;

pub struct Lab {
    pub dir: tempfile::TempDir,
}

impl Lab {
    /// Makes a lab in a new network namespace of this thread, if allowed, so that no other agent is in it.
    /// If not, agents cannot change interfaces, and block no other agent.
    pub fn new() -> Self {
        let _ = tidegate_testkit::own_network();
        Self::shared()
    }

    /// Makes a lab in this thread's network namespace.
    pub fn shared() -> Self {
        let dir = tempfile::tempdir().unwrap();
        std::fs::create_dir(dir.path().join("etc")).unwrap();
        Self { dir }
    }

    pub fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    pub fn switch(&self) -> FakeSwitch {
        FakeSwitch::start(&self.path("switch.sock"))
    }

    pub fn options(&self) -> Options {
        Options {
            config: self.path("etc"),
            state: self.path("state"),
            api: self.path("api.sock"),
            api_group: None,
            api_mode: 0o660,
            socket_roots: vec![self.dir.path().into()],
            netns_roots: vec![],
        }
    }

    pub fn places(&self) -> Install {
        self.places_with(KeepOff { softirqs: true, halts: true })
    }

    pub fn places_with(&self, off: KeepOff) -> Install {
        let switch = places::SwitchOptions { socket: self.path("switch.sock"), observe_cpu: true };
        places::install(switch, places::CoresOptions { own_cpus: Some(off) })
    }

    pub fn agent(&self) -> RunningAgent {
        RunningAgent::start(self.options(), self.places()).unwrap()
    }

    /// Returns a vhost-user contract in this folder with further lines.
    pub fn vnic(&self, name: &str, mac: u8, more: &str) -> String {
        format!(
            "[vnic.{name}]\nattach = {{ vhost-user = \"{}\" }}\nmac = \"52:54:00:00:00:{mac:02x}\"\nsegment = 1\n{more}\n",
            self.path(&format!("{name}.sock")).display()
        )
    }

    pub fn write(&self, file: &str, text: &str) {
        std::fs::write(self.path("etc").join(file), text).unwrap();
    }
}

pub struct RunningAgent {
    stop: Option<oneshot::Sender<()>>,
    thread: Option<JoinHandle<()>>,
    api: PathBuf,
}

impl RunningAgent {
    pub fn start(options: Options, places: Install) -> Result<Self, Error> {
        let (stop, stopped) = oneshot::channel::<()>();
        let (tell, told) = std::sync::mpsc::channel();
        let api = options.api.clone();
        let thread = std::thread::spawn(move || {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
            runtime.block_on(async {
                match Agent::start(&options, places) {
                    Err(e) => tell.send(Err(e)).unwrap(),
                    Ok(agent) => {
                        tell.send(Ok(())).unwrap();
                        let _ = stopped.await;
                        agent.stop().await;
                    }
                }
            });
        });
        told.recv().unwrap()?;
        Ok(Self { stop: Some(stop), thread: Some(thread), api })
    }

    pub fn get(&self, path: &str) -> (u16, Value) {
        self.request("GET", path, "")
    }

    pub fn request(&self, method: &str, path: &str, body: &str) -> (u16, Value) {
        let (status, bytes) = self.raw(method, path, body);
        (status, serde_json::from_slice(&bytes).unwrap_or_else(|_| String::from_utf8(bytes).unwrap().into()))
    }

    pub fn apply(&self, text: &str) -> (u16, Value) {
        self.request("POST", "/v1/apply?origin=test.toml", text)
    }

    pub fn vnic(&self, name: &str) -> Value {
        let (status, body) = self.get(&format!("/v1/vnics/{name}"));
        assert_eq!(status, 200, "{body}");
        body
    }

    pub fn raw(&self, method: &str, path: &str, body: &str) -> (u16, Vec<u8>) {
        let mut stream = UnixStream::connect(&self.api).unwrap();
        let json = if method == "PATCH" { "Content-Type: application/json\r\n" } else { "" };
        write!(
            stream,
            "{method} {path} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n{json}Content-Length: {}\r\n\r\n{body}",
            body.len()
        )
        .unwrap();
        let mut answer = Vec::new();
        stream.read_to_end(&mut answer).unwrap();
        let end = answer.windows(4).position(|w| w == b"\r\n\r\n").unwrap();
        let head = String::from_utf8(answer[..end].to_vec()).unwrap().to_lowercase();
        let status = head.split(' ').nth(1).unwrap().parse().unwrap();
        let body = answer[end + 4..].to_vec();
        (status, if head.contains("transfer-encoding: chunked") { unchunk(&body) } else { body })
    }

    pub fn stop(mut self) {
        self.end();
    }

    fn end(&mut self) {
        drop(self.stop.take());
        if let Some(thread) = self.thread.take() {
            let ended = thread.join();
            assert!(ended.is_ok() || std::thread::panicking(), "the agent panicked");
        }
    }
}

impl Drop for RunningAgent {
    fn drop(&mut self) {
        self.end();
    }
}

fn unchunk(mut body: &[u8]) -> Vec<u8> {
    let mut out = Vec::new();
    while let Some(line) = body.windows(2).position(|w| w == b"\r\n") {
        let length = usize::from_str_radix(std::str::from_utf8(&body[..line]).unwrap(), 16).unwrap();
        out.extend_from_slice(&body[line + 2..line + 2 + length]);
        body = &body[line + 2 + length + 2..];
    }
    out
}

/// Waits until `found` returns a value, at most a minute.
pub fn until<T>(what: &str, mut found: impl FnMut() -> Option<T>) -> T {
    let start = Instant::now();
    loop {
        if let Some(value) = found() {
            return value;
        }
        assert!(start.elapsed() < Duration::from_secs(60), "never: {what}");
        std::thread::sleep(Duration::from_millis(20));
    }
}

/// A later file at the same path may have the same inode.
pub fn identity(path: &Path) -> (u64, std::time::SystemTime) {
    use std::os::unix::fs::MetadataExt;
    let meta = std::fs::symlink_metadata(path).unwrap();
    (meta.ino(), meta.created().unwrap())
}

/// Whether this process may change interfaces; with `CI=true` it must.
pub fn may_administer() -> bool {
    let mine = rustix::thread::capabilities(None).unwrap().effective;
    let may = mine.contains(rustix::thread::CapabilitySet::NET_ADMIN);
    tidegate_testkit::need("CAP_NET_ADMIN is needed", may)
}
