//! A device: which XDP program it has, and putting ours there.

use crate::dispatcher::Dispatcher;
use crate::program::{DISPATCHER, NAME, name_of};
use std::os::fd::{AsRawFd, BorrowedFd};
use tidegate_netlink::attribute::{find, read, string, u32_at};
use tidegate_netlink::{Attributes, Generic, NetlinkError, Socket, ethtool, link};

pub use crate::program::Foreign;

/// linux/if_link.h.
const IFLA_XDP: u16 = 43;
const IFLA_XDP_FD: u16 = 1;
const IFLA_XDP_FLAGS: u16 = 3;
/// Numbers of programs: the only one; by the driver, in the kernel, in the NIC.
const IFLA_XDP_PROG_ID: u16 = 4;
const IFLA_XDP_DRV_PROG_ID: u16 = 5;
const IFLA_XDP_SKB_PROG_ID: u16 = 6;
const IFLA_XDP_HW_PROG_ID: u16 = 7;
const IFLA_XDP_EXPECTED_FD: u16 = 8;
const IFLA_XDP_ATTACHED: u16 = 2;
const XDP_FLAGS_UPDATE_IF_NOEXIST: u32 = 1;
const XDP_FLAGS_DRV_MODE: u32 = 1 << 2;
const XDP_FLAGS_REPLACE: u32 = 1 << 4;
const XDP_ATTACHED_SKB: u8 = 2;
const NLA_F_NESTED: u16 = 1 << 15;

/// linux/ethtool_netlink.h.
const FEATURES_GET: u8 = 11;
const FEATURES_HEADER: u16 = 1;
const FEATURES_ACTIVE: u16 = 4;
const HEADER_DEV_INDEX: u16 = 1;
const BITSET_BITS: u16 = 3;
const BITSET_BITS_BIT: u16 = 1;
const BITSET_BIT_NAME: u16 = 2;
/// The feature that takes VLAN tags out of frames (net/ethtool/common.c).
const TAGS_TAKEN_OUT: &str = "rx-vlan-hw-parse";

/// How often a dispatcher may be replaced while it is looked at.
const RETRIES: usize = 8;

/// What is at a device.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Found {
    /// No XDP program.
    Nothing,
    /// The steering program, with its number.
    Ours(u32),
    /// libxdp's dispatcher, which the steering program may be part of.
    Dispatcher(Dispatcher),
    /// Another one.
    Foreign(Foreign),
}

/// Returns the interface index of a device.
///
/// # Errors
/// There is none of this name, or the kernel does not answer.
pub fn index(device: &str) -> Result<u32, NetlinkError> {
    let mut socket = Socket::route()?;
    // struct ifinfomsg: family, type, index.
    let index = socket.get(link::RTM_GETLINK, &link::named(device), |_, body| u32_at(body, 4))?;
    index.ok_or_else(|| std::io::Error::other("no index in the kernel's answer").into())
}

/// Returns the name of a device, and its program.
///
/// # Errors
/// It is gone, or the kernel does not answer.
pub fn found(index: u32) -> Result<(String, Found), NetlinkError> {
    let mut found = look(index)?;
    // Its programs belong to another dispatcher if that took its place meanwhile.
    for _ in 0..RETRIES {
        let Found::Dispatcher(Dispatcher { number, .. }) = found.1 else { break };
        match look(index)? {
            (_, Found::Dispatcher(again)) if again.number == number => break,
            other => found = other,
        }
    }
    Ok(found)
}

fn look(index: u32) -> Result<(String, Found), NetlinkError> {
    let mut socket = Socket::route()?;
    let mut body = link::header(index, 0, 0);
    body.put_u32(link::IFLA_EXT_MASK, link::RTEXT_FILTER_SKIP_STATS);
    let answer = socket.get(link::RTM_GETLINK, &body.0, |_, body| {
        let attributes = body.get(link::HEADER..)?;
        let programs = find(attributes, IFLA_XDP).map(programs).unwrap_or_default();
        Some((find(attributes, link::IFLA_IFNAME).map(string)?, programs))
    })?;
    let (name, programs) = answer.ok_or_else(|| std::io::Error::other("no name in the kernel's answer"))?;
    if let [(number, is_generic)] = *programs
        && name_of(number).as_deref() == Some(DISPATCHER)
    {
        return Ok((name, Found::Dispatcher(Dispatcher::read(number, is_generic))));
    }
    let named = programs.into_iter().map(|(number, is_generic)| (number, is_generic, name_of(number)));
    let mut result = Found::Nothing;
    for (number, is_generic, program) in named {
        if is_generic || program.as_deref() != Some(NAME) {
            return Ok((name, Found::Foreign(Foreign { number, name: program })));
        }
        result = Found::Ours(number);
    }
    Ok((name, result))
}

