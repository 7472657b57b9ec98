//! The rules of one contract by itself.

use super::rdma;
use super::rules::{Problem, Rules};
use crate::{Allowed, Attach, Bytes, Method, Nanos, Queueing, SocketMode, UPLINK, Vnic};
use std::{ops::RangeInclusive, path::Path};

/// Longest name, in its folder, of a socket that we make (bytes): with the folder's descriptor before it
/// (`/proc/self/fd/N/`) it fits into an address (108 bytes, unix(7)).
pub const LONGEST_SOCKET_NAME: usize = 80;

pub(crate) const WEIGHT: RangeInclusive<u32> = 1..=1000;
pub(crate) const MTU: RangeInclusive<u16> = 68..=u16::MAX;
/// Queue pairs of a vNIC.
pub const QUEUES: RangeInclusive<u16> = 1..=64;
pub(crate) const QOS: RangeInclusive<u8> = 0..=7;
pub(crate) const VLAN: RangeInclusive<u16> = 1..=4094;
/// Longest name of a user or group, bytes (LOGIN_NAME_MAX, limits.h(0p)).
const LOGIN_NAME: usize = 256;
/// Most places in `to`: each is a delay bound to compute and to show.
pub(super) const DESTINATIONS: usize = 64;
/// Most MACs and most prefixes in `allowed`: each frame of the VM may be compared with all.
const ADDRESSES: usize = 1024;
/// Most addresses in `allowed.shared`: a frame may move several at once, and a word has a bit for each.
pub const SHARED: usize = 64;
const VLANS: usize = *VLAN.end() as usize;
/// Deadlines; the reading of the clock would be a good part of a shorter one.
pub(super) const DEADLINE: RangeInclusive<Nanos> = Nanos::new(10_000)..=Nanos::new(10_000_000_000);
/// Target of flow queueing (RFC 8289): frames wait for the worker's loop as long as a lower one, and a higher one
/// allows no short wait.
const TARGET: RangeInclusive<Nanos> = Nanos::new(100_000)..=Nanos::new(100_000_000);
/// The longest useful round trip: between hosts on Earth it is below 1 s.
const LONGEST_INTERVAL: Nanos = Nanos::new(2_000_000_000);
/// Sizes that keep token arithmetic (bits times nanoseconds) within 64 bits.
pub(super) const SIZE: RangeInclusive<Bytes> = Bytes::new(1)..=Bytes::new(1_000_000_000);

impl Vnic {
    /// Checks all rules of one contract by itself.
    ///
    /// # Errors
    /// Every broken rule, with its key.
    pub fn check(&self) -> Result<(), Vec<Problem>> {
        let mut rules = Rules::default();
        if let Err(message) = vnic_name(&self.name) {
            rules.add_problem("name", message);
        }
        check_attach(&mut rules, &self.attach);
        if let Err(error) = self.mac.as_source() {
            rules.add_problem("mac", error);
        }
        check_rates(&mut rules, self);
        check_queueing(&mut rules, self.queueing);
        check_promises(&mut rules, self);
        check_path(&mut rules, self);
        rdma::check_vnic(&mut rules, self);
        check_allowed(&mut rules, &self.allowed);
        check_shared(&mut rules, self);
        rules.check_range("weight", self.weight, WEIGHT);
        rules.check_range("mtu", self.mtu, MTU);
        rules.check_range("queues", self.queues, QUEUES);
        check_guest(&mut rules, self);
        rules.result()
    }
}

