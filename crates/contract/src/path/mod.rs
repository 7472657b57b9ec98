//! Whole-path admission: whether a real-time flow fits into every link between two hosts, beside those that are there.
//!
//! ```text
//!  Link, Link, … (capacity, levels: fixed delay, buffer) ─▶ Ledger
//!  Request (rate, burst, frames, budget) ──┐                 │ per link and level: sum of rates, of grown bursts
//!  Route (links, level) ───────────────────┴─▶ Ledger::change┤
//!                                                            ├─▶ Grant: bound, burst at the far end
//!                                                            └─▶ PathRefusal: the link, and the numbers
//! ```
//!
//! A port serves its levels by strict priority, 0 first, first come first served within a level, best effort last. Each
//! level of each link has a **fixed** delay D. A reservation is admitted if every level of every link on its way still
//! keeps its own D afterwards, so no bound of any path ever changes by what comes later, and no other path has to be
//! computed anew. (Guck, Van Bemten, Kellerer: DetServ, IEEE TNSM 2017, and Van Bemten et al., Chameleon, CoNEXT 2020.)
//!
//! **Bursts grow per hop.** A frame waits at most D at a link, and perhaps not at all, so frames may bunch there: a flow of
//! burst b and rate r has burst b + r D behind it (Le Boudec and Thiran, Network Calculus, 1.4.1). At the k-th link it counts
//! with b + r (D of the links before). These D are fixed, so the growth is, too.
//!
//! **A link.** With C the capacity, H the latency of the switch before it, L the largest frame of the link, and for level p
//! the sums of grown bursts B and rates R:
//!
//! - rates: sum of R of all levels <= reservable <= C.
//! - delay: (B of levels <= p + L + C H) / (C - R of levels < p) <= D of p. This is the horizontal deviation of the
//!   level's arrivals from what higher levels leave (Le Boudec and Thiran, 1.4.1 and 6.2).
//! - buffer in bytes: B of p + R of p (B of levels < p + L + C H) / (C - R of levels < p) <= buffer.
//! - buffer in frames: a frame in the queue arrived within the last D, so there are at most those that arrive within D.
//!
//! A frame of s bytes is s + 4 bytes on each link, since a path tags its frames (IEEE 802.1Q), and
//! [`Link::overhead`] more. All sums are in integers: what fits by one bit fits. The numbers of links and requests have
//! bounds, with which no sum overflows.
//!
//! Pure. The caller is the network's controller (`controller/`, by its module `native`), which decides what routes to try.

mod ledger;
mod load;
mod network;
mod refusal;
mod request;
#[cfg(test)]
mod simulation;
#[cfg(test)]
mod tests;

pub use ledger::{Ledger, Reserve, Usage};
pub use network::{Buffer, LEVELS, Level, Link, Network, NotANetwork};
pub use refusal::{Limit, PathRefusal};
pub use request::{Grant, Hop, MOST_HOPS, MOST_ROUTES, Request, Route};
