//! Numbers of the kernel's interface: linux/rtnetlink.h, if_link.h, if_bridge.h, pkt_sched.h, pkt_cls.h, tc_act/tc_mirred.h.

pub use tidegate_netlink::link::{
    IFF_UP, IFLA_EXT_MASK, IFLA_IFNAME, RTEXT_FILTER_SKIP_STATS, RTM_DELLINK, RTM_GETLINK, RTM_NEWLINK,
    RTM_SETLINK,
};

/// Message types (linux/rtnetlink.h).
pub const RTM_NEWQDISC: u16 = 36;
pub const RTM_DELQDISC: u16 = 37;
pub const RTM_GETQDISC: u16 = 38;
pub const RTM_NEWTCLASS: u16 = 40;
pub const RTM_DELTCLASS: u16 = 41;
pub const RTM_GETTCLASS: u16 = 42;
pub const RTM_NEWTFILTER: u16 = 44;
pub const RTM_DELTFILTER: u16 = 45;
pub const RTM_GETTFILTER: u16 = 46;

/// Links (linux/if_link.h).
pub const IFLA_MTU: u16 = 4;
pub const IFLA_MASTER: u16 = 10;
pub const IFLA_TXQLEN: u16 = 13;
pub const IFLA_LINKINFO: u16 = 18;
pub const IFLA_AF_SPEC: u16 = 26;
pub const IFLA_GROUP: u16 = 27;
/// Includes the VLANs of bridge ports, as ranges.
pub const RTEXT_FILTER_BRVLAN_COMPRESSED: u32 = 4;
pub const IFLA_XDP: u16 = 43;
pub const IFLA_XDP_PROG_ID: u16 = 4;
pub const IFLA_XDP_HW_PROG_ID: u16 = 7;
pub const IFLA_INFO_KIND: u16 = 1;
pub const IFLA_INFO_DATA: u16 = 2;
pub const IFLA_BR_VLAN_FILTERING: u16 = 7;
pub const IFLA_BR_VLAN_DEFAULT_PVID: u16 = 39;
pub const IFF_LOOPBACK: u32 = 8;

/// Bridge ports (linux/socket.h, linux/if_bridge.h).
pub const AF_BRIDGE: u8 = 7;
pub const IFLA_BRIDGE_VLAN_INFO: u16 = 2;
pub const BRIDGE_VLAN_INFO_PVID: u16 = 2;
pub const BRIDGE_VLAN_INFO_UNTAGGED: u16 = 4;
pub const BRIDGE_VLAN_INFO_RANGE_BEGIN: u16 = 8;
pub const BRIDGE_VLAN_INFO_RANGE_END: u16 = 16;

/// Traffic control (linux/rtnetlink.h).
pub const TCA_KIND: u16 = 1;
pub const TCA_OPTIONS: u16 = 2;
pub const TCA_STATS2: u16 = 7;
pub const TCA_CHAIN: u16 = 11;

/// Counters (linux/gen_stats.h).
pub const TCA_STATS_BASIC: u16 = 1;
pub const TCA_STATS_QUEUE: u16 = 3;
pub const TCA_STATS_APP: u16 = 4;
pub const TCA_STATS_PKT64: u16 = 8;

/// HTB (linux/pkt_sched.h).
pub const TCA_HTB_PARMS: u16 = 1;
pub const TCA_HTB_INIT: u16 = 2;
pub const TCA_HTB_DIRECT_QLEN: u16 = 5;
pub const TCA_HTB_RATE64: u16 = 6;
pub const TCA_HTB_CEIL64: u16 = 7;
pub const HTB_VERSION: u32 = 3;
pub const TC_LINKLAYER_ETHERNET: u8 = 1;

/// tbf (linux/pkt_sched.h).
pub const TCA_TBF_PARMS: u16 = 1;
pub const TCA_TBF_RATE64: u16 = 4;
pub const TCA_TBF_BURST: u16 = 6;
/// Rate of a `tbf` that only cuts (bytes per second): any frame takes 0 ns at it. The excess above it
/// encodes the length from which it cuts, which the kernel does not report otherwise.
pub const CUT_RATE: u64 = 1 << 62;