fn check_attach(rules: &mut Rules, attach: &Attach) {
    match attach {
        Attach::VhostUser { path, mode, owner } => {
            let name = path.file_name().map_or(0, |name| name.len());
            if let Err(message) = socket_path(path) {
                rules.add_problem("attach.vhost-user", message);
            } else if *mode == SocketMode::Server && name > LONGEST_SOCKET_NAME {
                rules.add_problem(
                    "attach.vhost-user",
                    format!(
                        "the file name of the socket has {name} bytes; the file name of a socket that Tidegate makes has at most \
                         {LONGEST_SOCKET_NAME}"
                    ),
                );
            }
            if *mode == SocketMode::Client {
                let set = [
                    ("attach.owner", owner.user.is_some()),
                    ("attach.group", owner.group.is_some()),
                    ("attach.socket-mode", owner.mode.is_some()),
                ];
                for (key, _) in set.iter().filter(|(_, set)| *set) {
                    rules.add_problem(
                        key,
                        "with mode = \"client\" the front end makes the socket, so Tidegate cannot set its owner; remove this key or the mode",
                    );
                }
            }
            for (key, name) in [("attach.owner", &owner.user), ("attach.group", &owner.group)] {
                let is_none = |n: &String| n.is_empty() || n.len() > LOGIN_NAME || n.contains(['\0', ':']);
                if name.as_ref().is_some_and(is_none) {
                    rules.add_problem(key, "expected the name or number of a user or group");
                }
            }
            if let Some(mode) = owner.mode.filter(|mode| *mode > 0o777) {
                rules.add_problem(
                    "attach.socket-mode",
                    format!("{mode:o} is out of range; permission bits 0000 to 0777"),
                );
            }
        }
        Attach::Tap { name, netns } => {
            if let Err(message) = interface_name(name) {
                rules.add_problem("attach.tap", message);
            }
            if let Some(Err(message)) = netns.as_deref().map(check_visible) {
                rules.add_problem("attach.netns", message);
            }
            if netns.as_ref().is_some_and(|path| !path.is_absolute()) {
                rules.add_problem("attach.netns", "expected an absolute path such as \"/run/netns/web\"");
            }
        }
        Attach::Netdev { name } => {
            if let Err(message) = interface_name(name) {
                rules.add_problem("attach.netdev", message);
            }
        }
        Attach::Vf { pf, options, .. } => {
            if let Err(message) = interface_name(pf) {
                rules.add_problem("attach.vf", message);
            }
            rules.check_range("attach.qos", options.qos, QOS);
        }
    }
}

fn check_guest(rules: &mut Rules, vnic: &Vnic) {
    let Some(socket) = &vnic.guest else { return };
    if let Err(message) = socket_path(socket) {
        rules.add_problem("guest", message);
    }
    if matches!(&vnic.attach, Attach::VhostUser { path, .. } if path == socket) {
        rules.add_problem(
            "guest",
            "this is the vhost-user socket; name the socket of the VM's virtio-serial port",
        );
    }
}

fn check_rates(rules: &mut Rules, vnic: &Vnic) {
    if let (Some(min), Some(max)) = (vnic.tx.min, vnic.tx.max)
        && min > max
    {
        rules.add_problem(
            "tx.min",
            format!("min {min} is over max {max}; a guarantee cannot exceed the limit"),
        );
    }
    if vnic.tx.method == Method::Police {
        if !matches!(vnic.attach, Attach::Netdev { .. }) {
            rules.add_problem(
                "tx.method",
                "only the kernel place polices (attach = { netdev = … }); remove tx.method: frames above tx.max then wait",
            );
        }
        if vnic.tx.max.is_none() {
            rules.add_problem("tx.method", "tx.method needs tx.max; set tx.max, or remove tx.method");
        }
    }
    let sizes = [("tx.burst", vnic.tx.burst), ("rx.burst", vnic.rx.burst), ("rx.queue", vnic.rx.queue)];
    for (key, size) in sizes {
        if let Some(size) = size {
            rules.check_range(key, size, SIZE);
        }
    }
}

fn check_queueing(rules: &mut Rules, queueing: Queueing) {
    let Queueing::Flows(flows) = queueing else { return };
    rules.check_range("queueing.target", flows.target, TARGET);
    let shortest = Nanos::new(2 * flows.target.get().min(TARGET.end().get()));
    if !(shortest..=LONGEST_INTERVAL).contains(&flows.interval) {
        let message = format!(
            "{} is out of range; twice the target to {LONGEST_INTERVAL}, here {shortest} or more",
            flows.interval
        );
        rules.add_problem("queueing.interval", message);
    }
}

