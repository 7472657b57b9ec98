/* A token bucket that drops, and knows what a super-frame is on the wire.
 *
 *   ingress of a netdev ─▶ bytes on the wire ─▶ its bucket ─▶ passes on, or drops
 *                               └─▶ headers that cannot be followed: drops
 *
 * A frame passes when the bucket owes nothing, however large it is, and is charged then, as HTB does: over by one frame
 * at most, and exact in the long run. So 64 KiB super-frames do not starve with a small burst, nor pass for less.
 */
#include "police.h"
#include "wire.h"

#include <linux/pkt_cls.h>

/* Of the netdev that this program is loaded for: bytes per second, and how long they take for the burst, units. */
const volatile __u64 rate = 1;
const volatile __u64 burst;

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct policer);
} bucket SEC(".maps");

static __always_inline int conforms(struct policer *policer, __u64 cost, __u64 now)
{
	/* What came while the bucket was full is lost. */
	__u64 full = now > burst ? now - burst : 0;

	if (policer->empty < full)
		policer->empty = full;
	if (policer->empty > now)
		return 0;
	policer->empty += cost;
	return 1;
}

SEC("tc")
int police(struct __sk_buff *skb)
{
	__u32 only = 0;
	struct policer *policer = bpf_map_lookup_elem(&bucket, &only);

	if (!policer || !rate)
		return TC_ACT_UNSPEC;
	struct wire wire;

	if (on_wire(skb, &wire)) {
		__sync_fetch_and_add(&policer->unknown_headers, 1);
		return TC_ACT_SHOT;
	}
	__u64 cost = wire.bytes * UNITS_PER_S / rate;
	__u64 now = bpf_ktime_get_ns() * UNITS_PER_NS;
	int passes;

	bpf_spin_lock(&policer->lock);
	passes = conforms(policer, cost, now);
	if (passes) {
		policer->frames += wire.frames;
		policer->bytes += wire.bytes;
	} else {
		policer->dropped++;
		policer->dropped_bytes += wire.bytes;
	}
	bpf_spin_unlock(&policer->lock);
	/* What else is at this ingress decides on what passes. */
	return passes ? TC_ACT_UNSPEC : TC_ACT_SHOT;
}

char LICENSE[] SEC("license") = "Dual BSD/GPL";
