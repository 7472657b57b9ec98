//! A flow's sender and receiver: never more datagrams on their way than every queue between them holds.

use super::threads::{Gate, pin};
use std::io::ErrorKind;
use std::net::UdpSocket;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::Thread;
use std::time::{Duration, Instant};

/// Bytes of a datagram.
const PAYLOAD: usize = 256;
/// Most datagrams on their way: fewer than a CPU's input queue holds (1,000), and the socket.
const ON_THEIR_WAY: u64 = 128;
/// Datagrams that the sender sends before it looks again.
const BATCH: u64 = 32;
/// After this time without any arrival, those on their way are counted as lost.
const PATIENCE: Duration = Duration::from_millis(5);

/// Counts that sender and receiver of a flow share.
#[derive(Debug, Default)]
pub struct Shared {
    received: AtomicU64,
    waits: AtomicBool,
}

/// Sends until the gate closes. Returns how many were lost.
pub fn send(cpu: usize, socket: &UdpSocket, shared: &Shared, gate: &Gate) -> Result<f64, String> {
    pin(cpu)?;
    gate.wait_warm();
    let payload = [0x5a_u8; PAYLOAD];
    let (mut sent, mut lost) = (0_u64, 0_u64);
    let (mut seen, mut since) = (0, Instant::now());
    while gate.works() {
        let received = shared.received.load(Ordering::Acquire);
        if sent.saturating_sub(lost + received) >= ON_THEIR_WAY {
            if received != seen {
                (seen, since) = (received, Instant::now());
            } else if since.elapsed() > PATIENCE {
                lost = sent.saturating_sub(received);
                continue;
            }
            shared.waits.store(true, Ordering::SeqCst);
            if sent.saturating_sub(lost + shared.received.load(Ordering::SeqCst)) >= ON_THEIR_WAY {
                std::thread::park_timeout(Duration::from_millis(1));
            }
            shared.waits.store(false, Ordering::Relaxed);
            continue;
        }
        for _ in 0..BATCH {
            match socket.send(&payload) {
                Ok(_) => sent += 1,
                // The receiver's socket is there before the window begins; the kernel's buffers are full.
                Err(e) if matches!(e.kind(), ErrorKind::WouldBlock | ErrorKind::OutOfMemory) => break,
                Err(e) => return Err(format!("cannot send: {e}")),
            }
        }
    }
    Ok(lost as f64)
}

/// Receives until the gate closes. Returns how many frames came in the measured time.
pub fn receive(
    cpu: usize,
    socket: &UdpSocket,
    shared: &Shared,
    sender: &Thread,
    gate: &Gate,
) -> Result<f64, String> {
    pin(cpu)?;
    let (mut buffer, mut received, mut measured) = ([0; PAYLOAD], 0_u64, 0_u64);
    while gate.works() {
        match socket.recv(&mut buffer) {
            Ok(_) => {}
            // The socket has a timeout, so that the gate is seen.
            Err(e) if matches!(e.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut) => continue,
            Err(e) => return Err(format!("cannot receive: {e}")),
        }
        std::hint::black_box(&buffer);
        received += 1;
        measured += u64::from(gate.is_open());
        shared.received.store(received, Ordering::SeqCst);
        if received.is_multiple_of(BATCH) && shared.waits.load(Ordering::SeqCst) {
            sender.unpark();
        }
    }
    Ok(measured as f64)
}
