//! Bulk data: several TCP connections per tenant that send as fast as they can, to a sink that reads and
//! discards.

use super::clock;
use super::order::Window;
use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::thread;
use std::time::{Duration, Instant};

/// Connections of one sender: enough that the queue stays full when one backs off.
pub const CONNECTIONS: usize = 8;

const CHUNK: usize = 256 * 1024;

/// Sends over [`CONNECTIONS`] connections, each in its own thread, until they break.
///
/// # Errors
/// The sink cannot be reached within `patience`.
pub fn send(sink: SocketAddr, patience: Duration) -> io::Result<()> {
    let end = Instant::now() + patience;
    for _ in 0..CONNECTIONS {
        let mut stream = connect(sink, end)?;
        thread::spawn(move || {
            let chunk = vec![0; CHUNK];
            while stream.write_all(&chunk).is_ok() {}
        });
    }
    Ok(())
}

fn connect(sink: SocketAddr, end: Instant) -> io::Result<TcpStream> {
    loop {
        // The time-out is short: if the sink's port is not up yet, the first SYN is lost, and TCP would
        // repeat it only after a second.
        match TcpStream::connect_timeout(&sink, Duration::from_millis(200)) {
            Err(e) if Instant::now() > end => {
                return Err(io::Error::new(e.kind(), format!("no connection to {sink}: {e}")));
            }
            Err(_) => thread::sleep(Duration::from_millis(20)),
            ok => return ok,
        }
    }
}

/// Counts the bytes that the sink read from all connections.
#[derive(Clone, Default)]
pub struct Meter {
    total: Arc<AtomicU64>,
    window: Arc<AtomicU64>,
}

impl Meter {
    /// Counts the bytes read from `window.from` to `window.to`, in its own thread.
    pub fn measure(&self, window: Window) {
        let meter = self.clone();
        meter.window.store(0, Relaxed);
        thread::spawn(move || {
            clock::sleep_until(window.from);
            let before = meter.total.load(Relaxed);
            clock::sleep_until(window.to);
            meter.window.store(meter.total.load(Relaxed) - before, Relaxed);
        });
    }

    /// Returns the bytes of the last window after its end; 0 before.
    pub fn bytes(&self) -> u64 {
        self.window.load(Relaxed)
    }
}

/// Accepts connections, and reads from each in its own thread until it ends.
pub fn receive(listener: &TcpListener, meter: &Meter) -> io::Result<()> {
    loop {
        let (mut stream, _) = listener.accept()?;
        let meter = meter.clone();
        thread::spawn(move || {
            let mut buffer = vec![0; CHUNK];
            while let Ok(length @ 1..) = stream.read(&mut buffer) {
                meter.total.fetch_add(length as u64, Relaxed);
            }
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::Ipv4Addr;

    #[test]
    fn bytes_over_loopback_are_counted_in_the_window() {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        let address = listener.local_addr().unwrap();
        let meter = Meter::default();
        let counting = meter.clone();
        thread::spawn(move || receive(&listener, &counting));
        send(address, Duration::from_secs(5)).unwrap();
        let now = clock::now();
        let window = Window { from: now, to: now + 1_000_000_000 };
        meter.measure(window);
        assert_eq!(meter.bytes(), 0);
        while meter.bytes() == 0 {
            assert!(clock::now() < window.to + 20_000_000_000, "nothing was counted");
            thread::sleep(Duration::from_millis(10));
        }
        assert!(meter.bytes() <= meter.total.load(Relaxed));
    }

    #[test]
    fn a_missing_sink_is_an_error() {
        let closed = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap().local_addr().unwrap();
        let error = send(closed, Duration::from_millis(50)).unwrap_err();
        assert!(error.to_string().contains(&closed.to_string()), "{error}");
    }
}
