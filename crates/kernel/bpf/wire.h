/* What a frame is on the wire, and where its headers are. */
#pragma once

#include <linux/bpf.h>
#include <linux/if_ether.h>
#include <linux/in.h>
#include <linux/in6.h>
#include <linux/types.h>

#include <bpf/bpf_endian.h>
#include <bpf/bpf_helpers.h>

#define VLAN_HLEN 4
#define VLANS 2
#define EXTENSIONS 4
#define IPV6_HLEN 40
#define UDP_HLEN 8

/* A super-frame is several frames, each with headers of its own. */
struct wire {
	__u32 frames;
	__u64 bytes;
};

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

/* The kernel's own count of segments is 0 where a guest made the super-frame. */
static __always_inline struct wire on_wire(struct __sk_buff *skb)
{
	struct wire wire = { .frames = 1, .bytes = skb->len };
	__u32 size = skb->gso_size;
	__u32 each = size ? headers(skb) : 0;

	if (each && skb->len > each) {
		wire.frames = (skb->len - each + size - 1) / size;
		wire.bytes += (wire.frames - 1) * each;
	}
	/* A tag that the kernel has taken out of the frame is on the wire all the same. */
	if (skb->vlan_present)
		wire.bytes += wire.frames * VLAN_HLEN;
	return wire;
}
