/* Slows a core down by a known share: every 200 us it takes 20 us of it.
 *
 *   brake CPU PERIOD_US BURN_US      until standard input ends; then prints the share it really had
 *
 * The pauses are so short that a ring of 1024 entries bridges them: a switch with headroom loses nothing. One
 * without loses the share that the brake had.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <poll.h>
#include <sched.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/mman.h>
#include <time.h>

static int64_t ns(clockid_t clock)
{
	struct timespec t;
	clock_gettime(clock, &t);
	return t.tv_sec * 1000000000LL + t.tv_nsec;
}

int main(int argc, char **argv)
{
	if (argc != 4) {
		fprintf(stderr, "usage: brake CPU PERIOD_US BURN_US\n");
		return 2;
	}
	int64_t period = atoll(argv[2]) * 1000, burn = atoll(argv[3]) * 1000;
	struct sched_param first = {.sched_priority = 50};
	cpu_set_t set;
	CPU_ZERO(&set);
	CPU_SET(atoi(argv[1]), &set);
	if (sched_setaffinity(0, sizeof set, &set) || sched_setscheduler(0, SCHED_FIFO, &first)) {
		fprintf(stderr, "brake: %s (SCHED_FIFO needs root)\n", strerror(errno));
		return 1;
	}
	prctl(PR_SET_TIMERSLACK, 1);
	mlockall(MCL_CURRENT | MCL_FUTURE);

	int64_t began = ns(CLOCK_MONOTONIC), had = ns(CLOCK_PROCESS_CPUTIME_ID), next = began;
	struct pollfd input = {.fd = 0, .events = POLLIN};
	for (unsigned turn = 0;; turn++) {
		int64_t until = ns(CLOCK_MONOTONIC) + burn;
		while (ns(CLOCK_MONOTONIC) < until)
			;
		if (turn % 64 == 0 && poll(&input, 1, 0) > 0)
			break;
		next += period;
		/* If late, skip the missed pauses. */
		if (next < until)
			next = until;
		struct timespec at = {next / 1000000000, next % 1000000000};
		clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &at, NULL);
	}
	printf("%.4f\n", (double)(ns(CLOCK_PROCESS_CPUTIME_ID) - had) / (double)(ns(CLOCK_MONOTONIC) - began));
	return 0;
}
