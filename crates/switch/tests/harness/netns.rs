//! A network namespace for one test, and a tap in it.

use super::*;
use std::fs::File;
use std::os::fd::{AsRawFd, OwnedFd};
use std::process::Command;
use tidegate_testkit::Kind;

const NETWORK: Kind<'_> = Kind {
    what: "network namespace with a tap",
    unshare: &["--net"],
    probe: &["test", "-w", "/dev/net/tun"],
    user: true,
};

const MOUNTS: Kind<'_> = Kind {
    what: "mount namespace with FUSE",
    unshare: &["--mount"],
    probe: &["test", "-w", "/dev/fuse"],
    user: true,
};

/// Runs `body` in a process with its own network namespace: this test again, by its name. Skips the test if
/// that is forbidden; in CI it fails.
#[track_caller]
pub fn in_namespace(name: &str, body: impl FnOnce()) {
    tidegate_testkit::in_namespace(name, NETWORK, body);
}

/// As [`in_namespace`], in a mount namespace that allows FUSE mounts.
#[track_caller]
pub fn in_mounts(name: &str, body: impl FnOnce()) {
    tidegate_testkit::in_namespace(name, MOUNTS, body);
}

#[track_caller]
pub fn ip(words: &str) {
    let output = Command::new("ip").args(words.split(' ')).output().expect("ip (iproute2)");
    assert!(output.status.success(), "ip {words}: {}", String::from_utf8_lossy(&output.stderr));
}

/// Returns a contract like [`vnic`]'s, on a tap of the vNIC's name.
pub fn tap_vnic(name: &str, n: u8, lines: &str) -> String {
    let vhost = format!("vhost-user = \"/tmp/unused-{name}.sock\"");
    vnic(name, n, lines).replace(&vhost, &format!("tap = \"{name}\""))
}

/// Makes a port with a tap, 10.0.0.n on the kernel's side, without neighbours.
pub fn tap(host: &TestSwitch, toml: &str) -> Vnic {
    let vnic = contract(toml);
    let queues = vec![open_tap(&vnic.name)];
    host.switch.set_port(vnic.clone(), Connect::Tap(queues)).unwrap();
    let (name, mac) = (&vnic.name, vnic.mac);
    // Without the kernel's own frames (router solicitations, MLD).
    std::fs::write("/proc/sys/net/ipv6/conf/default/disable_ipv6", "1").unwrap();
    std::fs::write(format!("/proc/sys/net/ipv6/conf/{name}/disable_ipv6"), "1").unwrap();
    ip(&format!("link set {name} address {mac} up"));
    ip(&format!("addr add 10.0.0.{}/24 dev {name}", vnic.mac.0[5]));
    vnic
}

/// Makes a guest known to the kernel behind tap `name`.
pub fn neighbour(name: &str, guest: &Guest) {
    ip(&format!("neigh add 10.0.0.{} lladdr {} dev {name}", guest.mac()[5], guest.vnic.mac));
}

/// As the agent does: non-blocking, 12-byte virtio headers, offloads of any kernel.
fn open_tap(name: &str) -> OwnedFd {
    const TUNSETVNETHDRSZ: u64 = 0x4004_54d8;
    let tun = File::options().read(true).write(true).open("/dev/net/tun").unwrap();
    // SAFETY: all zero is a valid ifreq.
    let mut request: libc::ifreq = unsafe { std::mem::zeroed() };
    for (to, from) in request.ifr_name.iter_mut().zip(name.bytes()) {
        *to = from as libc::c_char;
    }
    request.ifr_ifru.ifru_flags = (libc::IFF_TAP | libc::IFF_NO_PI | libc::IFF_VNET_HDR) as i16;
    let check = |result: i32| assert!(result >= 0, "{}", std::io::Error::last_os_error());
    // SAFETY: the ioctl reads and writes one ifreq.
    check(unsafe { libc::ioctl(tun.as_raw_fd(), libc::TUNSETIFF as _, &raw mut request) });
    let size: i32 = 12;
    // SAFETY: the ioctl reads one int.
    check(unsafe { libc::ioctl(tun.as_raw_fd(), TUNSETVNETHDRSZ as _, &raw const size) });
    let offloads = libc::TUN_F_CSUM | libc::TUN_F_TSO4 | libc::TUN_F_TSO6 | libc::TUN_F_TSO_ECN;
    // SAFETY: the argument is a number.
    check(unsafe { libc::ioctl(tun.as_raw_fd(), libc::TUNSETOFFLOAD as _, offloads as libc::c_ulong) });
    rustix::io::ioctl_fionbio(&tun, true).unwrap();
    tun.into()
}

/// Opens a packet socket on the kernel's side of a tap; its frames have 10-byte virtio headers.
pub fn packet_socket(name: &str) -> File {
    use std::os::fd::FromRawFd;
    let check = |result: i32| {
        assert!(result >= 0, "{}", std::io::Error::last_os_error());
        result
    };
    let all = (libc::ETH_P_ALL as u16).to_be();
    // SAFETY: a plain call.
    let raw = check(unsafe { libc::socket(libc::AF_PACKET, libc::SOCK_RAW, i32::from(all)) });
    // SAFETY: a new descriptor, not owned elsewhere.
    let socket = unsafe { File::from_raw_fd(raw) };
    let one: i32 = 1;
    // SAFETY: the option is one int, read during the call.
    check(unsafe {
        libc::setsockopt(raw, libc::SOL_PACKET, libc::PACKET_VNET_HDR, (&raw const one).cast(), 4)
    });
    let name = std::ffi::CString::new(name).unwrap();
    // SAFETY: all zero is a valid sockaddr_ll.
    let mut address: libc::sockaddr_ll = unsafe { std::mem::zeroed() };
    address.sll_family = libc::AF_PACKET as u16;
    address.sll_protocol = all;
    // SAFETY: a string that ends with 0.
    address.sll_ifindex = unsafe { libc::if_nametoindex(name.as_ptr()) } as i32;
    let len = size_of::<libc::sockaddr_ll>() as u32;
    // SAFETY: a valid address of that length.
    check(unsafe { libc::bind(raw, (&raw const address).cast(), len) });
    socket
}
