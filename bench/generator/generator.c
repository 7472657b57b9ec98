/* Two guests on one core: A sends as fast as its ring takes it, B receives.
 *
 *              ┌ frames built once, sent again and again      ┌ counted, freed
 *   guest A ───┴──▶ net_virtio_user0 ──▶ switch ──▶ net_virtio_user1 ──┴── guest B
 *
 *   generator EAL-OPTIONS -- [listen]    the two ports are the EAL's --vdev net_virtio_user0 and 1
 *
 * Reads commands from stdin, one a line:
 *
 *   run [KEY=NUMBER]...    one measurement; then a JSON line per window, and one with "done"
 *   quit                   (or end of file)
 *
 *   size=64        bytes of a frame, without FCS
 *   ms=500         how long is measured
 *   warm_ms=30     how long it runs before
 *   window_ms=50   length of a window
 *   flows=1        5-tuples (by UDP ports), taken in turn
 *   macs=1         destination MACs, taken in turn: B's own and those after it
 *   rewrite=0      1: write UDP ports and MAC into every frame just before it is sent. So it is in any case
 *                  where there are more flows or MACs than frames built. To compare few and many, set it for both
 *   rate=0         frames per second and direction; 0: as many as the ring takes
 *   both=0         1: B sends to A as well
 *   verify=0       1: sequence numbers in the payload, and every received frame is checked
 *   pid=0 tid=0    the switch's forwarding thread: its schedstat is read at every window
 *
 * "ring_full" is the share of A's turns in which its ring had no room: a generator that is fast enough waits
 * for the switch most of the time.
 *
 * B sends a frame from each of its MACs first, and one every 100 ms, for switches that learn.
 */
#include <ctype.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <rte_byteorder.h>
#include <rte_cycles.h>
#include <rte_eal.h>
#include <rte_ethdev.h>
#include <rte_ether.h>
#include <rte_ip.h>
#include <rte_mbuf.h>
#include <rte_mempool.h>
#include <rte_prefetch.h>
#include <rte_udp.h>
#include <signal.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define BURST 32
#define RING 1024
/* What the ring and the pool's cache hold, and a little more. */
#define TX_FRAMES 2047
#define RX_FRAMES 4095
#define CACHE 256
#define ROOM (RTE_PKTMBUF_HEADROOM + 1536)
#define MAX_SIZE 1518
#define ANNOUNCED 64
#define NOT_COUNTED UINT64_MAX
/* Most windows of a run. */
#define WINDOWS 8192

struct frame {
	struct rte_ether_hdr eth;
	struct rte_ipv4_hdr ip;
	struct rte_udp_hdr udp;
	/* Written with verify=1; what follows is pattern. */
	uint64_t sequence;
} __rte_packed __rte_aligned(2);

struct run {
	uint64_t size, ms, warm_ms, window_ms, flows, macs, rewrite, rate, both, verify, pid, tid;
};

/* One guest: its frames to send, and its counts of received ones. */
struct guest {
	uint16_t port;
	struct rte_ether_addr mac;
	const struct guest *peer;
	struct rte_mempool *tx, *rx;
	/* Frames taken from the pool that the ring had no room for. */
	struct rte_mbuf *held[BURST];
	/* Frames of the next burst: what is written into them is fetched while this one is sent. */
	struct rte_mbuf *ahead[BURST];
	uint16_t holding, waiting;
	uint64_t sent, next_flow, next_mac, next_sequence, due_tsc;
	/* Turns in which it wanted to send, and in which its ring had no room for all. */
	uint64_t turns, turns_full;
	uint64_t received, bytes, wrong, out_of_order, expected_sequence;
};

/* Counters at the end of a window. */
struct mark {
	uint64_t tsc, sent, received, bytes, gap;
	uint64_t own_wait, switch_ran, switch_wait;
};

static struct guest guests[2];
static struct mark marks[WINDOWS + 1];
static uint64_t hz;
/* The payload byte at each offset behind the headers. */
static uint8_t pattern[MAX_SIZE];
/* Which run a frame was built for; in mbuf.hash.usr, which no driver touches when sending. */
static uint32_t generation;

static void fail(const char *what, int error)
{
	fprintf(stderr, "generator: %s: %s\n", what, strerror(error < 0 ? -error : error));
	exit(1);
}

