//! Decides on a frame by its copied head: once, for both ways. Pure: the caller carries the decision out.
//!
//! ```text
//!  head, length, virtio header ──┐         ┌▶ Decision: headers, offload, size on the wire; marks cleared in the head
//!  the sender's contract         ├─ decide ┤
//!  link-local addresses it holds ┘         └▶ Refused: dropped, and why; or an address is to be claimed or taken first
//!
//!  destination MAC, FDB ─ destination ─▶ To: a port, members of the segment; None: back to its sender
//! ```
//!
//! Nearly all frames are [plain](crate::frame::plain), and [`decide_plain`](Sender::decide_plain) decides
//! on them in a tenth of the instructions: its answer, if any, is that of `decide`.

use super::flood::Audience;
use crate::fdb::{Fdb, PortIndex, SegmentIndex};
use crate::frame::dscp::is_realtime;
use crate::frame::headers::is_of_link;
use crate::frame::offload::check;
use crate::frame::plain::{Plain, parse_plain};
use crate::frame::policy::shared::Taking;
use crate::frame::{
    Headers, LinkLocals, Offload, Verdict, VnetHdr, clear_realtime_marks, parse, segments, wire_bytes,
};
use crate::port::{Port, PortContract};
use std::net::Ipv6Addr;
use tidegate_contract::Mac;
use tidegate_evidence::DropReason;

/// The facts about the sender that a decision needs.
#[derive(Clone, Copy)]
pub(super) struct Sender<'a> {
    contract: &'a PortContract,
    claimed: &'a LinkLocals,
    /// The frame's host has proved that it has a deadline.
    has_stamp: bool,
}

/// The decision on a frame that may be sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Decision {
    pub(super) headers: Headers,
    /// Its checked request.
    pub(super) offload: Offload,
    /// Number and bytes of its frames on a wire.
    pub(super) wire_frames: u32,
    pub(super) wire_bytes: u32,
}

/// Why a frame is not sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum NotSent {
    /// It is dropped.
    Dropped(DropReason),
    /// The sender has to claim this address first; then the decision is repeated.
    Claim(Ipv6Addr),
    /// The sender has to take these shared addresses first; then the decision is repeated.
    Take(Taking),
}

/// A frame's destination.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum To {
    /// To this port.
    Port(PortIndex),
    /// To these members of the segment.
    Flood(Audience),
}

impl<'a> Sender<'a> {
    #[inline]
    pub(super) fn of(port: &'a Port) -> Self {
        Self { contract: &port.contract, claimed: &port.claimed, has_stamp: false }
    }

    /// The same, for a frame with a valid stamp if `has_stamp`: it keeps its marks.
    #[inline]
    pub(super) fn with_stamp(self, has_stamp: bool) -> Self {
        Self { has_stamp, ..self }
    }

    /// Decides on a frame of `len` bytes. Clears forbidden real-time marks in `head`, its copied first
    /// bytes.
    ///
    /// # Errors
    /// The frame is not sent; `head` is unchanged.
    #[inline(always)]
    pub(super) fn decide(&self, head: &mut [u8], len: usize, vnet: &VnetHdr) -> Result<Decision, NotSent> {
        let malformed = NotSent::Dropped(DropReason::Malformed);
        let mut headers = parse(head, len).map_err(|_| malformed)?;
        let offload = check(vnet, &headers, head.len(), len).map_err(|_| malformed)?;
        let longest = offload.gso_size().map_or(len, |size| usize::from(headers.len) + usize::from(size));
        if longest > self.contract.frame_max as usize {
            return Err(NotSent::Dropped(DropReason::TooLong));
        }
        match self.contract.policy.check(head, &headers, self.claimed) {
            Verdict::Pass => {}
            Verdict::Drop(reason) => return Err(NotSent::Dropped(reason.into())),
            Verdict::Claim(ip) => return Err(NotSent::Claim(ip)),
            Verdict::Take(taking) => return Err(NotSent::Take(taking)),
        }
        if is_realtime(headers.dscp) && self.contract.deadline.is_none() && !self.has_stamp {
            clear_realtime_marks(head, &mut headers);
        }
        let (wire_frames, wire_bytes) = match offload.gso_size() {
            None => (1, len as u32),
            Some(_) => (segments(offload, &headers, len), wire_bytes(offload, &headers, len)),
        };
        Ok(Decision { headers, offload, wire_frames, wire_bytes })
    }

    /// Like [`decide`](Self::decide), for a plain frame without requests: one frame on the wire, of its own
    /// length. `None` decides nothing, and leaves `head` unchanged.
    #[inline(always)]
    pub(super) fn decide_plain(&self, head: &mut [u8], len: usize) -> Option<Plain> {
        let plain = parse_plain(head, len)?;
        if len > self.contract.frame_max as usize
            || !self.contract.policy.passes_plain(head, plain.src, self.claimed)
        {
            return None;
        }
        if is_realtime(plain.dscp) && self.contract.deadline.is_none() {
            clear_marks(head, len);
        }
        Some(plain)
    }
}

/// Clears real-time marks of a vNIC without a deadline.
#[inline(never)]
fn clear_marks(head: &mut [u8], len: usize) {
    if let Ok(mut headers) = parse(head, len) {
        clear_realtime_marks(head, &mut headers);
    }
}

/// Returns the destination of a frame from port `from` to `dst`; `None`: it would return to its sender.
#[inline]
pub(super) fn destination(fdb: &Fdb, segment: SegmentIndex, from: PortIndex, dst: Mac) -> Option<To> {
    if dst.is_group() {
        return Some(To::Flood(if is_of_link(dst) { Audience::Control } else { Audience::All }));
    }
    match fdb.lookup(segment, dst) {
        Some(to) if to == from => None,
        Some(to) => Some(To::Port(to)),
        None => Some(To::Flood(Audience::Learning)),
    }
}

