//! This process's control group of version 2, and the programs on packets that leave from it.

use libbpf_rs::libbpf_sys::{BPF_CGROUP_INET_EGRESS, BPF_F_ALLOW_MULTI, bpf_prog_attach, bpf_prog_query};
use libbpf_rs::query::{ProgInfoIter, ProgInfoQueryOptions};
use rustix::fs::{Mode, OFlags};
use std::fs;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::path::PathBuf;

/// Most programs of one control group (linux/bpf-cgroup.h, BPF_CGROUP_MAX_PROGS).
const MOST: usize = 64;

/// Opens the control group in which this process makes its sockets.
///
/// # Errors
/// There is no hierarchy of version 2 here, or it cannot be opened.
pub fn own() -> io::Result<OwnedFd> {
    let (mounts, groups) =
        (fs::read_to_string("/proc/self/mountinfo")?, fs::read_to_string("/proc/self/cgroup")?);
    let path = path(&mounts, &groups).ok_or_else(|| io::Error::other("it is not mounted"))?;
    Ok(rustix::fs::open(path, OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty())?)
}

/// Returns the path of a process's control group, from its `mountinfo` and `cgroup` (proc_pid_mountinfo(5), cgroups(7)).
fn path(mounts: &str, groups: &str) -> Option<PathBuf> {
    let group = groups.lines().find_map(|line| line.strip_prefix("0::/"))?;
    let mount = mounts.lines().find_map(|line| {
        let (mount, kind) = line.split_once(" - ")?;
        let mut fields = mount.split(' ').skip(3);
        let (root, at) = (fields.next()?, fields.next()?);
        // A mount of a part of the hierarchy: the path begins at its root.
        let below = format!("/{group}");
        let rest = if root == "/" { group } else { below.strip_prefix(root)?.trim_start_matches('/') };
        (kind.split(' ').next()? == "cgroup2").then(|| PathBuf::from(at).join(rest))
    })?;
    Some(mount)
}

/// Attaches a program to packets that leave from a control group, beside those of others. It stays when this process ends.
pub fn attach(group: &impl AsFd, program: BorrowedFd<'_>) -> io::Result<()> {
    let (group, program) = (group.as_fd().as_raw_fd(), program.as_raw_fd());
    // SAFETY: a system call on two descriptors that live longer than the call.
    let done = unsafe { bpf_prog_attach(program, group, BPF_CGROUP_INET_EGRESS, BPF_F_ALLOW_MULTI) };
    if done == 0 { Ok(()) } else { Err(io::Error::from_raw_os_error(-done)) }
}

/// Returns the numbers of the programs that are attached to a control group itself.
pub fn attached(group: &impl AsFd) -> io::Result<Vec<u32>> {
    let (mut programs, mut count, mut flags) = ([0u32; MOST], MOST as u32, 0u32);
    // SAFETY: the kernel writes at most `count` numbers, the length of `programs`, and the two values.
    let done = unsafe {
        bpf_prog_query(
            group.as_fd().as_raw_fd(),
            BPF_CGROUP_INET_EGRESS,
            0,
            &raw mut flags,
            programs.as_mut_ptr(),
            &raw mut count,
        )
    };
    if done != 0 {
        return Err(io::Error::from_raw_os_error(-done));
    }
    Ok(programs.into_iter().take(count as usize).collect())
}

/// Returns the numbers of the maps of the program of a name, if it is one of these.
pub fn maps_of(programs: &[u32], name: &str) -> Option<Vec<u32>> {
    if programs.is_empty() {
        return None;
    }
    let options = ProgInfoQueryOptions::default().include_map_ids(true);
    let mut all = ProgInfoIter::with_query_opts(options);
    all.find(|program| programs.contains(&program.id) && program.name == name).map(|program| program.map_ids)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_control_group_is_found_in_every_layout() {
        let mounts = |root: &str, at: &str| {
            format!(
                "24 31 0:22 / /proc rw,relatime - proc proc rw\n31 24 0:27 /x /sys/fs/cgroup/cpu rw - cgroup cgroup rw,cpu\n\
                 32 24 0:28 {root} {at} rw,nosuid - cgroup2 cgroup2 rw\n"
            )
        };
        let hybrid = "9:name=systemd:/other\n0::/system.slice/tidegate-agent.service\n";
        let found = |mounts: &str, groups| path(mounts, groups).map(|path| path.display().to_string());
        let unit = "/sys/fs/cgroup/system.slice/tidegate-agent.service";
        assert_eq!(found(&mounts("/", "/sys/fs/cgroup"), hybrid).as_deref(), Some(unit));
        assert_eq!(found(&mounts("/", "/sys/fs/cgroup"), "0::/\n").as_deref(), Some("/sys/fs/cgroup/"));
        let bound = mounts("/system.slice", "/sys/fs/cgroup");
        assert_eq!(found(&bound, hybrid).as_deref(), Some("/sys/fs/cgroup/tidegate-agent.service"));
        assert_eq!(found(&mounts("/user.slice", "/sys/fs/cgroup"), hybrid), None);
        assert_eq!(found("", hybrid), None);
        assert_eq!(found(&mounts("/", "/sys/fs/cgroup"), "4:memory:/a\n"), None, "version 1 only");
    }
}
