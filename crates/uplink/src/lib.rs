//! The formats and decisions of frames between hosts. Pure: no I/O, no clock of its own, no allocation per frame.
//!
//! ```text
//!  frame of a real-time vNIC ──▶ stamp::Stamp + tag ──▶ trailer (32 bytes) ──▶ vxlan header ──▶ network
//!                                                                                              │
//!  receiving vNIC ◀── frame ◀── replay::Window ◀── tag checked ◀── trailer ◀── vxlan header ◀──┘
//!                                     │
//!                                     └──▶ clock::Offset: Tr - Ts on one timescale ──▶ miss, certain or not
//! ```
//!
//! - [`vxlan`]: the header of RFC 7348
//! - [`ecn`]: congestion marks of RFC 6040
//! - [`stamp`]: the trailer that carries a frame's deadline and sending time, and its tag
//! - [`replay`]: which sequence numbers of a sender have arrived
//! - [`clock`]: the offset between two hosts' clocks, and its error
//! - [`notice`]: messages between hosts beside frames: clock exchange, late frames, vNICs that moved
//! - [`rdma`]: the header of a frame in a datagram of RDMA, the Q_Key of a segment, lost datagrams

pub mod clock;
pub mod ecn;
pub mod notice;
pub mod rdma;
pub mod replay;
pub mod stamp;
pub mod vxlan;
