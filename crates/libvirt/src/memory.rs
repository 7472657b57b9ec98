//! Whether the device of an RDMA uplink may have the memory of a domain: all pages are there, shared, and none is taken away. Pure.
//!
//! ```text
//!  <domain> ─┬─ <memballoon>, <memory model> ─── takes pages away? ──────────┐
//!            ├─ <memoryBacking> ───────────────── memfd, huge pages? filled? ─┼▶ nothing, or the element and the reason
//!            └─ <memoryBacking>, <cell memAccess> shared? ───────────────────┘
//! ```
//!
//! Source of the format: libvirt, formatdomain, "Memory Backing", "Memory balloon device", "Memory devices".

use crate::xml::{child, child_attribute, children};
use roxmltree::Node;

/// The lines that a domain with zero copy has.
const EXPECTED: &str =
    "<source type='memfd'/> <access mode='shared'/> <allocation mode='immediate'/> in <memoryBacking>";

/// Why a device may not have the memory, and the element that says so.
pub(crate) type Obstacle<'a> = (Node<'a, 'a>, String);

/// Returns the first obstacle to zero copy.
pub(crate) fn obstacle<'a>(domain: Node<'a, 'a>) -> Option<Obstacle<'a>> {
    balloon(domain).or_else(|| unplugged(domain)).or_else(|| backing(domain))
}

/// Finds a balloon. libvirt gives one to a domain that names none.
fn balloon<'a>(domain: Node<'a, 'a>) -> Option<Obstacle<'a>> {
    let takes = "takes pages out of the guest, which the device would go on to send";
    let remedy = "write <memballoon model='none'/> into <devices>";
    let mut balloons =
        children(domain, "devices").flat_map(|devices| children(devices, "memballoon")).peekable();
    if balloons.peek().is_none() {
        let at = child(domain, "devices").unwrap_or(domain);
        return Some((
            at,
            format!("libvirt adds a balloon to a domain that says nothing of one, and it {takes}: {remedy}"),
        ));
    }
    let there = balloons.find(|balloon| balloon.attribute("model") != Some("none"))?;
    let what = match there.attribute("freePageReporting") {
        Some("on") => "free page reporting",
        _ => "a balloon",
    };
    Some((there, format!("{what} {takes}: {remedy}")))
}

/// Finds memory that the host can unplug in parts.
fn unplugged<'a>(domain: Node<'a, 'a>) -> Option<Obstacle<'a>> {
    let mut devices = children(domain, "devices").flat_map(|devices| children(devices, "memory"));
    let there = devices.find(|memory| memory.attribute("model") == Some("virtio-mem"))?;
    let message = "virtio-mem takes pages out of the guest when it is resized, which the device would go on to send: use model='dimm', or \
                   memory from the start";
    Some((there, message.into()))
}

/// Finds what is wrong with the memory's pages.
fn backing<'a>(domain: Node<'a, 'a>) -> Option<Obstacle<'a>> {
    let Some(backing) = child(domain, "memoryBacking") else {
        return Some((domain, format!("its memory is neither memfd nor huge pages: write {EXPECTED}")));
    };
    // Huge pages of some cells of NUMA alone leave others as they are.
    let huge = child(backing, "hugepages");
    let is_all_huge =
        huge.is_some_and(|huge| children(huge, "page").all(|page| !page.has_attribute("nodeset")));
    let source = child_attribute(backing, "source", "type");
    let is_memfd = source == Some("memfd");
    if !is_memfd && !is_all_huge {
        let at = child(backing, "source").unwrap_or(backing);
        return Some((at, format!("its memory is neither memfd nor huge pages alone: write {EXPECTED}")));
    }
    if !is_all_huge && child_attribute(backing, "allocation", "mode") != Some("immediate") {
        let at = child(backing, "allocation").unwrap_or(backing);
        let message = "the guest's pages come when it first writes to them, and those that are missing would be sent as zeros: write \
                       <allocation mode='immediate'/> in <memoryBacking>";
        return Some((at, message.into()));
    }
    // QEMU shares memfd unless it is told otherwise; huge pages of hugetlbfs are private unless it is.
    let cells: Vec<Node<'a, 'a>> = cells(domain).collect();
    let of_all = child_attribute(backing, "access", "mode");
    let is_shared = |said: Option<&str>| match said {
        Some(mode) => mode == "shared",
        None => is_memfd,
    };
    let private = cells.iter().find(|cell| !is_shared(cell.attribute("memAccess").or(of_all)));
    let private = private.copied().or_else(|| {
        let at = || child(backing, "access").unwrap_or(backing);
        (cells.is_empty() && !is_shared(of_all)).then(at)
    });
    let message = "the guest's memory is not shared, and the switch reads and writes frames in it: write <access mode='shared'/> in \
                   <memoryBacking>, and no memAccess='private'";
    Some((private?, message.into()))
}

