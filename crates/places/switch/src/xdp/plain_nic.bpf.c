/* Which frames of a device go to AF_XDP sockets: those with a tag of a listed VLAN. All others pass to the kernel.
 *
 *   frame ─▶ customer tag? ─▶ `vlans`: listed? ─▶ `direct`: a vNIC of another worker? ─▶ that worker's socket of its queue
 *                 └─ no ──────────└─ no ─▶ kernel         └─ no, or no such socket ────▶ the owner's
 */
#include <linux/bpf.h>
#include <linux/if_ether.h>

#include <bpf/bpf_endian.h>
#include <bpf/bpf_helpers.h>

/* Most queues of a device. */
#define QUEUES 64
/* Most sockets of a queue: the first is its owner's. */
#define SOCKETS 16
#define VLANS 4096
/* Most addresses of vNICs. */
#define ADDRESSES 8192

struct tag {
	__be16 tci;
	__be16 type;
};

struct address {
	__u16 vlan;
	__u8 mac[ETH_ALEN];
};

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, VLANS);
	__type(key, __u32);
	__type(value, __u8);
} vlans SEC(".maps");

/* The place of a socket among those of a queue. */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__uint(max_entries, ADDRESSES);
	__type(key, struct address);
	__type(value, __u32);
} direct SEC(".maps");

/* By place and queue: place * QUEUES + queue. */
struct {
	__uint(type, BPF_MAP_TYPE_XSKMAP);
	__uint(max_entries, SOCKETS * QUEUES);
	__type(key, __u32);
	__type(value, __u32);
} sockets SEC(".maps");

/* Frames sent to each of them. */
struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, SOCKETS * QUEUES);
	__type(key, __u32);
	__type(value, __u64);
} frames SEC(".maps");

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
	__u32 queue = frame->rx_queue_index;
	if (queue >= QUEUES)
		return XDP_PASS;
	__u32 socket = queue;
	struct address to = { .vlan = vlan };
	__builtin_memcpy(to.mac, ethernet->h_dest, ETH_ALEN);
	__u32 *place = bpf_map_lookup_elem(&direct, &to);
	if (place && *place < SOCKETS) {
		socket = *place * QUEUES + queue;
		/* It closes with its worker's port. */
		if (!bpf_map_lookup_elem(&sockets, &socket))
			socket = queue;
	}
	int verdict = bpf_redirect_map(&sockets, socket, XDP_PASS);
	if (verdict == XDP_REDIRECT) {
		__u64 *count = bpf_map_lookup_elem(&frames, &socket);
		if (count)
			*count += 1;
	}
	return verdict;
}

char LICENSE[] SEC("license") = "GPL";