static void low_bits(struct rte_ether_addr *mac, uint32_t add)
{
	uint32_t low = (uint32_t)mac->addr_bytes[3] << 16 | mac->addr_bytes[4] << 8 | mac->addr_bytes[5];
	low += add;
	mac->addr_bytes[3] = low >> 16;
	mac->addr_bytes[4] = low >> 8;
	mac->addr_bytes[5] = low;
}

/* ---- frames ---- */

static void build(struct rte_mbuf *m, const struct guest *from, unsigned size)
{
	struct frame *f;
	m->data_off = RTE_PKTMBUF_HEADROOM;
	m->data_len = size;
	m->pkt_len = size;
	m->ol_flags = 0;
	m->hash.usr = generation;
	f = rte_pktmbuf_mtod(m, struct frame *);
	f->eth.src_addr = from->mac;
	f->eth.dst_addr = from->peer->mac;
	f->eth.ether_type = rte_cpu_to_be_16(RTE_ETHER_TYPE_IPV4);
	f->ip = (struct rte_ipv4_hdr){
		.version_ihl = 0x45,
		.total_length = rte_cpu_to_be_16(size - sizeof f->eth),
		.time_to_live = 64,
		.next_proto_id = IPPROTO_UDP,
		.src_addr = rte_cpu_to_be_32(0x0a000000 | (from->port + 1)),
		.dst_addr = rte_cpu_to_be_32(0x0a000000 | (from->peer->port + 1)),
	};
	f->ip.hdr_checksum = rte_ipv4_cksum(&f->ip);
	/* No UDP checksum, as IPv4 allows: so ports can change alone. */
	f->udp = (struct rte_udp_hdr){
		.src_port = rte_cpu_to_be_16(1024),
		.dst_port = rte_cpu_to_be_16(1024),
		.dgram_len = rte_cpu_to_be_16(size - sizeof f->eth - sizeof f->ip),
	};
	f->sequence = 0;
	memcpy(f + 1, pattern + sizeof *f, size - sizeof *f);
}

/* 10,000 source ports for each destination port. */
static inline void set_flow(struct frame *f, uint32_t flow)
{
	f->udp.src_port = rte_cpu_to_be_16(1024 + flow % 10000);
	f->udp.dst_port = rte_cpu_to_be_16(1024 + flow / 10000);
}

static inline void set_mac(struct frame *f, const struct rte_ether_addr *base, uint32_t add)
{
	f->eth.dst_addr = *base;
	low_bits(&f->eth.dst_addr, add);
}

static inline void vary(struct guest *g, struct rte_mbuf *m, const struct run *r)
{
	struct frame *f = rte_pktmbuf_mtod(m, struct frame *);
	set_flow(f, g->next_flow);
	if (++g->next_flow >= r->flows)
		g->next_flow = 0;
	if (g == &guests[0]) {
		set_mac(f, &g->peer->mac, g->next_mac);
		if (++g->next_mac >= r->macs)
			g->next_mac = 0;
	}
	if (r->verify)
		f->sequence = g->next_sequence++;
}

static void check(struct guest *g, struct rte_mbuf *m, const struct run *r)
{
	const struct frame *f = rte_pktmbuf_mtod(m, const struct frame *);
	/* Announcements have a size of their own. */
	if (m->pkt_len == ANNOUNCED && f->sequence == NOT_COUNTED)
		return;
	bool right = m->pkt_len == r->size && m->data_len == r->size && m->nb_segs == 1 &&
		     rte_is_same_ether_addr(&f->eth.src_addr, &g->peer->mac) &&
		     !memcmp(&f->eth.dst_addr, &g->mac, 3) &&
		     f->eth.ether_type == rte_cpu_to_be_16(RTE_ETHER_TYPE_IPV4) &&
		     !memcmp(f + 1, pattern + sizeof *f, r->size - sizeof *f);
	if (!right) {
		if (g->wrong++ == 0)
			fprintf(stderr, "generator: first frame that is wrong: %u bytes at guest %u, sequence %" PRIu64 "\n",
				m->pkt_len, g->port, f->sequence);
		return;
	}
	/* A gap is a loss, which the counts tell; going back is a reordering. */
	if (f->sequence < g->expected_sequence)
		g->out_of_order++;
	else
		g->expected_sequence = f->sequence + 1;
}

