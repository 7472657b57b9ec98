//! How other threads reach a worker: they send a closure and wait until it ran, between two loops. Then the
//! change is in force.

pub use super::bell::Bell;
pub use super::inbox::Inbox;
use crate::fdb::PortIndex;
use crate::vhost_user::kick::Kick;
use rustix::event::epoll::{self, CreateFlags, EventData, EventFlags};
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::sync::mpsc::{Receiver, Sender, channel, sync_channel};

/// A request of another thread to a worker of type `W`, run between two loops.
pub type Call<W> = Box<dyn FnOnce(&mut W) + Send>;

/// A running worker of type `W`, as other threads see it.
pub struct Handle<W> {
    first: Sender<Call<W>>,
    calls: Sender<Call<W>>,
    bell: Arc<Bell>,
    epoll: Arc<OwnedFd>,
}

impl<W> Clone for Handle<W> {
    fn clone(&self) -> Self {
        let Self { first, calls, bell, epoll } = self;
        Self { first: first.clone(), calls: calls.clone(), bell: bell.clone(), epoll: epoll.clone() }
    }
}

/// Returns a connected pair.
pub fn mailbox<W>() -> std::io::Result<(Handle<W>, Inbox<Call<W>>)> {
    let ((first, first_in), (calls, calls_in)) = (channel(), channel());
    let bell = Arc::new(Bell::new()?);
    let epoll = Arc::new(epoll::create(CreateFlags::CLOEXEC)?);
    let inbox = Inbox { first: first_in, calls: calls_in, bell: bell.clone(), epoll: epoll.clone() };
    Ok((Handle { first, calls, bell, epoll }, inbox))
}

impl<W: 'static> Handle<W> {
    /// Runs `call` on the worker, between two loops, and returns its result.
    ///
    /// # Panics
    /// If the worker is gone: it only ends with the process.
    pub fn call<T: Send + 'static>(&self, call: impl FnOnce(&mut W) -> T + Send + 'static) -> T {
        let (reply, answer) = sync_channel(1);
        let call: Call<W> = Box::new(move |worker| {
            let _ = reply.send(call(worker));
        });
        self.send(call);
        answer.recv().expect("the worker runs as long as the process")
    }

    /// Asks whether the worker turns. It answers between two loops; the result is empty until then.
    ///
    /// # Panics
    /// As [`call`](Self::call).
    pub fn ask(&self) -> Receiver<()> {
        let (reply, answer) = sync_channel(1);
        let call: Call<W> = Box::new(move |_| {
            let _ = reply.send(());
        });
        self.send(call);
        answer
    }

    /// Runs `call` before all other calls, without waiting.
    ///
    /// # Panics
    /// As [`call`](Self::call).
    pub fn call_first(&self, call: impl FnOnce(&mut W) + Send + 'static) {
        self.first.send(Box::new(call)).expect("the worker runs as long as the process");
        self.ring();
    }

    pub(super) fn send(&self, call: Call<W>) {
        self.calls.send(call).expect("the worker runs as long as the process");
        self.ring();
    }

    fn ring(&self) {
        self.bell.has_calls.store(true, Ordering::Release);
        self.bell.ring();
    }

    /// Stops the worker between two loops, until the result is dropped: it touches nothing meanwhile.
    ///
    /// # Panics
    /// As [`call`](Self::call).
    pub fn halt(&self) -> Halted {
        let (halted, dropped) = sync_channel::<()>(1);
        let (obey, obeyed) = sync_channel(1);
        let call: Call<W> = Box::new(move |_| {
            let _ = obey.send(());
            // Ends when the other end is dropped: nothing is ever sent.
            let _ = dropped.recv();
        });
        self.send(call);
        obeyed.recv().expect("the worker runs as long as the process");
        Halted(halted)
    }

    /// The worker is woken by kicks of a port's driver from now on, as soon as `kick` [hears](Kick::listen_to_driver) them. Not
    /// later: the kernel would walk over all who wait for the driver's counter, with the worker's epoll locked. And
    /// not by the worker itself: it may take long where others make epolls of epolls, for which the kernel has one
    /// lock.
    ///
    /// # Errors
    /// No watches left (fs.epoll.max_user_watches).
    pub fn listen(&self, port: PortIndex, kick: &Kick) -> std::io::Result<()> {
        // Edge-triggered: the count is never read.
        let flags = EventFlags::IN | EventFlags::ET;
        Ok(epoll::add(&self.epoll, kick, EventData::new_u64(port.into()), flags)?)
    }

    /// Takes back what [`listen`](Self::listen) did.
    pub fn forget(&self, kick: &Kick) {
        // One that was never listened to is forgotten already.
        let _ = epoll::delete(&self.epoll, kick);
    }

    /// The worker's bell.
    pub fn bell(&self) -> &Arc<Bell> {
        &self.bell
    }
}

/// A worker stands still while this lives.
#[must_use = "the worker continues when this is dropped"]
pub struct Halted(#[allow(dead_code, reason = "held, not used")] std::sync::mpsc::SyncSender<()>);

#[cfg(test)]
mod tests {
    use super::*;
    use crate::worker::{Worker, testing};
    use std::sync::atomic::AtomicUsize;

    #[test]
    fn calls_without_end_do_not_stop_the_frames() {
        let (mut worker, handle) = testing::worker();
        let answered = Arc::new(AtomicUsize::new(0));
        for _ in 0..100 {
            let answered = answered.clone();
            let call = move |_: &mut Worker| {
                answered.fetch_add(1, Ordering::Relaxed);
            };
            handle.calls.send(Box::new(call)).unwrap();
        }
        handle.bell.has_calls.store(true, Ordering::Release);
        worker.turn();
        assert!((1..10).contains(&answered.load(Ordering::Relaxed)), "{answered:?}");
        // One more would sleep: there is nothing left to do then.
        while answered.load(Ordering::Relaxed) < 100 {
            worker.turn();
        }
    }
}