/// Returns the cells of NUMA.
fn cells<'a>(domain: Node<'a, 'a>) -> impl Iterator<Item = Node<'a, 'a>> {
    children(domain, "cpu").flat_map(|cpu| children(cpu, "numa")).flat_map(|numa| children(numa, "cell"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use roxmltree::Document;

    const FULL: &str =
        "<source type='memfd'/><access mode='shared'/><allocation mode='immediate' threads='8'/>";
    const NONE: &str = "<memballoon model='none'/>";

    /// Returns the element and the reason, for a domain with these parts.
    fn said(backing: &str, devices: &str, numa: &str) -> Option<(String, String)> {
        let backing = if backing.is_empty() {
            String::new()
        } else {
            format!("<memoryBacking>{backing}</memoryBacking>")
        };
        let text =
            format!("<domain>{backing}<cpu><numa>{numa}</numa></cpu><devices>{devices}</devices></domain>");
        let document = Document::parse(&text).unwrap();
        obstacle(document.root_element()).map(|(node, why)| (node.tag_name().name().into(), why))
    }

    #[test]
    fn memory_that_is_there_and_stays_is_allowed() {
        let cells = "<cell id='0'/><cell id='1' memAccess='shared'/>";
        for (backing, numa) in [
            (FULL, ""),
            (FULL, cells),
            ("<source type='memfd'/><allocation mode='immediate'/>", ""),
            ("<hugepages/><access mode='shared'/>", ""),
            ("<hugepages><page size='2' unit='M'/></hugepages><access mode='shared'/>", cells),
            ("<hugepages/>", "<cell id='0' memAccess='shared'/>"),
            ("<hugepages/><source type='memfd'/>", ""),
        ] {
            assert_eq!(said(backing, NONE, numa), None, "{backing} {numa}");
        }
        assert_eq!(said(FULL, &format!("{NONE}<memory model='dimm'/>"), ""), None);
    }

    #[test]
    fn each_obstacle_is_told_at_its_element() {
        let of_nodes = "<hugepages><page size='2' unit='M' nodeset='0'/></hugepages><access mode='shared'/>";
        let mem = format!("{NONE}<memory model='virtio-mem'/>");
        for (backing, devices, numa, at, why) in [
            (FULL, "", "", "devices", "libvirt adds a balloon"),
            (FULL, "<memballoon model='virtio'/>", "", "memballoon", "a balloon takes pages"),
            (FULL, "<memballoon/>", "", "memballoon", "a balloon takes pages"),
            (
                FULL,
                "<memballoon model='virtio' freePageReporting='on'/>",
                "",
                "memballoon",
                "free page reporting",
            ),
            (FULL, &mem, "", "memory", "virtio-mem"),
            ("", NONE, "", "domain", "neither memfd nor huge pages"),
            ("<nosharepages/>", NONE, "", "memoryBacking", "neither memfd"),
            ("<source type='file'/><allocation mode='immediate'/>", NONE, "", "source", "neither memfd"),
            ("<source type='anonymous'/>", NONE, "", "source", "neither memfd"),
            (of_nodes, NONE, "", "memoryBacking", "neither memfd nor huge pages alone"),
            ("<source type='memfd'/>", NONE, "", "memoryBacking", "mode='immediate'"),
            (
                "<source type='memfd'/><allocation mode='ondemand'/>",
                NONE,
                "",
                "allocation",
                "mode='immediate'",
            ),
            ("<hugepages/>", NONE, "", "memoryBacking", "not shared"),
            ("<hugepages/>", NONE, "<cell id='0'/>", "cell", "not shared"),
            (
                "<source type='memfd'/><allocation mode='immediate'/><access mode='private'/>",
                NONE,
                "",
                "access",
                "not shared",
            ),
            (FULL, NONE, "<cell id='0' memAccess='private'/>", "cell", "not shared"),
        ] {
            let (found, message) = said(backing, devices, numa).expect(backing);
            assert!(found == at && message.contains(why), "{backing} {devices} {numa}: <{found}>: {message}");
        }
    }

    proptest! {
        /// Random elements and attributes never break the judgement, and a balloon is never allowed.
        #[test]
        fn a_balloon_is_never_allowed(
            backing in "(<(source type|access mode|allocation mode)='(memfd|shared|immediate|private|x)'/>|<hugepages/>){0,4}",
            model in "virtio|virtio-transitional|xen|",
        ) {
            let found = said(&backing, &format!("<memballoon model='{model}'/>"), "");
            prop_assert_eq!(found.map(|(at, _)| at), Some("memballoon".to_owned()));
        }
    }
}