/* ---- one step of a guest ---- */

static inline void take_ahead(struct guest *g, bool writes, uint16_t want)
{
	if (rte_mempool_get_bulk(g->tx, (void **)g->ahead, want))
		return;
	g->waiting = want;
	for (uint16_t i = 0; writes && i < want; i++)
		rte_prefetch0_write((char *)g->ahead[i]->buf_addr + RTE_PKTMBUF_HEADROOM);
}

static inline void send_burst(struct guest *g, const struct run *r, bool writes, uint16_t want)
{
	if (g->holding == 0) {
		if (!g->waiting)
			take_ahead(g, writes, want);
		memcpy(g->held, g->ahead, g->waiting * sizeof *g->held);
		g->holding = g->waiting;
		g->waiting = 0;
		take_ahead(g, writes, want);
		for (uint16_t i = 0; i < g->holding; i++) {
			struct rte_mbuf *m = g->held[i];
			/* Some of the driver's ways to send move these. */
			m->data_off = RTE_PKTMBUF_HEADROOM;
			m->data_len = r->size;
			m->pkt_len = r->size;
			if (unlikely(m->hash.usr != generation)) {
				build(m, g, r->size);
				/* Built once, kept: the flow is that of the frame's turn. */
				vary(g, m, r);
			} else if (writes) {
				vary(g, m, r);
			}
		}
	}
	uint16_t sent = rte_eth_tx_burst(g->port, 0, g->held, g->holding);
	g->sent += sent;
	g->turns++;
	g->turns_full += sent < g->holding;
	g->holding -= sent;
	if (g->holding && sent)
		memmove(g->held, g->held + sent, g->holding * sizeof *g->held);
}

static inline void send_some(struct guest *g, const struct run *r, bool writes, uint64_t now)
{
	uint16_t want = BURST;
	if (r->rate) {
		if (now < g->due_tsc)
			return;
		/* One frame at a time up to 1 Mpps, so that they are paced and not bunched. */
		want = r->rate > 1000000 ? BURST : 1;
		g->due_tsc += hz * want / r->rate;
		if (now > g->due_tsc + hz / 1000) /* stopped for long: no catching up */
			g->due_tsc = now;
	}
	send_burst(g, r, writes, want);
}

static inline uint16_t receive_some(struct guest *g, const struct run *r)
{
	struct rte_mbuf *frames[BURST];
	uint16_t count = rte_eth_rx_burst(g->port, 0, frames, BURST);
	if (!count)
		return 0;
	uint64_t bytes = 0;
	for (uint16_t i = 0; i < count; i++) {
		bytes += frames[i]->pkt_len;
		if (unlikely(r->verify))
			check(g, frames[i], r);
	}
	g->received += count;
	g->bytes += bytes;
	/* Without mergeable buffers each frame is one mbuf, held by no other owner. */
	rte_mempool_put_bulk(g->rx, (void **)frames, count);
	return count;
}

/* Frames from `count` of B's MACs, beginning with number `first`, to A. */
static void announce(const struct run *r, uint32_t first, uint32_t count)
{
	struct guest *b = &guests[1];
	for (uint32_t i = 0; i < count; i++) {
		struct rte_mbuf *m = rte_pktmbuf_alloc(b->tx);
		if (!m)
			return;
		build(m, b, ANNOUNCED);
		/* Not one of those that are sent again as they are. */
		m->hash.usr = 0;
		struct frame *f = rte_pktmbuf_mtod(m, struct frame *);
		f->sequence = NOT_COUNTED;
		low_bits(&f->eth.src_addr, (first + i) % r->macs);
		uint64_t until = rte_rdtsc() + hz / 100;
		while (!rte_eth_tx_burst(b->port, 0, &m, 1)) {
			receive_some(&guests[0], r);
			if (rte_rdtsc() > until) {
				rte_pktmbuf_free(m);
				return;
			}
		}
		receive_some(&guests[0], r);
	}
}

/* ---- time of the scheduler ---- */

struct schedstat {
	uint64_t ran, wait;
};

static struct schedstat schedstat(int fd)
{
	char text[128];
	struct schedstat s = {0, 0};
	ssize_t got = fd < 0 ? 0 : pread(fd, text, sizeof text - 1, 0);
	if (got > 0) {
		text[got] = 0;
		sscanf(text, "%" SCNu64 " %" SCNu64, &s.ran, &s.wait);
	}
	return s;
}

