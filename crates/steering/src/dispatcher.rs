//! libxdp's dispatcher: a program at a device that calls others, in the order of their priorities.
//!
//! ```text
//!  frame ─▶ priority 50, its default: a filter ─XDP_PASS─▶ 90: tidegate_steer ─XDP_PASS─▶ any after it ─▶ kernel
//!                │                                              │
//!                └─▶ its verdict: dropped, sent, ...            └─▶ redirected to its CPU
//! ```
//!
//! Each program goes on to the next for the verdicts that its user chose when loading it, by default for XDP_PASS; any other verdict ends the
//! chain. Ours goes on for XDP_PASS alone. [`libxdp`](crate::libxdp) puts it there and takes it out; who is in there is the kernel's own
//! knowledge, by its links.

use crate::libxdp;
use crate::program::{DISPATCHER, Foreign, NAME, name_of};
use libbpf_rs::ProgramAttachType;
use libbpf_rs::query::{LinkInfoIter, LinkTypeInfo};
use std::os::fd::{AsFd, BorrowedFd};

/// Most programs of one: `MAX_DISPATCHER_ACTIONS` of libxdp's protocol.
const SLOTS: usize = 10;

/// A dispatcher at a device.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Dispatcher {
    /// Its number as a program.
    pub number: u32,
    /// Whether it gets frames from the kernel, and not from the driver.
    pub is_generic: bool,
    /// Numbers of the programs in it; not in their order.
    pub programs: Vec<u32>,
    /// Steering programs among them: one, or two after a crash while one took another's place.
    pub ours: Vec<u32>,
}

impl Dispatcher {
    /// Asks the kernel who is in it.
    pub(crate) fn read(number: u32, is_generic: bool) -> Self {
        let programs: Vec<u32> = LinkInfoIter::default()
            .filter_map(|link| match link.info {
                // Programs that watch it (fentry, fexit) have links of the same type; an extension has no type of attachment, 0.
                LinkTypeInfo::Tracing(tracing)
                    if tracing.target_obj_id == number
                        && matches!(tracing.attach_type, ProgramAttachType::CgroupInetIngress) =>
                {
                    Some(link.prog_id)
                }
                _ => None,
            })
            .collect();
        let is_ours = |number: &u32| name_of(*number).as_deref() == Some(NAME);
        let ours = programs.iter().copied().filter(is_ours).collect();
        Self { number, is_generic, programs, ours }
    }

    /// Returns it as a program that is not ours.
    pub(crate) fn as_foreign(&self) -> Foreign {
        Foreign { number: self.number, name: Some(DISPATCHER.into()) }
    }

    /// Whether another program can join it.
    ///
    /// # Errors
    /// Why not.
    pub(crate) fn admits(&self) -> Result<(), String> {
        if self.programs.is_empty() {
            return Err("the kernel tells of no program in it: libxdp did not load it, or the kernel is older than Linux 5.13".into());
        }
        if self.is_generic {
            return Err(
                "it is in the kernel's generic mode: load its programs with xdp-loader load -m native".into(),
            );
        }
        if self.programs.len() >= SLOTS {
            return Err(format!("it has {} programs, which is the most", self.programs.len()));
        }
        libxdp::obstacle().map_or(Ok(()), Err)
    }

    /// Lets a program, loaded as an extension, take part; former ones of ours leave: after that, or before where there is no room.
    ///
    /// # Errors
    /// It did not join, or no room was made. Where room was made, the former ones are gone.
    pub(crate) fn join(&self, index: u32, program: BorrowedFd<'_>) -> Result<(), String> {
        if self.programs.len() >= SLOTS {
            self.ours.iter().try_for_each(|number| leave(index, *number))?;
            return libxdp::change(libxdp::Step::Join, index, program);
        }
        libxdp::change(libxdp::Step::Join, index, program)?;
        self.leave_former(index, None);
        Ok(())
    }

    /// Takes ours out, but one. One that stays is logged: both decide alike, and the next attachment tries again.
    pub(crate) fn leave_former(&self, index: u32, but: Option<u32>) {
        for number in self.ours.iter().copied().filter(|number| Some(*number) != but) {
            if let Err(why) = leave(index, number) {
                tracing::warn!(
                    index,
                    number,
                    "a former steering program stays in libxdp's dispatcher: {why}"
                );
            }
        }
    }
}

/// Takes a program out of the dispatcher of a device; the others stay.
pub(crate) fn leave(index: u32, number: u32) -> Result<(), String> {
    let program = libbpf_rs::Program::fd_from_id(number).map_err(|e| e.to_string())?;
    libxdp::change(libxdp::Step::Leave, index, program.as_fd())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_dispatcher_that_none_can_join_has_its_reason() {
        let of = |is_generic, programs: u32| Dispatcher {
            number: 7,
            is_generic,
            programs: (10..10 + programs).collect(),
            ours: vec![],
        };
        let why = |is_generic, programs| of(is_generic, programs).admits().unwrap_err();
        assert!(why(false, 0).contains("the kernel tells of no program in it"));
        assert!(why(true, 1).contains("xdp-loader load -m native"));
        assert_eq!(why(false, 10), "it has 10 programs, which is the most");
    }
}
