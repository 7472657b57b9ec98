/* The flow of a frame: from its headers, and from those within a tunnel.
 *
 *   Ethernet ─▶ VLAN tags ─▶ IP ─▶ ports
 *                             ├─▶ UDP: VXLAN, Geneve ─▶ Ethernet ─▶ VLAN tags ─▶ IP ─▶ ports
 *                             ├─▶ GRE ─────────────────┴────────────────────────┘
 *                             └─▶ ESP: its SPI
 *
 * A tunnel within a tunnel is a flow of the first one. src/model.rs is the same in Rust, for tests.
 */
#pragma once

#include "flow.h"

#include <linux/if_ether.h>
#include <linux/in.h>
#include <linux/in6.h>
#include <linux/ip.h>
#include <linux/ipv6.h>
#include <linux/udp.h>

#include <bpf/bpf_endian.h>
#include <bpf/bpf_helpers.h>

/* Most VLAN tags. */
#define TAGS 2
#define VLAN_ID 0x0fff
/* Most IPv6 extension headers in a row. */
#define EXTENSIONS 4
/* More fragments follow, or the offset is not 0 (RFC 791). */
#define IPV4_FRAGMENT 0x3fff
#define IPPROTO_DCCP_ 33
#define IPPROTO_SCTP_ 132
#define IPPROTO_UDPLITE_ 136

/* RFC 7348: the number is valid. And the bit of VXLAN-GPE (draft-ietf-nvo3-vxlan-gpe): no Ethernet within. */
#define VXLAN_ID 0x08
#define VXLAN_OTHER_PROTOCOL 0x04
/* RFC 8926: version, option length in words; control, not data. */
#define GENEVE_PORT 6081
#define GENEVE_VERSION 0xc0
#define GENEVE_OPTIONS 0x3f
#define GENEVE_CONTROL 0x80
/* RFC 2784, 2890, and of RFC 1701 the bit of a routing header. */
#define GRE_CHECKSUM 0x8000
#define GRE_ROUTING 0x4000
#define GRE_KEY 0x2000
#define GRE_SEQUENCE 0x1000
#define GRE_VERSION 0x0007

/* What of the frame is left. */
struct rest {
	void *at;
	void *end;
};

/* The next bytes, or none if the frame ends before. */
#define TAKE(rest, size)                                                                                       \
	({                                                                                                    \
		void *taken = (rest)->at;                                                                     \
		(rest)->at += (size);                                                                         \
		(rest)->at > (rest)->end ? (void *)0 : taken;                                                 \
	})

struct tag {
	__be16 tci;
	__be16 type;
};

/* `vlan` is the first tag's. */
static __always_inline int take_ethernet(struct rest *rest, struct flow *flow, __u16 *vlan, __be16 *type)
{
	struct ethhdr *ethernet = TAKE(rest, sizeof(*ethernet));

	if (!ethernet)
		return TRUNCATED;
	__builtin_memcpy(flow->mac, ethernet->h_dest, sizeof(flow->mac));
	*type = ethernet->h_proto;
#pragma unroll
	for (int i = 0; i < TAGS; i++) {
		if (*type != bpf_htons(ETH_P_8021Q) && *type != bpf_htons(ETH_P_8021AD))
			break;
		struct tag *tag = TAKE(rest, sizeof(*tag));
		if (!tag)
			return TRUNCATED;
		if (i == 0)
			*vlan = bpf_ntohs(tag->tci) & VLAN_ID;
		*type = tag->type;
	}
	return MATCHED;
}

static __always_inline int take_ipv4(struct rest *rest, struct flow *flow)
{
	struct iphdr *ip = TAKE(rest, sizeof(*ip));

	if (!ip)
		return TRUNCATED;
	if (ip->version != 4 || ip->ihl < 5)
		return UNKNOWN;
	if (!TAKE(rest, (ip->ihl - 5) * 4))
		return TRUNCATED;
	if (ip->frag_off & bpf_htons(IPV4_FRAGMENT))
		return FRAGMENT;
	__builtin_memset(flow->from, 0, sizeof(flow->from));
	__builtin_memset(flow->to, 0, sizeof(flow->to));
	__builtin_memcpy(flow->from, &ip->saddr, sizeof(ip->saddr));
	__builtin_memcpy(flow->to, &ip->daddr, sizeof(ip->daddr));
	flow->family = 4;
	flow->protocol = ip->protocol;
	return MATCHED;
}

static __always_inline int take_ipv6(struct rest *rest, struct flow *flow)
{
	struct ipv6hdr *ip = TAKE(rest, sizeof(*ip));

	if (!ip)
		return TRUNCATED;
	if (ip->version != 6)
		return UNKNOWN;
	__builtin_memcpy(flow->from, &ip->saddr, sizeof(flow->from));
	__builtin_memcpy(flow->to, &ip->daddr, sizeof(flow->to));
	flow->family = 6;
	flow->protocol = ip->nexthdr;
	for (int i = 0; i <= EXTENSIONS; i++) {
		if (flow->protocol == IPPROTO_FRAGMENT)
			return FRAGMENT;
		if (flow->protocol != IPPROTO_HOPOPTS && flow->protocol != IPPROTO_ROUTING &&
		    flow->protocol != IPPROTO_DSTOPTS)
			return MATCHED;
		__u8 *extension = TAKE(rest, 8);
		if (!extension)
			return TRUNCATED;
		flow->protocol = extension[0];
		if (!TAKE(rest, extension[1] * 8))
			return TRUNCATED;
	}
	return UNKNOWN;
}

static __always_inline int take_ip(struct rest *rest, struct flow *flow, __be16 type)
{
	if (type == bpf_htons(ETH_P_IP))
		return take_ipv4(rest, flow);
	if (type == bpf_htons(ETH_P_IPV6))
		return take_ipv6(rest, flow);
	return UNKNOWN;
}

