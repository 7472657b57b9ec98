/* Shared with the agent's side, src/meter.rs, which repeats it. */
#pragma once

#include <linux/types.h>

/* Handle of every qdisc of ours, owner::ROOT_QDISC. */
#define OURS 0x74640000

/* Log-linear: 32 buckets per power of two up to 2^35 ns, as those of the host switch. */
#define SUB_BITS 5
#define SUB (1 << SUB_BITS)
#define MAX_BITS 35
#define BUCKETS ((MAX_BITS - SUB_BITS + 1) * SUB)

/* Which queue. */
struct end {
	__u32 ifindex;
	/* 1: what the host receives from the netdev; it waits on the IFB. */
	__u32 ingress;
};

/* How long frames waited in one queue, ns. */
struct waits {
	/* Time with frames that waited for tokens. */
	__u64 throttled_ns;
	/* When the last one left. */
	__u64 left;
	__u64 max;
	__u64 sum;
	__u64 buckets[BUCKETS];
};
