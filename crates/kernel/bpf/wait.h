/* Shared with the agent's side, src/meter.rs, which repeats it. */
#pragma once

#include "histogram.h"

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
