/* Frames that a CPU's queue had no room for, or that its thread could not take. The kernel tells of them by tracepoints alone.
 *
 *   xdp_cpumap_enqueue: each batch of up to 8 frames ─┐
 *   xdp_cpumap_kthread: each batch that a thread took ┴─▶ `dropped`, by CPU
 */
#include <linux/bpf.h>

#include <bpf/bpf_helpers.h>

/* Of the map `cpus` that is watched. */
const volatile __u32 map_id;

struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, __u64);
} dropped SEC(".maps");

static __always_inline int add(__u64 map, __u32 cpu, __u32 drops)
{
	__u64 *count;

	if ((__u32)map != map_id || !drops)
		return 0;
	count = bpf_map_lookup_elem(&dropped, &cpu);
	if (count)
		*count += drops;
	return 0;
}

/* Arguments: map, frames, drops, CPU (include/trace/events/xdp.h). */
SEC("raw_tp/xdp_cpumap_enqueue")
int queue_full(struct bpf_raw_tracepoint_args *event)
{
	return add(event->args[0], event->args[3], event->args[2]);
}

/* Arguments: map, frames, drops, ... On the CPU itself. */
SEC("raw_tp/xdp_cpumap_kthread")
int not_taken(struct bpf_raw_tracepoint_args *event)
{
	return add(event->args[0], bpf_get_smp_processor_id(), event->args[2]);
}

char LICENSE[] SEC("license") = "GPL";
