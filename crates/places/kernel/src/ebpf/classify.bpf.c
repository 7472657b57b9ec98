/* Which class a frame goes to, by the netdev that it came in by.
 *
 *   root qdisc ─▶ `classes`: interface index ─▶ minor of its class
 *                       └─ none: the default class
 *
 * On the way, the time: in bytes that no queue below uses, and that every part of a super-frame gets which is cut there
 * (`wait.bpf.c` reads them when it leaves).
 *
 * One look-up, however many netdevs there are. The major is the filter's own class id (cls_bpf_classify,
 * net/sched/cls_bpf.c).
 *
 * On the IFB, a super-frame behind more than one VLAN tag is dropped. No device is believed to cut such a one
 * (vlan_features_check, include/linux/if_vlan.h), so the kernel does before the IFB has it. Of the segments it takes the
 * inner tags for a part of the Ethernet header (inet_gso_segment, net/ipv4/af_inet.c), and the IFB removes that much before it
 * hands them back (ifb_ri_tasklet, drivers/net/ifb.c): they would go on with other addresses than they came with.
 */
#include <linux/bpf.h>
#include <linux/if_ether.h>
#include <linux/pkt_cls.h>
#include <linux/types.h>

#include <bpf/bpf_endian.h>
#include <bpf/bpf_helpers.h>

/* Whether this is the IFB. */
const volatile __u64 is_ifb;

/* Shared with the agent's side, src/classify.rs, which repeats it. */
struct class {
	__u32 minor;
	__u32 reserved;
	/* Super-frames that were dropped. */
	__u64 double_tagged;
};

/* As many as a qdisc has minors. The agent puts a netdev in when it shapes it. */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 65535);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__type(key, __u32);
	__type(value, struct class);
} classes SEC(".maps");

/* The outer tag the kernel has taken out of the frame. */
static __always_inline int is_double_tagged(const struct __sk_buff *skb)
{
	return skb->vlan_present &&
	       (skb->protocol == bpf_htons(ETH_P_8021Q) || skb->protocol == bpf_htons(ETH_P_8021AD));
}

SEC("tc")
int classify(struct __sk_buff *skb)
{
	__u32 from = skb->ingress_ifindex;
	struct class *class = bpf_map_lookup_elem(&classes, &from);

	if (!class)
		return TC_ACT_UNSPEC;
	if (is_ifb && skb->gso_size && is_double_tagged(skb)) {
		__sync_fetch_and_add(&class->double_tagged, 1);
		return TC_ACT_SHOT;
	}
	__u64 now = bpf_ktime_get_ns();

	/* Bytes 12 to 20 of struct qdisc_skb_cb's: fq_codel has the first 8 for itself, cake the first 12. */
	skb->cb[3] = now;
	skb->cb[4] = now >> 32;
	skb->tc_classid = class->minor;
	return TC_ACT_OK;
}

char LICENSE[] SEC("license") = "Dual BSD/GPL";
