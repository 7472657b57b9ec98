//! Distinguishes our objects from foreign ones by marks in the kernel itself, so that a successor
//! recognises everything that an agent left which died at any point.
//!
//! | object | mark |
//! |---|---|
//! | root qdisc of a netdev | its handle, `7464:`, with all that is below |
//! | filter at the ingress of a netdev | its preference, and the cookie of its action |
//! | marks, of congestion too, and policer there | their preferences, and their names |
//! | classifier of a root qdisc, marks of congestion there | their preferences, and their names |
//! | IFB, with all that is on it | its name and its device group |
//!
//! A clsact qdisc has no room for a mark. A bit in the cookie of its filter tells whether we made it.

use crate::ebpf::congestion::VirtualQueue;
use crate::ebpf::mark::Marks;
use crate::ebpf::police::Bucket;
use crate::handle::Handle;
pub use crate::handle::MAJOR;

/// Our root qdisc.
pub const ROOT_QDISC: Handle = Handle::new(MAJOR, 0);

/// The class of all frames of a netdev's root qdisc.
pub const ROOT_CLASS: Handle = Handle::new(MAJOR, 1);

/// With shares of senders, the class of all others.
pub const REST_CLASS: Handle = Handle::new(MAJOR, 0xffff);

/// First minor of the senders' classes.
pub const FIRST_SHARE: u16 = 2;

/// Last minor of a leaf, on the IFB and at a netdev.
pub const LAST_LEAF: u16 = 0x3fff;

/// Majors of the qdiscs that cut super-frames below our classes: this and the minor. Other programs use
/// small ones, and the kernel those from 0x8000 on.
const CUTTERS: u16 = 0x3000;
/// The one below [`REST_CLASS`].
const REST_CUTTER: u16 = CUTTERS + LAST_LEAF + 1;

/// Returns the handle of the cutter below a class of ours: fixed, since the queue below has to name it.
pub const fn cutter(class: Handle) -> Handle {
    Handle::new(if class.minor() > LAST_LEAF { REST_CUTTER } else { CUTTERS + class.minor() }, 0)
}

/// Returns the parent of the queue below a cutter.
pub const fn below(cutter: Handle) -> Handle {
    Handle::new(cutter.major(), 1)
}

/// Returns a queue's class by its parent: the class, or the cutter below it.
pub const fn class_above(parent: Handle) -> Handle {
    match parent.major() {
        REST_CUTTER => REST_CLASS,
        major if major > CUTTERS && major < REST_CUTTER => Handle::new(MAJOR, major - CUTTERS),
        _ => parent,
    }
}

/// Preference of marking filters at a netdev's ingress, and at its root qdisc: before those that shape,
/// police or classify.
pub const MARK_PREFERENCE: u16 = 1;

/// Preference of the filter at a netdev's ingress that shapes or polices, and of the one at a root qdisc:
/// low, since the first filter decides.
pub const PREFERENCE: u16 = 2;

/// Name of our IFB, the device whose classes shape frames of VMs.
pub const IFB: &str = "tidegate-tx";

/// Device group of our IFB (`ip link show group`): the bytes "tide". Of all possible marks, the kernel sets
/// only this in the request that makes the interface.
pub const IFB_GROUP: u32 = 0x7469_6465;

/// First minor of a leaf on the IFB.
pub const FIRST_LEAF: u16 = 1;

/// Version of the programs in `ebpf/` that filters run. An older agent's program is replaced, and its
/// counters continue.
pub const PROGRAMS: u32 = 3;

/// Returns the name of a policer's filter (`TCA_BPF_NAME`): it carries all facts, since the kernel shows
/// neither the program's parameters nor its owner.
pub fn police_name(cookie: Cookie, bucket: Bucket, map: u32) -> String {
    let Bucket { rate, burst } = bucket;
    format!("tidegate:{}:{rate}:{burst}:{map}:{PROGRAMS}", u8::from(cookie.made_clsact))
}

