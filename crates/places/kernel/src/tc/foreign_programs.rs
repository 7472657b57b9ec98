//! Foreign eBPF programs that get a device's frames before our filters: XDP, and tcx, which is attached
//! without a filter. Frames that such a program drops or redirects are neither limited nor counted.

use libbpf_rs::libbpf_sys::{BPF_TCX_INGRESS, bpf_prog_query};
use std::fmt;
use std::ptr::null_mut;

/// Most programs of a device in one query; the kernel has room for 64 (`BPF_MPROG_MAX`,
/// include/linux/bpf_mprog.h).
const ROOM: usize = 64;

/// A foreign program.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ForeignProgram {
    /// At the driver, before the kernel has a packet.
    Xdp {
        /// Its number, as `bpftool prog` shows it.
        program: u32,
    },
    /// At the ingress.
    Tcx {
        /// Its number.
        program: u32,
    },
}

impl fmt::Display for ForeignProgram {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (hook, program) = match self {
            Self::Xdp { program } => ("XDP", program),
            Self::Tcx { program } => ("tcx", program),
        };
        write!(f, "the {hook} program {program}")
    }
}

/// Returns the tcx programs at the ingress of a device; none if the kernel has no tcx (before Linux 6.6),
/// or forbids the query.
pub fn tcx(index: u32) -> Vec<ForeignProgram> {
    let Ok(index) = i32::try_from(index) else { return vec![] };
    let (mut programs, mut count) = ([0_u32; ROOM], ROOM as u32);
    // SAFETY: the kernel writes at most `count` numbers to `programs`, which has room for so many, and
    // their number to `count`; both live until the call returns.
    let failed = unsafe {
        bpf_prog_query(index, BPF_TCX_INGRESS, 0, null_mut(), programs.as_mut_ptr(), &raw mut count)
    };
    let count = if failed == 0 { (count as usize).min(ROOM) } else { 0 };
    programs[..count].iter().map(|program| ForeignProgram::Tcx { program: *program }).collect()
}
