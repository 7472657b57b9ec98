use super::*;
use crate::sockets;
use rustix::io::Errno;
use rustix::net::{SendFlags, sendto};
use std::net::UdpSocket;
use std::os::fd::OwnedFd;
use std::sync::Mutex;
use tidegate_testkit::unless_skipped;

fn uplink(local: &str, port: u16, peers: &[&str]) -> Uplink {
    let peers: Vec<String> =
        peers.iter().map(|peer| format!(r#"{{"name":"{peer}","address":"{peer}"}}"#)).collect();
    let peers = peers.join(",");
    let text =
        format!(r#"{{"name":"net0","local":"{local}","port":{port},"rate":"10gbit","peers":[{peers}]}}"#);
    serde_json::from_str(&text).unwrap()
}

fn send(socket: &OwnedFd, to: &str) -> Result<(), Errno> {
    let to: SocketAddr = to.parse().unwrap();
    sendto(socket, b"data", SendFlags::empty(), &to).map(drop)
}

/// Returns the filter; the test is skipped where the kernel or a right is missing.
fn filter() -> Option<Filter> {
    // Two that attach at the same time would not find each other's program.
    static ONE_AT_A_TIME: Mutex<()> = Mutex::new(());
    let _turn = ONE_AT_A_TIME.lock().unwrap();
    unless_skipped(Filter::attach())
}

#[test]
fn sockets_of_an_uplink_reach_its_peers_and_nothing_else() {
    let Some(filter) = filter() else { return };
    for (uplink, others, peer) in [
        (
            uplink("127.0.0.1", 14_801, &["127.0.0.2"]),
            ["127.0.0.3:14801", "127.0.0.2:14802", "127.0.0.2:53", "127.0.0.1:14801"],
            "127.0.0.2:14801",
        ),
        (uplink("::1", 14_803, &["::1"]), ["[::1]:14804"; 4], "[::1]:14803"),
    ] {
        let made = sockets::open(&uplink, 1).unwrap();
        let all = made.receive.iter().chain(&made.send);
        let before = UdpSocket::from(made.send[0].try_clone().unwrap());
        before.send_to(b"data", others[1]).unwrap();
        let mut group = filter.admit(all.clone().map(AsFd::as_fd), destinations(&uplink)).unwrap();
        for socket in all.clone() {
            assert_eq!(send(socket, peer), Ok(()));
            for other in others {
                assert_eq!(send(socket, other), Err(Errno::PERM), "{other}");
            }
            // Connected elsewhere, and sent without a destination.
            let connected = UdpSocket::from(socket.try_clone().unwrap());
            connected.connect(others[1]).unwrap();
            assert_eq!(connected.send(b"data").unwrap_err().raw_os_error(), Some(libc::EPERM));
            connected.connect(peer).unwrap();
            connected.send(b"data").unwrap();
            // Nothing listens there.
            connected.take_error().unwrap();
            assert_eq!(send(socket, others[1]), Err(Errno::PERM), "connected to the peer");
        }
        let to = others[1].parse().unwrap();
        filter.change(&mut group, [to].into()).unwrap();
        assert_eq!(send(&made.send[1], peer), Err(Errno::PERM), "no peer any more");
        assert_eq!(send(&made.send[1], others[1]), Ok(()));
    }
}

#[test]
fn a_source_route_leads_nowhere_else() {
    let Some(filter) = filter() else { return };
    let uplink = uplink("127.0.0.1", 14_805, &["127.0.0.2"]);
    let made = sockets::open(&uplink, 1).unwrap();
    filter.admit(made.send.iter().map(AsFd::as_fd), destinations(&uplink)).unwrap();
    // Loose source route (RFC 791, 3.1): first to 127.0.0.9.
    let route: [u8; 8] = [1, 131, 7, 4, 127, 0, 0, 9];
    let fd = made.send[0].as_raw_fd();
    // SAFETY: the kernel reads the 8 bytes.
    let done = unsafe { libc::setsockopt(fd, libc::IPPROTO_IP, libc::IP_OPTIONS, route.as_ptr().cast(), 8) };
    assert_eq!(done, 0, "{}", std::io::Error::last_os_error());
    assert_eq!(send(&made.send[0], "127.0.0.2:14805"), Err(Errno::PERM));
    assert_eq!(send(&made.send[1], "127.0.0.2:14805"), Ok(()));
}

#[test]
fn another_agent_finds_the_program_and_other_sockets_are_left_alone() {
    let Some(first) = filter() else { return };
    let second = filter().unwrap();
    let number = |map: &MapHandle| map.info().unwrap().info.id;
    assert_eq!(number(&first.sockets), number(&second.sockets));
    assert_eq!(number(&first.peers), number(&second.peers));
    let other = UdpSocket::bind("127.0.0.1:0").unwrap();
    other.send_to(b"data", "127.0.0.3:14807").unwrap();
}
