//! The filter of a packet socket, as a classic BPF program (linux/filter.h): frames of the listed VLANs, and no others. Pure.
//!
//! ```text
//!  frame ─▶ tagged? ─▶ VLAN ─▶ below the middle one? ─▶ ... ─▶ one of a few? ─▶ whole frame, or nothing
//! ```
//!
//! The VLANs are a tree of comparisons: a frame passes some 15 instructions, whatever their number.

use libc::sock_filter;

/// Instructions (linux/bpf_common.h).
const LOAD: u16 = 0x20;
const AND: u16 = 0x54;
const JUMP: u16 = 0x05;
const JUMP_EQUAL: u16 = 0x15;
const JUMP_AT_LEAST: u16 = 0x35;
const RETURN: u16 = 0x06;

/// Places of what the kernel knows about a frame beside its bytes (`SKF_AD_OFF`, `SKF_AD_VLAN_TAG`,
/// `SKF_AD_VLAN_TAG_PRESENT`).
const TAG: u32 = (-0x1000_i32 + 44) as u32;
const TAG_PRESENT: u32 = (-0x1000_i32 + 48) as u32;

/// VLANs that are compared one by one.
const FEW: usize = 8;

/// Returns the filter for `vlans`, which are in order, each from 1 to 4094.
pub(super) fn filter(vlans: &[u16]) -> Vec<sock_filter> {
    let mut program = vec![
        instruction(LOAD, TAG_PRESENT),
        sock_filter { code: JUMP_EQUAL, jt: 1, jf: 0, k: 1 },
        instruction(RETURN, 0),
        instruction(LOAD, TAG),
        instruction(AND, 0xfff),
    ];
    program.extend(tree(vlans));
    program
}

fn instruction(code: u16, k: u32) -> sock_filter {
    sock_filter { code, jt: 0, jf: 0, k }
}

/// Returns instructions that end the program for a VLAN that is loaded.
fn tree(vlans: &[u16]) -> Vec<sock_filter> {
    if vlans.len() <= FEW {
        let few = vlans.iter().flat_map(|vlan| {
            let equal = sock_filter { code: JUMP_EQUAL, jt: 0, jf: 1, k: (*vlan).into() };
            [equal, instruction(RETURN, u32::MAX)]
        });
        return few.chain([instruction(RETURN, 0)]).collect();
    }
    let (below, above) = vlans.split_at(vlans.len() / 2);
    let (middle, below, above) = (above[0], tree(below), tree(above));
    // A conditional jump has one byte only.
    let at_least = sock_filter { code: JUMP_AT_LEAST, jt: 0, jf: 1, k: middle.into() };
    let jump = instruction(JUMP, below.len() as u32);
    [at_least, jump].into_iter().chain(below).chain(above).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// Runs a filter as the kernel does; returns how many bytes of the frame pass.
    fn run(program: &[sock_filter], tag: Option<u16>) -> u32 {
        let (mut at, mut loaded) = (0, 0);
        loop {
            let sock_filter { code, jt, jf, k } = program[at];
            at += 1;
            let mut jump = |holds| at += usize::from(if holds { jt } else { jf });
            match code {
                LOAD if k == TAG_PRESENT => loaded = u32::from(tag.is_some()),
                LOAD => loaded = tag.unwrap_or(0).into(),
                AND => loaded &= k,
                JUMP_EQUAL => jump(loaded == k),
                JUMP_AT_LEAST => jump(loaded >= k),
                JUMP => at += k as usize,
                RETURN => return k,
                _ => panic!("unknown instruction {code}"),
            }
        }
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(32))]
        /// The model is the list.
        #[test]
        fn the_listed_vlans_pass(vlans in prop::collection::btree_set(1..=4094u16, 0..200), priority in 0..16u16) {
            let program = filter(&vlans.iter().copied().collect::<Vec<_>>());
            for vlan in 0..4096 {
                let passed = run(&program, Some(priority << 12 | vlan));
                prop_assert_eq!(passed, if vlans.contains(&vlan) { u32::MAX } else { 0 });
            }
            prop_assert_eq!(run(&program, None), 0);
        }
    }

    /// The kernel takes 4096 instructions (BPF_MAXINSNS).
    #[test]
    fn the_longest_list_fits() {
        let program = filter(&(1..=1024).map(|vlan| vlan * 3).collect::<Vec<_>>());
        assert!(program.len() <= 4096, "{}", program.len());
    }
}
