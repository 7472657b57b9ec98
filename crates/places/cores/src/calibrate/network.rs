//! Two private network namespaces with veth pairs between them. They go with their last thread and socket, however the program ends.
//!
//! ```text
//!  sending namespace               receiving namespace
//!  socket ─▶ tx0 ──────── veth ──────── rx0 ─▶ stack on the CPU of rps_cpus ─▶ socket
//!  socket ─▶ tx1 ──────── veth ──────── rx1 ─▶ ...
//! ```

use super::layout::Layout;
use crate::settings::sysfs::{own_view, write_file};
use rustix::net::sockopt::{set_socket_recv_buffer_size, set_socket_recv_buffer_size_force};
use rustix::thread::{UnshareFlags, unshare_unsafe};
use std::collections::BTreeSet;
use std::fs::File;
use std::io;
use std::net::{Ipv4Addr, UdpSocket};
use std::os::fd::{AsRawFd, OwnedFd};
use std::time::Duration;
use tidegate_cores::cpus;
use tidegate_netlink::attribute::Attributes;
use tidegate_netlink::link;
use tidegate_netlink::socket::Socket;

const PORT: u16 = 9;
/// Of a receiver, so that it sees the end of its window.
const LOOK: Duration = Duration::from_millis(20);
/// Room for all datagrams on their way, bytes.
const ROOM: usize = 4 << 20;

// Numbers of linux/if_addr.h and linux/rtnetlink.h.
const RTM_NEWADDR: u16 = 20;
const IFA_ADDRESS: u16 = 1;
const IFA_LOCAL: u16 = 2;

/// The namespaces and the sockets of all flows.
#[derive(Debug)]
pub struct Network {
    /// Sockets that send, by flow.
    pub senders: Vec<UdpSocket>,
    /// Sockets that receive, by flow.
    pub receivers: Vec<UdpSocket>,
    sysfs: OwnedFd,
}

impl Network {
    /// Makes both namespaces; the calling thread stays in the receiving one for good.
    ///
    /// # Errors
    /// The kernel refuses a step; the reason. It takes CAP_SYS_ADMIN.
    pub fn new() -> Result<Self, String> {
        // A thread that ends here enters the sending namespace.
        let sending = std::thread::spawn(|| {
            unshare()?;
            File::open("/proc/thread-self/ns/net").map_err(cannot("open the network namespace"))
        });
        let sending =
            sending.join().map_err(|_| "the thread of the sending namespace panicked".to_owned())??;
        unshare()?;
        let sysfs = own_view().map_err(|e| cannot("open sysfs of a network namespace")(e.into()))?;
        let mut netlink = Socket::route().map_err(cannot("open a netlink socket"))?;
        for flow in 0..Layout::FLOWS {
            let pair = veth(flow, &sending);
            netlink
                .change(link::RTM_NEWLINK, link::NEW, &pair)
                .map_err(|e| format!("cannot make a veth pair: {e}"))?;
            up(&mut netlink, "rx", flow, 2)?;
        }
        let receivers = (0..Layout::FLOWS).map(receiver).collect::<Result<_, _>>();
        let receivers = receivers.map_err(cannot("open a socket"))?;
        let senders = within(&sending, || {
            let mut netlink = Socket::route().map_err(cannot("open a netlink socket"))?;
            for flow in 0..Layout::FLOWS {
                up(&mut netlink, "tx", flow, 1)?;
            }
            (0..Layout::FLOWS).map(sender).collect::<Result<Vec<_>, _>>().map_err(cannot("open a socket"))
        })?;
        Ok(Self { senders, receivers, sysfs })
    }

    /// Has the kernel run the stack for a flow's frames on one CPU.
    ///
    /// # Errors
    /// The kernel refuses it; the reason.
    pub fn steer(&self, flow: usize, cpu: usize) -> Result<(), String> {
        let path = format!("devices/virtual/net/rx{flow}/queues/rx-0/rps_cpus");
        let mask = cpus::mask(&BTreeSet::from([cpu]));
        write_file(&self.sysfs, &path, &mask).map_err(|e| format!("cannot write rps_cpus: {e}"))
    }
}

