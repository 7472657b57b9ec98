//! Others' programs at XDP and tcx, which get frames before our filters do, are seen.

mod netns;

use libbpf_rs::libbpf_sys::{
    BPF_PROG_TYPE_SCHED_CLS, BPF_PROG_TYPE_XDP, BPF_TCX_INGRESS, bpf_insn, bpf_prog_attach, bpf_prog_load,
    bpf_prog_type, bpf_xdp_attach,
};
use netns::*;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::ptr::{null, null_mut};
use tidegate_place_kernel::tc::ForeignProgram;

/// `XDP_FLAGS_SKB_MODE` (linux/if_link.h): before the stack, whatever the driver.
const ANY_DRIVER: u32 = 2;

/// A program that lets everything pass: `return verdict`.
fn load(kind: bpf_prog_type, verdict: i32) -> OwnedFd {
    let instruction = |code, imm| bpf_insn { code, imm, ..bpf_insn::default() };
    let program = [instruction(0xb7, verdict), instruction(0x95, 0)];
    let length = program.len().try_into().unwrap();
    // SAFETY: two instructions and a string with a 0 at its end, which the call reads.
    let fd = unsafe { bpf_prog_load(kind, null(), c"GPL".as_ptr(), program.as_ptr(), length, null_mut()) };
    assert!(fd >= 0, "bpf_prog_load: {fd}");
    // SAFETY: just opened, and not owned elsewhere.
    unsafe { OwnedFd::from_raw_fd(fd) }
}

#[test]
fn programs_before_our_filters_are_seen() {
    in_namespace("programs_before_our_filters_are_seen", || {
        ip("tuntap add vnet3 mode tap");
        let earlier = || {
            let network = observe();
            let (index, link) = network.by_name("vnet3").unwrap();
            (i32::try_from(index).unwrap(), link.foreign_programs.clone())
        };
        settle(&[shaping("vnet3", "100mbit", "50mbit")]);
        let (index, none) = earlier();
        assert_eq!(none, []);
        let (xdp, tcx) = (load(BPF_PROG_TYPE_XDP, 2), load(BPF_PROG_TYPE_SCHED_CLS, -1));
        // SAFETY: descriptors that are open, and no options.
        let attached = unsafe { bpf_xdp_attach(index, xdp.as_raw_fd(), ANY_DRIVER, null()) };
        assert_eq!(attached, 0);
        assert!(matches!(earlier().1[..], [ForeignProgram::Xdp { .. }]), "{:?}", earlier());
        // SAFETY: as above.
        let attached = unsafe { bpf_prog_attach(tcx.as_raw_fd(), index, BPF_TCX_INGRESS, 0) };
        if attached != 0 {
            println!("this kernel has no tcx ({attached}): Linux 6.6 and later have");
            return;
        }
        let (_, both) = earlier();
        assert!(matches!(both[..], [ForeignProgram::Xdp { .. }, ForeignProgram::Tcx { .. }]), "{both:?}");
        assert!(both[1].to_string().starts_with("the tcx program "));
    });
}