static struct mark mark(uint64_t tsc, uint64_t gap, int own, int other)
{
	struct schedstat of_switch = schedstat(other);
	return (struct mark){
		.tsc = tsc,
		.sent = guests[0].sent + guests[1].sent,
		.received = guests[0].received + guests[1].received,
		.bytes = guests[0].bytes + guests[1].bytes,
		.gap = gap,
		.own_wait = schedstat(own).wait,
		.switch_ran = of_switch.ran,
		.switch_wait = of_switch.wait,
	};
}

static double us(uint64_t tsc)
{
	return tsc * 1e6 / hz;
}

/* ---- a run ---- */

/* Receive until no frame came for 5 ms: frames on their way belong to the run that sent them. */
static void drain(const struct run *r)
{
	for (uint64_t until = rte_rdtsc() + hz / 200; rte_rdtsc() < until;) {
		if (receive_some(&guests[0], r) + receive_some(&guests[1], r))
			until = rte_rdtsc() + hz / 200;
	}
}

static void measure(struct run r)
{
	struct guest *a = &guests[0], *b = &guests[1];
	char path[64];
	int own, other = -1;
	unsigned windows = 0;
	bool writes = r.rewrite || r.verify || r.flows > TX_FRAMES / 4 || r.macs > TX_FRAMES / 4;

	generation++;
	own = open("/proc/self/schedstat", O_RDONLY);
	if (r.pid) {
		snprintf(path, sizeof path, "/proc/%" PRIu64 "/task/%" PRIu64 "/schedstat", r.pid,
			 r.tid ? r.tid : r.pid);
		other = open(path, O_RDONLY);
		if (other < 0)
			fail(path, errno);
	}
	drain(&(struct run){0});
	for (unsigned i = 0; i < 2; i++) {
		struct guest *g = &guests[i];
		rte_mempool_put_bulk(g->tx, (void **)g->held, g->holding);
		rte_mempool_put_bulk(g->tx, (void **)g->ahead, g->waiting);
		g->holding = g->waiting = 0;
		g->next_flow = g->next_mac = g->next_sequence = g->expected_sequence = 0;
		g->wrong = g->out_of_order = 0;
		g->turns = g->turns_full = 0;
	}
	announce(&r, 0, r.macs);

	uint64_t began = rte_rdtsc(), start = began + hz / 1000 * r.warm_ms, end = start + hz / 1000 * r.ms;
	uint64_t window = hz / 1000 * r.window_ms, closes = start, last = began, gap = 0;
	uint64_t announces = began, next_announced = 0;
	bool started = false;
	a->due_tsc = b->due_tsc = began;
	for (;;) {
		uint64_t now = rte_rdtsc();
		gap = RTE_MAX(gap, now - last);
		last = now;
		if (unlikely(now >= closes)) {
			marks[started ? ++windows : 0] = mark(now, gap, own, other);
			started = true;
			if (now >= end || windows == WINDOWS)
				break;
			closes = RTE_MIN(now + window, end);
			/* Not the time this took. */
			last = rte_rdtsc();
			gap = 0;
		}
		if (unlikely(now >= announces)) {
			announces = now + hz / 10;
			announce(&r, next_announced++, 1);
		}
		send_some(a, &r, writes, now);
		if (r.both) {
			send_some(b, &r, writes, now);
			receive_some(a, &r);
		}
		receive_some(b, &r);
	}
	for (unsigned i = 1; i <= windows; i++) {
		const struct mark *m = &marks[i], *p = &marks[i - 1];
		printf("{\"us\": %.1f, \"sent\": %" PRIu64 ", \"received\": %" PRIu64 ", \"bytes\": %" PRIu64
		       ", \"gap_us\": %.1f, \"own_wait_us\": %.1f, \"switch_ran_us\": %.1f, \"switch_wait_us\": %.1f}\n",
		       us(m->tsc - p->tsc), m->sent - p->sent, m->received - p->received, m->bytes - p->bytes,
		       us(m->gap), (m->own_wait - p->own_wait) / 1e3, (m->switch_ran - p->switch_ran) / 1e3,
		       (m->switch_wait - p->switch_wait) / 1e3);
	}
	drain(&r);
	printf("{\"done\": true, \"wrong\": %" PRIu64 ", \"out_of_order\": %" PRIu64 ", \"ring_full\": %.4f}\n",
	       a->wrong + b->wrong, a->out_of_order + b->out_of_order,
	       (double)a->turns_full / RTE_MAX(a->turns, 1u));
	fflush(stdout);
	close(own);
	if (other >= 0)
		close(other);
}