fn cannot(what: &str) -> impl Fn(io::Error) -> String {
    move |error| format!("cannot {what}: {error}")
}

/// Moves the calling thread into a new network namespace.
fn unshare() -> Result<(), String> {
    // SAFETY: neither CLONE_FILES nor CLONE_FS is set: no descriptor or directory that other code relies on is unshared.
    let moved = unsafe { unshare_unsafe(UnshareFlags::NEWNET) };
    moved.map_err(|e| format!("cannot make a network namespace: {e} (it takes root)"))
}

/// Runs `work` in a namespace, on a thread of its own.
fn within<T: Send>(netns: &File, work: impl FnOnce() -> Result<T, String> + Send) -> Result<T, String> {
    use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};
    use std::os::fd::AsFd;
    std::thread::scope(|scope| {
        let thread = scope.spawn(|| {
            move_into_link_name_space(netns.as_fd(), Some(LinkNameSpaceType::Network))
                .map_err(|e| format!("cannot enter the sending namespace: {e}"))?;
            work()
        });
        thread.join().map_err(|_| "the thread of the sending namespace panicked".to_owned())?
    })
}

/// The message that makes `rxN` here and `txN` in the other namespace.
fn veth(flow: usize, sending: &File) -> Vec<u8> {
    let mut body = link::header(0, 0, 0);
    body.put_str(link::IFLA_IFNAME, &format!("rx{flow}"));
    body.nest(link::IFLA_LINKINFO, |info| {
        info.put_str(link::IFLA_INFO_KIND, "veth");
        info.nest(link::IFLA_INFO_DATA, |data| {
            data.nest(link::VETH_INFO_PEER, |peer| {
                peer.0.extend(link::header(0, 0, 0).0);
                peer.put_str(link::IFLA_IFNAME, &format!("tx{flow}"));
                peer.put_u32(link::IFLA_NET_NS_FD, sending.as_raw_fd().cast_unsigned());
            });
        });
    });
    body.0
}

/// Gives an end of a pair its address, and sets it up.
fn up(netlink: &mut Socket, end: &str, flow: usize, host: u8) -> Result<(), String> {
    let name = format!("{end}{flow}");
    let index = netlink.get(link::RTM_GETLINK, &link::named(&name), |kind, body| {
        (kind == link::RTM_NEWLINK).then(|| tidegate_netlink::attribute::u32_at(body, 4)).flatten()
    });
    let index = index.ok().flatten().ok_or_else(|| format!("interface {name} is missing"))?;
    let address = address(flow, host).octets();
    let mut body = Attributes(vec![libc::AF_INET as u8, 24, 0, 0]);
    body.0.extend(index.to_ne_bytes());
    body.put(IFA_LOCAL, &address);
    body.put(IFA_ADDRESS, &address);
    let refused = |e| format!("cannot set {name} up: {e}");
    netlink.change(RTM_NEWADDR, link::NEW, &body.0).map_err(refused)?;
    netlink.change(link::RTM_NEWLINK, 0, &link::header(index, link::IFF_UP, link::IFF_UP).0).map_err(refused)
}

fn address(flow: usize, host: u8) -> Ipv4Addr {
    Ipv4Addr::new(10, 0, flow as u8, host)
}

fn receiver(flow: usize) -> io::Result<UdpSocket> {
    let socket = UdpSocket::bind((address(flow, 2), PORT))?;
    if set_socket_recv_buffer_size_force(&socket, ROOM).is_err() {
        set_socket_recv_buffer_size(&socket, ROOM)?;
    }
    socket.set_read_timeout(Some(LOOK))?;
    Ok(socket)
}

fn sender(flow: usize) -> io::Result<UdpSocket> {
    let socket = UdpSocket::bind((address(flow, 1), 0))?;
    socket.connect((address(flow, 2), PORT))?;
    Ok(socket)
}
