//! Senders that always have something to send, from a guest or to it.

use super::Guest;
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream, UdpSocket};
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::Duration;

/// Bytes on the wire for each of payload: Ethernet, IP, TCP with timestamps.
pub const TCP: f64 = 1514.0 / 1448.0;

/// What goes where: datagrams or a stream, from the guest or to it.
#[derive(Clone, Copy, Debug)]
pub enum Traffic {
    TcpOut,
    TcpIn,
    UdpOut,
    UdpIn,
}

fn receive_tcp(listener: &TcpListener) {
    let (mut stream, _) = listener.accept().unwrap();
    let mut buffer = vec![0; 1 << 20];
    while stream.read(&mut buffer).is_ok_and(|n| n > 0) {}
}

fn send_tcp(to: &str, stop: &AtomicBool) {
    let mut stream = TcpStream::connect((to, 5001)).unwrap();
    let piece = vec![0; 256 * 1024];
    while !stop.load(Relaxed) && stream.write_all(&piece).is_ok() {}
}

/// No program has to listen: a datagram is counted before it arrives.
fn send_udp(to: &str, stop: &AtomicBool) {
    let socket = UdpSocket::bind("0.0.0.0:0").unwrap();
    while !stop.load(Relaxed) {
        for _ in 0..32 {
            let _ = socket.send_to(&[0; 1472], (to, 9));
        }
        std::thread::sleep(Duration::from_millis(1));
    }
}

/// Runs `work` beside a sender that has always something to send.
pub fn under<T>(traffic: Traffic, guest: &Guest, work: impl FnOnce() -> T) -> T {
    let (host, inside) = (guest.address(1), guest.address(2));
    let stop = &AtomicBool::new(false);
    std::thread::scope(|scope| {
        let listen = || TcpListener::bind("0.0.0.0:5001").unwrap();
        match traffic {
            Traffic::TcpOut => {
                let listener = listen();
                scope.spawn(move || receive_tcp(&listener));
                scope.spawn(move || guest.within(|_| send_tcp(&host, stop)));
            }
            Traffic::TcpIn => {
                let listener = guest.within(|_| listen());
                scope.spawn(move || receive_tcp(&listener));
                scope.spawn(move || send_tcp(&inside, stop));
            }
            Traffic::UdpOut => drop(scope.spawn(move || guest.within(|_| send_udp(&host, stop)))),
            Traffic::UdpIn => drop(scope.spawn(move || send_udp(&inside, stop))),
        }
        let done = std::panic::catch_unwind(std::panic::AssertUnwindSafe(work));
        stop.store(true, Relaxed);
        done.unwrap_or_else(|e| std::panic::resume_unwind(e))
    })
}
