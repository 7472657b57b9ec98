/* Shared with the agent's side, src/congestion.rs, which repeats it. */
#pragma once

#include <linux/bpf.h>
#include <linux/types.h>

/* What a class has to send, and what was marked. */
struct virtual_queue {
	struct bpf_spin_lock lock;
	__u32 reserved;
	/* When all of it has left, ns; in the past by the tokens that the class has. */
	__u64 empty;
	/* Wire frames. */
	__u64 marked;
};
