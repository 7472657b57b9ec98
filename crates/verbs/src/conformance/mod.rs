//! What every device has to do, checked on two ends of a link: real ones in a guest, simulated ones in a test.
//!
//! ```text
//!  End ─▶ Side: queue pair, its memory, its completion queues ─┐
//!                                                              ├─ CHECKS ─▶ a panic that says what was wrong
//!  End ─▶ Side ────────────────────────────────────────────────┘
//! ```
//!
//! That a datagram vanishes is shown by one sent after it: the devices keep the order of one queue pair's datagrams.
//!
//! - [`end`]: an end, and a queue pair with its memory there
//! - `datagrams`: datagrams of one piece, and what becomes of them
//! - `pieces`: requests of several pieces
//! - `shared`: regions over memory of others

mod datagrams;
pub mod end;
mod pieces;
mod shared;

pub use end::End;

/// A check of two ends.
pub type Check = fn(&End, &End);

/// All checks, each with its name.
pub const CHECKS: [(&str, Check); 17] = [
    ("datagrams arrive in order, with their length and their sender", datagrams::arrives),
    ("the GRH has source, destination and traffic class", datagrams::grh),
    ("a datagram as long as the MTU arrives", datagrams::longest),
    ("a wrong Q_Key vanishes, and a new one counts at once", datagrams::keys),
    ("an unknown queue pair gets nothing, and the sender hears nothing", datagrams::unknown),
    ("without a buffer a datagram vanishes", datagrams::unbuffered),
    ("a told send completes those before it", datagrams::told),
    ("queue pairs share a completion queue", datagrams::shared),
    ("an armed queue wakes", datagrams::wakes),
    ("a queue pair that fails is flushed", datagrams::flushed),
    ("privileged Q_Keys are refused", datagrams::privileged),
    ("pieces are gathered in order", pieces::gathered),
    ("a datagram is scattered in order, and no byte is written elsewhere", pieces::scattered),
    ("as many pieces as the device says, and no more", pieces::most),
    ("pieces that are not right are refused, and all goes on", pieces::refused),
    ("memory of others is sent and received into, and its owner stays", shared::over),
    ("a hole below a region fails nothing", shared::holes),
];

/// Runs all checks, and prints the name of each.
///
/// # Panics
/// A device behaves otherwise.
pub fn check_all(a: &End, b: &End) {
    for (name, check) in CHECKS {
        println!("{name}");
        check(a, b);
    }
}

/// Runs the checks of memory of others with pages of 2 MiB: 16 of these have to be free.
///
/// # Panics
/// The same; there are too few pages.
pub fn check_huge_pages(a: &End, b: &End) {
    shared::huge(a, b);
}
