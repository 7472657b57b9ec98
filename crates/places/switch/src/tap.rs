//! Taps: network interfaces whose other end is a descriptor.
//!
//! ```text
//!  /dev/net/tun ─ TUNSETIFF ─▶ interface in the network namespace
//!       │  one descriptor per queue pair, 12-byte virtio header, offloads
//!       └──▶ switch
//! ```
//!
//! The interface lives as long as one of its descriptors; nothing has to be removed.

use std::fs::OpenOptions;
use std::io;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use tidegate_contract::{Mac, Vnic};
use tidegate_paths::{Namespace, within};

/// Length of the virtio_net_hdr with `num_buffers` (virtio 1.2, 5.1.6).
const HEADER: libc::c_int = 12;
/// The interface must not exist (linux/if_tun.h).
const IFF_TUN_EXCL: libc::c_int = 0x8000;
/// Checksum, TSO for IPv4, IPv6 and with ECN (linux/if_tun.h).
const OFFLOADS: libc::c_ulong = 0x01 | 0x02 | 0x04 | 0x08;
/// UDP segmentation for IPv4 and IPv6, Linux 6.2 (linux/if_tun.h).
const UDP_OFFLOADS: libc::c_ulong = 0x20 | 0x40;

/// Makes interface `name` for `vnic`, in a network namespace where one is given, up, with the contract's MAC and MTU.
///
/// One descriptor per queue pair.
pub fn create(vnic: &Vnic, name: &str, netns: Option<Namespace>) -> Result<Vec<OwnedFd>, String> {
    let (queues, mac, mtu, owned) = (vnic.queues, vnic.mac, vnic.mtu, name.to_owned());
    within(netns, move || {
        let taps = (0..queues)
            .map(|queue| open_queue(&owned, queue == 0, queues > 1))
            .collect::<io::Result<Vec<_>>>()
            .map_err(|e| explain(&owned, e))?;
        set(&owned, mac, mtu)?;
        Ok(taps)
    })
}

/// Why an interface of this name cannot be made, without making it; `None` where nothing is known against it.
pub fn obstacle(name: &str, netns: Option<Namespace>) -> Option<String> {
    let owned = name.to_owned();
    within(netns, move || {
        let socket = datagram().map_err(|e| format!("cannot look for interface {owned}: {e}"))?;
        let mut request = request(&owned);
        match ioctl(&socket, libc::SIOCGIFFLAGS, std::ptr::from_mut(&mut request).cast()) {
            Ok(()) => Err(explain(&owned, io::Error::from_raw_os_error(libc::EBUSY))),
            Err(_) => Ok(()),
        }
    })
    .err()
}

/// Gives an interface its contract's MAC and MTU, and brings it up.
pub fn configure(vnic: &Vnic, name: &str, netns: Option<Namespace>) -> Result<(), String> {
    let (mac, mtu, owned) = (vnic.mac, vnic.mtu, name.to_owned());
    within(netns, move || set(&owned, mac, mtu))
}

/// Why a tap's interface is no longer what was made, where it is not.
pub fn broken(queue: &OwnedFd, name: &str) -> Option<String> {
    let mut request = request(name);
    match ioctl(queue, libc::TUNGETIFF, std::ptr::from_mut(&mut request).cast()) {
        Err(e) if e.raw_os_error() == Some(libc::EBADFD) => {
            Some(format!("interface {name} is gone: another program deleted it"))
        }
        _ => None,
    }
}

fn explain(name: &str, e: io::Error) -> String {
    match e.raw_os_error() {
        Some(libc::EBUSY) => format!(
            "interface {name} is taken: one of this name exists already and is not ours; \
             remove it (ip link del {name}) or choose another tap name"
        ),
        Some(libc::EPERM | libc::EACCES) => {
            format!("may not make the tap {name}: the agent needs CAP_NET_ADMIN")
        }
        Some(libc::ENOENT | libc::ENXIO | libc::ENODEV) => {
            format!("cannot make the tap {name}: no /dev/net/tun here (modprobe tun)")
        }
        _ => format!("cannot make the tap {name}: {e}"),
    }
}

