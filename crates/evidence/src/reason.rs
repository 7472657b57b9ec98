//! Reasons for drops and deadline misses, and the kinds of culprits that delay a worker.

/// Defines an enum whose variants are counter indices with a label each.
#[macro_export]
macro_rules! reasons {
    ($(#[$doc:meta])* $name:ident { $($(#[$vdoc:meta])* $variant:ident = $label:literal,)+ }) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
        #[repr(u8)]
        pub enum $name { $($(#[$vdoc])* $variant,)+ }

        impl $name {
            /// Every value, in the order of the counters.
            pub const ALL: &'static [Self] = &[$(Self::$variant,)+];
            /// Number of values.
            pub const COUNT: usize = Self::ALL.len();

            /// Returns the label used in metrics, JSON and tables.
            pub const fn label(self) -> &'static str {
                match self { $(Self::$variant => $label,)+ }
            }

            /// Returns the value with this label; `None` if there is none.
            pub fn of_label(label: &str) -> Option<Self> {
                Self::ALL.iter().copied().find(|value| value.label() == label)
            }
        }
    };
}

reasons! {
    /// Why a frame was dropped. Counted at the sender (tx) or the receiver (rx).
    DropReason {
        /// Invalid headers or offload request.
        Malformed = "malformed",
        /// In more pieces of memory than a frame may have.
        TooScattered = "too_scattered",
        /// Longer than the sender's MTU allows.
        TooLong = "too_long",
        /// Source MAC not its own and not allowed.
        SourceMac = "source_mac",
        /// Source IP (or ARP sender) outside the allowed prefixes.
        SourcePrefix = "source_prefix",
        /// A link-local address of another vNIC, or one too many.
        LinkLocal = "link_local",
        /// For the link itself, and not allowed.
        Control = "control",
        /// Router advertisement or redirect, and not allowed.
        Router = "router",
        /// From a DHCP server or relay, and not allowed.
        DhcpServer = "dhcp_server",
        /// A VLAN the vNIC is not a member of.
        Vlan = "vlan",
        /// An encapsulation, extension headers or fragments that hide headers to check.
        Encapsulation = "encapsulation",
        /// No vNIC in the segment has the destination address.
        NoReceiver = "no_receiver",
        /// Over the cap on broadcast, multicast and unknown unicast.
        FloodCap = "flood_cap",
        /// The queue towards the receiver is full, and waits for its rate.
        QueueFull = "queue_full",
        /// A tap sender over its limit whose byte pool is full.
        PoolFull = "pool_full",
        /// Half the sender's ring is in flight.
        RingShare = "ring_share",
        /// The frame waited as long as a frame may.
        HeldTooLong = "held_too_long",
        /// A real-time frame that could no longer arrive in time.
        Late = "late",
        /// The receiver cannot take a frame of this kind or length.
        Unacceptable = "unacceptable",
        /// The receiver's port went down.
        ReceiverDown = "receiver_down",
        /// The sender's port was reset with frames in flight.
        SenderReset = "sender_reset",
        /// The tap refused the frame.
        TapRefused = "tap_refused",
        /// The queue towards the receiver is full, and the receiver gives no buffers.
        NoBuffers = "no_buffers",
        /// The queue towards the receiver is full, and its worker did not serve it.
        WorkerBehind = "worker_behind",
        /// Its flow's queue waited for longer than the target, and the frame cannot be marked.
        Codel = "codel",
        /// The queue is full, and its flow had most of it.
        FlowCap = "flow_cap",
        /// From a shared address that another vNIC has.
        Shared = "shared",
        /// From an address that is no peer of the uplink.
        UnknownPeer = "unknown_peer",
        /// Its VNI is no segment that its peer carries, or its segment has no VNI.
        UnknownSegment = "unknown_segment",
        /// The network between hosts marked it as congested, and its receiver does not take marks (RFC 6040).
        Congested = "congested",
        /// Too long for the path between hosts, which does not fragment.
        PathMtu = "path_mtu",
        /// The kernel has no route to the peer.
        NoRoute = "no_route",
        /// The kernel refused to send it to the peer.
        UplinkRefused = "uplink_refused",
        /// Its stamp is valid and has arrived before, or it is too old to tell.
        Replayed = "replayed",
    }
}

reasons! {
    /// What a late real-time frame had waited for.
    MissCause {
        /// Tokens of its own envelope.
        Tokens = "tokens",
        /// Frames ahead of it in the egress queue.
        Queue = "queue",
        /// Receive buffers of the destination.
        Buffers = "buffers",
        /// The worker: a loop longer than the host budget.
        Worker = "worker",
        /// The network between hosts.
        Network = "network",
        /// It was dropped.
        Dropped = "dropped",
        /// The host that sent it.
        Sender = "sender",
    }
}

reasons! {
    /// Why a notice of another host was not taken.
    NoticeRefusal {
        /// More messages than a peer may send.
        TooMany = "too_many",
        /// No notice.
        Malformed = "malformed",
        /// A notice of another release.
        Version = "version",
        /// No key here for its segment, or a segment that does not reach the peer.
        NoKey = "no_key",
        /// Its tag does not fit: forged, changed, or for other addresses.
        Forged = "forged",
        /// An answer to no request that waits.
        Unasked = "unasked",
        /// Of a process of the peer that has ended, or that has not answered a request yet.
        OtherProcess = "other_process",
        /// It has arrived before, or is too old to tell.
        Replayed = "replayed",
        /// About a vNIC that this host does not have.
        UnknownVnic = "unknown_vnic",
        /// An announcement whose time means nothing here yet: the peer's clock is not known.
        NoClock = "no_clock",
        /// An announcement of a queue pair beyond those that a peer, or all, may have.
        TooManyMembers = "too_many_members",
    }
}

reasons! {
    /// What delayed a worker while a frame missed its deadline.
    CulpritKind {
        /// A loop of the worker itself.
        OwnLoop = "own_loop",
        /// Another task had its CPU.
        Task = "task",
        /// Its CPU was idle, and woken late.
        Idle = "idle",
        /// A softirq had its CPU.
        Softirq = "softirq",
        /// A device's interrupt had its CPU.
        Interrupt = "interrupt",
        /// The host of the virtual machine had its CPU.
        Stolen = "stolen",
        /// Unknown.
        Unexplained = "unexplained",
    }
}
