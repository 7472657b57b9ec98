/* What a frame is on the wire, and where its headers are.
 *
 * A super-frame is charged what its segments are together, each with its own headers. A guest made those headers, so the
 * walk over them is the kernel's own when it cuts the super-frame (inet_gso_segment, ipv6_gso_segment,
 * tcp_gso_segment and their like), and it ends in an error where the kernel's would. A super-frame that the walk cannot
 * follow has no charge: the caller drops and counts it.
 */
#pragma once

#include <linux/bpf.h>
#include <linux/if_ether.h>
#include <linux/in.h>
#include <linux/in6.h>
#include <linux/types.h>

#include <bpf/bpf_endian.h>
#include <bpf/bpf_helpers.h>

#define VLAN_HLEN 4
/* Tags in the frame. One more may be before them, which the kernel has taken out. */
#define VLANS 2
/* IPv6 extension headers in a row. The kernel follows any number. */
#define EXTENSIONS 16
#define IPV4_HLEN 20
#define IPV6_HLEN 40
#define IPV6_FRAGMENT_HLEN 8
#define TCP_HLEN 20
#define UDP_HLEN 8

/* What one super-frame may be on the wire. No driver comes near that, and its price in time would not fit 64 bits. */
#define MOST_BYTES (1ULL << 28)

/* How the kernel cuts a super-frame: `gso_type` (include/linux/skbuff.h). */
#define SKB_GSO_TCPV4 (1 << 0)
#define SKB_GSO_TCPV6 (1 << 4)
#define SKB_GSO_GRE (1 << 6)
#define SKB_GSO_GRE_CSUM (1 << 7)
#define SKB_GSO_IPXIP4 (1 << 8)
#define SKB_GSO_IPXIP6 (1 << 9)
#define SKB_GSO_UDP_TUNNEL (1 << 10)
#define SKB_GSO_UDP_TUNNEL_CSUM (1 << 11)
/* Into fragments of a datagram; into datagrams. */
#define SKB_GSO_UDP (1 << 16)
#define SKB_GSO_UDP_L4 (1 << 17)
#define TCP_SUPER_FRAME (SKB_GSO_TCPV4 | SKB_GSO_TCPV6)
#define TUNNEL                                                                                                \
	(SKB_GSO_GRE | SKB_GSO_GRE_CSUM | SKB_GSO_IPXIP4 | SKB_GSO_IPXIP6 | SKB_GSO_UDP_TUNNEL |              \
	 SKB_GSO_UDP_TUNNEL_CSUM)

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

/* How a super-frame is cut: from where on, and the header bytes of each segment. */
struct cut {
	__u32 from;
	__u32 each;
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

static __always_inline int skip_ipv4(struct __sk_buff *skb, __u32 offset, struct transport *found)
{
	__u8 first;
	__u32 length;

	if (bpf_skb_load_bytes(skb, offset, &first, 1) ||
	    bpf_skb_load_bytes(skb, offset + 9, &found->protocol, 1))
		return -1;
	length = (first & 15) * 4;
	if (length < IPV4_HLEN)
		return -1;
	found->offset = offset + length;
	return 0;
}

static __always_inline int skip_ipv6(struct __sk_buff *skb, __u32 offset, struct transport *found)
{
	__u8 extension[2];

	if (bpf_skb_load_bytes(skb, offset + 6, &found->protocol, 1))
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

/* Where the running kernel has what is read of its structures, bytes. Shared with the agent's side, src/layout.rs. */
const volatile struct {
	/* Of struct sk_buff. */
	__u64 head, end, mac_header, inner_protocol, inner_network_header;
	/* Of struct skb_shared_info. */
	__u64 gso_type;
} layout SEC(".rodata.layout");

/* A program is given less of a frame than the kernel knows; its context is the address of the kernel's structure. */
#define READ(to, structure, member)                                                                           \
	bpf_probe_read_kernel(&(to), sizeof(to), (const void *)(structure) + layout.member)

/* How the kernel will cut it; 0 of a frame that is made up to try a program. */
static __always_inline int gso_type(struct __sk_buff *skb, __u32 *type)
{
	const void *head;
	__u32 end;

	return READ(head, skb, head) || READ(end, skb, end) || READ(*type, head + end, gso_type);
}

/* To the inner IP header, where the tunnel's device has noted it: there the kernel goes on. */
static __always_inline int skip_tunnel(struct __sk_buff *skb, __u32 *offset, __be16 *type)
{
	__u16 ethernet, inner;

	if (READ(ethernet, skb, mac_header) || READ(inner, skb, inner_network_header) ||
	    READ(*type, skb, inner_protocol) || inner < ethernet + ETH_HLEN)
		return -1;
	*offset = inner - ethernet;
	/* Another Ethernet header. */
	if (*type == bpf_htons(ETH_P_TEB))
		return bpf_skb_load_bytes(skb, *offset - sizeof(*type), type, sizeof(*type));
	return 0;
}

static __always_inline int cut_of(struct __sk_buff *skb, struct cut *cut)
{
	struct transport transport = {};
	__u32 gso, offset;
	__be16 type;
	__u8 length;

	if (gso_type(skb, &gso))
		return -1;
	if (gso & TUNNEL ? skip_tunnel(skb, &offset, &type) : skip_ethernet(skb, &offset, &type))
		return -1;
	if (type == bpf_htons(ETH_P_IP) ? skip_ipv4(skb, offset, &transport) :
	    type == bpf_htons(ETH_P_IPV6) ? skip_ipv6(skb, offset, &transport) : -1)
		return -1;
	if (transport.protocol == IPPROTO_TCP && (!gso || gso & TCP_SUPER_FRAME)) {
		if (bpf_skb_load_bytes(skb, transport.offset + 12, &length, 1))
			return -1;
		cut->each = (length >> 4) * 4;
		if (cut->each < TCP_HLEN)
			return -1;
		cut->each += transport.offset;
		cut->from = cut->each;
	} else if (transport.protocol == IPPROTO_UDP && (!gso || gso & SKB_GSO_UDP_L4)) {
		cut->each = transport.offset + UDP_HLEN;
		cut->from = cut->each;
	} else if (transport.protocol == IPPROTO_UDP && gso & SKB_GSO_UDP) {
		/* The first fragment alone has the UDP header. */
		cut->from = transport.offset;
		cut->each = cut->from + (type == bpf_htons(ETH_P_IPV6) ? IPV6_FRAGMENT_HLEN : 0);
	} else {
		return -1;
	}
	return 0;
}

/* Of a super-frame whose headers cannot be followed, an error. */
static __always_inline int on_wire(struct __sk_buff *skb, struct wire *wire)
{
	__u32 size = skb->gso_size;
	struct cut cut;

	wire->frames = 1;
	wire->bytes = skb->len;
	if (size) {
		if (cut_of(skb, &cut) || skb->len <= cut.from)
			return -1;
		/* The kernel's own count of segments is 0 where a guest made the super-frame. */
		wire->frames = (skb->len - cut.from + size - 1) / size;
		wire->bytes = skb->len - cut.from + (__u64)wire->frames * cut.each;
	}
	/* A tag that the kernel has taken out of the frame is on the wire all the same. */
	if (skb->vlan_present)
		wire->bytes += (__u64)wire->frames * VLAN_HLEN;
	return wire->bytes > MOST_BYTES ? -1 : 0;
}
