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

/* Beyond where headers can end, bytes. The kernel checks that a program adds no larger numbers to an address. */
#define MOST 0x7fff

/* How far a frame is parsed. */
struct step {
	/* Bytes before the next header, and the type of that. */
	__u32 at;
	__be16 type;
	/* The first tag's, if there is one. */
	__u16 vlan;
};

struct tag {
	__be16 tci;
	__be16 type;
};

/* Outer addresses of VXLAN, from and to, as `struct flow` begins with them. */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__uint(max_entries, PEERS);
	__uint(key_size, sizeof(((struct flow *)0)->from) + sizeof(((struct flow *)0)->to));
	__uint(value_size, sizeof(__u32));
} peers SEC(".maps");

/* The next bytes, or none if the frame ends before. */
static __always_inline void *take(struct xdp_md *frame, struct step *step, __u32 size)
{
	void *begin = (void *)(long)frame->data;
	void *end = (void *)(long)frame->data_end;
	__u32 at = step->at;

	begin += at & MOST;
	if (begin + size > end)
		return 0;
	step->at = at + size;
	return begin;
}

static __always_inline int take_ethernet(struct xdp_md *frame, struct step *step, union key *key)
{
	struct ethhdr *ethernet;

	ethernet = take(frame, step, sizeof(*ethernet));
	if (!ethernet)
		return TRUNCATED;
	__builtin_memcpy(key->flow.mac, ethernet->h_dest, sizeof(key->flow.mac));
	step->type = ethernet->h_proto;
	step->vlan = 0;
	for (int i = 0; i < TAGS; i++) {
		if (step->type != bpf_htons(ETH_P_8021Q) && step->type != bpf_htons(ETH_P_8021AD))
			break;
		struct tag *tag = take(frame, step, sizeof(*tag));
		if (!tag)
			return TRUNCATED;
		if (i == 0)
			step->vlan = bpf_ntohs(tag->tci) & VLAN_ID;
		step->type = tag->type;
	}
	return MATCHED;
}

static __always_inline int take_ipv4(struct xdp_md *frame, struct step *step, struct flow *flow)
{
	struct iphdr *ip = take(frame, step, sizeof(*ip));

	if (!ip)
		return TRUNCATED;
	if (ip->version != 4 || ip->ihl < 5)
		return UNKNOWN;
	if (!take(frame, step, (ip->ihl - 5) * 4))
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

static __always_inline int take_ipv6(struct xdp_md *frame, struct step *step, struct flow *flow)
{
	struct ipv6hdr *ip = take(frame, step, sizeof(*ip));

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
		__u8 *extension = take(frame, step, 8);
		if (!extension)
			return TRUNCATED;
		flow->protocol = extension[0];
		if (!take(frame, step, extension[1] * 8))
			return TRUNCATED;
	}
	return UNKNOWN;
}

/* Not static: the kernel checks it once, and not again for each way to it, which would take it 1.5 s. */
__attribute__((noinline)) int take_ip(struct xdp_md *frame, struct step *step, union key *key)
{
	if (!step || !key)
		return UNKNOWN;
	if (step->type == bpf_htons(ETH_P_IP))
		return take_ipv4(frame, step, &key->flow);
	if (step->type == bpf_htons(ETH_P_IPV6))
		return take_ipv6(frame, step, &key->flow);
	return UNKNOWN;
}

/* Protocols with ports have them in the same place. */
static __always_inline int take_ports(struct xdp_md *frame, struct step *step, struct flow *flow)
{
	__u8 protocol = flow->protocol;

	if (protocol != IPPROTO_TCP && protocol != IPPROTO_UDP && protocol != IPPROTO_SCTP_ &&
	    protocol != IPPROTO_DCCP_ && protocol != IPPROTO_UDPLITE_)
		return MATCHED;
	__be16 *ports = take(frame, step, 4);
	if (!ports)
		return TRUNCATED;
	flow->from_port = bpf_ntohs(ports[0]);
	flow->to_port = bpf_ntohs(ports[1]);
	return MATCHED;
}

static __always_inline int take_vxlan(struct xdp_md *frame, struct step *step, struct flow *flow)
{
	__u8 *header = take(frame, step, 8);

	if (!header)
		return TRUNCATED;
	if ((header[0] & (VXLAN_ID | VXLAN_OTHER_PROTOCOL)) != VXLAN_ID)
		return UNKNOWN;
	flow->id = (__u32)header[4] << 16 | (__u32)header[5] << 8 | header[6];
	step->type = bpf_htons(ETH_P_TEB);
	return MATCHED;
}

