//! The kinds of notices.
//!
//! ```text
//!  1 clock request   (t1 is the time of sending)                                       0 bytes
//!  2 clock reply     the request's started, number, t1; t2  (t3: the time of sending)  28
//!  3 late report     src, dst, sequence, Td, late, error, hold, network, here,
//!                    cause, dropped, others                                            62
//!  4 here            MAC, since                                                        14
//!  5 member          MAC, since, queue pair, longest                                   20
//! ```

use super::wire::{Reader, Writer};

/// Longest body (bytes).
pub(super) const LEN_MAX: usize = 62;

/// What a notice says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Body {
    /// Asks for the peer's clock. Its time of sending is t1.
    ClockRequest,
    /// Answers a request. Its time of sending is t3.
    ClockReply(ClockReply),
    /// A frame of the peer's vNIC was late here.
    Late(LateReport),
    /// A vNIC is at the sending host.
    Here(Here),
    /// A vNIC is at the sending host, and has or no longer has a queue pair.
    Member(Member),
}

/// The answer to a clock request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ClockReply {
    /// The request's `started_ns`: a reply to an earlier process is none to this one.
    pub asked_started_ns: u64,
    /// The request's number.
    pub asked_number: u32,
    /// The request's time of sending: t1 (ns).
    pub t1: u64,
    /// The request's time of arrival, by the answering host's clock: t2 (ns).
    pub t2: u64,
}

/// One frame that was late or dropped, and how many others are not told one by one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LateReport {
    /// The sending vNIC.
    pub src: [u8; 6],
    /// The receiver.
    pub dst: [u8; 6],
    /// Number in its stamp.
    pub sequence: u32,
    /// Td (us).
    pub deadline_us: u32,
    /// Tr - Ts - Td (ns); 0 if it was dropped in time.
    pub late_ns: u64,
    /// The error of `late_ns` (ns).
    pub error_ns: u64,
    /// Time in the sending host (ns).
    pub hold_ns: u32,
    /// Time in the network (ns).
    pub network_ns: u64,
    /// Time in the receiving host (ns).
    pub here_ns: u64,
    /// Why, as the receiving host sees it.
    pub cause: Cause,
    /// The receiving host dropped it.
    pub dropped: bool,
    /// Late frames of this vNIC since the last report that no report tells.
    pub others: u32,
}

/// Why a frame was late, as its receiving host sees it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Cause {
    /// The sending host.
    Sender = 0,
    /// The network between the hosts.
    Network = 1,
    /// Tokens in the receiving host.
    Tokens = 2,
    /// Frames before it in the receiving host.
    Queue = 3,
    /// Receive buffers.
    Buffers = 4,
    /// The receiving host's worker.
    Worker = 5,
    /// The receiving host dropped it.
    Dropped = 6,
}

/// A vNIC that is at the sending host.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Here {
    /// Its own MAC.
    pub mac: [u8; 6],
    /// Since when, by the sender's clock (ns): of two hosts that say so, the later one has it.
    pub since_ns: u64,
}

/// A vNIC that is at the sending host, and the queue pair that takes frames for it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Member {
    /// Its own MAC.
    pub mac: [u8; 6],
    /// Since when the vNIC is there, by the sender's clock (ns): of two hosts that say so, the later one has it.
    pub since_ns: u64,
    /// Number of its queue pair, 2 to 2^24 - 1 (0 and 1 are the port's own); 0: it has none any more.
    pub queue_pair: u32,
    /// Most bytes that it takes in a datagram behind the [header](crate::rdma::Header): a frame, and the frame's stamp
    /// if it has one. 14 at least; 0 without a queue pair.
    pub longest: u16,
}

impl Member {
    /// Bytes of an Ethernet header: no frame is shorter.
    const LONGEST_MIN: u16 = 14;

    /// Whether queue pair and longest frame are such as a sender writes.
    pub const fn is_sound(&self) -> bool {
        match self.queue_pair {
            0 => self.longest == 0,
            2..=0xff_ffff => self.longest >= Self::LONGEST_MIN,
            _ => false,
        }
    }
}

impl Cause {
    /// Every cause.
    pub const ALL: [Self; 7] =
        [Self::Sender, Self::Network, Self::Tokens, Self::Queue, Self::Buffers, Self::Worker, Self::Dropped];

    fn of(number: u8) -> Option<Self> {
        Self::ALL.into_iter().find(|cause| *cause as u8 == number)
    }
}

impl Body {
    /// Returns the number of its kind.
    pub(super) const fn kind(&self) -> u8 {
        match self {
            Self::ClockRequest => 1,
            Self::ClockReply(_) => 2,
            Self::Late(_) => 3,
            Self::Here(_) => 4,
            Self::Member(_) => 5,
        }
    }

    pub(super) fn write<const N: usize>(&self, to: &mut Writer<N>) {
        match self {
            Self::ClockRequest => {}
            Self::ClockReply(ClockReply { asked_started_ns, asked_number, t1, t2 }) => {
                to.u64(*asked_started_ns);
                to.u32(*asked_number);
                to.u64(*t1);
                to.u64(*t2);
            }
            Self::Late(report) => report.write(to),
            Self::Here(Here { mac, since_ns }) => {
                to.bytes(mac);
                to.u64(*since_ns);
            }
            Self::Member(Member { mac, since_ns, queue_pair, longest }) => {
                to.bytes(mac);
                to.u64(*since_ns);
                to.u32(*queue_pair);
                to.u16(*longest);
            }
        }
    }

    /// Returns `None` for an unknown kind, a body that ends early, or a value that no sender writes.
    pub(super) fn read(kind: u8, from: &mut Reader<'_>) -> Option<Self> {
        Some(match kind {
            1 => Self::ClockRequest,
            2 => Self::ClockReply(ClockReply {
                asked_started_ns: from.u64()?,
                asked_number: from.u32()?,
                t1: from.u64()?,
                t2: from.u64()?,
            }),
            3 => Self::Late(LateReport::read(from)?),
            4 => Self::Here(Here { mac: from.array()?, since_ns: from.u64()? }),
            5 => {
                let (mac, since_ns) = (from.array()?, from.u64()?);
                let member = Member { mac, since_ns, queue_pair: from.u32()?, longest: from.u16()? };
                Self::Member(Some(member).filter(Member::is_sound)?)
            }
            _ => return None,
        })
    }
}

impl LateReport {
    fn write<const N: usize>(&self, to: &mut Writer<N>) {
        to.bytes(&self.src);
        to.bytes(&self.dst);
        to.u32(self.sequence);
        to.u32(self.deadline_us);
        to.u64(self.late_ns);
        to.u64(self.error_ns);
        to.u32(self.hold_ns);
        to.u64(self.network_ns);
        to.u64(self.here_ns);
        to.u8(self.cause as u8);
        to.u8(u8::from(self.dropped));
        to.u32(self.others);
    }

    fn read(from: &mut Reader<'_>) -> Option<Self> {
        Some(Self {
            src: from.array()?,
            dst: from.array()?,
            sequence: from.u32()?,
            deadline_us: from.u32()?,
            late_ns: from.u64()?,
            error_ns: from.u64()?,
            hold_ns: from.u32()?,
            network_ns: from.u64()?,
            here_ns: from.u64()?,
            cause: Cause::of(from.u8()?)?,
            dropped: match from.u8()? {
                0 => false,
                1 => true,
                _ => return None,
            },
            others: from.u32()?,
        })
    }
}
