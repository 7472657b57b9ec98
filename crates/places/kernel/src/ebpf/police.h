/* Shared with the agent's side, src/police.rs, which repeats it. */
#pragma once

#include <linux/bpf.h>
#include <linux/types.h>

/* Time is counted in units of 1/64 ns: at 400 Gbit/s 64 bytes take 82 of them. They last for nine years. */
#define UNITS_PER_NS 64ULL
#define UNITS_PER_S (1000000000ULL * UNITS_PER_NS)

/* The bucket of one netdev, and what it counted. */
struct policer {
	struct bpf_spin_lock lock;
	__u32 reserved;
	/* The bucket holds what the rate brings from then until now, units; in the future where it owes. */
	__u64 empty;
	/* Wire frames and bytes that passed; frames that did not, a super-frame as one, and their wire bytes. */
	__u64 frames;
	__u64 bytes;
	__u64 dropped;
	__u64 dropped_bytes;
	/* Super-frames that did not, since their headers cannot be followed. */
	__u64 unknown_headers;
};