static bool parse(char *words, struct run *r)
{
	const struct {
		const char *name;
		uint64_t *value;
	} keys[] = {
		{"size", &r->size},	  {"ms", &r->ms},	{"warm_ms", &r->warm_ms}, {"window_ms", &r->window_ms},
		{"flows", &r->flows},	  {"macs", &r->macs},	{"rewrite", &r->rewrite}, {"rate", &r->rate},
		{"both", &r->both},	  {"verify", &r->verify}, {"pid", &r->pid},	  {"tid", &r->tid},
	};
	for (char *word = strtok(words, " \n"); word; word = strtok(NULL, " \n")) {
		char *value = strchr(word, '='), *end = NULL;
		bool known = false;
		if (value) {
			*value++ = 0;
			for (unsigned i = 0; i < RTE_DIM(keys); i++) {
				if (!strcmp(word, keys[i].name)) {
					*keys[i].value = strtoull(value, &end, 10);
					known = end != value && !*end;
				}
			}
		}
		if (!known) {
			printf("{\"error\": \"do not understand '%s'\"}\n", word);
			return false;
		}
	}
	if (r->size < 64 || r->size > MAX_SIZE || !r->flows || r->flows > 640000000 || !r->macs || r->macs > 65536 ||
	    !r->window_ms || !r->ms) {
		printf("{\"error\": \"out of range\"}\n");
		return false;
	}
	return true;
}

/* ---- ports ---- */

static struct rte_mempool *pool(const char *kind, unsigned number, unsigned frames)
{
	char name[32];
	struct rte_mempool *made;
	snprintf(name, sizeof name, "%s%u", kind, number);
	made = rte_pktmbuf_pool_create(name, frames, CACHE, 0, ROOM, SOCKET_ID_ANY);
	if (!made)
		fail("memory for frames", rte_errno);
	return made;
}

static void open_port(struct guest *g, unsigned number)
{
	struct rte_eth_conf plain = {0};
	int error;
	g->port = number;
	g->peer = &guests[!number];
	g->tx = pool("tx", number, TX_FRAMES);
	g->rx = pool("rx", number, RX_FRAMES);
	if ((error = rte_eth_dev_configure(number, 1, 1, &plain)) ||
	    (error = rte_eth_rx_queue_setup(number, 0, RING, SOCKET_ID_ANY, NULL, g->rx)) ||
	    (error = rte_eth_tx_queue_setup(number, 0, RING, SOCKET_ID_ANY, NULL)) ||
	    (error = rte_eth_dev_start(number)) || (error = rte_eth_macaddr_get(number, &g->mac)))
		fail("port", error);
}

int main(int argc, char **argv)
{
	char line[512];
	int error = rte_eal_init(argc, argv);
	if (error < 0)
		fail("EAL", rte_errno);
	if (rte_eth_dev_count_avail() != 2) {
		fprintf(stderr, "generator: two ports are needed, there are %u\n", rte_eth_dev_count_avail());
		return 1;
	}
	hz = rte_get_tsc_hz();
	for (unsigned at = 0; at < MAX_SIZE; at++)
		pattern[at] = at * 7 + 3;
	for (unsigned i = 0; i < 2; i++)
		open_port(&guests[i], i);
	printf("{\"ready\": true}\n");
	fflush(stdout);
	while (fgets(line, sizeof line, stdin)) {
		if (!strncmp(line, "quit", 4))
			break;
		struct run r = {.size = 64, .ms = 500, .warm_ms = 30, .window_ms = 50, .flows = 1, .macs = 1};
		if (strncmp(line, "run", 3))
			printf("{\"error\": \"no such command\"}\n");
		else if (parse(line + 3, &r))
			measure(r);
		fflush(stdout);
	}
	for (unsigned i = 0; i < 2; i++) {
		rte_eth_dev_stop(i);
		rte_eth_dev_close(i);
	}
	rte_eal_cleanup();
	return 0;
}
