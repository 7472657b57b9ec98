//! Namespaces for a test's second process, or for the calling thread.

use crate::skip::{skipped, unless_skipped};
use rustix::mount::{MountPropagationFlags, mount_change};
use rustix::thread::{UnshareFlags, unshare_unsafe};
use std::io::{self, Write};
use std::process::Command;

/// Set in the process that runs the test again.
const INSIDE: &str = "TIDEGATE_TEST_NAMESPACE";

/// Namespaces that a test needs.
#[derive(Clone, Copy, Debug)]
pub struct Kind<'a> {
    /// Their description, for a reason to skip: "network namespace with a veth".
    pub what: &'a str,
    /// Options of unshare(1) for them: `--net`.
    pub unshare: &'a [&'a str],
    /// A command that succeeds in them if the test can run.
    pub probe: &'a [&'a str],
    /// Whether, without root, a user namespace gives the needed rights.
    pub user: bool,
}

impl Kind<'_> {
    fn command(&self) -> Command {
        let mut command = Command::new("unshare");
        if self.user && !rustix::process::geteuid().is_root() {
            command.args(["--user", "--map-root-user"]);
        }
        command.args(self.unshare);
        command
    }

    /// Returns why the machine gives none.
    fn missing(&self) -> Option<String> {
        let probe = self.command().args(self.probe).output().expect("unshare (util-linux)");
        let why = String::from_utf8_lossy(&probe.stderr);
        (!probe.status.success())
            .then(|| format!("this machine gives no {} ({}): {}", self.what, probe.status, why.trim_end()))
    }
}

/// Whether this process is the one that [`in_namespace`] started.
pub fn is_inside() -> bool {
    std::env::var_os(INSIDE).is_some()
}

/// Runs `body` in a process with its own namespaces: this test again, by its name. Without namespaces the
/// test is [`skipped`].
///
/// # Panics
/// The test fails there, `name` is not this test's name, or CI would skip the test.
#[track_caller]
pub fn in_namespace(name: &str, kind: Kind<'_>, body: impl FnOnce()) {
    if is_inside() {
        return body();
    }
    if let Some(why) = kind.missing() {
        return skipped(why);
    }
    let test = std::env::current_exe().expect("this program");
    let mut inner = kind.command();
    inner.arg(test).args([name, "--exact", "--nocapture"]).env(INSIDE, "1");
    let output = inner.output().expect("unshare (util-linux)");
    let [out, err] = [&output.stdout, &output.stderr].map(|text| String::from_utf8_lossy(text));
    // Indented, so that scripts/test does not count the inner "test result".
    let indented = |text: &str| text.lines().map(|line| format!("    {line}\n")).collect::<String>();
    let text = indented(&out) + &indented(&err);
    assert!(output.status.success(), "{name} failed in its namespace:\n{text}");
    assert!(out.contains("1 passed"), "{name} is not the name of this test:\n{text}");
    for why in err.lines().filter(|line| line.starts_with("skipped: ")) {
        io::stderr().write_all(format!("{why}\n").as_bytes()).expect("standard error");
    }
}

/// Gives the calling thread, and what it starts, a new network namespace.
///
/// # Errors
/// The thread lacks CAP_SYS_ADMIN.
pub fn own_network() -> io::Result<()> {
    // SAFETY: neither descriptors nor directories are unshared.
    Ok(unsafe { unshare_unsafe(UnshareFlags::NEWNET) }?)
}

/// Gives the calling thread mounts that no other namespace sees.
///
/// # Errors
/// The thread lacks CAP_SYS_ADMIN.
pub fn own_mounts() -> io::Result<()> {
    // SAFETY: of what threads share, this separates only the working directory, which no test relies on.
    unsafe { unshare_unsafe(UnshareFlags::NEWNS) }?;
    Ok(mount_change("/", MountPropagationFlags::PRIVATE | MountPropagationFlags::REC)?)
}

/// As `own_network`; on failure the test is [`skipped`], and the result `false`.
///
/// # Panics
/// CI would skip the test.
pub fn own_network_or_skip() -> bool {
    unless_skipped(own_network().map_err(|e| format!("no network namespace: {e}"))).is_some()
}

/// As `own_mounts`; on failure the test is [`skipped`], and the result `false`.
///
/// # Panics
/// CI would skip the test.
pub fn own_mounts_or_skip() -> bool {
    unless_skipped(own_mounts().map_err(|e| format!("no mounts of its own: {e}"))).is_some()
}

#[cfg(test)]
mod tests {
    use super::*;

    const NETWORK: Kind<'_> =
        Kind { what: "network namespace", unshare: &["--net"], probe: &["true"], user: true };

    #[test]
    fn a_test_runs_again_in_its_own_namespace() {
        in_namespace("namespace::tests::a_test_runs_again_in_its_own_namespace", NETWORK, || {
            assert!(is_inside());
            let devices = std::fs::read_to_string("/proc/net/dev").unwrap();
            assert_eq!(devices.lines().count(), 3, "two lines of titles, and lo: {devices}");
        });
    }

    #[test]
    fn a_missing_namespace_is_reported() {
        assert_eq!(Kind { probe: &["true"], unshare: &[], ..NETWORK }.missing(), None);
        let why = Kind { probe: &["false"], unshare: &[], ..NETWORK }.missing().unwrap();
        assert!(why.starts_with("this machine gives no network namespace (exit status: 1)"), "{why}");
    }
}
