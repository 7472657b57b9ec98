/* Priority marks in the IP header (DSCP, RFC 2474) of what a netdev brings in.
 *
 *   ingress of a netdev ─▶ of a real-time vNIC: EF set; what is larger than its envelope's burst, or may be, is dropped
 *                       └▶ of another one: real-time marks cleared, others left
 *
 * The two ECN bits beside them are the endpoints'.
 */
#include "traffic_class.h"

#include <linux/pkt_cls.h>

#define DSCP_EF 46
/* Voice with admission (RFC 5865), class selectors 6 and 7: what a network takes for real-time traffic beside EF. */
#define DSCP_VOICE_ADMIT 44
#define DSCP_CS6 48
#define DSCP_CS7 56
#define REALTIME (1ULL << DSCP_EF | 1ULL << DSCP_VOICE_ADMIT | 1ULL << DSCP_CS6 | 1ULL << DSCP_CS7)

/* Where the mark is in the first 16 bits of a header. */
#define SHIFT_IPV4 (ECN_SHIFT_IPV4 + 2)
#define SHIFT_IPV6 (ECN_SHIFT_IPV6 + 2)

/* Of the netdev that this program is loaded for: the most wire bytes of one frame of a real-time vNIC; 0 of another vNIC. */
const volatile __u64 burst;

/* Frames that were dropped. Shared with the agent's side, src/mark.rs, which repeats it. */
struct dropped {
	/* They were larger. */
	__u64 over_burst;
	/* Super-frames whose headers cannot be followed, and so may have been larger. */
	__u64 unknown_headers;
};

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct dropped);
} dropped SEC(".maps");

/* 0 of what has no mark. */
static __always_inline __u32 shift_of(__be16 type)
{
	return type == bpf_htons(ETH_P_IP) ? SHIFT_IPV4 : type == bpf_htons(ETH_P_IPV6) ? SHIFT_IPV6 : 0;
}

/* The first word of a header, with the mark that it should have. */
static __always_inline __be16 marked(__be16 word, __u32 shift)
{
	__u16 before = bpf_ntohs(word);
	__u16 mark = before >> shift & 63;
	__u16 wanted = burst ? DSCP_EF : REALTIME >> mark & 1 ? 0 : mark;

	return bpf_htons((before & ~(63 << shift)) | wanted << shift);
}

/* Most frames are as they should be, which is seen here without a call. */
static __always_inline int is_right(struct __sk_buff *skb)
{
	__be16 *words = (void *)(long)skb->data;

	if ((void *)(words + 8) > (void *)(long)skb->data_end)
		return 0;
	__u32 shift = shift_of(words[6]);

	return shift && marked(words[7], shift) == words[7];
}

static __always_inline void set_mark(struct __sk_buff *skb)
{
	struct ip_words ip;

	if (is_right(skb) || read_ip(skb, &ip))
		return;
	__be16 after = marked(ip.words[0], ip.is_ipv4 ? SHIFT_IPV4 : SHIFT_IPV6);

	if (after != ip.words[0])
		write_first(skb, &ip, after);
}

/* Whether a frame of a real-time vNIC is within its envelope; one that is not is counted. */
static __always_inline int fits(struct __sk_buff *skb)
{
	__u32 only = 0;
	struct dropped *count = bpf_map_lookup_elem(&dropped, &only);
	struct wire wire;
	int unknown = on_wire(skb, &wire);

	if (!unknown && wire.bytes <= burst)
		return 1;
	if (count)
		__sync_fetch_and_add(unknown ? &count->unknown_headers : &count->over_burst, 1);
	return 0;
}

SEC("tc")
int mark(struct __sk_buff *skb)
{
	if (burst && !fits(skb))
		return TC_ACT_SHOT;
	set_mark(skb);
	/* What else is at this ingress decides. */
	return TC_ACT_UNSPEC;
}

char LICENSE[] SEC("license") = "Dual BSD/GPL";
