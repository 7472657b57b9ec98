/* The parts of steer.bpf.c by themselves, for tests and measurements. At no device: a test run of the kernel calls them. */
#include "decide.h"

struct parsed {
	union key key;
	__u32 outcome;
	__u32 place;
};

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct parsed);
} last SEC(".maps");

/* Shared with src/probe.rs. */
const volatile struct {
	__u64 seed;
	__u32 vxlan_port;
	/* How many different flows a measurement has. */
	__u32 flows;
} asked;

/* Where a measurement's frame has the first address's four bytes. */
#define ADDRESS (ETH_HLEN + 20 + 8 + 8 + ETH_HLEN + 12)

/* Notes the flow. */
SEC("xdp.frags")
int only_parse(struct xdp_md *frame)
{
	__u32 only = 0;
	struct parsed *parsed = bpf_map_lookup_elem(&last, &only);
	union key key;

	if (!parsed)
		return XDP_ABORTED;
	parsed->outcome = parse(frame, asked.vxlan_port, 1, &key);
	parsed->key = key;
	parsed->place = place_of(&key, asked.seed);
	return XDP_PASS;
}

SEC("xdp.frags")
int only_decide(struct xdp_md *frame)
{
	return decide(frame);
}

/* Makes it a frame of any one of the flows: IPv4 in VXLAN on IPv4, all without options. */
static __always_inline int choose(struct xdp_md *frame)
{
	__u32 flows = asked.flows ? asked.flows : 1;
	void *address = (void *)(long)frame->data + ADDRESS;

	if (address + 4 > (void *)(long)frame->data_end)
		return -1;
	*(__u32 *)address = bpf_htonl(bpf_get_prandom_u32() % flows);
	return 0;
}

SEC("xdp.frags")
int measure_empty(struct xdp_md *frame)
{
	return choose(frame) ? XDP_ABORTED : XDP_PASS;
}

SEC("xdp.frags")
int measure_parse(struct xdp_md *frame)
{
	union key key;

	if (choose(frame) || parse(frame, asked.vxlan_port, 0, &key))
		return XDP_ABORTED;
	/* So that the compiler leaves nothing out: the flow is not all zero. */
	__u64 all = 0;
#pragma unroll
	for (int word = 0; word < KEY_WORDS; word++)
		all |= key.words[word];
	return all ? XDP_PASS : XDP_ABORTED;
}

SEC("xdp.frags")
int measure_whole(struct xdp_md *frame)
{
	return choose(frame) ? XDP_ABORTED : decide(frame);
}

char LICENSE[] SEC("license") = "GPL";
