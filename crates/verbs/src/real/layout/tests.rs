//! Our layouts beside those that the C compiler makes of infiniband/verbs.h.

use super::*;
use std::collections::BTreeMap;
use std::fmt::Write;
use std::mem::{offset_of, size_of};
use std::path::Path;
use std::process::Command;
use tidegate_testkit::skip::need;

/// A C expression, and our number.
type Rows = Vec<(String, u64)>;

/// Adds the offset of each named field, where the header has that name. `$ty { field = c_name }`.
macro_rules! fields {
    ($rows:ident, $ty:ty, $c:literal, $($field:ident $(= $name:literal)?),+ $(,)?) => {
        $(
            let name = [$($name,)? stringify!($field)][0];
            $rows.push((format!("offsetof(struct {}, {name})", $c), offset_of!($ty, $field) as u64));
        )+
    };
}

/// Adds the size of a type.
fn size<T>(rows: &mut Rows, c: &str) {
    rows.push((format!("sizeof({c})"), size_of::<T>() as u64));
}

fn objects(rows: &mut Rows) {
    fields!(rows, Context, "ibv_context", device, ops, cmd_fd, async_fd);
    size::<ContextOps>(rows, "struct ibv_context_ops");
    fields!(rows, ContextOps, "ibv_context_ops", poll_cq, req_notify_cq, post_send, post_recv);
    fields!(rows, CompletionQueue, "ibv_cq", context);
    fields!(rows, QueuePair, "ibv_qp", context, qp_context, pd, send_cq, recv_cq, srq, handle, qp_num);
    fields!(rows, MemoryRegion, "ibv_mr", context, pd, addr, length, handle, lkey);
    size::<Channel>(rows, "struct ibv_comp_channel");
    fields!(rows, Channel, "ibv_comp_channel", context, fd, refcnt);
    size::<AsyncEvent>(rows, "struct ibv_async_event");
    fields!(rows, AsyncEvent, "ibv_async_event", element, event_type);
}

fn attributes(rows: &mut Rows) {
    size::<PortAttributes>(rows, "struct ibv_port_attr");
    fields!(
        rows,
        PortAttributes,
        "ibv_port_attr",
        state,
        max_mtu,
        active_mtu,
        gid_tbl_len,
        port_cap_flags,
        max_msg_sz,
        bad_pkey_cntr,
        qkey_viol_cntr,
        pkey_tbl_len,
        lid,
        sm_lid,
        lmc,
        max_vl_num,
        sm_sl,
        subnet_timeout,
        init_type_reply,
        active_width,
        active_speed,
        phys_state,
        link_layer,
        flags,
        port_cap_flags2,
    );
    size::<DeviceAttributes>(rows, "struct ibv_device_attr");
    fields!(
        rows,
        DeviceAttributes,
        "ibv_device_attr",
        fw_ver,
        node_guid,
        sys_image_guid,
        max_mr_size,
        page_size_cap,
        vendor_id,
        vendor_part_id,
        hw_ver,
        max_qp,
        max_qp_wr,
        device_cap_flags,
        max_sge,
        rest = "max_sge_rd",
        max_pkeys,
        local_ca_ack_delay,
        phys_port_cnt,
    );
    size::<RawGid>(rows, "union ibv_gid");
    size::<GidEntry>(rows, "struct ibv_gid_entry");
    fields!(rows, GidEntry, "ibv_gid_entry", gid, gid_index, port_num, gid_type, ndev_ifindex);
    size::<GlobalRoute>(rows, "struct ibv_global_route");
    fields!(rows, GlobalRoute, "ibv_global_route", dgid, flow_label, sgid_index, hop_limit, traffic_class);
    size::<AddressAttributes>(rows, "struct ibv_ah_attr");
    fields!(
        rows,
        AddressAttributes,
        "ibv_ah_attr",
        grh,
        dlid,
        sl,
        src_path_bits,
        static_rate,
        is_global,
        port_num
    );
    size::<Capacities>(rows, "struct ibv_qp_cap");
    fields!(
        rows,
        Capacities,
        "ibv_qp_cap",
        max_send_wr,
        max_recv_wr,
        max_send_sge,
        max_recv_sge,
        max_inline_data
    );
    size::<InitAttributes>(rows, "struct ibv_qp_init_attr");
    fields!(
        rows,
        InitAttributes,
        "ibv_qp_init_attr",
        qp_context,
        send_cq,
        recv_cq,
        srq,
        cap,
        qp_type,
        sq_sig_all
    );
    size::<PairAttributes>(rows, "struct ibv_qp_attr");
    fields!(
        rows,
        PairAttributes,
        "ibv_qp_attr",
        qp_state,
        cur_qp_state,
        path_mtu,
        path_mig_state,
        qkey,
        rq_psn,
        sq_psn,
        dest_qp_num,
        qp_access_flags,
        cap,
        ah_attr,
        alt_ah_attr,
        pkey_index,
        alt_pkey_index,
        en_sqd_async_notify,
        sq_draining,
        max_rd_atomic,
        max_dest_rd_atomic,
        min_rnr_timer,
        port_num,
        timeout,
        retry_cnt,
        rnr_retry,
        alt_port_num,
        alt_timeout,
        rate_limit,
    );
}

