//! Types and numbers of libibverbs, as infiniband/verbs.h of rdma-core 44 has them. The application's side of them has not changed since
//! version IBVERBS_1.1 (2007). A test compares each with the header.
//!
//! Objects that the library makes are only read through pointers: of those, the fields that we need and what is before them.

use std::ffi::{c_int, c_uint, c_void};

/// What the library alone knows.
#[repr(C)]
pub(super) struct Opaque {
    _private: [u8; 0],
}

/// `ibv_context`, to its descriptors.
#[repr(C)]
pub(super) struct Context {
    pub device: *mut Opaque,
    pub ops: ContextOps,
    pub cmd_fd: c_int,
    pub async_fd: c_int,
}

/// `ibv_context_ops`: what the header's inline functions call. The rest is for the library.
#[repr(C)]
pub(super) struct ContextOps {
    pub library_to_create_cq: [*const c_void; 11],
    pub poll_cq: Option<unsafe extern "C" fn(*mut CompletionQueue, c_int, *mut WorkCompletion) -> c_int>,
    pub req_notify_cq: Option<unsafe extern "C" fn(*mut CompletionQueue, c_int) -> c_int>,
    pub library_to_destroy_qp: [*const c_void; 12],
    pub post_send:
        Option<unsafe extern "C" fn(*mut QueuePair, *mut SendRequest, *mut *mut SendRequest) -> c_int>,
    pub post_recv:
        Option<unsafe extern "C" fn(*mut QueuePair, *mut ReceiveRequest, *mut *mut ReceiveRequest) -> c_int>,
    pub library_to_async_event: [*const c_void; 5],
}

/// `ibv_cq`.
#[repr(C)]
pub(super) struct CompletionQueue {
    pub context: *mut Context,
}

/// `ibv_qp`, to its number.
#[repr(C)]
pub(super) struct QueuePair {
    pub context: *mut Context,
    pub qp_context: *mut c_void,
    pub pd: *mut Opaque,
    pub send_cq: *mut CompletionQueue,
    pub recv_cq: *mut CompletionQueue,
    pub srq: *mut Opaque,
    pub handle: u32,
    pub qp_num: u32,
}

/// `ibv_mr`, to its local key.
#[repr(C)]
pub(super) struct MemoryRegion {
    pub context: *mut Context,
    pub pd: *mut Opaque,
    pub addr: *mut c_void,
    pub length: usize,
    pub handle: u32,
    pub lkey: u32,
}

/// `ibv_comp_channel`.
#[repr(C)]
pub(super) struct Channel {
    pub context: *mut Context,
    pub fd: c_int,
    pub refcnt: c_int,
}

/// `ibv_async_event`.
#[repr(C)]
pub(super) struct AsyncEvent {
    pub element: *mut c_void,
    pub event_type: c_int,
}

/// `ibv_port_attr`. (`ibv_query_port` of the library itself writes all but the last field.)
#[repr(C)]
#[derive(Default)]
pub(super) struct PortAttributes {
    pub state: c_uint,
    pub max_mtu: c_uint,
    pub active_mtu: c_uint,
    pub gid_tbl_len: c_int,
    pub port_cap_flags: u32,
    pub max_msg_sz: u32,
    pub bad_pkey_cntr: u32,
    pub qkey_viol_cntr: u32,
    pub pkey_tbl_len: u16,
    pub lid: u16,
    pub sm_lid: u16,
    pub lmc: u8,
    pub max_vl_num: u8,
    pub sm_sl: u8,
    pub subnet_timeout: u8,
    pub init_type_reply: u8,
    pub active_width: u8,
    pub active_speed: u8,
    pub phys_state: u8,
    pub link_layer: u8,
    pub flags: u8,
    pub port_cap_flags2: u16,
}

/// `ibv_gid`.
#[repr(C, align(8))]
#[derive(Clone, Copy, Default)]
pub(super) struct RawGid(pub [u8; 16]);

/// `ibv_gid_entry`.
#[repr(C)]
#[derive(Clone, Copy, Default)]
pub(super) struct GidEntry {
    pub gid: RawGid,
    pub gid_index: u32,
    pub port_num: u32,
    pub gid_type: u32,
    pub ndev_ifindex: u32,
}

/// `ibv_device_attr`: what a device is able to.
#[repr(C)]
#[derive(Default)]
pub(super) struct DeviceAttributes {
    pub fw_ver: [[u8; 16]; 4],
    pub node_guid: u64,
    pub sys_image_guid: u64,
    pub max_mr_size: u64,
    pub page_size_cap: u64,
    pub vendor_id: u32,
    pub vendor_part_id: u32,
    pub hw_ver: u32,
    pub max_qp: c_int,
    pub max_qp_wr: c_int,
    pub device_cap_flags: c_uint,
    pub max_sge: c_int,
    pub rest: [c_int; 25],
    pub max_pkeys: u16,
    pub local_ca_ack_delay: u8,
    pub phys_port_cnt: u8,
}

/// `ibv_global_route`.
#[repr(C)]
#[derive(Default)]
pub(super) struct GlobalRoute {
    pub dgid: RawGid,
    pub flow_label: u32,
    pub sgid_index: u8,
    pub hop_limit: u8,
    pub traffic_class: u8,
}

/// `ibv_ah_attr`.
#[repr(C)]
#[derive(Default)]
pub(super) struct AddressAttributes {
    pub grh: GlobalRoute,
    pub dlid: u16,
    pub sl: u8,
    pub src_path_bits: u8,
    pub static_rate: u8,
    pub is_global: u8,
    pub port_num: u8,
}

