/* A token bucket that drops, and knows what a super-frame is on the wire.
 *
 *   ingress of a netdev ─▶ its bucket ─▶ passes on, or drops
 *
 * A frame passes when the bucket owes nothing, however large it is, and is charged then, as HTB does: over by one frame
 * at most, and exact in the long run. So 64 KiB super-frames do not starve with a small burst, nor pass for less.
 */
#include "police.h"

#include <linux/if_ether.h>
#include <linux/in.h>
#include <linux/in6.h>
#include <linux/pkt_cls.h>

#include <bpf/bpf_endian.h>
#include <bpf/bpf_helpers.h>

#define VLAN_HLEN 4
#define VLANS 2
#define EXTENSIONS 4
#define IPV6_HLEN 40
#define UDP_HLEN 8

/* Of the netdev that this program is loaded for: bytes per second, and how long they take for the burst, units. */
const volatile __u64 rate = 1;
const volatile __u64 burst;

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct policer);
} bucket SEC(".maps");

/* Of the frame that is looked at: where its transport header starts, and of which protocol that is. */
struct transport {
	__u32 offset;
	__u8 protocol;
};

static __always_inline int skip_ethernet(struct __sk_buff *skb, __u32 *offset, __be16 *type)
{
	*offset = ETH_HLEN;
	if (bpf_skb_load_bytes(skb, 12, type, sizeof(*type)))
		return -1;
	for (int i = 0; i < VLANS; i++) {
		if (*type != bpf_htons(ETH_P_8021Q) && *type != bpf_htons(ETH_P_8021AD))
			break;
		if (bpf_skb_load_bytes(skb, *offset + 2, type, sizeof(*type)))
			return -1;
		*offset += VLAN_HLEN;
	}
	return 0;
}

static __always_inline int skip_ip(struct __sk_buff *skb, __u32 offset, __be16 type, struct transport *found)
{
	__u8 first, extension[2];

	if (type == bpf_htons(ETH_P_IP)) {
		if (bpf_skb_load_bytes(skb, offset, &first, 1) ||
		    bpf_skb_load_bytes(skb, offset + 9, &found->protocol, 1))
			return -1;
		found->offset = offset + (first & 15) * 4;
		return 0;
	}
	if (type != bpf_htons(ETH_P_IPV6) || bpf_skb_load_bytes(skb, offset + 6, &found->protocol, 1))
		return -1;
	found->offset = offset + IPV6_HLEN;
	for (int i = 0; i < EXTENSIONS; i++) {
		if (found->protocol != IPPROTO_HOPOPTS && found->protocol != IPPROTO_ROUTING &&
		    found->protocol != IPPROTO_DSTOPTS)
			break;
		if (bpf_skb_load_bytes(skb, found->offset, extension, sizeof(extension)))
			return -1;
		found->protocol = extension[0];
		found->offset += (extension[1] + 1) * 8;
	}
	return 0;
}

/* Length of the headers that each segment of a super-frame has; 0 where they cannot be told. */
static __always_inline __u32 headers(struct __sk_buff *skb)
{
	struct transport transport = {};
	__u32 offset;
	__be16 type;
	__u8 length;

	if (skip_ethernet(skb, &offset, &type) || skip_ip(skb, offset, type, &transport))
		return 0;
	if (transport.protocol == IPPROTO_UDP)
		return transport.offset + UDP_HLEN;
	if (transport.protocol != IPPROTO_TCP || bpf_skb_load_bytes(skb, transport.offset + 12, &length, 1))
		return 0;
	return transport.offset + (length >> 4) * 4;
}

/* Frames on the wire. The kernel's own count is 0 where a guest made the super-frame. */
static __always_inline __u32 segments(struct __sk_buff *skb, __u32 headers)
{
	__u32 size = skb->gso_size;

	if (!size || !headers || skb->len <= headers)
		return 1;
	return (skb->len - headers + size - 1) / size;
}

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
	__u32 each = headers(skb);
	__u32 frames = segments(skb, each);
	/* A tag that the kernel has taken out of the frame is on the wire all the same. */
	__u64 bytes = skb->len + (frames - 1) * each + (skb->vlan_present ? frames * VLAN_HLEN : 0);
	__u64 cost = bytes * UNITS_PER_S / rate;
	__u64 now = bpf_ktime_get_ns() * UNITS_PER_NS;
	int passes;

	bpf_spin_lock(&policer->lock);
	passes = conforms(policer, cost, now);
	if (passes) {
		policer->frames += frames;
		policer->bytes += bytes;
	} else {
		policer->dropped++;
		policer->dropped_bytes += bytes;
	}
	bpf_spin_unlock(&policer->lock);
	/* What else is at this ingress decides on what passes. */
	return passes ? TC_ACT_UNSPEC : TC_ACT_SHOT;
}

char LICENSE[] SEC("license") = "Dual BSD/GPL";
