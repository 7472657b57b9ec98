/* One cache line from one CPU to another and back: how far apart they are.
 *
 *   pingpong CPU CPU      prints the median over 64 batches, ns per round trip; about 10 ms
 */
#define _GNU_SOURCE
#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

#define BATCHES 64
#define ROUNDS 1000

static _Alignas(128) atomic_int line;
static atomic_int ready;

static void pin(int cpu)
{
	cpu_set_t set;
	CPU_ZERO(&set);
	CPU_SET(cpu, &set);
	if (sched_setaffinity(0, sizeof set, &set)) {
		perror("sched_setaffinity");
		exit(1);
	}
}

static void *answer(void *cpu)
{
	pin(*(int *)cpu);
	atomic_store(&ready, 1);
	for (int i = 0; i < BATCHES * ROUNDS; i++) {
		while (atomic_load_explicit(&line, memory_order_acquire) != 2 * i + 1)
			;
		atomic_store_explicit(&line, 2 * i + 2, memory_order_release);
	}
	return NULL;
}

static int64_t now_ns(void)
{
	struct timespec t;
	clock_gettime(CLOCK_MONOTONIC, &t);
	return t.tv_sec * 1000000000LL + t.tv_nsec;
}

static int order(const void *a, const void *b)
{
	double d = *(const double *)a - *(const double *)b;
	return (d > 0) - (d < 0);
}

int main(int argc, char **argv)
{
	if (argc != 3) {
		fprintf(stderr, "usage: pingpong CPU CPU\n");
		return 2;
	}
	int near = atoi(argv[1]), far = atoi(argv[2]);
	double ns[BATCHES];
	pthread_t other;
	pin(near);
	if (pthread_create(&other, NULL, answer, &far))
		return 1;
	while (!atomic_load(&ready))
		;
	for (int b = 0, i = 0; b < BATCHES; b++) {
		int64_t began = now_ns();
		for (int r = 0; r < ROUNDS; r++, i++) {
			atomic_store_explicit(&line, 2 * i + 1, memory_order_release);
			while (atomic_load_explicit(&line, memory_order_acquire) != 2 * i + 2)
				;
		}
		ns[b] = (double)(now_ns() - began) / ROUNDS;
	}
	pthread_join(other, NULL);
	qsort(ns, BATCHES, sizeof *ns, order);
	printf("%.1f\n", ns[BATCHES / 2]);
	return 0;
}