fn requests(rows: &mut Rows) {
    size::<Element>(rows, "struct ibv_sge");
    fields!(rows, Element, "ibv_sge", addr, length, lkey);
    size::<SendRequest>(rows, "struct ibv_send_wr");
    fields!(
        rows,
        SendRequest,
        "ibv_send_wr",
        wr_id,
        next,
        sg_list,
        num_sge,
        opcode,
        send_flags,
        imm_data,
        ah = "wr.ud.ah",
        remote_qpn = "wr.ud.remote_qpn",
        remote_qkey = "wr.ud.remote_qkey",
        qp_type,
        bind_mw_or_tso = "bind_mw",
    );
    size::<ReceiveRequest>(rows, "struct ibv_recv_wr");
    fields!(rows, ReceiveRequest, "ibv_recv_wr", wr_id, next, sg_list, num_sge);
    size::<WorkCompletion>(rows, "struct ibv_wc");
    fields!(
        rows,
        WorkCompletion,
        "ibv_wc",
        wr_id,
        status,
        opcode,
        vendor_err,
        byte_len,
        imm_data,
        qp_num,
        src_qp,
        wc_flags,
        pkey_index,
        slid,
        sl,
        dlid_path_bits,
    );
}

fn numbers(rows: &mut Rows) {
    let unsigned = [
        ("IBV_PORT_ACTIVE", PORT_ACTIVE),
        ("IBV_MTU_256", MTU_256),
        ("IBV_MTU_4096", MTU_4096),
        ("IBV_LINK_LAYER_INFINIBAND", LINK_INFINIBAND.into()),
        ("IBV_LINK_LAYER_ETHERNET", LINK_ETHERNET.into()),
        ("IBV_GID_TYPE_ROCE_V2", GID_ROCE_V2),
        ("IBV_QPT_UD", UNRELIABLE_DATAGRAM),
        ("IBV_QPS_INIT", STATE_INIT),
        ("IBV_QPS_RTR", STATE_READY_TO_RECEIVE),
        ("IBV_QPS_RTS", STATE_READY_TO_SEND),
        ("IBV_QPS_ERR", STATE_ERROR),
        ("IBV_WR_SEND", SEND),
        ("IBV_SEND_SIGNALED", SIGNALED),
        ("IBV_WC_SUCCESS", COMPLETED),
        ("IBV_WC_WR_FLUSH_ERR", COMPLETED_FLUSHED),
        ("IBV_WC_RECV", COMPLETED_RECEIVE),
        ("sizeof(struct ibv_grh)", crate::GRH as u32),
    ];
    rows.extend(unsigned.map(|(c, ours)| (c.into(), ours.into())));
    let signed = [
        ("IBV_ACCESS_LOCAL_WRITE", LOCAL_WRITE),
        ("IBV_QP_STATE", MASK_STATE),
        ("IBV_QP_PKEY_INDEX", MASK_PKEY_INDEX),
        ("IBV_QP_PORT", MASK_PORT),
        ("IBV_QP_QKEY", MASK_QKEY),
        ("IBV_QP_SQ_PSN", MASK_SQ_PSN),
    ];
    rows.extend(signed.map(|(c, ours)| (c.into(), ours as u64)));
}

/// Returns what the C compiler makes of the expressions.
fn by_the_header(rows: &Rows) -> BTreeMap<String, u64> {
    let folder = tempfile::tempdir().unwrap();
    let (source, program) = (folder.path().join("layout.c"), folder.path().join("layout"));
    let mut text = String::from("#include <infiniband/verbs.h>\n#include <stddef.h>\n#include <stdio.h>\n");
    text += "int main(void) {\n";
    for (c, _) in rows {
        writeln!(text, "    printf(\"%s\\t%lu\\n\", \"{c}\", (unsigned long)({c}));").unwrap();
    }
    std::fs::write(&source, text + "    return 0;\n}\n").unwrap();
    let built = Command::new("cc").arg("-o").args([&program, &source]).output().unwrap();
    assert!(built.status.success(), "{}", String::from_utf8_lossy(&built.stderr));
    let printed = Command::new(&program).output().unwrap();
    let lines = String::from_utf8(printed.stdout).unwrap();
    let parsed = lines.lines().map(|line| line.split_once('\t').unwrap());
    parsed.map(|(c, number)| (c.to_owned(), number.parse().unwrap())).collect()
}

#[test]
fn layouts_and_numbers_are_those_of_the_header() {
    let has_header = Path::new("/usr/include/infiniband/verbs.h").exists();
    if !need("no infiniband/verbs.h: run scripts/setup test", has_header) {
        return;
    }
    let mut rows = Rows::new();
    objects(&mut rows);
    attributes(&mut rows);
    requests(&mut rows);
    numbers(&mut rows);
    let theirs = by_the_header(&rows);
    assert_eq!(theirs.len(), rows.len(), "each expression once");
    let differ = rows.iter().filter(|(c, ours)| theirs[c] != *ours);
    let differ: Vec<_> = differ.map(|(c, ours)| format!("{c}: {ours} here, {} there", theirs[c])).collect();
    assert!(differ.is_empty(), "{differ:#?}");
}
