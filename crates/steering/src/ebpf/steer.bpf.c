/* Received frames of a NIC to CPUs by flow.
 *
 *   frame ─▶ parse.h: its flow ─▶ decide.h: exact entries ─▶ masks in order ─▶ by its hash
 *                └─ none              │ entry's CPU                              │
 *                     │               └─▶ `cpus`: its thread runs the stack ◀─────┘
 *                     ▼
 *             kernel, on this CPU
 */
#include "decide.h"

/* The name is how the loader knows it again. */
SEC("xdp.frags")
int tidegate_steer(struct xdp_md *frame)
{
	return decide(frame);
}

/* In libxdp's dispatcher: after programs of the default priority, 50; the next one runs for frames that stay on this CPU. Read by libxdp
 * from the types (`XDP_RUN_CONFIG` of its headers).
 */
struct {
	__uint(priority, 90);
	__uint(XDP_PASS, 1);
} _tidegate_steer SEC(".xdp_run_config");

char LICENSE[] SEC("license") = "GPL";