fn check_promises(rules: &mut Rules, vnic: &Vnic) {
    if let Some(deadline) = vnic.deadline {
        rules.check_range("deadline", deadline, DEADLINE);
        if vnic.tx.max.is_none() {
            rules.add_problem(
                "deadline",
                "a deadline needs `tx.max`: the bound holds for a declared rate only",
            );
        }
        match vnic.tx.burst {
            None => rules.add_problem(
                "deadline",
                "a deadline needs `tx.burst`: the bound holds for a declared burst only",
            ),
            Some(burst) if burst.get() < vnic.largest_frame() => rules.add_problem(
                "tx.burst",
                format!(
                    "{burst} cannot hold one frame of {} bytes (mtu {} + 14 header + 4 VLAN tag); \
                     raise tx.burst or lower mtu",
                    vnic.largest_frame(),
                    vnic.mtu
                ),
            ),
            Some(_) => {}
        }
        if vnic.to.is_empty() {
            rules.add_problem(
                "deadline",
                "a deadline needs `to`: name the vNICs, or \"uplink\", towards which it holds",
            );
        }
    } else if vnic.tx.min.is_some() && vnic.to.is_empty() {
        rules.add_problem(
            "tx.min",
            "a guarantee needs `to`: name the vNICs, or \"uplink\", towards which it holds",
        );
    }
    for name in vnic.to.iter().take(DESTINATIONS) {
        if *name == vnic.name {
            rules.add_problem("to", format!("{name} is this vNIC itself"));
        } else if name != UPLINK
            && let Err(message) = vnic_name(name)
        {
            rules.add_problem("to", message);
        }
    }
    rules.check_distinct("to", &vnic.to, DESTINATIONS);
}

/// Keys about the path that a deadline has through the network.
fn check_path(rules: &mut Rules, vnic: &Vnic) {
    let keys = [("on-refused", vnic.on_refused.is_some()), ("on-unreachable", vnic.on_unreachable.is_some())];
    for (key, _) in keys.iter().filter(|(_, is_given)| *is_given && vnic.deadline.is_none()) {
        rules.add_problem(
            key,
            "it is about a deadline's path through the network; write deadline, or remove it",
        );
    }
}

fn check_allowed(rules: &mut Rules, allowed: &Allowed) {
    if allowed.any_mac && !allowed.macs.is_empty() {
        rules.add_problem(
            "allowed.macs",
            "\"any\" already allows every MAC; give \"any\" or a list, not both",
        );
    }
    for mac in allowed.macs.iter().take(ADDRESSES) {
        if let Err(error) = mac.as_source() {
            rules.add_problem("allowed.macs", error);
        }
    }
    for vlan in allowed.vlans.iter().take(VLANS) {
        rules.check_range("allowed.vlans", *vlan, VLAN);
    }
    rules.check_distinct("allowed.macs", &allowed.macs, ADDRESSES);
    rules.check_distinct("allowed.prefixes", &allowed.prefixes, ADDRESSES);
    rules.check_distinct("allowed.vlans", &allowed.vlans, VLANS);
}

fn check_shared(rules: &mut Rules, vnic: &Vnic) {
    let Allowed { macs, prefixes, shared, .. } = &vnic.allowed;
    for address in shared.iter().take(SHARED) {
        if let Err(error) = address.as_source() {
            rules.add_problem("allowed.shared", error);
        }
        if address.mac().is_some_and(|mac| mac == vnic.mac || macs.contains(&mac)) {
            rules.add_problem(
                "allowed.shared",
                format!("{address} is the vNIC's own MAC; remove it here, or from mac and allowed.macs"),
            );
        }
        if address.ip().is_some() && prefixes.is_empty() {
            rules.add_problem(
                "allowed.shared",
                format!(
                    "{address} is shared, which needs allowed.prefixes: without them the vNIC may use any IP address; list its own addresses in allowed.prefixes"
                ),
            );
        }
    }
    rules.check_distinct("allowed.shared", shared, SHARED);
}

