//! Drop reasons of netdevs and NICs, besides those of [`DropReason`](crate::DropReason), which are the switch's.
//!
//! ```text
//!  switch    DropReason ──────────────┐
//!  netdevs   NetdevDrop, DropReason ──┼─▶ `dropped` of VnicStats, by label ──▶ metrics, API, `tidegate why`
//!  NICs      NicDrop ─────────────────┘
//! ```

crate::reasons! {
    /// Why the kernel, or an eBPF program of ours, dropped a frame of a netdev.
    NetdevDrop {
        /// More than `tx.max`, where `tx.method` is `police`.
        Policed = "policed",
        /// A super-frame of a real-time vNIC that is larger than its `tx.burst`.
        OverBurst = "over_burst",
        /// A super-frame whose headers cannot be followed.
        UnknownHeaders = "unknown_headers",
        /// A super-frame behind more than one VLAN tag.
        DoubleTagged = "double_tagged",
        /// A real-time frame whose receiver took nothing for as long as its ring had room. Only of a miss.
        RingFull = "ring_full",
        /// A real-time frame that the kernel dropped for a reason that has no name here. Only of a miss.
        Kernel = "kernel",
    }
}

crate::reasons! {
    /// Why a NIC dropped a frame of a virtual function.
    NicDrop {
        /// The NIC does not say why.
        Nic = "nic",
    }
}
