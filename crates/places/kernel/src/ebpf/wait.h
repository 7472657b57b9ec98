/* Shared with the agent's side, src/meter.rs, which repeats it. */
#pragma once

#include "histogram.h"

/* Which queue. */
struct end {
	__u32 ifindex;
	/* 1: what the host receives from the netdev; it waits on the IFB. */
	__u32 ingress;
};

/* How it is known when a frame came to a queue. */
enum came {
	/* By its address, noted when it is enqueued. */
	CAME_ADDRESS,
	/* fq_codel, cake: by what these keep with each frame. */
	CAME_FQ_CODEL,
	CAME_CAKE,
	/* `congestion.bpf.c` has written it into the frame, as the classifier does on the IFB. */
	CAME_STAMPED,
	/* It is not: a super-frame is cut, and its parts have addresses of their own. */
	CAME_UNKNOWN,
};

/* How long frames waited in one queue, ns. */
struct waits {
	/* enum came; on the IFB the classifier has written it, whatever this says. */
	__u64 came;
	/* Time with frames that waited for tokens. */
	__u64 throttled_ns;
	/* When the last one left. */
	__u64 left;
	__u64 max;
	__u64 sum;
	__u64 buckets[BUCKETS];
};