/// fq_codel (linux/pkt_sched.h), beside its attributes in common with codel. The limit in frames is its
/// default.
pub const TCA_FQ_CODEL_LIMIT: u16 = 2;
pub const TCA_FQ_CODEL_ECN: u16 = 4;
pub const TCA_FQ_CODEL_QUANTUM: u16 = 6;
pub const TCA_FQ_CODEL_MEMORY_LIMIT: u16 = 9;
pub const FQ_CODEL_LIMIT: u32 = 10_240;
pub const FQ_CODEL_QUANTUM: u32 = 1514;

/// cake (linux/pkt_sched.h).
pub const TCA_CAKE_BASE_RATE64: u16 = 2;
pub const TCA_CAKE_DIFFSERV_MODE: u16 = 3;
pub const TCA_CAKE_FLOW_MODE: u16 = 5;
pub const TCA_CAKE_RTT: u16 = 7;
pub const TCA_CAKE_TARGET: u16 = 8;
pub const TCA_CAKE_MEMORY: u16 = 10;
pub const TCA_CAKE_SPLIT_GSO: u16 = 17;
pub const TCA_CAKE_STATS_TIN_STATS: u16 = 10;
pub const TCA_CAKE_TIN_STATS_ECN_MARKED: u16 = 8;
pub const TCA_CAKE_TIN_STATS_SPARSE_FLOWS: u16 = 21;
pub const TCA_CAKE_TIN_STATS_BULK_FLOWS: u16 = 22;
pub const CAKE_DIFFSERV_BESTEFFORT: u32 = 3;
pub const CAKE_FLOW_FLOWS: u32 = 4;
pub const CAKE_FLOW_DUAL_SRC: u32 = 5;
pub const CAKE_FLOW_DUAL_DST: u32 = 6;

/// u32 (linux/pkt_cls.h).
pub const TCA_U32_HASH: u16 = 2;
pub const TCA_U32_DIVISOR: u16 = 4;
pub const TCA_U32_SEL: u16 = 5;
pub const TCA_U32_POLICE: u16 = 6;
pub const TCA_U32_ACT: u16 = 7;
pub const TCA_U32_PCNT: u16 = 9;
pub const TCA_U32_MARK: u16 = 10;
pub const TCA_U32_FLAGS: u16 = 11;
pub const TC_U32_TERMINAL: u8 = 1;

/// bpf (linux/pkt_cls.h).
pub const TCA_BPF_CLASSID: u16 = 3;
pub const TCA_BPF_FD: u16 = 6;
pub const TCA_BPF_NAME: u16 = 7;
pub const TCA_BPF_FLAGS: u16 = 8;
pub const TCA_BPF_FLAG_ACT_DIRECT: u32 = 1;

/// Actions (linux/pkt_cls.h).
pub const TCA_ACT_KIND: u16 = 1;
pub const TCA_ACT_OPTIONS: u16 = 2;
pub const TCA_ACT_COOKIE: u16 = 6;
pub const TC_ACT_STOLEN: u32 = 4;

/// mirred (linux/tc_act/tc_mirred.h).
pub const TCA_MIRRED_PARMS: u16 = 2;
pub const TCA_EGRESS_REDIR: u32 = 1;

/// police (linux/pkt_cls.h).
pub const TCA_POLICE_TBF: u16 = 1;
pub const TCA_POLICE_RATE: u16 = 2;
pub const TCA_POLICE_PEAKRATE: u16 = 3;
pub const TCA_POLICE_TM: u16 = 6;

/// codel, and fq_codel with the same numbers but the last (linux/pkt_sched.h).
pub const TCA_CODEL_TARGET: u16 = 1;
pub const TCA_CODEL_INTERVAL: u16 = 3;
pub const TCA_CODEL_CE_THRESHOLD: u16 = 5;
pub const TCA_FQ_CODEL_CE_THRESHOLD: u16 = 7;
