//! Offsets of the kernel's structure members that filters read, from the running kernel's BTF.
//!
//! libbpf can find them itself (CO-RE), but reads all types of the kernel for each load, and each netdev
//! has a program of its own. So the agent looks them up once and passes them to each program as constants.

use libbpf_rs::btf::Btf;
use libbpf_rs::btf::types::{Composite, MemberAttr};
use std::sync::OnceLock;

/// `layout` of `wire.h`, in its order.
const MEMBERS: [(&str, &str); 6] = [
    ("sk_buff", "head"),
    ("sk_buff", "end"),
    ("sk_buff", "mac_header"),
    ("sk_buff", "inner_protocol"),
    ("sk_buff", "inner_network_header"),
    ("skb_shared_info", "gso_type"),
];

/// Offset of each member, bytes.
pub type Layout = [u64; MEMBERS.len()];

/// Returns the offsets of the running kernel.
///
/// # Errors
/// The kernel does not describe its structures (`CONFIG_DEBUG_INFO_BTF`), or has different ones.
pub fn layout() -> Result<Layout, String> {
    static LAYOUT: OnceLock<Result<Layout, String>> = OnceLock::new();
    LAYOUT.get_or_init(look_up).clone()
}

fn look_up() -> Result<Layout, String> {
    let kernel = Btf::from_vmlinux()
        .map_err(|e| format!("the kernel does not describe its structures (CONFIG_DEBUG_INFO_BTF): {e}"))?;
    let mut layout = Layout::default();
    for (at, (structure, member)) in layout.iter_mut().zip(MEMBERS) {
        let found = kernel.type_by_name(structure).and_then(|found| offset(&kernel, found, member));
        *at = found.ok_or_else(|| format!("the kernel's struct {structure} has no {member}"))?;
    }
    Ok(layout)
}

/// Returns a member's offset (bytes); it may be in an unnamed union or structure.
fn offset(kernel: &Btf<'_>, structure: Composite<'_>, name: &str) -> Option<u64> {
    structure.iter().find_map(|member| {
        let MemberAttr::Normal { offset: bits } = member.attr else { return None };
        let within = match member.name {
            Some(known) if known == name => 0,
            None => {
                let inner = kernel.type_by_id(member.ty)?;
                offset(kernel, inner, name)?
            }
            Some(_) => return None,
        };
        Some(u64::from(bits / 8) + within)
    })
}