fn open_queue(name: &str, first: bool, several: bool) -> io::Result<OwnedFd> {
    let tap: OwnedFd = OpenOptions::new().read(true).write(true).open("/dev/net/tun")?.into();
    let mut flags = libc::IFF_TAP | libc::IFF_NO_PI | libc::IFF_VNET_HDR;
    if several {
        flags |= libc::IFF_MULTI_QUEUE;
    }
    if first {
        flags |= IFF_TUN_EXCL;
    }
    let mut request = request(name);
    // The kernel reads these 16 bits as unsigned.
    request.ifr_ifru.ifru_flags = flags as u16 as libc::c_short;
    ioctl(&tap, libc::TUNSETIFF, std::ptr::from_mut(&mut request).cast())?;
    let mut header = HEADER;
    ioctl(&tap, libc::TUNSETVNETHDRSZ, std::ptr::from_mut(&mut header).cast())?;
    // TUNSETOFFLOAD takes its argument by value.
    let offload = |bits: libc::c_ulong| ioctl(&tap, libc::TUNSETOFFLOAD, bits as *mut libc::c_void);
    match offload(OFFLOADS | UDP_OFFLOADS) {
        Err(e) if e.raw_os_error() == Some(libc::EINVAL) => offload(OFFLOADS)?,
        other => other?,
    }
    rustix::io::ioctl_fionbio(&tap, true)?;
    Ok(tap)
}

fn set(name: &str, mac: Mac, mtu: u16) -> Result<(), String> {
    let error = |what: &str, e: io::Error| match e.raw_os_error() {
        Some(libc::ENODEV) => format!("interface {name} is gone: another program deleted it"),
        _ => format!("cannot {what} of interface {name}: {e}"),
    };
    let socket = datagram().map_err(|e| error("set the address", e))?;
    let change = |code: libc::c_ulong, fill: &dyn Fn(&mut libc::ifreq)| {
        let mut request = request(name);
        fill(&mut request);
        ioctl(&socket, code, std::ptr::from_mut(&mut request).cast())
    };
    change(libc::SIOCSIFHWADDR, &|r| {
        let mut address = libc::sockaddr { sa_family: libc::ARPHRD_ETHER, sa_data: [0; 14] };
        for (to, byte) in address.sa_data.iter_mut().zip(mac.0) {
            *to = byte as libc::c_char;
        }
        r.ifr_ifru.ifru_hwaddr = address;
    })
    .map_err(|e| error("set the MAC", e))?;
    change(libc::SIOCSIFMTU, &|r| r.ifr_ifru.ifru_mtu = mtu.into()).map_err(|e| error("set the MTU", e))?;
    let mut flags = request(name);
    ioctl(&socket, libc::SIOCGIFFLAGS, std::ptr::from_mut(&mut flags).cast())
        .map_err(|e| error("read the state", e))?;
    // SAFETY: SIOCGIFFLAGS has just filled in the flags of the union.
    let now = unsafe { flags.ifr_ifru.ifru_flags };
    change(libc::SIOCSIFFLAGS, &|r| r.ifr_ifru.ifru_flags = now | libc::IFF_UP as libc::c_short)
        .map_err(|e| error("change the state", e))
}

/// Any socket of the namespace will do to ask about its interfaces (netdevice(7)). One that reaches no network: the
/// agent may have no other.
fn datagram() -> io::Result<OwnedFd> {
    use rustix::net::{AddressFamily, SocketFlags, SocketType, socket_with};
    Ok(socket_with(AddressFamily::UNIX, SocketType::DGRAM, SocketFlags::CLOEXEC, None)?)
}

fn request(name: &str) -> libc::ifreq {
    // SAFETY: ifreq is plain integers and pointers; all zero is a valid value.
    let mut request: libc::ifreq = unsafe { std::mem::zeroed() };
    // One byte is left for the NUL; contracts name at most 15.
    let room = request.ifr_name.len() - 1;
    for (to, byte) in request.ifr_name[..room].iter_mut().zip(name.bytes()) {
        *to = byte as libc::c_char;
    }
    request
}

