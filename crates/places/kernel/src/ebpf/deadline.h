/* Shared with the agent's side, src/deadline.rs, which repeats it. */
#pragma once

#include "histogram.h"

/* A vNIC with a deadline, and one that it holds towards: interface indices. */
struct promise {
	__u32 from;
	__u32 to;
};

/* What a frame that was late had waited for. */
enum part {
	/* Between the two queues: bridging, routing, the processor. */
	HOST,
	/* Behind others, in the queue of the receiver's netdev. */
	QUEUE,
	/* The receiver, to take it. */
	RECEIVER,
	PARTS,
};

/* Why a frame never arrived. */
enum loss {
	/* For a reason that has no name of its own here. */
	OTHER,
	/* More waits in the queue of the receiver's netdev than may. */
	QUEUE_FULL,
	/* The receiver has taken nothing for as long as its ring had room. */
	RING_FULL,
	LOSSES,
};

/* Misses that are remembered of each kind, the last of them. */
#define REMEMBERED 8

/* One miss. Times are ns. */
struct miss {
	/* CLOCK_MONOTONIC; 0 where there is none. */
	__u64 at;
	__u64 parts[PARTS];
	/* Of one that was dropped. */
	__u64 loss;
};

/* What became of the frames under one promise. Each processor has its own, so each value has one writer at a time: `late`,
 * `delivered` and the histogram the program that sees frames arrive, `lost` and `dropped` the one that sees them dropped. */
struct delays {
	/* ns; what is later is a miss. */
	__u64 deadline;
	__u64 max;
	__u64 sum;
	/* Misses by what they waited for longest. */
	__u64 late[PARTS];
	__u64 lost[LOSSES];
	/* Of each kind, the number of misses modulo REMEMBERED is the place of the next. */
	struct miss delivered[REMEMBERED];
	struct miss dropped[REMEMBERED];
	__u64 buckets[BUCKETS];
};
