/* Another one's program: counts frames, and lets them go on. */
#include <linux/bpf.h>

#include <bpf/bpf_helpers.h>

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

	if (count)
		__sync_fetch_and_add(count, 1);
	return XDP_PASS;
}

char LICENSE[] SEC("license") = "GPL";
