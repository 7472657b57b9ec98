/* Received frames of a NIC to CPUs and sockets by flow.
 *
 *   frame ─▶ parse.h: its flow ─▶ decide.h: exact entries ─▶ masks in order ─▶ by its hash
 *                └─ none              │ entry's target                           │
 *                     │               ├─▶ CPU: `cpus`, its thread runs the stack ◀┘
 *                     ▼               └─▶ socket of the frame's queue
 *             kernel, on this CPU
 */
#include "decide.h"

/* The name is how the loader knows it again. */
SEC("xdp.frags")
int tidegate_steer(struct xdp_md *frame)
{
	return decide(frame);
}

char LICENSE[] SEC("license") = "GPL";
