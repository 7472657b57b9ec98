/* Histograms with the buckets of the host switch: log-linear, 32 buckets per power of two up to 2^35 ns. */
#pragma once

#include <linux/types.h>

#include <bpf/bpf_helpers.h>

#define SUB_BITS 5
#define SUB (1 << SUB_BITS)
#define MAX_BITS 35
#define BUCKETS ((MAX_BITS - SUB_BITS + 1) * SUB)

static __always_inline __u32 log2_of(__u64 value)
{
	__u32 bits = 0;

	for (__u32 step = 32; step; step >>= 1) {
		if (value >> step) {
			value >>= step;
			bits += step;
		}
	}
	return bits;
}

/* Not inline, so that it is verified once: in a loop its branches would be followed at each turn. */
__noinline __u32 bucket(__u64 value)
{
	if (value >> MAX_BITS)
		value = (1ULL << MAX_BITS) - 1;
	if (value < SUB)
		return value;
	__u32 exponent = log2_of(value) - SUB_BITS;
	return (exponent + 1) * SUB + (value >> exponent) - SUB;
}
