/* Flows of UDP datagrams from one network namespace to another, each sender and receiver on a CPU, or on any (-1).
 *
 *   flows NETNS_FROM NETNS_TO SECONDS BYTES FLOW...      FLOW = NAME,CPU_FROM,CPU_TO,ADDRESS_FROM,ADDRESS_TO,PORT,WINDOW
 *
 * A sender has at most WINDOW datagrams on their way and sleeps until its receiver has taken some; with WINDOW 0 it sends without end.
 * So no queue overflows whose length is above the sum of the windows: what limits a flow is the slowest stage, not a drop.
 * Prints one line of JSON: of each flow what was sent, refused by the kernel, and received in all; and received in the measured time.
 */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <linux/futex.h>
#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#define BATCH 16
#define MOST 64
#define LONGEST 9000
#define WARM_NS 200000000L
#define DRAIN_NS 100000000L
#define PATIENCE_NS 20000000L

enum { BEFORE, WARM, OPEN, DRAIN, CLOSED };

struct flow {
	char name[32], from[64], to[64];
	int cpu_from, cpu_to, port, window, sender, receiver;
	uint64_t sent, refused, received, measured;
	_Alignas(128) atomic_uint taken;
	_Alignas(128) atomic_int waits;
};

static struct flow flows[MOST];
static atomic_int state;
static int bytes;

static void die(const char *what)
{
	perror(what);
	exit(1);
}

static int64_t now_ns(void)
{
	struct timespec t;
	clock_gettime(CLOCK_MONOTONIC, &t);
	return t.tv_sec * 1000000000LL + t.tv_nsec;
}

static void sleep_ns(int64_t ns)
{
	struct timespec t = { ns / 1000000000, ns % 1000000000 };
	nanosleep(&t, NULL);
}

static void begin(int cpu, int at)
{
	cpu_set_t set;
	CPU_ZERO(&set);
	CPU_SET(cpu < 0 ? 0 : cpu, &set);
	if (cpu >= 0 && sched_setaffinity(0, sizeof set, &set))
		die("sched_setaffinity");
	while (atomic_load(&state) < at)
		sleep_ns(100000);
}

static void *send_all(void *of)
{
	struct flow *flow = of;
	static char payload[LONGEST];
	struct iovec part = { payload, bytes };
	struct mmsghdr batch[BATCH] = { 0 };
	for (int i = 0; i < BATCH; i++)
		batch[i].msg_hdr = (struct msghdr){ .msg_iov = &part, .msg_iovlen = 1 };
	begin(flow->cpu_from, WARM);
	uint32_t given_up = 0, seen = 0;
	int64_t since = now_ns();
	while (atomic_load_explicit(&state, memory_order_relaxed) < DRAIN) {
		uint32_t taken = atomic_load(&flow->taken);
		int32_t room = flow->window - (int32_t)((uint32_t)flow->sent - given_up - taken);
		if (flow->window && room <= 0) {
			if (taken != seen)
				seen = taken, since = now_ns();
			else if (now_ns() - since > PATIENCE_NS)
				given_up = (uint32_t)flow->sent - taken;
			struct timespec patience = { 0, 1000000 };
			atomic_store(&flow->waits, 1);
			syscall(SYS_futex, &flow->taken, FUTEX_WAIT_PRIVATE, taken, &patience, NULL, 0);
			atomic_store(&flow->waits, 0);
			continue;
		}
		int count = flow->window && room < BATCH ? room : BATCH;
		int done = sendmmsg(flow->sender, batch, count, 0);
		if (done > 0)
			flow->sent += done;
		else if (errno == ENOBUFS || errno == EAGAIN)
			flow->refused++;
		else if (errno != EINTR)
			die("sendmmsg");
	}
	return NULL;
}

