//! The process's user and capabilities.

use super::Error;
use rustix::io::Errno;
use rustix::process::{DumpableBehavior, Gid, Uid};
use rustix::thread::{CapabilitySet, CapabilitySets};
use std::ffi::CString;
use std::io;

/// Bits of a capability set; the kernel refuses those it does not know.
const CAPABILITIES: u32 = 64;

/// Becomes `user` if given, and gives up every capability for good.
///
/// # Errors
/// The process may not become that user; or the kernel refused.
pub fn drop_all(user: Option<&User>) -> Result<(), Error> {
    // The bounding set limits what an executed program could regain. Narrowing it needs a capability;
    // without, no_new_privs has the same effect.
    for bit in 0..CAPABILITIES {
        let capability = CapabilitySet::from_bits_retain(1 << bit);
        match rustix::thread::remove_capability_from_bounding_set(capability) {
            Ok(()) => {}
            Err(Errno::PERM | Errno::INVAL) => break,
            Err(error) => return Err(right("narrow the capability bounding set")(error)),
        }
    }
    rustix::thread::clear_ambient_capability_set().map_err(right("clear the ambient capabilities"))?;
    if let Some(user) = user {
        user.assume().map_err(|reason| failed(&user.name, reason))?;
    }
    let none = CapabilitySets {
        effective: CapabilitySet::empty(),
        permitted: CapabilitySet::empty(),
        inheritable: CapabilitySet::empty(),
    };
    // A service manager that gave no capabilities may forbid the call, too.
    if rustix::thread::capabilities(None).map_err(right("read the capabilities"))? != none {
        rustix::thread::set_capabilities(None, none).map_err(right("drop the capabilities"))?;
    }
    rustix::thread::set_no_new_privs(true)
        .map_err(right("set no_new_privs, which prevents new privileges"))?;
    // No core file with tenants' frames in it, and no ptrace by processes of the same user.
    rustix::process::set_dumpable_behavior(DumpableBehavior::NotDumpable)
        .map_err(right("forbid core dumps and ptrace"))?;
    if rustix::process::getuid().is_root() && is_initial_user_namespace() {
        tracing::warn!(
            "the switch runs as root, without root's capabilities: give it a user of its own (--user)"
        );
    }
    Ok(())
}

fn right(action: &'static str) -> impl Fn(Errno) -> Error {
    move |source| Error::Right { action, source: source.into() }
}

fn failed(user: &str, reason: String) -> Error {
    Error::User { user: user.to_owned(), reason }
}

/// Whether user 0 here is the host's root (user_namespaces(7)).
fn is_initial_user_namespace() -> bool {
    let map = std::fs::read_to_string("/proc/self/uid_map").unwrap_or_default();
    map.split_whitespace().eq(["0", "0", "4294967295"])
}

/// A user and its own group.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct User {
    name: String,
    uid: u32,
    gid: u32,
}

impl User {
    /// Finds a user by name or number in the system's name service. A number needs no entry there; its group
    /// is the same number then.
    ///
    /// # Errors
    /// The user does not exist, or the name service failed.
    pub fn find(user: &str) -> Result<Self, Error> {
        let (uid, gid) = look_up(user).map_err(|reason| failed(user, reason))?;
        Ok(Self { name: user.to_owned(), uid, gid })
    }

    /// Becomes the user, without supplementary groups. Changing the only thread is enough.
    fn assume(&self) -> Result<(), String> {
        if rustix::process::geteuid().as_raw() == self.uid {
            return Ok(());
        }
        let (uid, gid) = (Uid::from_raw(self.uid), Gid::from_raw(self.gid));
        let refused = |error: Errno| match error {
            Errno::PERM => {
                "only root can change the user: start the switch as root, or as that user without --user"
                    .into()
            }
            other => io::Error::from(other).to_string(),
        };
        rustix::thread::set_thread_groups(&[]).map_err(refused)?;
        rustix::thread::set_thread_res_gid(gid, gid, gid).map_err(refused)?;
        rustix::thread::set_thread_res_uid(uid, uid, uid).map_err(refused)
    }
}

fn look_up(user: &str) -> Result<(u32, u32), String> {
    let number: Option<u32> = user.parse().ok();
    let name = CString::new(user).map_err(|_| "the name contains a NUL byte".to_owned())?;
    let mut buffer: Vec<libc::c_char> = vec![0; 1 << 16];
    // SAFETY: passwd is plain integers and pointers; all zero is a valid value.
    let mut entry: libc::passwd = unsafe { std::mem::zeroed() };
    let mut found = std::ptr::null_mut();
    let (room, len) = (buffer.as_mut_ptr(), buffer.len());
    // SAFETY: all pointers are live for the call; the length is the buffer's.
    let code = unsafe {
        match number {
            Some(uid) => libc::getpwuid_r(uid, &raw mut entry, room, len, &raw mut found),
            None => libc::getpwnam_r(name.as_ptr(), &raw mut entry, room, len, &raw mut found),
        }
    };
    match (found.is_null(), number) {
        (false, _) => Ok((entry.pw_uid, entry.pw_gid)),
        (true, Some(number)) => Ok((number, number)),
        (true, None) if code == 0 => Err("there is no such user on this host".into()),
        (true, None) => Err(io::Error::from_raw_os_error(code).to_string()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn users_by_name_and_number() {
        assert_eq!(look_up("root"), Ok((0, 0)));
        assert_eq!(look_up("0"), Ok((0, 0)));
        assert_eq!(look_up("4000000001"), Ok((4_000_000_001, 4_000_000_001)));
        let refused = |name| User::find(name).unwrap_err().to_string();
        assert_eq!(
            refused("no-such-user"),
            "cannot become user no-such-user: there is no such user on this host"
        );
        assert!(refused("a\0b").contains("NUL"));
    }
}