/// Parses such a name; `None` if it is not ours.
pub fn parse_police_name(name: &str) -> Option<(Cookie, Bucket, Program)> {
    let (numbers, program) = numbers(name.strip_prefix("tidegate:")?, 3)?;
    let [made_clsact @ (0 | 1), rate, burst] = numbers[..] else { return None };
    Some((Cookie { made_clsact: made_clsact == 1 }, Bucket { rate, burst }, program))
}

/// The program in a filter's name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Program {
    /// Number of its eBPF map.
    pub map: u32,
    /// The [`PROGRAMS`] of the agent that loaded it.
    pub version: u32,
}

impl Program {
    /// Whether this agent would load the same program.
    pub fn is_current(self) -> bool {
        self.version == PROGRAMS
    }
}

/// Parses the first `count` numbers of a name, and the program in the others: its map, and from the second
/// version on its version.
fn numbers(text: &str, count: usize) -> Option<(Vec<u64>, Program)> {
    let numbers: Vec<u64> = text.split(':').map(|n| n.parse().ok()).collect::<Option<_>>()?;
    let (first, rest) = numbers.split_at_checked(count)?;
    let (map, version) = match *rest {
        [map] => (map, 1),
        [map, version] if version > 1 => (map, version),
        _ => return None,
    };
    let program = Program { map: map.try_into().ok()?, version: version.try_into().ok()? };
    Some((first.to_vec(), program))
}

/// Returns the name of a classifier's filter, with its map.
pub fn classifier_name(map: u32) -> String {
    format!("tidegate-classes:{map}:{PROGRAMS}")
}

/// Parses such a name; `None` if it is not ours.
pub fn parse_classifier_name(name: &str) -> Option<Program> {
    numbers(name.strip_prefix("tidegate-classes:")?, 0).map(|(_, program)| program)
}

/// Returns the name of a marking filter, like [`police_name`].
pub fn mark_name(cookie: Cookie, marks: Marks, map: u32) -> String {
    format!("tidegate:mark:{}:{}:{map}:{PROGRAMS}", u8::from(cookie.made_clsact), marks.burst())
}

/// Parses such a name; `None` if it is not ours.
pub fn parse_mark_name(name: &str) -> Option<(Cookie, Marks, Program)> {
    let (numbers, program) = numbers(name.strip_prefix("tidegate:mark:")?, 2)?;
    let [made_clsact @ (0 | 1), burst] = numbers[..] else { return None };
    Some((Cookie { made_clsact: made_clsact == 1 }, Marks::from_burst(burst), program))
}

/// Returns the name of a filter that marks congestion, like [`police_name`].
pub fn congestion_name(cookie: Cookie, queue: VirtualQueue, map: u32) -> String {
    let VirtualQueue { rate, burst, target, room } = queue;
    let made_clsact = u8::from(cookie.made_clsact);
    format!("tidegate:congestion:{made_clsact}:{rate}:{burst}:{target}:{room}:{map}:{PROGRAMS}")
}

/// Parses such a name; `None` if it is not ours.
pub fn parse_congestion_name(name: &str) -> Option<(Cookie, VirtualQueue, Program)> {
    let (numbers, program) = numbers(name.strip_prefix("tidegate:congestion:")?, 5)?;
    let [made_clsact @ (0 | 1), rate, burst, target, room] = numbers[..] else { return None };
    let queue = VirtualQueue { rate, burst, target, room };
    Some((Cookie { made_clsact: made_clsact == 1 }, queue, program))
}

const MAGIC: [u8; 8] = *b"tidegate";

/// The cookie of our redirecting action (`TCA_ACT_COOKIE`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Cookie {
    /// The filter's clsact qdisc was made for it, and goes with it.
    pub made_clsact: bool,
}

impl Cookie {
    /// Returns the kernel's form: `tidegate`, then flags; 16 bytes, the maximum.
    pub fn bytes(self) -> [u8; 16] {
        let mut bytes = [0; 16];
        bytes[..8].copy_from_slice(&MAGIC);
        bytes[8] = self.made_clsact.into();
        bytes
    }