/* Protocols with ports have them in the same place. */
static __always_inline int take_ports(struct rest *rest, struct flow *flow)
{
	__u8 protocol = flow->protocol;

	if (protocol != IPPROTO_TCP && protocol != IPPROTO_UDP && protocol != IPPROTO_SCTP_ &&
	    protocol != IPPROTO_DCCP_ && protocol != IPPROTO_UDPLITE_)
		return MATCHED;
	__be16 *ports = TAKE(rest, 4);
	if (!ports)
		return TRUNCATED;
	flow->from_port = bpf_ntohs(ports[0]);
	flow->to_port = bpf_ntohs(ports[1]);
	return MATCHED;
}

static __always_inline int take_vxlan(struct rest *rest, struct flow *flow, __be16 *type)
{
	__u8 *header = TAKE(rest, 8);

	if (!header)
		return TRUNCATED;
	if ((header[0] & (VXLAN_ID | VXLAN_OTHER_PROTOCOL)) != VXLAN_ID)
		return UNKNOWN;
	flow->id = (__u32)header[4] << 16 | (__u32)header[5] << 8 | header[6];
	*type = bpf_htons(ETH_P_TEB);
	return MATCHED;
}

static __always_inline int take_geneve(struct rest *rest, struct flow *flow, __be16 *type)
{
	__u8 *header = TAKE(rest, 8);

	if (!header)
		return TRUNCATED;
	if (header[0] & GENEVE_VERSION || header[1] & GENEVE_CONTROL)
		return UNKNOWN;
	if (!TAKE(rest, (header[0] & GENEVE_OPTIONS) * 4))
		return TRUNCATED;
	*type = *(__be16 *)(header + 2);
	flow->id = (__u32)header[4] << 16 | (__u32)header[5] << 8 | header[6];
	return MATCHED;
}

static __always_inline int take_gre(struct rest *rest, struct flow *flow, __be16 *type)
{
	__be16 *header = TAKE(rest, 4);

	if (!header)
		return TRUNCATED;
	__u16 flags = bpf_ntohs(header[0]);
	if (flags & (GRE_ROUTING | GRE_VERSION))
		return UNKNOWN;
	*type = header[1];
	if (flags & GRE_CHECKSUM && !TAKE(rest, 4))
		return TRUNCATED;
	if (flags & GRE_KEY) {
		__be32 *key = TAKE(rest, 4);
		if (!key)
			return TRUNCATED;
		flow->id = bpf_ntohl(*key);
	}
	if (flags & GRE_SEQUENCE && !TAKE(rest, 4))
		return TRUNCATED;
	return MATCHED;
}

/* Of a tunnel's header: which one, its number, and the type of what follows. TUNNEL_NONE stays where there is none. */
static __always_inline int take_tunnel(struct rest *rest, struct flow *flow, __u16 vxlan_port, __be16 *type)
{
	if (flow->protocol == IPPROTO_GRE) {
		flow->tunnel = TUNNEL_GRE;
		return take_gre(rest, flow, type);
	}
	if (flow->protocol != IPPROTO_UDP)
		return MATCHED;
	/* A tunnel's header follows all of the UDP header. */
	struct rest inner = *rest;
	struct udphdr *udp = TAKE(&inner, sizeof(*udp));
	__be16 *ports = TAKE(rest, 4);
	if (!ports)
		return TRUNCATED;
	*rest = inner;
	flow->from_port = bpf_ntohs(ports[0]);
	flow->to_port = bpf_ntohs(ports[1]);
	if (flow->to_port != vxlan_port && flow->to_port != GENEVE_PORT)
		return MATCHED;
	if (!udp)
		return TRUNCATED;
	flow->tunnel = flow->to_port == vxlan_port ? TUNNEL_VXLAN : TUNNEL_GENEVE;
	if (flow->tunnel == TUNNEL_VXLAN)
		return take_vxlan(rest, flow, type);
	return take_geneve(rest, flow, type);
}

/* MATCHED, or why the frame has no flow. */
static __always_inline int parse(struct xdp_md *frame, __u16 vxlan_port, union key *key)
{
	struct rest rest = { (void *)(long)frame->data, (void *)(long)frame->data_end };
	struct flow *flow = &key->flow;
	__u16 inner_vlan;
	__be16 type;
	int outcome;

	__builtin_memset(key, 0, sizeof(*key));
	outcome = take_ethernet(&rest, flow, &flow->vlan, &type);
	if (outcome)
		return outcome;
	outcome = take_ip(&rest, flow, type);
	if (outcome)
		return outcome;
	if (flow->protocol == IPPROTO_ESP) {
		__be32 *index = TAKE(&rest, 4);
		if (!index)
			return TRUNCATED;
		flow->tunnel = TUNNEL_ESP;
		flow->id = bpf_ntohl(*index);
		return MATCHED;
	}
	outcome = take_tunnel(&rest, flow, vxlan_port, &type);
	if (outcome)
		return outcome;
	if (flow->tunnel == TUNNEL_NONE)
		return flow->protocol == IPPROTO_UDP ? MATCHED : take_ports(&rest, flow);
	flow->from_port = 0;
	flow->to_port = 0;
	__builtin_memset(flow->mac, 0, sizeof(flow->mac));
	if (type == bpf_htons(ETH_P_TEB)) {
		outcome = take_ethernet(&rest, flow, &inner_vlan, &type);
		if (outcome)
			return outcome;
	}
	outcome = take_ip(&rest, flow, type);
	if (outcome)
		return outcome;
	return take_ports(&rest, flow);
}
