//! Descriptors that may be sent, and how.

use rustix::event::{EventfdFlags, eventfd};
use rustix::fs::{MemfdFlags, ftruncate, memfd_create};
use rustix::net::SendFlags;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::sync::LazyLock;
use tidegate_service::scm;

/// An eventfd, memory that is not sealed, a pipe.
static OTHERS: LazyLock<[OwnedFd; 3]> = LazyLock::new(|| {
    let memory = memfd_create("fuzz", MemfdFlags::CLOEXEC).expect("a memfd");
    ftruncate(&memory, 1 << 20).expect("its length");
    let event = eventfd(0, EventfdFlags::CLOEXEC).expect("an eventfd");
    [event, memory, std::io::pipe().expect("a pipe").1.into()]
});

/// Four descriptors to choose from.
pub struct Files<'a>([BorrowedFd<'a>; 4]);

impl<'a> Files<'a> {
    /// One that is expected, and three others.
    pub fn with(expected: BorrowedFd<'a>) -> Self {
        let [a, b, c] = OTHERS.each_ref().map(AsFd::as_fd);
        Self([expected, a, b, c])
    }

    /// Two bits say how many, the others which.
    pub fn chosen(&self, fds: u8) -> Vec<BorrowedFd<'a>> {
        (0..usize::from(fds & 3)).map(|i| self.0[usize::from(fds >> (2 + 2 * i) & 3)]).collect()
    }
}

/// Sends bytes with descriptors, where they find room at once.
pub fn send(stream: &UnixStream, bytes: &[u8], files: &[BorrowedFd<'_>]) -> bool {
    scm::send(stream, bytes, files, SendFlags::DONTWAIT).is_ok()
}
