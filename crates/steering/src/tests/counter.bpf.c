/* Another one's program: counts the tests' frames, and lets all go on. */
#include <linux/bpf.h>

#include <bpf/bpf_helpers.h>

/* Of a datagram of 100 bytes in VXLAN, both on IPv4: the hosts' own frames, such as ARP, are shorter. */
#define LENGTH (14 + 20 + 8 + 8 + 14 + 20 + 8 + 100)

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, __u64);
} seen SEC(".maps");

SEC("xdp")
int counter(struct xdp_md *frame)
{
	__u32 only = 0;
	__u64 *count = bpf_map_lookup_elem(&seen, &only);

	if (count && frame->data_end - frame->data == LENGTH)
		__sync_fetch_and_add(count, 1);
	return XDP_PASS;
}

char LICENSE[] SEC("license") = "GPL";
