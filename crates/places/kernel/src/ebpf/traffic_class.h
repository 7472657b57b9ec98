/* The first word of an IP header: its DSCP (RFC 2474) and its two ECN bits (RFC 3168), read and changed. */
#pragma once

#include "wire.h"

/* Where the ECN bits are in the first 16 bits of a header; the DSCP is above them. IPv4 has version and header length before
 * both, IPv6 the version. */
#define ECN_SHIFT_IPV4 0
#define ECN_SHIFT_IPV6 4
/* The 16-bit word of an IPv4 header that is its checksum, and what has to be read for both. */
#define CHECKSUM 5
#define WORDS 6

/* The beginning of an IP header. */
struct ip_words {
	__u32 offset;
	__u32 is_ipv4;
	__be16 words[WORDS];
};

/* The checksum of a header in which one word changes (RFC 1624, equation 3). */
static __always_inline __be16 checksum(__be16 check, __be16 before, __be16 after)
{
	__u32 sum = (__u16)~check + (__u16)~before + after;

	sum = (sum & 0xffff) + (sum >> 16);
	return ~((sum & 0xffff) + (sum >> 16));
}

/* Behind up to VLANS tags. An error of what is not IP, or cut short. */
static __always_inline int read_ip(struct __sk_buff *skb, struct ip_words *ip)
{
	__be16 type;

	if (skip_ethernet(skb, &ip->offset, &type))
		return -1;
	ip->is_ipv4 = type == bpf_htons(ETH_P_IP);
	if (!ip->is_ipv4 && type != bpf_htons(ETH_P_IPV6))
		return -1;
	return bpf_skb_load_bytes(skb, ip->offset, ip->words, sizeof(ip->words));
}

/* Another first word; not 0 where it cannot be written. */
static __always_inline int write_first(struct __sk_buff *skb, struct ip_words *ip, __be16 after)
{
	if (!ip->is_ipv4)
		return bpf_skb_store_bytes(skb, ip->offset, &after, sizeof(after), BPF_F_RECOMPUTE_CSUM);
	ip->words[CHECKSUM] = checksum(ip->words[CHECKSUM], ip->words[0], after);
	ip->words[0] = after;
	/* The sum over the whole header is as before, and so is what a device summed up. */
	return bpf_skb_store_bytes(skb, ip->offset, ip->words, sizeof(ip->words), 0);
}