static __always_inline int take_geneve(struct xdp_md *frame, struct step *step, struct flow *flow)
{
	__u8 *header = take(frame, step, 8);

	if (!header)
		return TRUNCATED;
	if (header[0] & GENEVE_VERSION || header[1] & GENEVE_CONTROL)
		return UNKNOWN;
	step->type = *(__be16 *)(header + 2);
	flow->id = (__u32)header[4] << 16 | (__u32)header[5] << 8 | header[6];
	if (!take(frame, step, (header[0] & GENEVE_OPTIONS) * 4))
		return TRUNCATED;
	return MATCHED;
}

static __always_inline int take_gre(struct xdp_md *frame, struct step *step, struct flow *flow)
{
	__be16 *header = take(frame, step, 4);

	if (!header)
		return TRUNCATED;
	__u16 flags = bpf_ntohs(header[0]);
	if (flags & (GRE_ROUTING | GRE_VERSION))
		return UNKNOWN;
	step->type = header[1];
	if (flags & GRE_CHECKSUM && !take(frame, step, 4))
		return TRUNCATED;
	if (flags & GRE_KEY) {
		__be32 *key = take(frame, step, 4);
		if (!key)
			return TRUNCATED;
		flow->id = bpf_ntohl(*key);
	}
	if (flags & GRE_SEQUENCE && !take(frame, step, 4))
		return TRUNCATED;
	return MATCHED;
}

/* What follows the IP header: a tunnel's header, with the type of what is in it, or ports. */
static __always_inline int take_tunnel(struct xdp_md *frame, struct step *step, union key *key, __u32 vxlan_port,
				       __u32 has_peers)
{
	struct flow *flow;
	int outcome;

	flow = &key->flow;
	if (flow->protocol == IPPROTO_ESP) {
		__be32 *index = take(frame, step, 4);
		if (!index)
			return TRUNCATED;
		flow->tunnel = TUNNEL_ESP;
		flow->id = bpf_ntohl(*index);
		return MATCHED;
	}
	if (flow->protocol == IPPROTO_GRE) {
		flow->tunnel = TUNNEL_GRE;
		return take_gre(frame, step, flow);
	}
	outcome = take_ports(frame, step, flow);
	if (outcome || flow->protocol != IPPROTO_UDP ||
	    (flow->to_port != vxlan_port && flow->to_port != GENEVE_PORT))
		return outcome;
	/* Length and checksum. */
	if (!take(frame, step, 4))
		return TRUNCATED;
	flow->tunnel = flow->to_port == vxlan_port ? TUNNEL_VXLAN : TUNNEL_GENEVE;
	if (has_peers && flow->tunnel == TUNNEL_VXLAN)
		flow->peer = bpf_map_lookup_elem(&peers, flow) ? 1 : 0;
	return flow->tunnel == TUNNEL_VXLAN ? take_vxlan(frame, step, flow) : take_geneve(frame, step, flow);
}

/* MATCHED, or why the frame has no flow. */
static __always_inline int parse(struct xdp_md *frame, __u16 vxlan_port, __u32 has_peers, union key *key)
{
	struct flow *flow = &key->flow;
	struct step step = {};
	int outcome;

	__builtin_memset(key, 0, sizeof(*key));
	outcome = take_ethernet(frame, &step, key);
	if (outcome)
		return outcome;
	flow->vlan = step.vlan;
	outcome = take_ip(frame, &step, key);
	if (outcome)
		return outcome;
	outcome = take_tunnel(frame, &step, key, vxlan_port, has_peers);
	if (outcome || flow->tunnel == TUNNEL_NONE || flow->tunnel == TUNNEL_ESP)
		return outcome;
	flow->from_port = 0;
	flow->to_port = 0;
	__builtin_memset(flow->mac, 0, sizeof(flow->mac));
	if (step.type == bpf_htons(ETH_P_TEB)) {
		outcome = take_ethernet(frame, &step, key);
		if (outcome)
			return outcome;
	}
	outcome = take_ip(frame, &step, key);
	if (outcome)
		return outcome;
	return take_ports(frame, &step, flow);
}
