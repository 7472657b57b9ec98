/* Shared with the agent's side, src/noise.rs, which repeats it. */
#pragma once

#include <linux/types.h>

/* What kept a worker from its CPU, or its CPU from the worker. */
enum noise {
	/* Another task ran while the worker was to run. */
	NOISE_TASK,
	/* The CPU was idle although there was something to run. */
	NOISE_IDLE,
	NOISE_SOFTIRQ,
	NOISE_INTERRUPT,
	/* The host of this virtual machine ran something else. */
	NOISE_STOLEN,
};

/* Longest name of a task or interrupt that is kept, with its NUL. */
#define NAME 16

struct interval {
	/* CLOCK_MONOTONIC, ns. */
	__u64 from;
	__u64 to;
	/* enum noise. */
	__u32 kind;
	/* Number of the worker. */
	__u32 worker;
	__u32 cpu;
	/* Of the task that ran. */
	__u32 pid;
	/* Of the softirq, or the interrupt. */
	__u32 number;
	/* The worker itself ran. */
	__u32 own;
	/* Of the task that ran, or of the interrupt. */
	char name[NAME];
};