/// `ibv_qp_cap`.
#[repr(C)]
#[derive(Default)]
pub(super) struct Capacities {
    pub max_send_wr: u32,
    pub max_recv_wr: u32,
    pub max_send_sge: u32,
    pub max_recv_sge: u32,
    pub max_inline_data: u32,
}

/// `ibv_qp_init_attr`.
#[repr(C)]
pub(super) struct InitAttributes {
    pub qp_context: *mut c_void,
    pub send_cq: *mut CompletionQueue,
    pub recv_cq: *mut CompletionQueue,
    pub srq: *mut Opaque,
    pub cap: Capacities,
    pub qp_type: c_uint,
    pub sq_sig_all: c_int,
}

/// `ibv_qp_attr`.
#[repr(C)]
#[derive(Default)]
pub(super) struct PairAttributes {
    pub qp_state: c_uint,
    pub cur_qp_state: c_uint,
    pub path_mtu: c_uint,
    pub path_mig_state: c_uint,
    pub qkey: u32,
    pub rq_psn: u32,
    pub sq_psn: u32,
    pub dest_qp_num: u32,
    pub qp_access_flags: c_uint,
    pub cap: Capacities,
    pub ah_attr: AddressAttributes,
    pub alt_ah_attr: AddressAttributes,
    pub pkey_index: u16,
    pub alt_pkey_index: u16,
    pub en_sqd_async_notify: u8,
    pub sq_draining: u8,
    pub max_rd_atomic: u8,
    pub max_dest_rd_atomic: u8,
    pub min_rnr_timer: u8,
    pub port_num: u8,
    pub timeout: u8,
    pub retry_cnt: u8,
    pub rnr_retry: u8,
    pub alt_port_num: u8,
    pub alt_timeout: u8,
    pub rate_limit: u32,
}

/// `ibv_sge`.
#[repr(C)]
#[derive(Clone, Copy, Default)]
pub(super) struct Element {
    pub addr: u64,
    pub length: u32,
    pub lkey: u32,
}

/// `ibv_send_wr` of a datagram: of its unions, the members `ud`; the last ones are not used.
#[repr(C)]
#[derive(Clone, Copy)]
pub(super) struct SendRequest {
    pub wr_id: u64,
    pub next: *mut SendRequest,
    pub sg_list: *mut Element,
    pub num_sge: c_int,
    pub opcode: c_uint,
    pub send_flags: c_uint,
    pub imm_data: u32,
    pub ah: *mut Opaque,
    pub remote_qpn: u32,
    pub remote_qkey: u32,
    pub rest_of_wr: [u64; 2],
    pub qp_type: u64,
    pub bind_mw_or_tso: [u64; 6],
}

/// `ibv_recv_wr`.
#[repr(C)]
#[derive(Clone, Copy)]
pub(super) struct ReceiveRequest {
    pub wr_id: u64,
    pub next: *mut ReceiveRequest,
    pub sg_list: *mut Element,
    pub num_sge: c_int,
}

/// `ibv_wc`.
#[repr(C)]
#[derive(Clone, Copy, Default)]
pub(super) struct WorkCompletion {
    pub wr_id: u64,
    pub status: c_uint,
    pub opcode: c_uint,
    pub vendor_err: u32,
    pub byte_len: u32,
    pub imm_data: u32,
    pub qp_num: u32,
    pub src_qp: u32,
    pub wc_flags: c_uint,
    pub pkey_index: u16,
    pub slid: u16,
    pub sl: u8,
    pub dlid_path_bits: u8,
}

/// `IBV_PORT_ACTIVE` of `ibv_port_state`.
pub(super) const PORT_ACTIVE: c_uint = 4;
/// `IBV_MTU_256` to `IBV_MTU_4096` of `ibv_mtu`.
pub(super) const MTU_256: c_uint = 1;
pub(super) const MTU_4096: c_uint = 5;
/// Link layers.
pub(super) const LINK_INFINIBAND: u8 = 1;
pub(super) const LINK_ETHERNET: u8 = 2;
/// `IBV_GID_TYPE_ROCE_V2` of `ibv_gid_type`.
pub(super) const GID_ROCE_V2: u32 = 2;
/// `IBV_ACCESS_LOCAL_WRITE` of `ibv_access_flags`.
pub(super) const LOCAL_WRITE: c_int = 1;
/// `IBV_QPT_UD` of `ibv_qp_type`.
pub(super) const UNRELIABLE_DATAGRAM: c_uint = 4;
/// Of `ibv_qp_attr_mask`.
pub(super) const MASK_STATE: c_int = 1;
pub(super) const MASK_PKEY_INDEX: c_int = 1 << 4;
pub(super) const MASK_PORT: c_int = 1 << 5;
pub(super) const MASK_QKEY: c_int = 1 << 6;
pub(super) const MASK_SQ_PSN: c_int = 1 << 16;
/// Of `ibv_qp_state`.
pub(super) const STATE_INIT: c_uint = 1;
pub(super) const STATE_READY_TO_RECEIVE: c_uint = 2;
pub(super) const STATE_READY_TO_SEND: c_uint = 3;
pub(super) const STATE_ERROR: c_uint = 6;
/// `IBV_WR_SEND` of `ibv_wr_opcode`.
pub(super) const SEND: c_uint = 2;
/// `IBV_SEND_SIGNALED` of `ibv_send_flags`.
pub(super) const SIGNALED: c_uint = 2;
/// Of `ibv_wc_status`.
pub(super) const COMPLETED: c_uint = 0;
pub(super) const COMPLETED_FLUSHED: c_uint = 5;
/// `IBV_WC_RECV` of `ibv_wc_opcode`.
pub(super) const COMPLETED_RECEIVE: c_uint = 1 << 7;

#[cfg(test)]
mod tests;
