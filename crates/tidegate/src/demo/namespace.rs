//! Namespaces: one for the whole demo, in which it is root without being root on the host, and a network
//! namespace for each tenant.

use rustix::thread::UnshareFlags;
use std::{fs, io};

#[derive(Debug, thiserror::Error)]
#[error("cannot make a {what}: {source}\n{}", advice())]
pub struct NamespaceError {
    what: &'static str,
    source: io::Error,
}

/// Moves this process into a new user and network namespace, as its root. A user who is root already gets
/// only a network namespace, and keeps real-time priority.
///
/// Must be called while the process has one thread: otherwise the kernel refuses the user namespace
/// (unshare(2)).
///
/// # Errors
/// The host forbids both; the message says how to go on.
pub fn enter() -> Result<(), NamespaceError> {
    let root = rustix::process::geteuid().is_root();
    if root && unshare(UnshareFlags::NEWNET).is_ok() && super::interface::up("lo").is_ok() {
        return Ok(());
    }
    user_and_network().map_err(|source| NamespaceError { what: "user namespace", source })
}

/// Moves this process into a new network namespace of the demo's user namespace.
pub fn enter_tenant() -> io::Result<()> {
    unshare(UnshareFlags::NEWNET)
}

fn user_and_network() -> io::Result<()> {
    let (uid, gid) = (rustix::process::geteuid().as_raw(), rustix::process::getegid().as_raw());
    unshare(UnshareFlags::NEWUSER | UnshareFlags::NEWNET)?;
    // A group map can be written without privileges only after setgroups is off (user_namespaces(7)).
    fs::write("/proc/self/setgroups", "deny")?;
    fs::write("/proc/self/uid_map", format!("0 {uid} 1"))?;
    fs::write("/proc/self/gid_map", format!("0 {gid} 1"))?;
    // AppArmor may permit the namespace but withhold every capability in it: find out now.
    super::interface::up("lo")
}

fn unshare(flags: UnshareFlags) -> io::Result<()> {
    // SAFETY: neither CLONE_FILES nor CLONE_FS is set, so no descriptor or directory that other code relies
    // on is unshared.
    unsafe { rustix::thread::unshare_unsafe(flags) }.map_err(io::Error::from)
}

/// Returns advice on the first setting found that forbids user namespaces.
fn advice() -> String {
    let switches = [
        ("kernel.unprivileged_userns_clone", "0", "1"),
        ("kernel.apparmor_restrict_unprivileged_userns", "1", "0"),
        ("user.max_user_namespaces", "0", "10000"),
        ("user.max_net_namespaces", "0", "10000"),
    ];
    let read = |key: &str| fs::read_to_string(format!("/proc/sys/{}", key.replace('.', "/"))).ok();
    advice_for(&switches, read)
}

fn advice_for(switches: &[(&str, &str, &str)], read: impl Fn(&str) -> Option<String>) -> String {
    let found = switches.iter().find(|(key, forbids, _)| read(key).is_some_and(|v| v.trim() == *forbids));
    match found {
        Some((key, forbids, allows)) => format!(
            "This host forbids them to ordinary users ({key} = {forbids}). To go on, either\n  \
             sudo sysctl -w {key}={allows}\nor run the demo as root: sudo tidegate demo"
        ),
        None => "Inside a container they are usually forbidden by its runtime: run the demo outside, \
                 or as root with CAP_NET_ADMIN and CAP_SYS_ADMIN (docker run --privileged)."
            .into(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_advice_names_the_switch_that_is_off() {
        let switches = [("kernel.a", "0", "1"), ("kernel.b", "1", "0")];
        let read = |key: &str| (key == "kernel.b").then(|| "1\n".to_owned());
        let text = advice_for(&switches, read);
        assert!(text.contains("sysctl -w kernel.b=0"), "{text}");
        assert!(!text.contains("kernel.a"), "{text}");
    }

    #[test]
    fn without_a_switch_the_container_is_suspected() {
        assert!(advice_for(&[("kernel.a", "0", "1")], |_| None).contains("container"));
    }
}