impl Vnic {
    /// Returns whether a vNIC can have this name: 1 to 63 of `[a-zA-Z0-9._-]`, first alphanumeric, not reserved.
    pub fn is_name(name: &str) -> bool {
        vnic_name(name).is_ok()
    }
}

/// Checks a vNIC's name, as `Vnic::is_name`.
pub(crate) fn vnic_name(name: &str) -> Result<(), String> {
    table_name(name, "a vNIC")
}

/// Checks the name of a table by the rules of a vNIC's name; `what` has it.
pub(super) fn table_name(name: &str, what: &str) -> Result<(), String> {
    let allowed = |b: u8| b.is_ascii_alphanumeric() || matches!(b, b'.' | b'_' | b'-');
    if name == UPLINK || name == "host" {
        return Err(format!("the name {name:?} is reserved; choose another"));
    }
    if !(1..=63).contains(&name.len())
        || !name.bytes().all(allowed)
        || !name.as_bytes()[0].is_ascii_alphanumeric()
    {
        return Err(format!(
            "{name:?} is not a valid name of {what}; write 1 to 63 letters, digits, '.', '_' and '-', the first a letter or digit"
        ));
    }
    Ok(())
}

/// Checks an interface's name by the rules of Linux: 1 to 15 bytes without '/', ':' and white space, not "." or "..".
/// Also refuses '%' and control characters, which would corrupt messages and name templates, and a leading '-', which
/// tools would take for an option.
pub(super) fn interface_name(name: &str) -> Result<(), String> {
    if name.len() > 15 {
        return Err(format!("interface name {name:?} has {} bytes; Linux takes at most 15", name.len()));
    }
    let bad = |c: char| c == '/' || c == ':' || c == '%' || c.is_whitespace() || c.is_control();
    if name.is_empty() || name == "." || name == ".." || name.contains(bad) {
        return Err(format!(
            "{name:?} is not an interface name; write 1 to 15 bytes without '/', ':', '%' and spaces"
        ));
    }
    if name.starts_with('-') {
        return Err(format!(
            "interface name {name:?} looks like an option; rename the interface (ip link set)"
        ));
    }
    Ok(())
}

/// Checks a Unix socket's path: absolute, and short enough for `sun_path` (108 bytes with its NUL, unix(7)).
fn socket_path(path: &Path) -> Result<(), String> {
    let bytes = path.as_os_str().as_encoded_bytes();
    if bytes.len() > 107 {
        return Err(format!(
            "the socket path has {} bytes; the path of a Unix socket has at most 107",
            bytes.len()
        ));
    }
    if !path.is_absolute() || bytes.ends_with(b"/") || bytes.contains(&0) {
        return Err("expected the absolute path of a socket, such as \"/run/tidegate/vm/plc1.sock\"".into());
    }
    // Two spellings of one path would be two sockets.
    let is_plain = |part: &[u8]| !matches!(part, b"" | b"." | b"..");
    if !bytes[1..].split(|byte| *byte == b'/').all(is_plain) {
        return Err("write the path without \"..\", \".\" and double slashes".into());
    }
    check_visible(path)
}

/// Refuses a path with invisible characters: a person would take it for another path.
pub(super) fn check_visible(path: &Path) -> Result<(), String> {
    let text = path.to_string_lossy();
    match text.chars().find(|c| tidegate_visible::is_hidden(*c)) {
        None => Ok(()),
        Some(c) => Err(format!(
            "the path \"{}\" has an invisible character, \\u{{{:x}}}; choose a path without it",
            tidegate_visible::visible(&text),
            u32::from(c)
        )),
    }
}
