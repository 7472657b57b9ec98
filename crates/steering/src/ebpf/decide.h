/* Where a frame goes: its flow's entry, else the CPUs for unmatched flows. All is counted for the CPU that runs this. */
#pragma once

#include "parse.h"

/* Of entries; the loader sets the number. Without memory beforehand: an entry takes it when it comes. */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__uint(max_entries, 1);
	__type(key, union key);
	__type(value, struct target);
} flows SEC(".maps");

struct only_settings {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	/* Types here would be without members to the loader. */
	__uint(key_size, sizeof(__u32));
	__uint(value_size, sizeof(struct settings));
};

/* The settings in force. A look-up sees one of them as a whole. */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY_OF_MAPS);
	__uint(max_entries, 1);
	__type(key, __u32);
	__array(values, struct only_settings);
} in_force SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_CPUMAP);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct bpf_cpumap_val);
} cpus SEC(".maps");

/* By `counter` of the target; the loader sets the number. */
struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct count);
} entries SEC(".maps");

/* By CPU to which they went; the loader sets the number. By entries. */
struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct count);
} sent SEC(".maps");

/* The same, by their hash. */
struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct count);
} spread_to SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, OUTCOMES);
	__type(key, __u32);
	__type(value, struct count);
} outcomes SEC(".maps");

static __always_inline void count(void *map, __u32 which, __u64 bytes)
{
	struct count *count = bpf_map_lookup_elem(map, &which);

	if (!count)
		return;
	count->frames++;
	count->bytes += bytes;
}

static __always_inline const struct settings *settings_in_force(void)
{
	__u32 only = 0;
	void *inner = bpf_map_lookup_elem(&in_force, &only);

	return inner ? bpf_map_lookup_elem(inner, &only) : 0;
}

static __always_inline const struct target *entry_of(const struct settings *settings, union key *key)
{
	const struct target *target;

	if (settings->exact) {
		/* Exact entries are for all senders. */
		__u8 peer = key->flow.peer;

		key->flow.peer = 0;
		target = bpf_map_lookup_elem(&flows, key);
		if (target)
			return target;
		key->flow.peer = peer;
	}
	/* So that the number of a mask remains. */
	key->flow.mask = ~0U;
	for (__u32 i = 0; i < MASKS; i++) {
		union key masked;

		if (i >= settings->masked)
			break;
#pragma unroll
		for (int word = 0; word < KEY_WORDS; word++)
			masked.words[word] = key->words[word] & settings->masks[i].words[word];
		target = bpf_map_lookup_elem(&flows, &masked);
		if (target)
			return target;
	}
	return 0;
}

/* A multiplication by an odd number and a shift for each word. */
static __always_inline __u64 mixed(__u64 hash, __u64 word)
{
	hash = (hash ^ word) * 0x9e3779b97f4a7c15ULL;
	return hash ^ hash >> 32;
}

/* Of the addresses, the protocol, the ports and the number of the tunnel. */
static __always_inline __u32 place_of(const union key *key, __u64 seed)
{
	const struct flow *flow = &key->flow;
	__u64 hash = seed;

#pragma unroll
	for (int word = 0; word < 4; word++)
		hash = mixed(hash, key->words[word]);
	hash = mixed(hash, (__u64)flow->id << 8 | flow->protocol);
	hash = mixed(hash, (__u64)flow->from_port << 16 | flow->to_port);
	/* The upper bits depend on all lower ones. */
	return (hash * 0xbf58476d1ce4e5b9ULL) >> (64 - PLACES_BITS);
}

/* What the frame shall do; counts it in `sent`. `outcome` stays, unless there is no such CPU. */
static __always_inline int to_cpu(__u32 cpu, void *sent, int *outcome, __u64 bytes)
{
	/* It is there: no need to wake the CPU's thread. */
	int action = XDP_PASS;

	if (cpu != bpf_get_smp_processor_id()) {
		action = bpf_redirect_map(&cpus, cpu, XDP_PASS);
		if (action != XDP_REDIRECT) {
			*outcome = NO_TARGET;
			return action;
		}
	}
	count(sent, cpu, bytes);
	return action;
}

static __always_inline int decide(struct xdp_md *frame)
{
	const struct settings *settings = settings_in_force();
	__u64 bytes = bpf_xdp_get_buff_len(frame);
	int outcome, action = XDP_PASS;
	const struct target *target;
	union key key;

	if (!settings)
		return XDP_PASS;
	outcome = parse(frame, settings->vxlan_port, settings->peers, &key);
	if (!outcome) {
		target = entry_of(settings, &key);
		if (target) {
			count(&entries, target->counter, bytes);
			action = to_cpu(target->cpu, &sent, &outcome, bytes);
		} else if (settings->spread) {
			outcome = SPREAD;
			action = to_cpu(settings->places[place_of(&key, settings->seed)], &spread_to, &outcome,
					bytes);
		} else {
			outcome = UNMATCHED;
		}
	}
	count(&outcomes, outcome, bytes);
	return action;
}