impl From<crate::frame::policy::Reason> for DropReason {
    fn from(reason: crate::frame::policy::Reason) -> Self {
        use crate::frame::policy::Reason;
        match reason {
            Reason::SourceMac | Reason::NeighbourMac => Self::SourceMac,
            Reason::SourcePrefix | Reason::ArpSpoof | Reason::NeighbourSpoof => Self::SourcePrefix,
            Reason::LinkLocal => Self::LinkLocal,
            Reason::Shared => Self::Shared,
            Reason::Control => Self::Control,
            Reason::Router => Self::Router,
            Reason::DhcpServer => Self::DhcpServer,
            Reason::Vlan => Self::Vlan,
            Reason::Encapsulation | Reason::Hidden => Self::Encapsulation,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::frame::HEADER_MAX;
    use crate::frame::testing::{self, frame, hostile};
    use crate::link::vhost::copy::HEAD;
    use proptest::prelude::*;
    use tidegate_contract::{Host, Vnic};

    /// Returns a contract for frames of [`testing`] with further lines.
    fn contract(keys: &str) -> PortContract {
        let text = format!(
            "[vnic.v0]\nattach = {{ vhost-user = \"/tmp/v0\" }}\nmac = \"{}\"\nsegment = 7\n{keys}\n",
            testing::SRC
        );
        let vnic: Vnic = tidegate_contract::parse(&text, "test").unwrap().vnics.remove(0).value;
        PortContract::new(&vnic, &Host::default())
    }

    const CONTRACTS: [&str; 6] = [
        "",
        "mtu = 68",
        "allowed = { prefixes = [\"10.1.0.0/16\", \"fd01:2::/32\"], vlans = [10] }",
        "allowed = { prefixes = [\"0.0.0.0/0\", \"::/0\"], router = true, dhcp-server = true }",
        "allowed = { macs = \"any\", vlans = [10, 20], control = true }",
        "tx = { max = \"1gbit\", burst = \"4kB\" }\ndeadline = \"40us\"\nto = [\"v1\"]",
    ];

    /// Whether the short form decides; its decision and head must agree with the long form's.
    fn agrees(contract: &PortContract, frame: &[u8]) -> bool {
        let claimed = LinkLocals::default();
        let sender = Sender { contract, claimed: &claimed, has_stamp: false };
        let mut short = frame[..frame.len().min(HEAD)].to_vec();
        let mut long = frame[..frame.len().min(HEADER_MAX)].to_vec();
        let Some(plain) = sender.decide_plain(&mut short, frame.len()) else {
            assert_eq!(short, frame[..short.len()], "untouched");
            return false;
        };
        let decision = sender.decide(&mut long, frame.len(), &VnetHdr::default()).expect("it may be sent");
        assert_eq!((decision.headers.dst, decision.headers.src), (plain.dst, plain.src));
        assert_eq!(decision.headers.vid(), None);
        assert_eq!((decision.offload, decision.wire_frames), (Offload::None, 1));
        assert_eq!(decision.wire_bytes as usize, frame.len());
        assert_eq!(short, long[..short.len()], "the same marks");
        true
    }

    fn any_contract() -> impl Strategy<Value = &'static str> {
        prop::sample::select(CONTRACTS.to_vec())
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(2048))]

        #[test]
        fn a_plain_frame_is_decided_on_alike(keys in any_contract(), spec in frame()) {
            agrees(&contract(keys), &spec.build());
        }

        #[test]
        fn the_decision_on_a_hostile_frame_agrees_too(keys in any_contract(), frame in hostile()) {
            agrees(&contract(keys), &frame);
        }

        /// A refused frame is unchanged.
        #[test]
        fn a_refused_frame_is_unchanged(
            keys in any_contract(), mut frame in hostile(), vnet in any::<[u8; VnetHdr::LEN]>(),
        ) {
            frame.truncate(HEADER_MAX);
            let before = frame.clone();
            let claimed = LinkLocals::default();
            let vnet = VnetHdr::read(&vnet).unwrap();
            let len = frame.len();
            let contract = contract(keys);
            let sender = Sender { contract: &contract, claimed: &claimed, has_stamp: false };
            if sender.decide(&mut frame, len, &vnet).is_err() {
                prop_assert_eq!(frame, before);
            }
        }
    }

    #[test]
    fn the_usual_frames_are_decided_on_shortly() {
        for spec in [
            testing::Frame::udp4(22),
            testing::Frame::tcp6(900),
            testing::Frame { dscp: 46, ..testing::Frame::udp4(22) },
        ] {
            assert!(agrees(&contract(""), &spec.build()), "{spec:?}");
        }
        assert!(!agrees(&contract("mtu = 68"), &testing::Frame::udp4(200).build()));
    }

    #[test]
    fn a_frame_goes_to_the_owner_of_its_address() {
        let fdb = Fdb::new();
        let segment = SegmentIndex(3);
        let [one, other] = [1, 2].map(|last| Mac([2, 0, 0, 0, 0, last]));
        fdb.pin(segment, one, 7).unwrap();
        let to = |from, dst| destination(&fdb, segment, from, dst);
        assert_eq!(to(4, one), Some(To::Port(7)));
        assert_eq!(to(7, one), None, "back to its sender");
        assert_eq!(to(4, other), Some(To::Flood(Audience::Learning)));
        assert_eq!(to(4, Mac([0xff; 6])), Some(To::Flood(Audience::All)));
        assert_eq!(to(4, Mac([1, 0x80, 0xc2, 0, 0, 0xe])), Some(To::Flood(Audience::Control)));
    }
}
