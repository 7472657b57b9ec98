//! RDMA: devices of the switch, queue pairs of vNICs here, and those of vNICs of other hosts.

use serde::{Deserialize, Serialize};
use std::net::IpAddr;
use tidegate_contract::{Mac, Segment};

/// Most devices of a switch.
pub const RDMA_DEVICES: usize = 8;
/// Most addresses of a device that are told: as many RoCE v2 GIDs as the largest tables of ports have.
pub const RDMA_ADDRESSES: usize = 128;
/// Most members of an uplink that are told: an answer of the switch has a bound.
pub const RDMA_MEMBERS: usize = 4096;

/// A device that the switch was told to use (`--rdma`).
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct RdmaDevice {
    /// Its name.
    pub name: String,
    /// Why it is of no use; absent if it is open.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub error: Option<String>,
    /// Whether its port carries datagrams.
    pub is_active: bool,
    /// Most bytes of a datagram.
    pub mtu: u32,
    /// `ethernet` (RoCE), `infiniband`, or `other N`.
    pub link: String,
    /// Addresses of its RoCE v2 GIDs.
    #[cfg_attr(feature = "schema", schema(value_type = Vec<String>))]
    pub addresses: Vec<IpAddr>,
}

/// RDMA at one uplink.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct RdmaStatus {
    /// The device.
    pub device: String,
    /// Why no frame leaves by RDMA; absent if frames may.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub error: Option<String>,
    /// Most bytes of a datagram.
    pub mtu: u32,
    /// vNICs of this host with `transport = "rdma"`.
    pub pairs: Vec<QueuePairStatus>,
    /// vNICs of other hosts that announced a queue pair. Frames of a vNIC here with a queue pair leave for those of its
    /// segment by RDMA, and for others as the uplink sends all.
    pub members: Vec<MemberStatus>,
    /// Counters since the link was made.
    pub counts: RdmaCounts,
}

/// The queue pair of a vNIC of this host.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct QueuePairStatus {
    /// The vNIC.
    pub vnic: String,
    /// Number of its queue pair; absent while it has none.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub queue_pair: Option<u32>,
    /// Why it has none.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub error: Option<String>,
    /// Queue pairs of it that failed, and were replaced.
    pub failures: u64,
    /// With `zero-copy = true`: whether it is in force; absent otherwise, and from a switch that knows none.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub zero_copy: Option<ZeroCopyStatus>,
}

/// Zero copy of a vNIC that has asked for it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct ZeroCopyStatus {
    /// Why all its frames are copied; absent if the device has the guest's memory.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub copied_because: Option<String>,
    /// That reason goes by itself: no front end is connected yet, or its VM migrates.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub is_temporary: bool,
    /// Bytes of the guest's memory that are registered with the device, and pinned; 0 if all frames are copied.
    pub registered: u64,
    /// Frames that arrive; absent while all frames are copied, and from a switch of an earlier release.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub landing: Option<LandingStatus>,
    /// What was not copied since the vNIC has zero copy at this uplink.
    pub counts: ZeroCopyCounts,
}

/// Whether frames that arrive land in the guest's buffers.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct LandingStatus {
    /// Why they are copied; absent if they land.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub copied_because: Option<String>,
}

/// What was not copied of a vNIC's frames.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct ZeroCopyCounts {
    /// Frames whose payload the device read out of the guest's memory; of a super-frame each segment.
    pub sent: u64,
    /// Bytes of that payload.
    pub sent_bytes: u64,
    /// Frames whose payload the device wrote into the guest's memory, and that went to the guest.
    pub received: u64,
    /// Bytes of that payload.
    pub received_bytes: u64,
}

/// A vNIC of another host that takes datagrams.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct MemberStatus {
    /// Its name, if a contract declares it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub remote: Option<String>,
    /// Its segment.
    #[cfg_attr(feature = "schema", schema(value_type = u32))]
    pub segment: Segment,
    /// Its address.
    #[cfg_attr(feature = "schema", schema(value_type = String))]
    pub mac: Mac,
    /// Its host.
    pub peer: String,
    /// Number of its queue pair.
    pub queue_pair: u32,
    /// Longest frame that it takes (bytes); longer ones go as the uplink sends all.
    pub longest: u32,
    /// Why its frames go as the uplink sends all; absent if they go by RDMA.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error: Option<String>,
}

/// Counters of an uplink's RDMA.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct RdmaCounts {
    /// Datagrams that the device took.
    pub sent: u64,
    /// Bytes of their frames.
    pub sent_bytes: u64,
    /// Datagrams that the device did not take, or could not send.
    pub unsent: u64,
    /// Datagrams of members.
    pub received: u64,
    /// Bytes of their frames.
    pub received_bytes: u64,
    /// Bytes of frames, headers and stamps that were copied into send buffers.
    pub copied_out: u64,
    /// Bytes of frames that were copied out of receive buffers.
    pub copied_in: u64,
    /// Frames whose payload the device read out of the guest's memory.
    pub zero_copied_out: u64,
    /// Bytes of that payload.
    pub zero_copied_out_bytes: u64,
    /// Frames whose payload the device wrote into the guest's memory, and that went to that guest.
    pub zero_copied_in: u64,
    /// Bytes of that payload.
    pub zero_copied_in_bytes: u64,
    /// Frames of vNICs with zero copy that were copied: they lie in more pieces than a request has.
    pub too_many_pieces: u64,
    /// The same: some of their bytes lie in no registered region.
    pub no_region: u64,
    /// vNICs whose frames are copied since memory was taken out of their guests: balloon, free page reporting.
    pub holes: u64,
    /// Datagrams from no member, or to a vNIC outside of its segment; dropped.
    pub unknown_member: u64,
    /// Datagrams of a member whose frames have another source address; dropped.
    pub spoofed: u64,
    /// Datagrams without a valid header; dropped.
    pub malformed: u64,
    /// Datagrams of members that never arrived, by the numbers of those that did.
    pub lost: u64,
    /// Times that a frame found no send buffer.
    pub no_buffers: u64,
    /// Queue pairs that failed.
    pub failed_pairs: u64,
    /// Queue pairs that the device did not destroy: memory that they may write to stays in use until the switch ends.
    pub undestroyed_pairs: u64,
}