    /// Parses a cookie; `None` if it is not ours.
    pub fn parse(bytes: &[u8]) -> Option<Self> {
        let rest = bytes.strip_prefix(&MAGIC)?;
        Some(Self { made_clsact: rest.first().is_some_and(|flags| flags & 1 == 1) })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const FIRST: Program = Program { map: 77, version: 1 };
    const CURRENT: Program = Program { map: 77, version: PROGRAMS };

    #[test]
    fn a_cookie_reads_back_and_others_are_not_ours() {
        for made_clsact in [true, false] {
            let cookie = Cookie { made_clsact };
            assert_eq!(Cookie::parse(&cookie.bytes()), Some(cookie));
        }
        for other in [&b""[..], b"tide", b"cilium\0\0\0\0", &[0; 16]] {
            assert_eq!(Cookie::parse(other), None);
        }
    }

    #[test]
    fn a_policer_s_name_reads_back_and_others_are_not_ours() {
        let cookie = Cookie { made_clsact: true };
        let bucket = Bucket { rate: 125_000_000, burst: 65_536 };
        let name = police_name(cookie, bucket, 77);
        assert_eq!(parse_police_name(&name), Some((cookie, bucket, CURRENT)));
        let old = parse_police_name("tidegate:1:125000000:65536:77");
        assert_eq!(old, Some((cookie, bucket, FIRST)));
        for other in ["", "cil_from_container", "tidegate:1:2:3", "tidegate:2:1:1:1", "tidegate:1:2:3:4:5:6"]
        {
            assert_eq!(parse_police_name(other), None, "{other}");
        }
    }

    #[test]
    fn a_classifier_s_name_reads_back_and_others_are_not_ours() {
        assert_eq!(parse_classifier_name(&classifier_name(77)), Some(CURRENT));
        assert_eq!(parse_classifier_name("tidegate-classes:77"), Some(FIRST));
        for other in
            ["", "tidegate:1:2:3:4", "tidegate-classes:", "tidegate-classes:x", "tidegate-classes:-1"]
        {
            assert_eq!(parse_classifier_name(other), None, "{other}");
        }
    }

    #[test]
    fn a_mark_s_name_reads_back_and_others_are_not_ours() {
        let cookie = Cookie { made_clsact: true };
        for marks in [Marks::Clear, Marks::Set { burst: 3_000.try_into().expect("not 0") }] {
            let name = mark_name(cookie, marks, 77);
            assert_eq!(parse_mark_name(&name), Some((cookie, marks, CURRENT)));
            assert_eq!(parse_police_name(&name), None);
        }
        assert_eq!(parse_mark_name("tidegate:mark:1:0:77"), Some((cookie, Marks::Clear, FIRST)));
        for other in
            ["", "tidegate:1:2:3:4", "tidegate:mark:1:2", "tidegate:mark:2:0:1", "tidegate:mark:1:2:3:4:5"]
        {
            assert_eq!(parse_mark_name(other), None, "{other}");
        }
    }

    #[test]
    fn a_congestion_mark_s_name_reads_back_and_others_are_not_ours() {
        let cookie = Cookie { made_clsact: true };
        let queue = VirtualQueue { rate: 1, burst: 2, target: 3, room: 4 };
        let name = congestion_name(cookie, queue, 77);
        assert_eq!(parse_congestion_name(&name), Some((cookie, queue, CURRENT)));
        assert_eq!((parse_mark_name(&name), parse_police_name(&name)), (None, None));
        for other in
            ["", "tidegate:mark:1:0:77", "tidegate:congestion:2:1:2:3:4:5", "tidegate:congestion:1:2"]
        {
            assert_eq!(parse_congestion_name(other), None, "{other}");
        }
    }

    #[test]
    fn the_name_of_the_ifb_fits() {
        assert!(IFB.len() <= 15, "IFNAMSIZ");
    }
}
