/* Which class a frame goes to, by the netdev that it came in by.
 *
 *   root qdisc ─▶ `classes`: interface index ─▶ minor of its class
 *                       └─ none: the default class
 *
 * One look-up, however many netdevs there are. The major is the filter's own class id (cls_bpf_classify,
 * net/sched/cls_bpf.c).
 */
#include <linux/bpf.h>
#include <linux/pkt_cls.h>
#include <linux/types.h>

#include <bpf/bpf_helpers.h>

/* As many as a qdisc has minors. Who shapes a netdev puts it in. */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 65535);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__type(key, __u32);
	__type(value, __u32);
} classes SEC(".maps");

SEC("tc")
int classify(struct __sk_buff *skb)
{
	__u32 from = skb->ingress_ifindex;
	__u32 *minor = bpf_map_lookup_elem(&classes, &from);

	if (!minor)
		return TC_ACT_UNSPEC;
	skb->tc_classid = *minor;
	return TC_ACT_OK;
}

char LICENSE[] SEC("license") = "Dual BSD/GPL";
