/* Which frames of a device go to AF_XDP sockets: those with a tag of a listed VLAN. All others pass to the kernel.
 *
 *   frame ─▶ customer tag? ─▶ `vlans`: listed? ─▶ `sockets`: the socket of its queue ─▶ switch
 *                 └─ no ──────────└─ no ─────────────└─ none ─▶ kernel
 */
#include <linux/bpf.h>
#include <linux/if_ether.h>

#include <bpf/bpf_endian.h>
#include <bpf/bpf_helpers.h>

/* Most queues of a device. */
#define QUEUES 64
#define VLANS 4096

struct tag {
	__be16 tci;
	__be16 type;
};

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, VLANS);
	__type(key, __u32);
	__type(value, __u8);
} vlans SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_XSKMAP);
	__uint(max_entries, QUEUES);
	__type(key, __u32);
	__type(value, __u32);
} sockets SEC(".maps");

SEC("xdp")
int plain_nic(struct xdp_md *frame)
{
	void *begin = (void *)(long)frame->data;
	void *end = (void *)(long)frame->data_end;
	struct ethhdr *ethernet = begin;
	struct tag *tag = (void *)(ethernet + 1);

	if ((void *)(tag + 1) > end || ethernet->h_proto != bpf_htons(ETH_P_8021Q))
		return XDP_PASS;
	__u32 vlan = bpf_ntohs(tag->tci) & (VLANS - 1);
	__u8 *listed = bpf_map_lookup_elem(&vlans, &vlan);
	if (!listed || !*listed)
		return XDP_PASS;
	return bpf_redirect_map(&sockets, frame->rx_queue_index, XDP_PASS);
}

char LICENSE[] SEC("license") = "GPL";