fn ioctl(fd: impl AsFd, code: libc::c_ulong, argument: *mut libc::c_void) -> io::Result<()> {
    // SAFETY: every caller passes a live ifreq or int, as its request code asks for, or for TUNSETOFFLOAD a
    // number that is not followed as a pointer.
    match unsafe { libc::ioctl(fd.as_fd().as_raw_fd(), code as _, argument) } {
        -1 => Err(io::Error::last_os_error()),
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Write;
    use std::path::Path;
    use tidegate_paths::Paths;
    use tidegate_testkit::contract::{tap, vnic};

    /// Whether this test process may make interfaces; `CI=true` insists.
    fn may_make_taps() -> bool {
        let may = rustix::process::geteuid().is_root() && Path::new("/dev/net/tun").exists();
        assert!(
            may || std::env::var("CI").is_err(),
            "CI must run the tap tests: root and /dev/net/tun are needed"
        );
        if !may {
            skipped("making taps needs root and /dev/net/tun");
        }
        may
    }

    /// Says so where scripts/test counts it: libtest keeps what `eprintln!` prints to itself.
    fn skipped(why: &str) {
        io::stderr().write_all(format!("skipped: {why}\n").as_bytes()).unwrap();
    }

    fn sys(name: &str, file: &str) -> String {
        std::fs::read_to_string(format!("/sys/class/net/{name}/{file}")).unwrap().trim().to_owned()
    }

    #[test]
    fn a_tap_has_the_contracts_mac_and_mtu_and_is_up() {
        if !may_make_taps() {
            return;
        }
        let name = format!("tgt{}", std::process::id() % 100_000);
        let vnic = Vnic { queues: 2, mtu: 1400, attach: tap(&name), ..vnic("a", 7) };
        let queues = create(&vnic, &name, None).unwrap();
        assert_eq!(queues.len(), 2);
        assert_eq!((sys(&name, "address"), sys(&name, "mtu")), (vnic.mac.to_string(), "1400".into()));
        let flags = u32::from_str_radix(sys(&name, "flags").trim_start_matches("0x"), 16).unwrap();
        assert_eq!(flags & 1, 1, "it is not up");

        assert!(create(&vnic, &name, None).unwrap_err().contains("is taken"));
        assert!(obstacle(&name, None).unwrap().contains("is taken"));
        assert_eq!(obstacle("tg-nowhere", None), None);
        configure(&Vnic { mtu: 1300, ..vnic.clone() }, &name, None).unwrap();
        assert_eq!(sys(&name, "mtu"), "1300");
        assert_eq!(broken(&queues[0], &name), None);
        let deleted = std::process::Command::new("ip").args(["link", "del", &name]).status();
        if deleted.is_ok_and(|s| s.success()) {
            assert!(broken(&queues[0], &name).unwrap().contains("is gone"));
            assert!(configure(&vnic, &name, None).unwrap_err().contains("is gone"));
        }
        drop(queues);
        assert!(!Path::new(&format!("/sys/class/net/{name}")).exists());
    }

    #[test]
    fn a_tap_in_a_namespace_is_seen_only_there() {
        let netns = format!("tgn{}", std::process::id() % 100_000);
        let ip = |arguments: &[&str]| std::process::Command::new("ip").args(arguments).output();
        if !may_make_taps() {
            return;
        }
        let added = ip(&["netns", "add", &netns]).is_ok_and(|o| o.status.success());
        assert!(added || std::env::var("CI").is_err(), "CI must run this: ip netns add failed");
        if !added {
            skipped("ip netns add does not work here");
            return;
        }
        let path = Path::new("/run/netns").join(&netns);
        let namespaces = Paths::new(&[], &[]).unwrap().namespaces;
        let open = || Some(Namespace::open(&namespaces, &path).unwrap());
        let vnic = Vnic { attach: tap("tgin"), ..vnic("a", 7) };
        let made = create(&vnic, "tgin", open());
        let there = ip(&["-n", &netns, "link", "show", "tgin"]);
        let here = Path::new("/sys/class/net/tgin").exists();
        let changed = configure(&Vnic { mtu: 1300, ..vnic }, "tgin", open());
        let _ = ip(&["netns", "del", &netns]);
        assert_eq!(made.unwrap().len(), 1);
        let there = String::from_utf8(there.unwrap().stdout).unwrap();
        assert!(there.contains("52:54:00:00:00:07"), "{there}");
        assert!(!here, "it is in our own namespace");
        changed.unwrap();
    }
}
