//! Drop reasons of netdevs and NICs, besides the switch's [`DropReason`](crate::DropReason).
//!
//! ```text
//!  switch    DropReason ──────────────┐
//!  netdevs   NetdevDrop, DropReason ──┼─▶ `dropped` of VnicStats, by label ──▶ metrics, API, `tidegate why`
//!  NICs      NicDrop ─────────────────┘
//! ```

crate::reasons! {
    /// Why the kernel, or an eBPF program of ours, dropped a frame of a netdev.
    NetdevDrop {
        /// Above `tx.max`, with the `tx.method` `police`.
        Policed = "policed",
        /// A super-frame of a real-time vNIC that is larger than its `tx.burst`.
        OverBurst = "over_burst",
        /// A super-frame whose headers cannot be followed.
        UnknownHeaders = "unknown_headers",
        /// A super-frame behind more than one VLAN tag.
        DoubleTagged = "double_tagged",
        /// A real-time frame that found the receiver's ring full: the receiver took nothing. Only in misses.
        RingFull = "ring_full",
        /// A real-time frame that the kernel dropped for another reason. Only in misses.
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
