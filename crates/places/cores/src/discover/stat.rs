//! One line of proc_pid_stat(5): a process or a thread. Pure but for the read.

use crate::roots::text;
use std::path::Path;

/// A thread of the kernel (`PF_KTHREAD`, linux/sched.h).
const KERNEL: u32 = 0x0020_0000;
/// A thread of the kernel in a user's process, such as vhost's since Linux 6.4 (`PF_USER_WORKER`).
const USER_WORKER: u32 = 0x0000_4000;
/// A worker of io_uring, which any program starts at will (`PF_IO_WORKER`).
const IO_WORKER: u32 = 0x0000_0010;

/// The fields that matter here.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Stat {
    /// Its own name (field 2): the process chooses any text.
    pub name: String,
    /// The kernel's flags (field 9), which a process cannot set.
    pub flags: u32,
    /// CPU time, clock ticks (fields 14 and 15): a virtual CPU's guest included.
    pub ticks: u64,
    /// Start, clock ticks since boot (field 22).
    pub started: u64,
}

impl Stat {
    /// Reads that of `folder`, such as `/proc/1` or `/proc/1/task/2`; `None` if it ended.
    pub fn read(folder: &Path) -> Option<Self> {
        Self::parse(&text(folder.join("stat"))?)
    }

    /// Parses it.
    pub fn parse(text: &str) -> Option<Self> {
        // The name may have parentheses and spaces.
        let (head, tail) = text.rsplit_once(')')?;
        let name = head.split_once('(')?.1.to_owned();
        let fields: Vec<&str> = tail.split_ascii_whitespace().collect();
        let field = |number: usize| fields.get(number - 3).copied();
        Some(Self {
            name,
            flags: field(9)?.parse().ok()?,
            ticks: field(14)?.parse::<u64>().ok()?.saturating_add(field(15)?.parse().ok()?),
            started: field(22)?.parse().ok()?,
        })
    }

    /// Returns whether it is a process of the kernel.
    pub const fn is_kernel(&self) -> bool {
        self.flags & KERNEL != 0
    }

    /// Returns the process for whose VM it works by its name, if it is a thread of vhost: `vhost-PID`. User code may have that name,
    /// too, but not the kernel's flags. The owner of such a thread may rename it.
    pub fn vhost_of(&self) -> Option<u32> {
        let owner = self.name.strip_prefix("vhost-")?.parse().ok()?;
        (self.flags & (KERNEL | USER_WORKER) != 0 && self.flags & IO_WORKER == 0).then_some(owner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn line(name: &str, flags: u32) -> String {
        format!(
            "7 ({name}) S 1 7 7 0 -1 {flags} 1 2 3 4 100 20 5 6 20 0 3 0 4711 99 9 18446744073709551615 0 0"
        )
    }

    #[test]
    fn fields_after_any_name() {
        for name in ["CPU 0/KVM", "a) S 1", ")", "", "x (y"] {
            let found = Stat::parse(&line(name, 64)).unwrap();
            assert_eq!(found, Stat { name: name.into(), flags: 64, ticks: 120, started: 4711 });
        }
    }

    #[test]
    fn a_user_thread_cannot_be_vhost() {
        let owner = |name, flags| Stat::parse(&line(name, flags)).unwrap().vhost_of();
        assert_eq!(owner("vhost-12", 0x0020_8040), Some(12));
        assert_eq!(owner("vhost-12", 0x0000_4040), Some(12));
        assert_eq!(owner("vhost-12", 0x0040_0140), None);
        assert_eq!(owner("vhost-a", 0x0020_8040), None);
        assert_eq!(owner("vhost-12", 0x0000_4050), None, "a worker of io_uring");
    }

    proptest! {
        #[test]
        fn any_text_is_parsed_or_none(text in ".{0,200}", cut in 0_usize..90) {
            Stat::parse(&text);
            let line = line("a", 1);
            Stat::parse(&line[..cut.min(line.len())]);
        }
    }
}