/// Returns the numbers in an attribute of programs, and whether each gets frames from the kernel (generic) and not from the driver or in the
/// NIC.
fn programs(attribute: &[u8]) -> Vec<(u32, bool)> {
    let of = |kind, is_generic| {
        find(attribute, kind).and_then(|value| u32_at(value, 0)).map(|number| (number, is_generic))
    };
    let each =
        [of(IFLA_XDP_DRV_PROG_ID, false), of(IFLA_XDP_SKB_PROG_ID, true), of(IFLA_XDP_HW_PROG_ID, false)];
    let mut all: Vec<(u32, bool)> = each.into_iter().flatten().collect();
    if all.is_empty() {
        // Kernels before 5.0 name one alone.
        let is_generic =
            find(attribute, IFLA_XDP_ATTACHED).and_then(|value| value.first()) == Some(&XDP_ATTACHED_SKB);
        all.extend(of(IFLA_XDP_PROG_ID, is_generic));
    }
    all.retain(|(number, _)| *number != 0);
    all
}

/// Puts a program at a device that has none, or in the place of `former`.
///
/// # Errors
/// The kernel refuses it, and the device stays as it was.
pub(crate) fn attach(
    index: u32,
    program: BorrowedFd<'_>,
    former: Option<BorrowedFd<'_>>,
) -> Result<(), NetlinkError> {
    let flags = if former.is_some() { XDP_FLAGS_REPLACE } else { XDP_FLAGS_UPDATE_IF_NOEXIST };
    set(index, flags | XDP_FLAGS_DRV_MODE, program.as_raw_fd(), former)
}

/// Takes a program away from a device, and no other.
///
/// # Errors
/// It is not there, or the kernel refuses.
pub(crate) fn detach(index: u32, program: BorrowedFd<'_>) -> Result<(), NetlinkError> {
    set(index, XDP_FLAGS_REPLACE | XDP_FLAGS_DRV_MODE, -1, Some(program))
}

fn set(index: u32, flags: u32, program: i32, former: Option<BorrowedFd<'_>>) -> Result<(), NetlinkError> {
    let mut body = link::header(index, 0, 0);
    body.nest(IFLA_XDP | NLA_F_NESTED, |xdp| {
        xdp.put(IFLA_XDP_FD, &program.to_ne_bytes());
        xdp.put_u32(IFLA_XDP_FLAGS, flags);
        if let Some(former) = former {
            xdp.put(IFLA_XDP_EXPECTED_FD, &former.as_raw_fd().to_ne_bytes());
        }
    });
    Socket::route()?.change(link::RTM_SETLINK, 0, &body.0)
}

/// Whether the device takes VLAN tags out of frames before the program sees them; they would be lost on the way to another CPU.
///
/// # Errors
/// The kernel does not answer.
pub(crate) fn takes_tags_out(index: u32) -> Result<bool, NetlinkError> {
    let (name, version) = ethtool::FAMILY;
    let Some(mut family) = Generic::open(name, version)? else { return Ok(false) };
    let mut request = Attributes::default();
    request.nest(FEATURES_HEADER | NLA_F_NESTED, |header| header.put_u32(HEADER_DEV_INDEX, index));
    let active = family.get(FEATURES_GET, &request, |attributes| {
        let bits = find(attributes, FEATURES_ACTIVE).and_then(|active| find(active, BITSET_BITS))?;
        let mut names = read(bits).filter(|(kind, _)| *kind == BITSET_BITS_BIT);
        Some(names.any(|(_, bit)| find(bit, BITSET_BIT_NAME).map(string).as_deref() == Some(TAGS_TAKEN_OUT)))
    })?;
    Ok(active.unwrap_or(false))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn programs_of_both_modes_are_found() {
        let mut both = Attributes::default();
        both.put(IFLA_XDP_ATTACHED, &[4]);
        both.put_u32(IFLA_XDP_DRV_PROG_ID, 7);
        both.put_u32(IFLA_XDP_SKB_PROG_ID, 8);
        assert_eq!(programs(&both.0), [(7, false), (8, true)]);
        let mut none = Attributes::default();
        none.put(IFLA_XDP_ATTACHED, &[0]);
        assert_eq!(programs(&none.0), []);
        let mut old = Attributes::default();
        old.put(IFLA_XDP_ATTACHED, &[2]);
        old.put_u32(IFLA_XDP_PROG_ID, 9);
        assert_eq!(programs(&old.0), [(9, true)]);
    }
}
