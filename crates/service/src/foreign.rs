//! Descriptors that another process made: their number is bounded, and a separate thread closes them.
//!
//! ```text
//!  Foreign ── dropped ──▶ queue ──▶ threads `closing` ──▶ close(2), which takes as long as the maker chooses
//!     └── counts against a Budget until it is closed
//! ```
//!
//! The object behind a descriptor decides how long close(2) takes: a TCP socket with SO_LINGER waits for its peer, a file
//! of FUSE for its server, a Unix socket for the descriptors in its queue. So no thread on which others wait, such as the
//! agent's reconciler, closes one itself.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, LazyLock, Mutex, PoisonError};

/// Most closing threads: while one is blocked in close(2), another goes on.
const THREADS: usize = 8;

/// A bound on the number of foreign descriptors.
#[derive(Debug)]
pub struct Budget {
    most: usize,
    used: AtomicUsize,
}

impl Budget {
    /// A budget of `most` descriptors.
    pub fn new(most: usize) -> Arc<Self> {
        Arc::new(Self { most, used: AtomicUsize::new(0) })
    }

    /// Half of the descriptors that this process may have (RLIMIT_NOFILE).
    pub fn half_of_all() -> Arc<Self> {
        let limit = rustix::process::getrlimit(rustix::process::Resource::Nofile).current;
        Self::new(limit.map_or(usize::MAX, |limit| (limit / 2) as usize))
    }

    /// Descriptors that are held or wait to be closed.
    pub fn in_use(&self) -> usize {
        self.used.load(SeqCst)
    }

    /// Most descriptors.
    pub fn most(&self) -> usize {
        self.most
    }

    /// Whether [`Self::in_use`] is above [`Self::most`]: accept no more until some are closed.
    pub fn is_over(&self) -> bool {
        self.in_use() > self.most
    }
}

/// One descriptor of a budget, until it is dropped.
#[derive(Debug)]
struct Share(Arc<Budget>);

impl Drop for Share {
    fn drop(&mut self) {
        self.0.used.fetch_sub(1, SeqCst);
    }
}

/// A descriptor that another process made.
#[derive(Debug)]
pub struct Foreign(Option<(OwnedFd, Share)>);

impl Foreign {
    /// Counts `fd` against `budget`, also above its bound: see [`Budget::is_over`].
    pub fn new(fd: OwnedFd, budget: &Arc<Budget>) -> Self {
        budget.used.fetch_add(1, SeqCst);
        Self(Some((fd, Share(Arc::clone(budget)))))
    }

    /// The descriptor, to be closed like any of our own: the caller knows the object behind it.
    pub fn into_own(mut self) -> OwnedFd {
        self.0.take().expect("present until dropped").0
    }
}

impl AsFd for Foreign {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_ref().expect("present until dropped").0.as_fd()
    }
}

impl Drop for Foreign {
    fn drop(&mut self) {
        if let Some(job) = self.0.take() {
            CLOSING.close(job);
        }
    }
}

/// Closes a descriptor of our own on a closing thread: its queue may hold foreign descriptors, which take long to close.
pub fn close(fd: OwnedFd) {
    static OURS: LazyLock<Arc<Budget>> = LazyLock::new(|| Budget::new(usize::MAX));
    drop(Foreign::new(fd, &OURS));
}

/// The queue of descriptors to close, and its threads.
struct Closing {
    queue: Sender<(OwnedFd, Share)>,
    taken: Arc<Mutex<Receiver<(OwnedFd, Share)>>>,
    /// Descriptors in the queue or inside close(2).
    undone: Arc<AtomicUsize>,
    threads: AtomicUsize,
}

static CLOSING: LazyLock<Closing> = LazyLock::new(|| {
    let (queue, taken) = channel();
    Closing {
        queue,
        taken: Arc::new(Mutex::new(taken)),
        undone: Arc::default(),
        threads: AtomicUsize::new(0),
    }
});

impl Closing {
    fn close(&self, job: (OwnedFd, Share)) {
        let undone = self.undone.fetch_add(1, SeqCst) + 1;
        let _ = self.queue.send(job);
        // Every thread may be blocked in close(2).
        if undone > self.threads.load(SeqCst) {
            self.start();
        }
    }

    fn start(&self) {
        let more = |threads| (threads < THREADS).then_some(threads + 1);
        if self.threads.fetch_update(SeqCst, SeqCst, more).is_err() {
            return;
        }
        let (taken, undone) = (Arc::clone(&self.taken), Arc::clone(&self.undone));
        let work = move || {
            loop {
                let job = taken.lock().unwrap_or_else(PoisonError::into_inner).recv();
                let Ok((fd, share)) = job else { return };
                crate::housekeeping::follow();
                drop(fd);
                undone.fetch_sub(1, SeqCst);
                drop(share);
            }
        };
        if std::thread::Builder::new().name("closing".into()).spawn(work).is_err() {
            self.threads.fetch_sub(1, SeqCst);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::net::sockopt::set_socket_linger;
    use std::io::Write;
    use std::net::{TcpListener, TcpStream};
    use std::time::{Duration, Instant};

    /// A socket that takes `linger` to close, and its peer.
    fn lingering(linger: Duration) -> (OwnedFd, TcpStream) {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let mut socket = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let peer = listener.accept().unwrap().0;
        socket.set_nonblocking(true).unwrap();
        while socket.write(&[0; 1 << 16]).is_ok() {}
        socket.set_nonblocking(false).unwrap();
        set_socket_linger(&socket, Some(linger)).unwrap();
        (socket.into(), peer)
    }

    #[test]
    fn a_slow_close_delays_no_other_close() {
        let budget = Budget::new(2);
        let (slow, _peer) = lingering(Duration::from_secs(2));
        let began = Instant::now();
        let (slow, quick) = (Foreign::new(slow, &budget), std::io::pipe().unwrap());
        let quick = Foreign::new(quick.0.into(), &budget);
        assert!(!budget.is_over());
        drop((slow, quick));
        assert!(began.elapsed() < Duration::from_secs(1), "it waited {:?}", began.elapsed());
        // The quick one is closed while the slow one is not.
        while budget.in_use() > 1 {
            assert!(began.elapsed() < Duration::from_secs(1), "a slow close delays the others");
            std::thread::sleep(Duration::from_millis(1));
        }
        while budget.in_use() > 0 {
            assert!(began.elapsed() < Duration::from_secs(20), "it is never counted as closed");
            std::thread::sleep(Duration::from_millis(10));
        }
    }

    /// A closing thread is blocked and the queue is empty: another descriptor starts another thread.
    #[test]
    fn a_later_close_does_not_wait_for_a_slow_one() {
        let budget = Budget::new(2);
        let (slow, _peer) = lingering(Duration::from_secs(4));
        drop(Foreign::new(slow, &budget));
        std::thread::sleep(Duration::from_millis(200));
        let began = Instant::now();
        drop(Foreign::new(std::io::pipe().unwrap().0.into(), &budget));
        while budget.in_use() > 1 {
            assert!(began.elapsed() < Duration::from_secs(1), "no thread closes it");
            std::thread::sleep(Duration::from_millis(1));
        }
    }

    #[test]
    fn a_budget_above_its_bound_says_so() {
        let budget = Budget::new(1);
        let pipe = std::io::pipe().unwrap();
        let one = Foreign::new(pipe.0.into(), &budget);
        let two = Foreign::new(pipe.1.into(), &budget);
        assert!(budget.is_over());
        drop(one.into_own());
        assert!(!budget.is_over());
        drop(two);
    }
}