static void *receive_all(void *of)
{
	struct flow *flow = of;
	static _Thread_local char buffer[LONGEST];
	struct iovec part = { buffer, sizeof buffer };
	struct mmsghdr batch[BATCH] = { 0 };
	for (int i = 0; i < BATCH; i++)
		batch[i].msg_hdr = (struct msghdr){ .msg_iov = &part, .msg_iovlen = 1 };
	begin(flow->cpu_to, BEFORE);
	while (atomic_load_explicit(&state, memory_order_relaxed) < CLOSED) {
		int done = recvmmsg(flow->receiver, batch, BATCH, MSG_WAITFORONE, NULL);
		if (done <= 0) {
			if (errno != EAGAIN && errno != EINTR)
				die("recvmmsg");
			continue;
		}
		flow->received += done;
		if (atomic_load_explicit(&state, memory_order_relaxed) == OPEN)
			flow->measured += done;
		atomic_fetch_add(&flow->taken, done);
		if (atomic_load(&flow->waits))
			syscall(SYS_futex, &flow->taken, FUTEX_WAKE_PRIVATE, 1, NULL, NULL, 0);
	}
	return NULL;
}

static void enter(const char *path)
{
	int file = open(path, O_RDONLY | O_CLOEXEC);
	if (file < 0 || setns(file, CLONE_NEWNET))
		die(path);
	close(file);
}

static struct sockaddr_in address(const char *text, int port)
{
	struct sockaddr_in it = { .sin_family = AF_INET, .sin_port = htons(port) };
	if (inet_pton(AF_INET, text, &it.sin_addr) != 1) {
		fprintf(stderr, "%s: no IPv4 address\n", text);
		exit(2);
	}
	return it;
}

static int opened(const char *from, const char *to, int port)
{
	int socket_ = socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0);
	struct sockaddr_in own = address(from, to ? 0 : port);
	int room = 8 << 20;
	struct timeval look = { 0, 20000 };
	if (socket_ < 0 || bind(socket_, (struct sockaddr *)&own, sizeof own))
		die("socket");
	setsockopt(socket_, SOL_SOCKET, SO_RCVBUFFORCE, &room, sizeof room);
	setsockopt(socket_, SOL_SOCKET, SO_RCVTIMEO, &look, sizeof look);
	if (to) {
		struct sockaddr_in peer = address(to, port);
		if (connect(socket_, (struct sockaddr *)&peer, sizeof peer))
			die("connect");
	}
	return socket_;
}

int main(int argc, char **argv)
{
	int count = argc - 5;
	if (count < 1 || count > MOST || (bytes = atoi(argv[4])) < 1 || bytes > LONGEST) {
		fprintf(stderr, "usage: flows NETNS_FROM NETNS_TO SECONDS BYTES NAME,CPU,CPU,FROM,TO,PORT,WINDOW...\n");
		return 2;
	}
	for (int i = 0; i < count; i++) {
		struct flow *flow = &flows[i];
		if (sscanf(argv[5 + i], "%31[^,],%d,%d,%63[^,],%63[^,],%d,%d", flow->name, &flow->cpu_from, &flow->cpu_to, flow->from,
			   flow->to, &flow->port, &flow->window) != 7) {
			fprintf(stderr, "%s: no flow\n", argv[5 + i]);
			return 2;
		}
	}
	enter(argv[2]);
	for (int i = 0; i < count; i++)
		flows[i].receiver = opened(flows[i].to, NULL, flows[i].port);
	enter(argv[1]);
	for (int i = 0; i < count; i++)
		flows[i].sender = opened(flows[i].from, flows[i].to, flows[i].port);
	pthread_t threads[2 * MOST];
	for (int i = 0; i < count; i++)
		if (pthread_create(&threads[2 * i], NULL, receive_all, &flows[i]) ||
		    pthread_create(&threads[2 * i + 1], NULL, send_all, &flows[i]))
			die("pthread_create");
	atomic_store(&state, WARM);
	sleep_ns(WARM_NS);
	int64_t from = now_ns();
	atomic_store(&state, OPEN);
	sleep_ns((int64_t)(atof(argv[3]) * 1e9));
	int64_t span = now_ns() - from;
	atomic_store(&state, DRAIN);
	sleep_ns(DRAIN_NS);
	atomic_store(&state, CLOSED);
	for (int i = 0; i < 2 * count; i++)
		pthread_join(threads[i], NULL);
	printf("{\"seconds\": %.6f, \"flows\": [", span / 1e9);
	for (int i = 0; i < count; i++)
		printf("%s{\"name\": \"%s\", \"sent\": %lu, \"refused\": %lu, \"received\": %lu, \"measured\": %lu}", i ? ", " : "",
		       flows[i].name, flows[i].sent, flows[i].refused, flows[i].received, flows[i].measured);
	printf("]}\n");
	return 0;
}
